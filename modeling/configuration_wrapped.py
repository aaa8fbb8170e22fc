"""Configuration of a transformers model wrapped into the shared container."""

import re
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_common import FROM_FILE, LongSequenceConfig, is_foreign, nearest_name

# Kind of backbone -> the values of `bidirectional` it honours, as probed by the tests; the first is the model's own.
# Any other kind must be told its direction, and is probed when it is built.
DIRECTIONS: dict[str, tuple[bool, ...]] = {
    "bert": (True, False),
    "electra": (True, False),
    "gpt2": (False, True),
    "gpt_neox": (False, True),
    "llama": (False, True),
    "mamba": (False,),
    "mamba2": (False,),
    "mistral": (False, True),
    "modernbert": (True,),
    "qwen2": (False, True),
    "qwen3": (False, True),
    "roberta": (True, False),
}

# Kinds whose own cache is passed through: going on from it was compared with reading the whole sequence by the tests.
STEPPING = ("bert", "gpt2", "gpt_neox", "llama", "mamba", "mamba2", "qwen2", "qwen3")

# Shared fields that describe blocks of ours: the blocks here are the backbone's.
FIELDS_OF_BLOCKS = ("norm_type", "pre_norm", "layer_norm_eps", "hidden_dropout_prob", "tie_dropout")

# What code shared by transformers' models reads from any config that has it, whether it is a field there or not.
READ_IF_THERE = {"attention_chunk_size", "head_dim", "is_causal", "layer_types", "sliding_window"}

# Ends of the names of parameters of selective state space models.
SSM_PARAMETER_PATTERNS = [r"(^|\.)(A_log|D|dt_bias|dt_proj\.bias)$"]


@strict
class WrappedConfig(LongSequenceConfig):
    r"""
    Input, pooling and heads are as in every family; the blocks, and what lies between them and the embedded input
    (positions, norms, dropout), are those of `backbone_config`.

    Args (beside those of `LongSequenceConfig`):
        backbone_config (`dict` or `PreTrainedConfig`): The config of a transformers model that takes `inputs_embeds`;
            a dict names its kind in `model_type`, such as `{"model_type": "gpt_neox", "num_attention_heads": 4}`.
        hidden_size (`int`, *optional*): The backbone's. If given, a dict without it takes it from here, and any other
            backbone must agree.
        num_hidden_layers (`int`, *optional*): In the same way.
        bidirectional (`bool`, *optional*): None is the model's own direction. A causal attention model sees both sides
            by `is_causal=False`, and BERT and its kin one side by `is_decoder=True`; others are refused.
        ssm_parameter_patterns (`list[str]`, *optional*): Regular expressions, searched in the backbone's parameter
            names, of parameters that want their own learning rate and no weight decay; None stands for the `A_log`,
            `D` and step-size biases of Mamba.
    """

    model_type = "neverscratch_wrapped"
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="gpt_neox", optional=True)}

    backbone_config: dict | PreTrainedConfig | None = None
    hidden_size: int | None = None  # type: ignore[assignment]
    num_hidden_layers: int | None = None  # type: ignore[assignment]
    bidirectional: bool | None = None  # type: ignore[assignment]
    ssm_parameter_patterns: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.backbone_config, dict):
            given = {"hidden_size": self.hidden_size, "num_hidden_layers": self.num_hidden_layers}
            self.backbone_config = build_backbone_config(self.backbone_config, given, kwargs.get(FROM_FILE, False))
        elif isinstance(self.backbone_config, PreTrainedConfig):
            # Its direction will be set, which the giver's own object should not feel.
            self.backbone_config = deepcopy(self.backbone_config)
        super().__post_init__(**kwargs)
        backbone = self.backbone_config
        if isinstance(backbone, PreTrainedConfig):
            if self.hidden_size is None:
                self.hidden_size = getattr(backbone, "hidden_size", None)
            if self.num_hidden_layers is None:
                self.num_hidden_layers = getattr(backbone, "num_hidden_layers", None)
            if self.bidirectional is None and backbone.model_type in DIRECTIONS:
                self.bidirectional = DIRECTIONS[backbone.model_type][0]

    @classmethod
    def from_backbone(
        cls, name_or_path: str, hub_options: dict[str, Any] | None = None, **fields: Any
    ) -> "WrappedConfig":
        """The config around the backbone of a checkpoint.

        Args:
            name_or_path: A local folder or a name on the Hub.
            hub_options: Passed to `AutoConfig.from_pretrained`, such as `revision` or `cache_dir`.
            fields: Fields of this config.

        Raises:
            ValueError: If there is no config to read.
        """
        folder = Path(name_or_path)
        if not folder.is_dir() and str(name_or_path).startswith(("/", ".", "~")):
            raise ValueError(f"There is no folder {name_or_path}; give that of a checkpoint, or a name on the Hub.")
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise ValueError(f"{name_or_path} holds no config.json; give the folder of a whole checkpoint.")
        try:
            backbone = AutoConfig.from_pretrained(name_or_path, **(hub_options or {}))
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"The config of {name_or_path} cannot be read ({reason}); give the folder of a whole checkpoint of a "
                "transformers model, or a name on the Hub."
            ) from error
        return cls(backbone_config=backbone, **fields)

    @property
    def layer_types(self) -> list[str]:
        """What transformers' caches make for each layer: what the backbone wants."""
        own = getattr(self.backbone_config, "layer_types", None)
        return own or ["full_attention"] * (self.num_hidden_layers or 0)

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        backbone = self.backbone_config
        if not isinstance(backbone, PreTrainedConfig):
            raise ValueError(
                'WrappedConfig has no backbone_config; give one, such as {"model_type": "gpt_neox"}, or read that of a '
                "checkpoint by WrappedConfig.from_backbone(name)."
            )
        super().validate_architecture()
        kind = backbone.model_type
        defaults = {field.name: field.default for field in fields(self)}
        for name in FIELDS_OF_BLOCKS:
            if getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"WrappedConfig has {name}={getattr(self, name)!r}, which has no effect, as the blocks are those "
                    f"of {kind}; leave it out, and set the like of it in backbone_config."
                )
        if kind not in CONFIG_MAPPING:
            raise ValueError(
                f"backbone_config has model_type={kind!r}, which transformers does not know, so it could not be "
                "restored from config.json; use a kind that AutoConfig knows without remote code."
            )
        if kind.startswith("neverscratch_") or getattr(backbone, "is_encoder_decoder", False):
            reason = "is a family of its own" if kind.startswith("neverscratch_") else "has an encoder and a decoder"
            raise ValueError(
                f"backbone_config has model_type={kind!r}, which {reason}; "
                "wrap a model of one stack that takes inputs_embeds, such as gpt_neox, bert or mamba."
            )
        for name in ("hidden_size", "num_hidden_layers"):
            own, wrapped = getattr(self, name), getattr(backbone, name, None)
            if wrapped is None:
                raise ValueError(
                    f"backbone_config has model_type={kind!r}, whose config has no {name}; wrap a model of one stack "
                    "that takes inputs_embeds, such as gpt_neox, bert or mamba."
                )
            if own is None or own != wrapped:
                raise ValueError(
                    f"WrappedConfig has {name}={own}, but its backbone {kind} has {wrapped}; "
                    "leave it out to take the backbone's."
                )
        self.check_direction(kind)
        for pattern in self.ssm_parameter_patterns or ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"ssm_parameter_patterns has {pattern!r}, which is no regular expression ({error}); "
                    r"write one such as 'A_log$', with a backslash before what is meant as it stands."
                ) from error

    def check_direction(self, kind: str) -> None:
        """Raise if the direction is not given, or known not to be possible."""
        if self.bidirectional is None:
            raise ValueError(
                f"WrappedConfig does not know which way {kind} looks; set bidirectional=True or bidirectional=False."
            )
        allowed = DIRECTIONS.get(kind, (True, False))
        if self.bidirectional not in allowed:
            can, cannot = ("both ways", "only back") if allowed[0] else ("only back", "both ways")
            raise ValueError(
                f"WrappedConfig has bidirectional={self.bidirectional}, but {kind} looks {can} and cannot look "
                f"{cannot}; set bidirectional={allowed[0]}, or wrap another model."
            )


def build_backbone_config(
    given: dict[str, Any], shared: dict[str, Any], is_from_file: bool = False
) -> PreTrainedConfig:
    """The config that a dict with `model_type` describes.

    Args:
        given: Fields of the backbone. What it does not know is refused.
        shared: Values of fields that `given` leaves open; None leaves them open.
        is_from_file: Whether `given` was saved, perhaps by another version of transformers, whose fields are let pass.
    """
    kind = given.get("model_type")
    if kind is None:
        raise ValueError(
            'backbone_config names no model_type; add a kind that AutoConfig knows, such as {"model_type": "gpt_neox"}.'
        )
    if kind not in CONFIG_MAPPING:
        hint = nearest_name(str(kind), list(CONFIG_MAPPING.keys())) or " Use one such as 'gpt_neox' or 'bert'."
        raise ValueError(f"backbone_config has model_type={kind!r}, which transformers does not know.{hint}")
    config_class = CONFIG_MAPPING[kind]
    known = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    names = {name: config_class.attribute_map.get(name, name) for name in shared}
    open_fields = {
        name: value
        for name, value in shared.items()
        if value is not None and name in known and name not in given and names[name] not in given
    }
    config = config_class.from_dict({**given, **open_fields})
    for name in [] if is_from_file else sorted(set(given) - known - READ_IF_THERE):
        # A former name of a field is taken by the class; one that stands there as it was given does nothing.
        if name in vars(config) and not is_foreign(name):
            raise ValueError(
                f"backbone_config has {name}, which {config_class.__name__} lacks; remove it."
                f"{nearest_name(name, known)}"
            )
    return config


WrappedConfig.register_for_auto_class()

__all__ = ["WrappedConfig"]
