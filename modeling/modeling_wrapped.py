"""Any transformers model of one stack as a backbone, with the input and the heads of every other family around it.

Models: Pythia and GPT-NeoX (Biderman et al. 2023, arXiv 2304.01373), BERT (Devlin et al. 2018, arXiv 1810.04805),
ModernBERT (Warner et al. 2024, arXiv 2412.13663), Mamba (Gu and Dao 2023, arXiv 2312.00752), and what else
`AutoModel` builds that takes `inputs_embeds`.
Code: https://github.com/huggingface/transformers
Differences: the table of token embeddings is ours, so that values go in as well as tokens; there is no pooler. All
between the embedded input and the last hidden state, starts and dropout included, is the wrapped model's own.
"""

import inspect
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from .blocks import SequenceEmbeddings
from .configuration_wrapped import DIRECTIONS, SSM_PARAMETER_PATTERNS, STEPPING, WrappedConfig
from .heads import (
    LongSequenceForCausalLM,
    LongSequenceForMaskedLM,
    LongSequenceForReconstruction,
    LongSequenceForSequenceClassification,
)
from .modeling_common import (
    LongSequenceModel,
    LongSequenceModelOutput,
    LongSequencePreTrainedModel,
    check_batch,
    check_layers,
)


class AbsentEmbedding(nn.Module):
    """In place of the backbone's table of token embeddings: holds no parameter, and is never called.

    `weight` is empty, for the backbone's own code that starts it.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(0, hidden_size), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError("The backbone's token embeddings were removed; give it inputs_embeds.")


def build_backbone(config: WrappedConfig) -> PreTrainedModel:
    """The bare wrapped model in the direction that `config` asks for, without the parts that would have no use.

    Raises:
        ValueError: If the model cannot be wrapped.
    """
    inner: Any = config.backbone_config
    assert config.bidirectional is not None and config.hidden_size is not None
    set_direction(inner, config.bidirectional)
    backbone = AutoModel.from_config(inner)
    name = type(backbone).__name__
    if "inputs_embeds" not in inspect.signature(backbone.forward).parameters:
        raise ValueError(f"{name} does not take inputs_embeds, so it cannot be wrapped; use a model that does.")
    table = backbone.get_input_embeddings()
    width = getattr(table, "embedding_dim", config.hidden_size)
    if width != config.hidden_size:
        raise ValueError(
            f"{name} embeds into {width} features and not into hidden_size={config.hidden_size}; "
            "set its embedding_size to hidden_size."
        )
    backbone.set_input_embeddings(AbsentEmbedding(config.hidden_size))
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    for module in backbone.modules():
        # Kernels that are handed no mask look here.
        if isinstance(getattr(module, "is_causal", None), bool):
            module.is_causal = not config.bidirectional
    return backbone


def set_direction(inner: PreTrainedConfig, bidirectional: bool) -> None:
    """Tell the backbone's config the direction, in the two ways that transformers' models read it."""
    own = DIRECTIONS.get(inner.model_type, (True, False))
    if len(own) == 1:
        return
    # The masks of decoders are made by this.
    inner.is_causal = not bidirectional
    if own[0] and hasattr(inner, "is_decoder"):
        inner.is_decoder = not bidirectional


@torch.no_grad()
def probe(backbone: PreTrainedModel, hidden_size: int) -> tuple[bool, bool]:
    """Whether a change of the last of six inputs moves an earlier output, and whether padding leaves outputs alone.

    The first is looked at beside a padded sequence, too, as some kinds take another way with a mask.
    """
    was_training = backbone.training
    backbone.eval()
    parameter = next(backbone.parameters())
    x = torch.linspace(-1, 1, 6 * hidden_size, device=parameter.device, dtype=parameter.dtype).sin()
    x = x.view(1, 6, hidden_size).repeat(3, 1, 1)
    x[1, -1] = 1 - x[1, -1]
    mask = torch.ones(3, 6, dtype=torch.long, device=x.device)
    mask[2, 4:] = 0

    def states(x: Tensor, **arguments: Any) -> Tensor:
        return backbone(inputs_embeds=x, return_dict=True, **arguments).last_hidden_state.float()

    bare, short = states(x[:2]), states(x[2:, :4])
    near = 1e-6 * bare.abs().max()
    takes_mask = "attention_mask" in inspect.signature(backbone.forward).parameters
    padded = states(x, attention_mask=mask) if takes_mask else states(x)
    sees_future = max((pair[0, :-1] - pair[1, :-1]).abs().max() for pair in (bare, padded[:2])) > near
    heeds_mask = (padded[2:, :4] - short).abs().max() <= 100 * near
    backbone.train(was_training)
    return bool(sees_future), bool(heeds_mask)


class WrappedPreTrainedModel(LongSequencePreTrainedModel):
    config: WrappedConfig
    # What holds is decided by the backbone, which checks it when it is built.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules: list[str] = []
    _can_record_outputs: dict[str, Any] = {}
    forward_options = LongSequencePreTrainedModel.forward_options | {"whole_mask"}

    @classmethod
    def from_backbone(
        cls,
        name_or_path: str,
        hub_options: dict[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
        attn_implementation: str | None = None,
        **fields: Any,
    ) -> "WrappedPreTrainedModel":
        """A model around a pretrained backbone; the input embedding and the head start anew.

        Args:
            name_or_path: A local folder or a name on the Hub.
            hub_options: Passed to `from_pretrained` of the backbone, such as `revision` or `cache_dir`.
            dtype: Of the whole model; the checkpoint is converted.
            attn_implementation: As in `from_pretrained`.
            fields: Fields of `WrappedConfig`.
        """
        config = cls.config_class.from_backbone(name_or_path, hub_options, **fields)
        attention = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
        model = cls._from_config(config, dtype=dtype, **attention)
        base = model if isinstance(model, LongSequenceModel) else model.model
        base.load_backbone(name_or_path, hub_options or {})
        return model

    @classmethod
    def is_custom_code(cls) -> bool:
        """No, to transformers: of code it does not know it skips the start of every module without own parameters.

        The wrapped model may be one whose modules start the layers inside them, as in Mamba and ModernBERT.
        """
        return False

    def ssm_parameter_names(self) -> list[str]:
        """Names of the backbone's parameters that `ssm_parameter_patterns` finds."""
        patterns = self.config.ssm_parameter_patterns
        patterns = SSM_PARAMETER_PATTERNS if patterns is None else patterns
        found = []
        for name, _ in self.named_parameters():
            inner = re.match(r"(?:model\.)?backbone\.(.*)", name)
            if inner and any(re.search(pattern, inner[1]) for pattern in patterns):
                found.append(name)
        return found


class WrappedModel(WrappedPreTrainedModel, LongSequenceModel):
    """Embedding, then the wrapped model: (B, L) or (B, L, C) to hidden states (B, L, H)."""

    def __init__(self, config: WrappedConfig) -> None:
        # Past `LongSequenceModel`, whose blocks are not wanted here.
        super(LongSequenceModel, self).__init__(config)
        self.embeddings = SequenceEmbeddings(config)
        self.positions = None
        self.backbone = build_backbone(config)
        self.accepted = set(inspect.signature(self.backbone.forward).parameters)
        self.max_length = position_limit(self.backbone)
        self.gradient_checkpointing = False
        ssm = self.ssm_parameter_names()
        if config.ssm_parameter_patterns and not ssm:
            raise ValueError(
                f"ssm_parameter_patterns={config.ssm_parameter_patterns} find no parameter of "
                f"{type(self.backbone).__name__}; leave them out, or see its named_parameters()."
            )
        self._keep_in_fp32_modules_strict = set(ssm)
        self.post_init()
        self.check_direction()

    def tensors_in_float32(self) -> list[tuple[nn.Module, str]]:
        """Also the buffers that no checkpoint holds, such as rotary frequencies: one that is loaded has them anew."""
        made = [
            (module, leaf)
            for module in self.modules()
            for leaf in sorted(module._non_persistent_buffers_set)
            if module._buffers[leaf] is not None and module._buffers[leaf].dtype == torch.float32
        ]
        return super().tensors_in_float32() + made

    def check_direction(self) -> None:
        """Probe a backbone whose direction is not known by its kind; on the meta device nothing can be seen."""
        kind, bidirectional = self.backbone.config.model_type, self.config.bidirectional
        if kind in DIRECTIONS or any(parameter.is_meta for parameter in self.backbone.parameters()):
            return
        assert self.config.hidden_size is not None
        sees_future, heeds_mask = probe(self.backbone, self.config.hidden_size)
        if not heeds_mask:
            raise ValueError(
                f"{kind} does not leave padding out: a sequence has other outputs beside a longer one than alone, so "
                "what it says would depend on the batch; wrap another model."
            )
        if sees_future != bidirectional:
            seen, wanted = ("", "not ") if not bidirectional else ("not ", "")
            raise ValueError(
                f"bidirectional={bidirectional} has no effect on {kind}: its outputs should {wanted}depend on what "
                f"comes after them, and do {seen}depend on it; set bidirectional={not bidirectional}, or wrap another "
                "model."
            )

    def load_backbone(self, name_or_path: str, hub_options: dict[str, Any]) -> None:
        """Copy the weights of a checkpoint into the backbone.

        Raises:
            ValueError: If the checkpoint lacks some.
        """
        try:
            loaded, info = AutoModel.from_pretrained(
                name_or_path, dtype=self.backbone.dtype, output_loading_info=True, **hub_options
            )
        except Exception as error:
            # A file that is cut off has an error of a package that is not to be imported here.
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"The weights of {name_or_path} cannot be read ({reason}); use a whole checkpoint of this model."
            ) from error
        own = self.backbone.state_dict()
        missing = sorted(own.keys() & set(info["missing_keys"]) | own.keys() - loaded.state_dict().keys())
        if missing:
            raise ValueError(
                f"{name_or_path} lacks {len(missing)} tensors of {type(self.backbone).__name__}, such as {missing[0]}; "
                "use a whole checkpoint of this model."
            )
        self.backbone.load_state_dict({name: loaded.state_dict()[name] for name in own})

    @property
    def no_step_reason(self) -> str | None:
        """Why the model cannot run step by step, as half a sentence, or None if it can."""
        kind = self.backbone.config.model_type
        if self.config.bidirectional:
            return "a bidirectional model needs the future"
        if kind not in STEPPING:
            return f"going on from the cache of {kind} has not been compared with reading the whole sequence"
        if "full_attention" not in self.config.layer_types and self.dtype == torch.float64:
            return f"the state of {kind} is kept in float32 and the model is in float64"
        return None

    def check_cache(self, cache: Cache | None, use_cache: bool | None, batch: int) -> Cache | None:
        """The backbone's own cache, made if asked for, or None."""
        if cache is None and not use_cache:
            return None
        self.check_can_step(self.no_step_reason)
        if cache is None:
            return DynamicCache(config=self.backbone.config)
        assert self.config.num_hidden_layers is not None
        check_layers(cache, self.config.num_hidden_layers, DynamicCache)
        for state in stored_states(cache, 0)[:1]:
            check_batch(state, batch)
        return cache

    def can_pack(self, mask: Tensor | None, output_attentions: bool | None = None, **kwargs: Any) -> bool:
        return False

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
        """Encode a batch, see `LongSequenceModel`; with a cache, `attention_mask` has to be (B, past + L)."""
        return super().forward(
            input_ids,
            attention_mask,
            input_values,
            bool_masked_pos,
            inputs_embeds,
            cache,
            use_cache,
            whole_mask=attention_mask,
            **kwargs,
        )

    def encode(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
        whole_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> LongSequenceModelOutput:
        """Run the backbone on embedded input whose pads, if any, are on the right (on the left with a cache)."""
        past = 0 if cache is None else self.past_length(cache, whole_mask, hidden_states.shape[1])
        if self.max_length is not None and past + hidden_states.shape[1] > self.max_length:
            raise ValueError(
                f"The input has {past + hidden_states.shape[1]} positions, but {type(self.backbone).__name__} has "
                f"learned {self.max_length}; shorten it, or set max_position_embeddings in backbone_config."
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        implementation = self.backbone.config._attn_implementation
        if output_attentions and implementation != "eager":
            raise ValueError(
                f'output_attentions=True needs attn_implementation="eager", but it is "{implementation}"; '
                'call model.set_attn_implementation("eager") first.'
            )
        if attention_mask is not None:
            # Some kinds multiply by the mask, which would keep a NaN.
            hidden_states = hidden_states.masked_fill(~attention_mask[..., None], 0.0)
        wanted: dict[str, Any] = {"return_dict": True}
        if output_hidden_states:
            wanted["output_hidden_states"] = output_hidden_states
        if output_attentions:
            wanted["output_attentions"] = True
        if cache is not None:
            return self.go_on(hidden_states, attention_mask, cache, whole_mask, wanted)
        if "use_cache" in self.accepted:
            wanted["use_cache"] = False
        mask = None if attention_mask is None else attention_mask.long()
        outputs = self.backbone(inputs_embeds=hidden_states, attention_mask=mask, **wanted)
        # A residual stream in float32 may come out of a model in half precision.
        return LongSequenceModelOutput(
            last_hidden_state=outputs.last_hidden_state.to(self.dtype),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )

    def go_on(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        cache: Cache,
        whole_mask: Tensor | None,
        wanted: dict[str, Any],
    ) -> LongSequenceModelOutput:
        """Read a chunk that goes on from the cache, pads on the left."""
        length = hidden_states.shape[1]
        wanted = {**wanted, "cache": cache, "use_cache": True}
        # A chunk of several positions would start transformers' Mamba from a zero state.
        one_by_one = self.backbone.config.model_type == "mamba" and cache.has_previous_state(0)
        size = 1 if one_by_one else length
        parts = []
        for start in range(0, length, size):
            chunk = slice(start, start + size)
            mask = None if attention_mask is None else attention_mask[:, chunk]
            inputs = self.step_inputs(mask, whole_mask, size)
            parts.append(self.backbone(inputs_embeds=hidden_states[:, chunk], **inputs, **wanted))
            detach_states(cache)
        recorded = [part.get("hidden_states") for part in parts]
        states = None
        if recorded[0] is not None:
            # A layer that was not asked for is None.
            states = tuple(None if parts[0] is None else torch.cat(parts, 1) for parts in zip(*recorded))
        return LongSequenceModelOutput(
            last_hidden_state=torch.cat([part.last_hidden_state for part in parts], 1).to(self.dtype),
            cache=cache,
            hidden_states=states,
            attentions=parts[0].get("attentions"),
        )

    def past_length(self, cache: Cache, whole_mask: Tensor | None, length: int) -> int:
        """Positions that attention layers have in the cache; 0 for a model of states alone.

        Raises:
            ValueError: If the mask leaves open which of them are pads.
        """
        if "full_attention" not in self.config.layer_types:
            return 0
        past = int(cache.get_seq_length())
        if whole_mask is not None and not bool(whole_mask.all()):
            cache.has_pads = True
        if whole_mask is None and getattr(cache, "has_pads", False):
            raise ValueError(
                f"cache holds padding, so attention_mask has to say where; give one of shape (batch, {past + length})."
            )
        if whole_mask is not None and whole_mask.shape[1] != past + length:
            raise ValueError(
                f"attention_mask has shape {tuple(whole_mask.shape)}, but the cache holds {past} positions and the "
                f"input {length}; give one of shape (batch, {past + length})."
            )
        return past

    def step_inputs(self, attention_mask: Tensor | None, whole_mask: Tensor | None, length: int) -> dict[str, Any]:
        """Mask and positions of a chunk that goes on from a cache, pads on the left."""
        if "full_attention" not in self.config.layer_types:
            # Zero input keeps a zero state zero only where the mask also removes the bias of the short convolution.
            return {"attention_mask": None if attention_mask is None else attention_mask.long()}
        if whole_mask is None or bool(whole_mask.all()):
            return {}
        positions = (whole_mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]
        return {"attention_mask": whole_mask.long(), "position_ids": positions}


def stored_states(cache: Cache, layer_idx: int) -> list[Tensor]:
    """What a layer keeps: keys and values, or recurrent states; empty before its first step."""
    layer = cache.layers[layer_idx]
    kept = layer.recurrent_states if hasattr(layer, "recurrent_states") else (layer.keys, layer.values)
    kept = kept.values() if isinstance(kept, dict) else kept
    return [state for state in kept if state is not None]


def detach_states(cache: Cache) -> None:
    """Let no gradient go through what a cache keeps: backpropagation is truncated there, as in every other family."""
    if not torch.is_grad_enabled():
        return
    for layer in cache.layers:
        for name in ("keys", "values"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, getattr(layer, name).detach())
        for name in ("conv_states", "recurrent_states"):
            states = getattr(layer, name, {})
            # The next step is written over them, and a backward pass may still need these.
            states.update({index: state.detach().clone() for index, state in states.items() if state is not None})


def position_limit(backbone: PreTrainedModel) -> int | None:
    """The longest sequence that the backbone's learned table of absolute positions has room for, or None."""
    limits = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Embedding)
        and re.search(r"(^|\.)(wpe|(embed_)?positions?(_embeddings?)?|position_embed\w*)$", name)
    ]
    return min(limits, default=None)


WrappedPreTrainedModel.model_class = WrappedModel


class WrappedForMaskedLM(WrappedPreTrainedModel, LongSequenceForMaskedLM):
    pass


class WrappedForCausalLM(WrappedPreTrainedModel, LongSequenceForCausalLM):
    pass


class WrappedForReconstruction(WrappedPreTrainedModel, LongSequenceForReconstruction):
    pass


class WrappedForSequenceClassification(WrappedPreTrainedModel, LongSequenceForSequenceClassification):
    pass


WrappedModel.register_for_auto_class("AutoModel")
WrappedForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
WrappedForCausalLM.register_for_auto_class("AutoModelForCausalLM")
WrappedForReconstruction.register_for_auto_class("AutoModelForPreTraining")
WrappedForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "WrappedForCausalLM",
    "WrappedForMaskedLM",
    "WrappedForReconstruction",
    "WrappedForSequenceClassification",
    "WrappedModel",
    "WrappedPreTrainedModel",
]
