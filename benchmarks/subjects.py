"""What the benchmark measures, each built from a description: our families, our floor, and other people's layers.

A description (`spec`) is a dictionary: "subject" names the thing; "part" is
    kernel  the convolution kernel alone, from the parameters
    mixer   what mixes positions, with its output projection, without norm and residual
    layer   a whole residual block, with norm and a feed-forward where there is one, as a model of one layer
    stack   a model of `layers` of them
    core    one step of the recurrence alone
    step    one step of a whole residual block
"backward" says whether gradients are taken too, and hidden, state, batch, length, layers, bidirectional are sizes.
Everything is float32, without dropout, in training mode if gradients are taken.
"""

import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from measure import Unavailable
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, DynamicCache

from neverscratch.modeling import FAMILIES, unknown_fields
from neverscratch.modeling.modeling_s4d import S4DMixer
from neverscratch.modeling.ops_conv import long_conv
from neverscratch.modeling.ops_ssm import diagonal_kernel

# Steps of a recurrence that are timed together.
STEPS = 500


@dataclass
class Subject:
    """Something to run: `call` maps an input to the output whose gradient is then taken.

    Args:
        call: From one of `inputs` to the output.
        modules: Hold the parameters whose gradients are wanted.
        inputs: A run takes one after the other.
        cotangents: Gradients of the outputs, one for each input; empty if only the forward pass is wanted.
        small: A short input, to bring in the libraries.
        output_shape: From the output to (B, L, H).
        steps: How often the thing happens in one run.
    """

    call: Callable[[Any], Tensor]
    modules: list[nn.Module]
    inputs: list[Any]
    cotangents: list[Tensor] = field(default_factory=list)
    small: Any = None
    output_shape: Callable[[Tensor], tuple[int, ...]] = lambda output: tuple(output.shape)
    steps: int = 1
    shape: tuple[int, ...] = ()

    def forward(self, x: Any) -> Tensor:
        if self.cotangents:
            return self.call(x)
        with torch.no_grad():
            return self.call(x)

    def run(self) -> None:
        for index, x in enumerate(self.inputs):
            for module in self.modules:
                module.zero_grad(set_to_none=True)
            if isinstance(x, Tensor):
                x.grad = None
            output = self.forward(x)
            self.shape = self.output_shape(output)
            if self.cotangents:
                output.backward(self.cotangents[index])

    def warm_up(self) -> None:
        """One run on the short input."""
        output = self.forward(self.small)
        if self.cotangents:
            output.backward(torch.ones_like(output))


def random_input(spec: dict[str, Any], *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_(spec["backward"])


def on_sequences(
    spec: dict[str, Any], call: Callable[[Tensor], Tensor], module: nn.Module, feature_first: bool = False
) -> Subject:
    """A subject that maps (B, L, H) to (B, L, H), or (B, H, L) to (B, H, L)."""
    batch, length, hidden = spec["batch"], spec["length"], spec["hidden"]
    shape = (batch, hidden, length) if feature_first else (batch, length, hidden)
    small = (1, hidden, 16) if feature_first else (1, 16, hidden)
    return Subject(
        call,
        [module],
        [random_input(spec, *shape)],
        [random_input(spec, *shape, seed=1).detach()] if spec["backward"] else [],
        random_input(spec, *small),
        lambda output: tuple(output.transpose(1, 2).shape if feature_first else output.shape),
    )


def on_lengths(spec: dict[str, Any], call: Callable[[int], Tensor], module: nn.Module) -> Subject:
    """A subject that maps a length to kernels (R, H, L) or (H, L)."""
    with torch.no_grad():
        shape = call(spec["length"]).shape
    cotangents = [random_input(spec, *shape, seed=1).detach()] if spec["backward"] else []
    size = (spec["hidden"], spec["length"])
    return Subject(call, [module], [spec["length"]], cotangents, spec["length"], lambda output: size)


def on_ragged_batches(spec: dict[str, Any], model: nn.Module) -> Subject:
    """Batches padded to their longest sequence, lengths uniform on [1, length]: all of them in a run, timed as one."""
    inputs, cotangents = [], []
    for seed in range(spec["ragged"]):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, spec["length"] + 1, (spec["batch"],), generator=generator)
        longest = int(lengths.max())
        mask = torch.arange(longest) < lengths[:, None]
        shape = (spec["batch"], longest, spec["hidden"])
        inputs.append((random_input(spec, *shape, seed=seed), mask.long()))
        cotangents.append(random_input(spec, *shape, seed=seed + 1).detach() * mask[..., None])

    def call(x: tuple[Tensor, Tensor]) -> Tensor:
        x[0].grad = None
        return model(inputs_embeds=x[0], attention_mask=x[1]).last_hidden_state

    small = (random_input(spec, 2, 16, spec["hidden"]), torch.ones(2, 16, dtype=torch.long))
    # The longest sequence differs from batch to batch.
    shape = (spec["batch"], spec["length"], spec["hidden"])
    cotangents = cotangents if spec["backward"] else []
    return Subject(call, [model], inputs, cotangents, small, lambda output: shape, steps=len(inputs))


def on_model(spec: dict[str, Any], model: nn.Module) -> Subject:
    model.train(spec["backward"])
    if spec.get("ragged"):
        return on_ragged_batches(spec, model)
    return on_sequences(spec, lambda x: model(inputs_embeds=x).last_hidden_state, model)


def family_fields(spec: dict[str, Any], layers: int) -> dict[str, Any]:
    """Fields of one of our families beside the shared ones; everything else is as the family's paper has it."""
    hidden, length = spec["hidden"], spec["length"]
    attention = {"num_attention_heads": 4, "intermediate_size": 4 * hidden}
    fields_of = {
        "s4": {"d_state": spec["state"]},
        # The original S4D has no B.
        "s4d": {"d_state": spec["state"], "train_B": False},
        "transformer": attention | {"position_embedding_type": "learned", "max_position_embeddings": length},
        "mega": {"value_size": 2 * hidden, "intermediate_size": 2 * hidden},
        "hybrid": {"mixers": (["s4d", {"type": "attention", **attention}] * layers)[:layers]},
        "wrapped": {
            "backbone_config": attention
            | {"model_type": "gpt_neox", "max_position_embeddings": length, "attn_implementation": "sdpa"}
        },
    }
    chosen = fields_of.get(spec["subject"], {}) | spec.get("fields", {})
    if chosen.get("position_embedding_type", "learned") != "learned":
        chosen.pop("max_position_embeddings", None)
    return chosen


def family_config(spec: dict[str, Any]) -> Any:
    """The config of one of our families at the sizes of `spec`."""
    config_class = FAMILIES.get(spec["subject"])
    if config_class is None:
        raise Unavailable(f"there is no family {spec['subject']}")
    if spec["subject"] in ("hybrid", "wrapped") and spec["part"] not in ("layer", "stack"):
        raise Unavailable(f"{spec['subject']} is made of other layers and measured as layer and stack")
    layers = spec["layers"] if spec["part"] == "stack" else 1
    values = family_fields(spec, layers)
    if "kernel_length" in {field.name for field in fields(config_class)}:
        values = {"kernel_length": spec["length"]} | values
    unknown = unknown_fields(config_class, values)
    if unknown:
        raise Unavailable(f"{config_class.__name__} has no {' and '.join(unknown)}")
    shared = {"hidden_size": spec["hidden"], "num_hidden_layers": layers, "bidirectional": spec["bidirectional"]}
    try:
        return config_class(num_channels=1, **shared, **values)
    except (ValueError, TypeError, StrictDataclassError) as error:
        # The checker of fields wraps the sentence.
        raise Unavailable(str(error.__cause__ or error).strip()) from error


def build_family(spec: dict[str, Any]) -> Subject:
    config = family_config(spec)
    model = AutoModel.from_config(config)
    part = spec["part"]
    if part in ("layer", "stack"):
        return on_model(spec, model)
    block = model.layers[0]
    if part in ("core", "step"):
        return build_step(spec, config, block)
    mixer = block.mixer.train(spec["backward"])
    if part == "kernel":
        if not hasattr(mixer, "kernel"):
            raise Unavailable(f"{spec['subject']} has no convolution kernel")
        return on_lengths(spec, mixer.kernel, mixer)

    def call(x: Tensor) -> Tensor:
        prepared = mixer.prepare_inputs(config, x, None) if hasattr(mixer, "prepare_inputs") else {}
        if getattr(mixer, "is_gated_residual", False):
            prepared["residual"] = x
        return mixer(x, None, **prepared)

    return on_sequences(spec, call, mixer)


def build_step(spec: dict[str, Any], config: Any, block: nn.Module) -> Subject:
    """One step at a time, as in generation: the state lives in the cache, or for the recurrence alone in a variable."""
    mixer = block.mixer
    if not mixer.has_step:
        raise Unavailable(f"{spec['subject']} does not run step by step")
    if spec["part"] == "core" and not hasattr(mixer, "recur"):
        raise Unavailable(f"the mixer of {spec['subject']} has no recurrence of its own to call")
    block.eval()
    cache = DynamicCache(config=config)
    u = random_input(spec | {"backward": False}, spec["batch"], 1, spec["hidden"])

    def core(x: Tensor) -> Tensor:
        state, y = None, x
        for _ in range(STEPS):
            y, state = mixer.recur(x, state, cache)
        return y

    def step(x: Tensor) -> Tensor:
        y = x
        for _ in range(STEPS):
            y = block(x, None, cache=cache)
        return y

    return Subject(core if spec["part"] == "core" else step, [block], [u], [], u, steps=STEPS)


class Floor(nn.Module):
    """What no layer of the S4 family can do without: convolution with kernels that are given, GELU, projection, GLU."""

    def __init__(self, hidden: int, length: int, bidirectional: bool) -> None:
        super().__init__()
        self.kernels = nn.Parameter(torch.randn(2 if bidirectional else 1, hidden, length) / length**0.5)
        self.D = nn.Parameter(torch.randn(hidden))
        self.output_linear = nn.Linear(hidden, 2 * hidden)

    def forward(self, u: Tensor) -> Tensor:
        batch, length, hidden = u.shape
        backward = self.kernels[1] if len(self.kernels) == 2 else None
        y = F.gelu(long_conv(u, self.kernels[0], backward, skip=self.D))
        return F.glu(self.output_linear(y.reshape(batch * length, hidden))).view(batch, length, hidden)


def build_floor(spec: dict[str, Any]) -> Subject:
    if spec["part"] != "mixer":
        raise Unavailable("the floor is a mixer only")
    floor = Floor(spec["hidden"], spec["length"], spec["bidirectional"])
    return on_sequences(spec, floor, floor)


class PlainMixer(S4DMixer):
    """S4D as one writes it from the paper: all powers at once in complex64, O(H N L), and FFTs under autograd."""

    def kernel(self, length: int) -> Tensor:
        dt = self.log_dt.exp()[:, None]
        A = torch.complex(-self.log_A_real.exp(), self.A_imag)
        log_z = dt * A
        weight = torch.view_as_complex(self.C) * torch.view_as_complex(self.B) * (torch.exp(log_z) - 1) / A
        powers = torch.exp(log_z[..., None] * torch.arange(length))  # (H, M, L)
        return 2 * torch.einsum("rhn,hnl->rhl", weight, powers).real

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        length = hidden_states.shape[1]
        kernels = self.kernel(length)
        circle = F.pad(kernels[0], (0, length))
        if len(kernels) == 2:
            circle = circle + F.pad(kernels[1].flip(-1), (length, 0))
        u = hidden_states.transpose(1, 2)  # (B, H, L)
        spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(circle)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + u * self.D[:, None]
        return F.glu(self.output_linear(F.gelu(y).transpose(1, 2)))


def build_plain(spec: dict[str, Any]) -> Subject:
    if spec["part"] not in ("kernel", "mixer"):
        raise Unavailable("the plain S4D is a kernel and a mixer only")
    torch.manual_seed(0)
    mixer = PlainMixer(family_config(spec | {"subject": "s4d"}), 0)
    mixer.init_weights()
    return on_lengths(spec, mixer.kernel, mixer) if spec["part"] == "kernel" else on_sequences(spec, mixer, mixer)


def plain_errors(spec: dict[str, Any]) -> dict[str, Any]:
    """Largest error of both S4D kernels against float64, relative to the feature's largest value, and of the layers."""
    spec = spec | {"subject": "s4d", "part": "mixer"}
    torch.manual_seed(0)
    config = family_config(spec)
    ours, plain = S4DMixer(config, 0), PlainMixer(config, 0)
    ours.init_weights()
    plain.load_state_dict(ours.state_dict())
    length = spec["length"]
    with torch.no_grad():
        dt, decay = ours.log_dt.double().exp(), -ours.log_A_real.double().exp()
        exact = diagonal_kernel(dt, decay, ours.A_imag.double(), ours.B.double(), ours.C.double(), length)
        scale = exact.abs().amax(-1)
        errors = {
            name: ((mixer.kernel(length) - exact).abs().amax(-1) / scale).max().item()
            for name, mixer in (("ours", ours), ("plain", plain))
        }
        u = random_input(spec | {"backward": False}, 1, length, spec["hidden"])
        difference = (ours(u) - plain(u)).abs().max().item()
    return {"errors": errors, "difference": difference}


def load_original(spec: dict[str, Any], name: str) -> types.ModuleType:
    """The file models/s4/<name>.py of a checkout of state-spaces/s4, without the rest of that repository."""
    if not spec.get("peer_s4"):
        raise Unavailable("give --peer-s4 DIR, a checkout of https://github.com/state-spaces/s4")
    path = Path(spec["peer_s4"]) / "models" / "s4" / f"{name}.py"
    if not path.is_file():
        raise Unavailable(f"{path} does not exist")
    # Both are used for nothing that is measured: dropout is zero, and the other one only decides who may print.
    stand_ins = {
        "src.models.nn": {"DropoutNd": nn.Dropout},
        "pytorch_lightning.utilities": {"rank_zero_only": lambda function: function},
    }
    for module, names in stand_ins.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        vars(sys.modules[module]).update(names)
    description = importlib.util.spec_from_file_location(f"original_{name}", path)
    assert description and description.loader
    module = importlib.util.module_from_spec(description)
    try:
        description.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{path.name} needs {error.name}: pip install {error.name}") from error
    return module


class OriginalStack(nn.Module):
    """Layers of (B, L, H) with norm and residual around them, as in the example of their repository."""

    def __init__(self, hidden: int, layers: list[nn.Module], feature_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in layers)
        self.feature_first = feature_first

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            u = norm(x)
            y = layer(u.transpose(1, 2))[0].transpose(1, 2) if self.feature_first else layer(u)[0]
            x = x + y
        return x


def build_original(spec: dict[str, Any]) -> Subject:
    """The original S4D (its short file, one direction, feature first) or S4 (DPLR, LegS, plain torch)."""
    is_s4d = spec["subject"] == "original s4d"
    if is_s4d and spec["bidirectional"]:
        raise Unavailable("the original s4d.py has one direction only")
    module = load_original(spec, "s4d" if is_s4d else "s4")

    def layer() -> nn.Module:
        if is_s4d:
            return module.S4D(spec["hidden"], d_state=spec["state"], dropout=0.0)
        return module.S4Block(
            spec["hidden"],
            d_state=spec["state"],
            l_max=spec["length"],
            bidirectional=spec["bidirectional"],
            mode="dplr",
            init="legs",
            transposed=False,
            verbose=False,
        )

    first = layer()
    if spec["part"] in ("layer", "stack"):
        rest = [layer() for _ in range(spec["layers"] - 1)] if spec["part"] == "stack" else []
        stack = OriginalStack(spec["hidden"], [first, *rest], feature_first=is_s4d)
        return on_sequences(spec, stack, stack)
    if spec["part"] == "mixer":
        return on_sequences(spec, lambda x: first(x)[0], first, feature_first=is_s4d)
    if spec["part"] == "kernel":
        kernel = first.kernel if is_s4d else first.layer.kernel
        return on_lengths(spec, lambda length: kernel(L=length) if is_s4d else kernel(L=length)[0], kernel)
    raise Unavailable(f"the {spec['subject']} is not measured as {spec['part']}")


def build_transformers(spec: dict[str, Any]) -> Subject:
    """BERT, ModernBERT or Mamba as transformers has them, random, at the width of `spec`."""
    if spec["part"] not in ("layer", "stack"):
        raise Unavailable("models of transformers are measured as layer and stack")
    hidden, length = spec["hidden"], spec["length"]
    common = {
        "vocab_size": 8,
        "hidden_size": hidden,
        "num_hidden_layers": spec["layers"] if spec["part"] == "stack" else 1,
        "pad_token_id": 0,
    }
    if spec["subject"] == "hf mamba":
        if spec["bidirectional"]:
            raise Unavailable("Mamba has one direction only")
        config: Any = transformers.MambaConfig(**common, use_cache=False)
        return on_model(spec, transformers.MambaModel(config))
    if not spec["bidirectional"]:
        raise Unavailable(f"{spec['subject']} has two directions")
    common |= {"num_attention_heads": 4, "max_position_embeddings": length, "attn_implementation": "sdpa"}
    if spec["subject"] == "hf modernbert":
        config = transformers.ModernBertConfig(
            **common, intermediate_size=3 * hidden // 2, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2
        )
        return on_model(spec, transformers.ModernBertModel(config))
    config = transformers.BertConfig(
        **common, intermediate_size=4 * hidden, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return on_model(spec, transformers.BertModel(config, add_pooling_layer=False))


BUILDERS = {
    "floor": build_floor,
    "plain s4d": build_plain,
    "original s4d": build_original,
    "original s4": build_original,
    "hf bert": build_transformers,
    "hf modernbert": build_transformers,
    "hf mamba": build_transformers,
}


def build(spec: dict[str, Any]) -> Subject:
    """Build what `spec` describes.

    Raises:
        Unavailable: If it does not exist here.
    """
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    return BUILDERS.get(spec["subject"], build_family)(spec)


def describe(spec: dict[str, Any]) -> dict[str, Any]:
    """What only a process with torch knows: versions, and the families there are."""
    return {"torch": torch.__version__, "transformers": transformers.__version__, "families": list(FAMILIES)}


ANSWERS = {"describe": describe, "plain errors": plain_errors}
