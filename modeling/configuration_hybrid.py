"""Configuration of a stack whose layers mix positions in different ways."""

import json
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError

from .configuration_common import LongSequenceConfig
from .configuration_dlr import DLRConfig
from .configuration_dss import DSSConfig
from .configuration_lru import LRUConfig
from .configuration_mega import MegaConfig
from .configuration_mrconv import MRConvConfig
from .configuration_s4 import S4Config
from .configuration_s4d import S4DConfig
from .configuration_s5 import S5Config
from .configuration_sgconv import SGConvConfig
from .configuration_transformer import TransformerConfig

# What a layer may be -> the config that describes it. Its mixer is found under the same name in modeling_hybrid.
LAYER_CONFIGS: dict[str, type[LongSequenceConfig]] = {
    "attention": TransformerConfig,
    "dlr": DLRConfig,
    "dss": DSSConfig,
    "lru": LRUConfig,
    "mega": MegaConfig,
    "mrconv": MRConvConfig,
    "s4": S4Config,
    "s4d": S4DConfig,
    "s5": S5Config,
    "sgconv": SGConvConfig,
}
SHARED_FIELDS = {field.name for field in fields(LongSequenceConfig)}
INPUT_POSITIONS = ("sinusoidal", "learned")


@strict
class HybridConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        mixers (`list[str | dict]`): What mixes positions in each layer, from the input on: the name of a family, or a
            dict with the name as `type` and fields of that family, such as `{"type": "s4d", "d_state": 16}`. The name
            of the transformer's mixer is `"attention"`. Fields that all families share are those of this config.
        num_hidden_layers (`int`, *optional*): Number of residual blocks, a multiple of the length of `mixers`, which is
            then repeated as a whole. None is that length.
        position_embedding_type (`str`, defaults to `"none"`): `"none"`, or absolute positions added to the input:
            `"sinusoidal"` or `"learned"`. Positions inside attention (RoPE ...) are a field of its entry.
        max_position_embeddings (`int`, *optional*): Longest sequence of the sinusoidal and learned tables.
    """

    model_type = "neverscratch_hybrid"
    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {
        "max_position_embeddings": ("position_embedding_type", INPUT_POSITIONS),
    }

    mixers: list[str | dict] | None = None
    num_hidden_layers: int | None = None  # type: ignore[assignment]
    position_embedding_type: Literal["none", "sinusoidal", "learned"] = "none"
    max_position_embeddings: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_hidden_layers is None and isinstance(self.mixers, list):
            self.num_hidden_layers = len(self.mixers)
        super().__post_init__(**kwargs)

    @property
    def layer_types(self) -> list[str]:
        """See `LongSequenceConfig`; it is asked for before the fields are checked."""
        return ["linear_attention"] * (self.num_hidden_layers or 0)

    def mixer_type(self, layer_idx: int) -> str:
        """Name of the mixer of a layer."""
        assert self.mixers is not None
        entry = self.mixers[layer_idx % len(self.mixers)]
        return entry if isinstance(entry, str) else entry["type"]

    def layer_key(self, layer_idx: int) -> str:
        """Equal for layers that are described alike."""
        assert self.mixers is not None
        entry = self.mixers[layer_idx % len(self.mixers)]
        return json.dumps({"type": entry} if isinstance(entry, str) else entry, sort_keys=True)

    def layer_config(self, layer_idx: int) -> LongSequenceConfig:
        """The config of a layer, of the class of its family: the fields shared by all layers, and those of its entry.

        Raises:
            ValueError: If the entry makes no sense.
        """
        assert self.mixers is not None
        position = layer_idx % len(self.mixers)
        entry = self.mixers[position]
        own = {} if isinstance(entry, str) else dict(entry)
        kind = entry if isinstance(entry, str) else own.pop("type", None)
        name = f"mixers[{position}]"
        if not isinstance(kind, str) or kind not in LAYER_CONFIGS:
            raise ValueError(f"{name} has type {kind!r}, but a layer is {nearest(kind, LAYER_CONFIGS)}.")
        config_class = LAYER_CONFIGS[kind]
        allowed = {field.name for field in fields(config_class)} - SHARED_FIELDS
        for field in own:
            if field in SHARED_FIELDS:
                raise ValueError(f"{name} sets {field}, which all layers share; set it on HybridConfig itself.")
            if field not in allowed:
                raise ValueError(f"{name} sets {field}, but a field of {kind} is {nearest(field, allowed)}.")
        if kind == "attention":
            own.setdefault("position_embedding_type", "none")
            if own["position_embedding_type"] in INPUT_POSITIONS:
                raise ValueError(
                    f"{name} sets position_embedding_type={own['position_embedding_type']!r}, which is added to the "
                    "input and not inside a layer; set it on HybridConfig itself."
                )
        shared = {field: getattr(self, field) for field in LongSequenceConfig.__annotations__}
        try:
            return config_class(**shared, **own)
        except StrictDataclassError as error:
            raise ValueError(f"{name} of type {kind}: {error.__cause__ or error}") from error

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        if not self.mixers:
            raise ValueError(
                'HybridConfig has no mixers; list what each layer is, such as mixers=["s4d", "attention"]; '
                f"a layer is {nearest(None, LAYER_CONFIGS)}."
            )
        super().validate_architecture()
        if self.position_embedding_type in INPUT_POSITIONS and (self.max_position_embeddings or 0) < 1:
            raise ValueError(
                f"HybridConfig has max_position_embeddings={self.max_position_embeddings} and "
                f"position_embedding_type={self.position_embedding_type!r}; set the former to the longest sequence."
            )
        assert self.mixers is not None and self.num_hidden_layers is not None
        if self.num_hidden_layers % len(self.mixers):
            raise ValueError(
                f"HybridConfig has num_hidden_layers={self.num_hidden_layers} and {len(self.mixers)} mixers, which are "
                "repeated as a whole; use a multiple of their number, or leave num_hidden_layers out."
            )
        for layer_idx in range(len(self.mixers)):
            self.layer_config(layer_idx)


def nearest(given: str | None, known: Any) -> str:
    """The known names as half a sentence, the nearest first if there is one near."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1) if isinstance(given, str) else []
    listed = f"one of {', '.join(names)}"
    return f"{listed}; did you mean {near[0]}?" if near else listed


HybridConfig.register_for_auto_class()

__all__ = ["HybridConfig"]
