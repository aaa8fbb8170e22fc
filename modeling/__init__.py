"""Model families as transformers classes; importing this registers them with the Auto classes."""

from importlib import import_module

from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
)

from .configuration_common import HEADS, LongSequenceConfig, unknown_fields
from .configuration_dlr import DLRConfig
from .configuration_dss import DSSConfig
from .configuration_hybrid import HybridConfig
from .configuration_lru import LRUConfig
from .configuration_mega import MegaConfig
from .configuration_mrconv import MRConvConfig
from .configuration_s4 import S4Config
from .configuration_s4d import S4DConfig
from .configuration_s5 import S5Config
from .configuration_sgconv import SGConvConfig
from .configuration_transformer import TransformerConfig
from .configuration_wrapped import WrappedConfig
from .feature_extraction_sequence import LongSequenceFeatureExtractor
from .modeling_common import (
    LongSequencePreTrainedModel,
    parameter_groups,
)
from .pipeline_sequence import register_pipeline

FAMILIES: dict[str, type[LongSequenceConfig]] = {
    "transformer": TransformerConfig,
    "s4": S4Config,
    "s4d": S4DConfig,
    "dss": DSSConfig,
    "dlr": DLRConfig,
    "s5": S5Config,
    "lru": LRUConfig,
    "mega": MegaConfig,
    "sgconv": SGConvConfig,
    "mrconv": MRConvConfig,
    "hybrid": HybridConfig,
    "wrapped": WrappedConfig,
}

AUTO_CLASSES = {
    auto.__name__: auto
    for auto in (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForCausalLM,
        AutoModelForPreTraining,
        AutoModelForSequenceClassification,
    )
}


def register(config_class: type[LongSequenceConfig]) -> None:
    """Register a family with the Auto classes; doing it twice is harmless."""
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    AutoFeatureExtractor.register(config_class, LongSequenceFeatureExtractor, exist_ok=True)
    for auto, reference in config_class.remote_code_map().items():
        if auto in AUTO_CLASSES:
            module, _, name = reference.rpartition(".")
            model_class = getattr(import_module(f".{module}", __name__), name)
            AUTO_CLASSES[auto].register(config_class, model_class, exist_ok=True)


for family_config in FAMILIES.values():
    register(family_config)
register_pipeline()

__all__ = [
    "FAMILIES",
    "HEADS",
    "DLRConfig",
    "DSSConfig",
    "HybridConfig",
    "LRUConfig",
    "LongSequenceConfig",
    "LongSequenceFeatureExtractor",
    "LongSequencePreTrainedModel",
    "MRConvConfig",
    "MegaConfig",
    "S4Config",
    "S4DConfig",
    "S5Config",
    "SGConvConfig",
    "TransformerConfig",
    "WrappedConfig",
    "parameter_groups",
    "register",
    "register_pipeline",
    "unknown_fields",
]
