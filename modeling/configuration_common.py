"""Configuration shared by every family: input, container, heads, and the map from Auto classes to remote code.

`strict` reads the annotations at run time and checks nothing if their evaluation is postponed.
"""

import math
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Auto class -> suffix of the class a family offers for it.
HEADS = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForPreTraining": "ForReconstruction",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
}

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")

# What transformers puts into a configuration beside its fields; names that begin with "_" are its own too.
FOREIGN_FIELDS = {
    "attn_implementation", "auto_map", "custom_pipelines", "experts_implementation", "finetuning_task", "model_type",
    "name_or_path", "num_labels", "output_attentions", "per_layer_config", "prefix", "pruned_heads",
    "quantization_config", "task_specific_params", "tie_encoder_decoder", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers_weights", "use_bfloat16",
}  # fmt: skip
# Set by `from_dict`: the fields are those of a file, which may have been written by another version.
FROM_FILE = "_is_from_file"


@strict
class LongSequenceConfig(PreTrainedConfig):
    r"""
    Fields common to all families. A family subclasses this, sets `model_type` and adds its own fields.

    Args:
        vocab_size (`int`, *optional*): Number of symbols of a token model.
        num_channels (`int`, *optional*): Channels per step of a model of real values; set this or `vocab_size`.
        hidden_size (`int`, defaults to 128): Width of the residual stream.
        num_hidden_layers (`int`, defaults to 4): Number of residual blocks.
        bidirectional (`bool`, defaults to True): Whether a position sees what comes after it.
        norm_type (`str`, defaults to `"layer"`): `"layer"`, `"rms"`, or `"batch"` (statistics exclude padding).
        pre_norm (`bool`, defaults to True): Normalise before the mixer, with a final norm, or after the residual sum.
        layer_norm_eps (`float`, defaults to 1e-5): Added to the variance in every norm.
        hidden_dropout_prob (`float`, defaults to 0.0): Dropout on what a block adds to the residual stream.
        tie_dropout (`bool`, defaults to False): Drop a channel at all positions of a sequence or at none.
        initializer_range (`float`, defaults to 0.02): Standard deviation of new embeddings. Linear layers start uniform
            within 1 / sqrt(fan-in) instead, in every family.
        pooling (`str`, defaults to `"mean"`): `"mean"`, `"max"`, `"last"`, `"first"` or `"attention"`.
        reconstruction_loss (`str`, defaults to `"l1"`): `"l1"`, `"mse"`, or `"cross_entropy"` over `num_levels`.
        num_levels (`int`, *optional*): Grey levels predicted under `reconstruction_loss="cross_entropy"`.
        label_mean, label_std (`float`, default to 0.0 and 1.0): Of the regression targets in training. The classifier
            learns targets scaled by them, and its logits are in the targets' own units.
        is_pair (`bool`, defaults to False): Whether one example of the classifier is two sequences, (batch, 2, length).
        pad_token_id, mask_token_id, unk_token_id (`int`): Ids 0, 1 and 2 of the vocabulary.
        tie_word_embeddings (`bool`, defaults to False): Whether the token heads reuse the embedding matrix.
    """

    vocab_size: int | None = None
    num_channels: int | None = None
    hidden_size: int = 128
    num_hidden_layers: int = 4
    bidirectional: bool = True
    norm_type: Literal["layer", "rms", "batch"] = "layer"
    pre_norm: bool = True
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float | int = 0.0
    tie_dropout: bool = False
    initializer_range: float = 0.02
    pooling: Literal["mean", "max", "last", "first", "attention"] = "mean"
    reconstruction_loss: Literal["l1", "mse", "cross_entropy"] = "l1"
    num_levels: int | None = None
    label_mean: float = 0.0
    label_std: float = 1.0
    is_pair: bool = False
    pad_token_id: int = 0
    mask_token_id: int = 1
    unk_token_id: int = 2
    tie_word_embeddings: bool = False

    # Field -> (switch, values): the field has an effect only if the switch has one of the values. No annotation, or it
    # would count as a field.
    ACTIVE_IF = dict[str, tuple[str, tuple[Any, ...]]](num_levels=("reconstruction_loss", ("cross_entropy",)))

    # Float field -> the interval it must be in; any other must be finite. Families add theirs.
    RANGES = dict[str, str](
        layer_norm_eps="(0, inf)",
        hidden_dropout_prob="[0, 1)",
        attention_dropout="[0, 1)",
        initializer_range="[0, inf)",
        label_std="(0, inf)",
        # A start beyond has steps and decays that overflow.
        random_std="(0, 10]",
    )

    def __post_init__(self, **kwargs: Any) -> None:
        if not kwargs.pop(FROM_FILE, False):
            self._warn_of_unknown_fields(kwargs)
        super().__post_init__(**kwargs)

    def _warn_of_unknown_fields(self, names: Iterable[str]) -> None:
        """Say once that a field does nothing; it is kept, as transformers keeps what it does not know."""
        known = {field.name for field in fields(self)}
        for name in names:
            if not is_foreign(name):
                hint = nearest_name(name, known)
                logger.warning_once(f"{type(self).__name__} has no field {name}, so it has no effect; remove it.{hint}")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "LongSequenceConfig":
        """As in transformers; what the file of another version says beyond the fields passes in silence."""
        return super().from_dict({**config_dict, FROM_FILE: True}, **kwargs)

    @property
    def layer_types(self) -> list[str]:
        """What transformers' caches make for each layer: a place for one recurrent state."""
        return ["linear_attention"] * self.num_hidden_layers

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        name = type(self).__name__
        check_active_fields(self)
        check_ranges(self)
        if (self.vocab_size is None) == (self.num_channels is None):
            raise ValueError(
                f"{name} has vocab_size={self.vocab_size} and num_channels={self.num_channels}; "
                "set exactly one: vocab_size for tokens, num_channels for real values."
            )
        for field in ("vocab_size", "num_channels", "hidden_size", "num_hidden_layers", "num_levels"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{name} has {field}={value}, which must be at least 1.")
        if self.tie_word_embeddings and self.vocab_size is None:
            raise ValueError(
                f"{name} has tie_word_embeddings=True, but a model of real values has no word embeddings; "
                "leave it out, or set vocab_size."
            )
        if self.reconstruction_loss == "cross_entropy":
            if self.num_levels is None:
                raise ValueError(
                    f'{name} has reconstruction_loss="cross_entropy" but no num_levels; '
                    "set num_levels to the number of grey levels, such as 256."
                )
            if self.num_channels is not None and self.num_channels != 1:
                raise ValueError(
                    f'{name} has reconstruction_loss="cross_entropy" with num_channels={self.num_channels}; '
                    'levels are predicted for one channel: set num_channels=1, or use "l1" or "mse".'
                )

    def validate_labels(self) -> None:
        """Raise if the classifier cannot be what the labels, their kind and their scale say."""
        name = type(self).__name__
        if self.num_labels < 1:
            raise ValueError(f"{name} has num_labels={self.num_labels}, which must be at least 1.")
        check_problem_type(self.problem_type)
        is_scaled = (self.label_mean, self.label_std) != (0.0, 1.0)
        is_regression = self.problem_type == "regression" or (self.problem_type is None and self.num_labels == 1)
        if is_scaled and not is_regression:
            raise ValueError(
                f"{name} has label_mean={self.label_mean} and label_std={self.label_std}, which scale the targets of a "
                f"regression, with problem_type={self.problem_type!r} and num_labels={self.num_labels}; leave them out "
                'or set them to 0.0 and 1.0, or set problem_type="regression".'
            )

    def validate_token_ids(self) -> None:
        """Raise if the id of a special token is not in the vocabulary; transformers only warns."""
        if self.vocab_size is None:
            return
        defaults = {field.name: field.default for field in fields(self)}
        for name, value in vars(self).items():
            # Two symbols are a vocabulary too, as long as nobody asks for the special ones.
            if not name.endswith("_token_id") or (name in defaults and value == defaults[name]):
                continue
            for token_id in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(token_id, int) and not 0 <= token_id < self.vocab_size:
                    raise ValueError(
                        f"{type(self).__name__} has {name}={value}, which is not in the vocabulary; use an id from 0 "
                        f"to {self.vocab_size - 1}, or raise vocab_size={self.vocab_size}."
                    )

    @classmethod
    def remote_code_map(cls) -> dict[str, str]:
        """Auto class -> "module.Class" for the config, every head of this family, and the feature extractor."""
        module = cls.__module__.rpartition(".")[2]
        modeling = module.replace("configuration_", "modeling_")
        family = cls.__name__.removesuffix("Config")
        heads = {auto: f"{modeling}.{family}{suffix}" for auto, suffix in HEADS.items()}
        return {
            "AutoConfig": f"{module}.{cls.__name__}",
            "AutoFeatureExtractor": "feature_extraction_sequence.LongSequenceFeatureExtractor",
            **heads,
        }

    def to_dict(self) -> dict[str, Any]:
        """Add the map of all heads, so that any checkpoint opens as any head with `trust_remote_code=True`."""
        output = super().to_dict()
        if self.model_type:
            output["auto_map"] = self.remote_code_map()
        return output


def check_problem_type(problem_type: str | None) -> None:
    """Raise if it is none of transformers' kinds of labels."""
    if problem_type is not None and problem_type not in PROBLEM_TYPES:
        raise ValueError(
            f"problem_type={problem_type!r} is unknown; use {', '.join(map(repr, PROBLEM_TYPES))}, or None to tell by "
            f"the labels.{nearest_name(str(problem_type), PROBLEM_TYPES)}"
        )


def check_active_fields(config: LongSequenceConfig) -> None:
    """Raise if a field was set that does nothing beside the others, by `ACTIVE_IF` of its class."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, (switch, values) in config.ACTIVE_IF.items():
        value = getattr(config, name)
        if value != defaults[name] and getattr(config, switch) not in values:
            allowed = " or ".join(repr(allowed) for allowed in values)
            raise ValueError(
                f"{type(config).__name__} has {name}={value!r}, which has no effect with "
                f"{switch}={getattr(config, switch)!r}; leave it out, or set {switch} to {allowed}."
            )


def check_ranges(config: LongSequenceConfig) -> None:
    """Raise if a number is not finite, or not in the interval that `RANGES` of its class names."""
    for field in fields(config):
        value = getattr(config, field.name)
        if not isinstance(value, float) and field.name not in config.RANGES:
            continue
        interval = config.RANGES.get(field.name, "(-inf, inf)")
        low, high = map(float, interval[1:-1].split(","))
        above = value > low if interval[0] == "(" else value >= low
        below = value < high if interval[-1] == ")" else value <= high
        if not (math.isfinite(value) and above and below):
            words = {"(-inf, inf)": "finite", "(0, inf)": "positive and finite", "[0, inf)": "finite and at least 0"}
            allowed = words.get(interval, f"in {interval}")
            raise ValueError(f"{type(config).__name__} has {field.name}={value}, which must be {allowed}.")


def is_foreign(name: str) -> bool:
    """Whether transformers itself may put a field of this name into any configuration."""
    generation = GenerationConfig._get_default_generation_params()
    return name in FOREIGN_FIELDS or name in generation or name.startswith("_") or name.endswith("_token_id")


def nearest_name(given: str, known: Iterable[str]) -> str:
    """ " Did you mean x?" for the known name nearest to the given one, or "" if none is near."""
    near = get_close_matches(given, sorted(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def check_even(config: LongSequenceConfig, name: str = "d_state") -> None:
    """Raise if the number of real states cannot be split into conjugate pairs."""
    value = getattr(config, name)
    if value < 2 or value % 2:
        raise ValueError(
            f"{name}={value} is not a positive even number, but states come in conjugate pairs; "
            "use an even number such as 64."
        )


def check_copies(config: Any) -> None:
    """Raise if `n_ssm` copies cannot serve `hidden_size` features evenly."""
    if config.n_ssm is not None and (config.n_ssm < 1 or config.hidden_size % config.n_ssm):
        raise ValueError(
            f"n_ssm={config.n_ssm} does not divide hidden_size={config.hidden_size}, but every copy serves the same "
            "number of features; use a divisor, or None for one copy per feature."
        )


def check_dt_range(config: Any) -> None:
    """Raise unless 0 < dt_min <= dt_max."""
    if not 0 < config.dt_min <= config.dt_max:
        raise ValueError(
            f"dt_min={config.dt_min} and dt_max={config.dt_max} are not a range of positive steps; "
            "use 0 < dt_min <= dt_max, such as 0.001 and 0.1."
        )


def unknown_fields(config_class: type[PreTrainedConfig], keys: Iterable[str]) -> list[str]:
    """The names among `keys` that `config_class` would swallow without using them."""
    known = {field.name for field in fields(config_class)} | {"num_labels", "attn_implementation"}
    return [key for key in keys if key not in known]
