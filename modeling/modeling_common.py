"""The model without head, written once for all families: a fair comparison needs the same container.

A family subclasses `LongSequencePreTrainedModel` to name its config and its mixer (`mixer_class`), then the model below
and each head of `heads.py` together with it, and points `model_class` of the former at its model:

    class ToyPreTrainedModel(LongSequencePreTrainedModel):
        config: ToyConfig
        mixer_class = ToyMixer

    class ToyModel(ToyPreTrainedModel, LongSequenceModel):
        pass

    ToyPreTrainedModel.model_class = ToyModel

    class ToyForMaskedLM(ToyPreTrainedModel, LongSequenceForMaskedLM):
        pass

The annotation of `config` is read at run time, so a modeling file does not postpone the evaluation of annotations.

Legend: B batch, L length, H hidden, C channels.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import ModelOutput
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .blocks import Mixer, Norm, Packing, ResidualBlock, SequenceEmbeddings
from .configuration_common import LongSequenceConfig, nearest_name

# Of the arguments of `from_pretrained`, those that say where a file is.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")

# Arguments of `forward` that transformers' decorators read.
FORWARD_OPTIONS = frozenset({"output_attentions", "output_hidden_states", "return_dict"})

# Below this share of kept positions the blocks leave the pads out, which costs a copy for each block that mixes them.
PACKING_SHARE = 0.9


@dataclass
class LongSequenceModelOutput(ModelOutput):
    """Output of `LongSequenceModel`.

    Args:
        last_hidden_state: (B, L, H).
        cache: The states to go on from, if `use_cache` or `cache` was given.
        hidden_states: Tuple of (B, L, H), if asked for.
        attentions: Tuple of (B, heads, L, L), if asked for.
    """

    last_hidden_state: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def check_mask_values(attention_mask: Tensor) -> None:
    """Raise if a mask holds anything but 0 and 1: one to be added to scores would be read the wrong way round."""
    if attention_mask.dtype != torch.bool and bool(((attention_mask != 0) & (attention_mask != 1)).any()):
        raise ValueError(
            f"attention_mask has values from {attention_mask.min():g} to {attention_mask.max():g}, but must be 1 where "
            "a position is kept and 0 where it is padding."
        )


def clean_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Turn a mask (B, L), 1 = keep, into bool, or into None where it keeps everything.

    While a graph is being captured the values cannot be looked at: nothing is checked then and the mask is kept.

    Raises:
        ValueError: If there is another value than 0 and 1, or the kept positions of a row are not one run.
    """
    if attention_mask is None:
        return None
    mask = attention_mask.bool()
    if torch.compiler.is_compiling():
        return mask
    check_mask_values(attention_mask)
    if bool(mask.all()):
        return None
    runs = mask[:, 0].long() + (mask[:, 1:] & ~mask[:, :-1]).sum(1)
    if bool((runs != 1).any()):
        row = int((runs != 1).nonzero()[0, 0])
        raise ValueError(
            f"Row {row} of attention_mask has {int(runs[row])} runs of ones, but must have exactly one: drop empty "
            'sequences and pad on one side only, on the left to generate (tokenizer.padding_side = "left").'
        )
    return mask


def clean_step_mask(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """The part of a mask (B, past + L) that belongs to the last L positions, bool, or None if it keeps all of them.

    Raises:
        ValueError: If a pad stands to the right of a kept position: the state would run through it.
    """
    if attention_mask is None:
        return None
    mask = attention_mask.bool()
    if not torch.compiler.is_compiling():
        check_mask_values(attention_mask)
        if bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise ValueError(
                "attention_mask has pads on the right, but a cache goes on from the last position; pad on the left "
                '(tokenizer.padding_side = "left"), or run each sequence without padding.'
            )
        if bool(mask[:, -length:].all()):
            return None
    return mask[:, -length:]


def check_layers(cache: Any, num_layers: int, kind: type[Cache] = Cache) -> None:
    """Raise if `cache` is none of its kind, or one of another number of layers."""
    if not isinstance(cache, kind) or len(cache.layers) != num_layers:
        layers = f" with {len(cache.layers)} layers" if isinstance(cache, Cache) else ""
        raise ValueError(
            f"cache is a {type(cache).__name__}{layers}, but must be a DynamicCache with {num_layers}, as returned by "
            "a call of this model with use_cache=True; leave out cache_implementation."
        )


def check_batch(state: Tensor, batch: int) -> None:
    """Raise if a cached state is of another number of sequences than the input."""
    if state.shape[0] != batch:
        raise ValueError(
            f"cache holds the states of {state.shape[0]} sequences, but the input has {batch}; "
            "go on with the same batch, or start without a cache."
        )


def positions_read(cache: Cache) -> int | None:
    """Positions that a cache of states alone has read; None if nobody counted, as in a compiled model.

    A state that was put in by hand counts as the start, 0.
    """
    return getattr(cache, "positions_read", 0) if any(cache.layers[0].has_previous_state.values()) else 0


def right_padded_order(mask: Tensor | None) -> Tensor | None:
    """Order of positions that brings each row's kept run to the front, (B, L), or None if it is there already."""
    if mask is None or (not torch.compiler.is_compiling() and bool(mask[:, 0].all())):
        return None
    length = mask.shape[1]
    start = mask.long().argmax(1, keepdim=True)  # (B, 1)
    return (torch.arange(length, device=mask.device) + start) % length


def reorder(x: Tensor, order: Tensor, dim: int = 1) -> Tensor:
    """Take the positions of `x`, which lie along `dim`, in `order`, (B, L)."""
    shape = [order.shape[0]] + [1] * (x.dim() - 1)
    shape[dim] = order.shape[1]
    return x.gather(dim, order.view(shape).expand(x.shape))


def map_states(outputs: LongSequenceModelOutput, change: Callable[[Tensor], Tensor]) -> None:
    """Change the last and all recorded hidden states in place."""
    outputs.last_hidden_state = change(outputs.last_hidden_state)
    if outputs.hidden_states:
        outputs.hidden_states = tuple(h if h is None else change(h) for h in outputs.hidden_states)


class LongSequencePreTrainedModel(PreTrainedModel):
    """What all models of all families share; a family's subclass sets `config`, `mixer_class` and `model_class`."""

    config: LongSequenceConfig
    mixer_class: ClassVar[type[Mixer]]
    model_class: ClassVar[type[PreTrainedModel]]

    # What `forward` of the model without head takes beyond the names in its signature.
    forward_options: ClassVar[frozenset[str]] = FORWARD_OPTIONS

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ResidualBlock"]
    # A state cannot be taken back by some steps, so decoding that guesses ahead is refused.
    _is_stateful = True
    _can_record_outputs = {"hidden_states": ResidualBlock}

    def __init__(self, config: LongSequenceConfig, *inputs: Any, **kwargs: Any) -> None:
        # `from_pretrained(folder, field=value)` changes a config that was checked before.
        config.validate_architecture()
        config.validate_labels()
        config.validate_token_ids()
        super().__init__(config, *inputs, **kwargs)
        # The Trainer counts the work done from the input of this name.
        self.main_input_name = "input_ids" if config.num_channels is None else "input_values"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            # Fan-in scaling, torch's own start and that of the papers' code, in every family and head. One standard
            # deviation for all widths, such as 0.02, is far too small at width 64 and cripples training from scratch.
            bound = module.in_features**-0.5
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.uniform_(module.bias, -bound, bound)
        if hasattr(module, "init_weights") and not isinstance(module, PreTrainedModel):
            module.init_weights()

    def ssm_parameter_names(self) -> list[str]:
        """Names of the parameters that want their own learning rate and no weight decay, as the mixers declare them."""
        declared = {
            f"{prefix}.{leaf}" if prefix else leaf
            for prefix, module in self.named_modules()
            for leaf in getattr(module, "ssm_parameters", ())
        }
        return [name for name, _ in self.named_parameters() if name in declared]

    def tensors_in_float32(self) -> list[tuple[nn.Module, str]]:
        """Parameters and buffers, as a module and a leaf name, that stay in float32 in a model of half precision."""
        owners = [name.rpartition(".") for name in self.ssm_parameter_names()]
        ssm = [(self.get_submodule(prefix), leaf) for prefix, _, leaf in owners]
        others = [
            (module, leaf)
            for module in self.modules()
            for leaf in getattr(module, "float32_tensors", ())
            if leaf in module._parameters or leaf in module._buffers
        ]
        return ssm + others

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Cast and move as always, but keep in float32 what has no meaning in half precision."""
        before = [(module, name, getattr(module, name).data) for module, name in self.tensors_in_float32()]
        super()._apply(fn, recurse)
        for module, name, data in before:
            now = getattr(module, name)
            if now.dtype in (torch.float16, torch.bfloat16):
                now.data = data.to(now.device, torch.float32)
        return self

    @classmethod
    def _from_config(cls, config: LongSequenceConfig, **kwargs: Any) -> Any:
        """As in transformers, but half precision is drawn in float32 and cast, which keeps what must stay."""
        dtype = kwargs.pop("dtype", config.dtype)
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if dtype not in (torch.float16, torch.bfloat16):
            return super()._from_config(config, dtype=dtype, **kwargs)
        model = super()._from_config(config, dtype=torch.float32, **kwargs).to(dtype)
        model.config.dtype = dtype
        return model

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; weights that do not fit are refused by the fields that differ from those they had.

        Raises:
            ValueError: If weights have other shapes than the model.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            hub_options = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
            saved = cls.config_class.from_pretrained(pretrained_model_name_or_path, **hub_options)
            given = kwargs.get("config", saved)
            own = {field.name for field in fields(saved)} - {field.name for field in fields(PreTrainedConfig)}
            wanted = {name: kwargs.get(name, getattr(given, name, None)) for name in sorted(own | {"num_labels"})}
            changed = [
                f"{name}={value!r} in place of {getattr(saved, name)!r}"
                for name, value in wanted.items()
                if value != getattr(saved, name)
            ]
            raise ValueError(
                f"The weights of {pretrained_model_name_or_path} do not fit a model with "
                f"{', '.join(changed) or 'its config.json'}; leave that out, or start those that differ anew by "
                "ignore_mismatched_sizes=True."
            ) from error

    def check_can_step(self, no_step_reason: str | None) -> None:
        """Raise if a cache is asked for that this model does not have, or that would be lost."""
        if no_step_reason is not None:
            raise ValueError(
                f"{type(self).__name__} has no step-by-step inference, as {no_step_reason}, so use_cache=True is not "
                "possible; use use_cache=False, which reads the whole sequence again for each new token."
            )
        # A block that is computed again cannot hand its state on.
        if self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules()):
            raise ValueError(
                "Gradient checkpointing in training cannot carry a cache; call model.gradient_checkpointing_disable(), "
                "or use use_cache=False."
            )

    def refuse_cache(self, arguments: dict[str, Any], because: str) -> None:
        """Raise if a head that needs whole sequences is asked to go on from a cache, or to make one."""
        if arguments.get("use_cache") or arguments.get("cache") is not None:
            raise ValueError(
                f"{type(self).__name__} {because}, so use_cache=True and cache are not possible; "
                "stream through the model without head (AutoModel), or give the whole sequence."
            )

    def require_input(self, field: str, instead: str) -> None:
        """Raise if the config lacks `field`, the kind of input that this head needs."""
        if getattr(self.config, field) is None:
            raise ValueError(
                f"{type(self).__name__} needs a config with {field}, which is None; use {instead} instead."
            )


def parameter_groups(model: LongSequencePreTrainedModel) -> dict[str, list[str]]:
    """Split the parameters by how an optimiser should treat them.

    Returns:
        Names under "decay" (matrices), "no_decay" (biases, norms and other vectors) and "ssm" (own learning rate, no
        decay); each trainable parameter is in exactly one list.
    """
    ssm = set(model.ssm_parameter_names())
    groups: dict[str, list[str]] = {"decay": [], "no_decay": [], "ssm": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups["ssm" if name in ssm else "decay" if parameter.dim() > 1 else "no_decay"].append(name)
    return groups


class LongSequenceModel(LongSequencePreTrainedModel):
    """Embedding, residual blocks, and a final norm if `pre_norm`: (B, L) or (B, L, C) to hidden states (B, L, H)."""

    def __init__(self, config: LongSequenceConfig) -> None:
        super().__init__(config)
        self.embeddings = SequenceEmbeddings(config)
        self.positions = self.build_positions(config)
        self.layer_configs = [self.layer_config(layer_idx) for layer_idx in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(
            ResidualBlock(layer_config, layer_idx, self.layer_mixer_class(layer_idx))
            for layer_idx, layer_config in enumerate(self.layer_configs)
        )
        self.final_norm = Norm(config) if config.pre_norm else None
        self.gradient_checkpointing = False
        # State matrices and step sizes lose their meaning in half precision.
        self._keep_in_fp32_modules_strict = {name for _, name in self.tensors_in_float32()}
        self.post_init()

    def build_positions(self, config: LongSequenceConfig) -> nn.Module | None:
        """A module `(hidden_states, attention_mask) -> hidden_states` that adds positions, or None."""
        return None

    def layer_config(self, layer_idx: int) -> LongSequenceConfig:
        """The config of a layer; layers that share one also share what `Mixer.prepare_inputs` makes of it."""
        return self.config

    def layer_mixer_class(self, layer_idx: int) -> type[Mixer]:
        return self.mixer_class

    @property
    def no_step_reason(self) -> str | None:
        """Why the model cannot run step by step, as half a sentence, or None if it can."""
        for layer in self.layers:
            if not layer.mixer.has_step:
                return layer.mixer.no_step_reason or f"{type(layer.mixer).__name__} has no finite state"
        return None if self.positions is None else "the positions added to its input are not part of a state"

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.input

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.input = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_values: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> LongSequenceModelOutput:
        """Encode a batch.

        Args:
            input_ids: (B, L) long, of a model with `vocab_size`.
            attention_mask: (B, L), 1 = keep, one run of ones in each row; None keeps everything. With a cache also
                (B, past + L), and pads may stand on the left only.
            input_values: (B, L, C) float, of a model with `num_channels`.
            bool_masked_pos: (B, L), True where a value is hidden from the model; only with `input_values`.
            inputs_embeds: (B, L, H), in place of the embedded input.
            cache: The states of a former call, of which this input is the continuation; it is updated in place.
            use_cache: Make and return such a cache.
        """
        self.check_options(kwargs)
        shape = self.input_shape(input_ids, input_values, inputs_embeds)
        if bool_masked_pos is not None and bool_masked_pos.shape != shape:
            raise ValueError(
                f"bool_masked_pos has shape {tuple(bool_masked_pos.shape)}, but the input has {tuple(shape)}."
            )
        cache = self.check_cache(cache, use_cache, shape[0])
        if attention_mask is not None:
            seen = attention_mask.shape if cache is None else (attention_mask.shape[0], *shape[1:])
            if seen != shape or attention_mask.shape[1] < shape[1]:
                raise ValueError(
                    f"attention_mask has shape {tuple(attention_mask.shape)}, but the input has {tuple(shape)}."
                )
        mask = clean_mask(attention_mask) if cache is None else clean_step_mask(attention_mask, shape[1])
        hidden_states = self.embed(input_ids, input_values, inputs_embeds, bool_masked_pos, mask)
        if cache is not None:
            # Pads stay on the left: zeros there leave a zero state zero.
            counts = hasattr(cache.layers[0], "has_previous_state") and not torch.compiler.is_compiling()
            past = positions_read(cache) if counts else None
            outputs = self.encode(hidden_states, mask, cache=cache, **kwargs)
            # States do not tell how long their past is. A graph would be captured anew for each number.
            cache.positions_read = None if past is None else past + shape[1]
            return outputs

        # Pads go right for the blocks, so that absolute positions and block borders do not move, and back after.
        order = right_padded_order(mask)
        if order is not None:
            hidden_states, mask = reorder(hidden_states, order), reorder(mask, order)
        if self.positions is not None:
            hidden_states = self.positions(hidden_states, mask)
        if self.can_pack(mask, **kwargs):
            packing = Packing(mask)
            outputs = self.encode(packing.pack(hidden_states), None, packing=packing, **kwargs)
            map_states(outputs, packing.unpack)
        else:
            outputs = self.encode(hidden_states, mask, **kwargs)
        if order is not None:
            back = order.argsort(1)
            map_states(outputs, lambda states: reorder(states, back))
            if outputs.attentions:
                outputs.attentions = tuple(reorder(reorder(a, back, dim=2), back, dim=3) for a in outputs.attentions)
        return outputs

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if `forward` was given a name that has no effect; what is None has none anyway.

        Raises:
            TypeError: As Python does for a function that names all its arguments.
        """
        for name, value in options.items():
            if value is None or name in self.forward_options:
                continue
            # Tokenisers made for BERT add them; zeros say that there is one segment, which is so.
            if name == "token_type_ids" and (torch.compiler.is_compiling() or not value.any()):
                continue
            known = inspect.signature(LongSequenceModel.forward).parameters.keys() | FORWARD_OPTIONS | {"labels"}
            hint = " transformers calls it cache now." if name == "past_key_values" else nearest_name(name, known)
            raise TypeError(f"{type(self).__name__} takes no argument {name}, so it would have no effect.{hint}")

    def input_shape(
        self, input_ids: Tensor | None, input_values: Tensor | None, inputs_embeds: Tensor | None
    ) -> torch.Size:
        """Batch and length of the one input that was given.

        Raises:
            ValueError: If none or several were given, it has another shape than the model takes, or nothing is in it.
        """
        named = {"input_ids": input_ids, "input_values": input_values, "inputs_embeds": inputs_embeds}
        given = [(name, x) for name, x in named.items() if x is not None]
        if len(given) != 1:
            raise ValueError("Give exactly one of input_ids, input_values and inputs_embeds.")
        name, x = given[0]
        size = {"input_values": self.config.num_channels, "inputs_embeds": self.config.hidden_size}.get(name)
        # A model of tokens says itself that it takes no values.
        if x.dim() != (2 if name == "input_ids" else 3) or (size is not None and x.shape[2] != size):
            wanted = "(batch, length)" if size is None else f"(batch, length, {size})"
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, but must be {wanted}; pairs, (batch, 2, ...), go into a "
                "classifier with is_pair=True."
            )
        if not torch.compiler.is_compiling() and 0 in x.shape[:2]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; give at least one sequence of at least one step.")
        return x.shape[:2]

    def check_cache(self, cache: Cache | None, use_cache: bool | None, batch: int) -> Cache | None:
        """The cache to use, made if asked for, or None.

        Raises:
            ValueError: If the model cannot run step by step, or the cache is of another model or batch.
        """
        if cache is None and not use_cache:
            return None
        self.check_can_step(self.no_step_reason)
        if cache is None:
            return DynamicCache(config=self.config)
        check_layers(cache, len(self.layers))
        for layer, kept in zip(self.layers, cache.layers):
            state = kept.recurrent_states[0] if hasattr(kept, "recurrent_states") else None
            if state is None and hasattr(kept, "recurrent_states"):
                continue
            if state is None or state.shape[1:] != layer.mixer.state_shape:
                found = type(kept).__name__ if state is None else f"states of shape {tuple(state.shape[1:])}"
                raise ValueError(
                    f"cache holds {found}, but {type(layer.mixer).__name__} of this model has states of shape "
                    f"{tuple(layer.mixer.state_shape)}; give the cache that a call of this very model with "
                    "use_cache=True returned, or DynamicCache(config=model.config)."
                )
            check_batch(state, batch)
        return cache

    def can_pack(self, mask: Tensor | None, output_attentions: bool | None = None, **kwargs: Any) -> bool:
        """Whether leaving the pads out is possible and pays."""
        if mask is None or output_attentions or torch.compiler.is_compiling():
            return False
        if self.training and self.config.tie_dropout and self.config.hidden_dropout_prob > 0:
            # A packed batch is one row to dropout, and every sequence wants its own channels dropped.
            return False
        if not all(layer.mixer.supports_packing for layer in self.layers):
            return False
        return int(mask.sum()) < PACKING_SHARE * mask.numel()

    def embed(
        self,
        input_ids: Tensor | None,
        input_values: Tensor | None,
        inputs_embeds: Tensor | None,
        bool_masked_pos: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Embed whichever input was given; padded and masked values are not read."""
        if input_values is None and bool_masked_pos is not None:
            raise ValueError(
                "bool_masked_pos hides real values and goes with input_values only; "
                f"hide a token by putting mask_token_id={self.config.mask_token_id} into input_ids."
            )
        if inputs_embeds is not None:
            return inputs_embeds if mask is None else inputs_embeds.masked_fill(~mask[..., None], 0.0)
        given, needed = ("input_ids", "vocab_size") if input_values is None else ("input_values", "num_channels")
        if getattr(self.config, needed) is None:
            raise ValueError(f"{type(self).__name__} got {given}, but its config has no {needed}.")
        if input_values is None:
            return self.look_up(input_ids)
        masked = None if bool_masked_pos is None else bool_masked_pos.bool()
        hidden = masked if mask is None else ~mask if masked is None else masked | ~mask
        return self.embeddings.embed_values(input_values, hidden, masked)

    def look_up(self, input_ids: Tensor) -> Tensor:
        """Embed tokens; a method named `embed_tokens` would be taken for the table by transformers."""
        if input_ids.dtype in (torch.uint8, torch.int8, torch.int16, torch.uint16):
            input_ids = input_ids.long()
        try:
            return self.embeddings.embed_tokens(input_ids)
        except IndexError as error:
            raise ValueError(
                f"input_ids reach from {int(input_ids.min())} to {int(input_ids.max())}, but the model has "
                f"vocab_size={self.config.vocab_size}: ids start at 0 and end below that."
            ) from error
        except RuntimeError as error:
            if input_ids.dtype in (torch.long, torch.int):
                raise
            raise ValueError(
                f"input_ids are {input_ids.dtype}, but ids are whole numbers; give input_ids.long(), or real values to "
                "a model with num_channels as input_values."
            ) from error

    @capture_outputs
    def encode(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> LongSequenceModelOutput:
        """Run the blocks on embedded input whose pads, if any, are on the right (on the left with a cache)."""
        given = {name: x for name, x in (("cache", cache), ("packing", packing)) if x is not None}
        prepared: dict[int, dict[str, Any]] = {}
        norms_updated: set[int] | None = set() if self.config.norm_type == "batch" and self.training else None
        for layer, config in zip(self.layers, self.layer_configs, strict=True):
            if id(config) not in prepared:
                prepared[id(config)] = layer.mixer.prepare_inputs(
                    config, hidden_states, attention_mask, packing=packing, **kwargs
                )
            hidden_states = layer(hidden_states, attention_mask, norms_updated, **given, **prepared[id(config)])
        if self.final_norm is not None:
            hidden_states = self.final_norm(hidden_states, attention_mask, norms_updated)
        return LongSequenceModelOutput(last_hidden_state=hidden_states, cache=cache)
