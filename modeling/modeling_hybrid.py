"""A stack of residual blocks that mix positions in different ways, layer by layer.

Paper: Fu et al. 2023, "Hungry Hungry Hippos: Towards Language Modeling with State Space Models", arXiv 2212.14052,
keeps two attention layers among state space layers.
Code: https://github.com/HazyResearch/H3
Differences: any order of this package's mixers, each with the start, the feed-forward and the parameter groups that it
has in its own family.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from .attention import FullAttention
from .blocks import Mixer, ResidualBlock
from .configuration_hybrid import HybridConfig
from .heads import (
    LongSequenceForCausalLM,
    LongSequenceForMaskedLM,
    LongSequenceForReconstruction,
    LongSequenceForSequenceClassification,
)
from .modeling_common import (
    LongSequenceModel,
    LongSequencePreTrainedModel,
)
from .modeling_dlr import DLRMixer
from .modeling_dss import DSSMixer
from .modeling_lru import LRUMixer
from .modeling_mega import MegaMixer, MegaPreTrainedModel
from .modeling_mrconv import MRConvMixer
from .modeling_s4 import S4Mixer
from .modeling_s4d import S4DMixer
from .modeling_s5 import S5Mixer
from .modeling_sgconv import SGConvMixer
from .modeling_transformer import TransformerPreTrainedModel
from .positions import added_positions

# Names as in LAYER_CONFIGS of configuration_hybrid.
MIXERS: dict[str, type[Mixer]] = {
    "attention": FullAttention,
    "dlr": DLRMixer,
    "dss": DSSMixer,
    "lru": LRUMixer,
    "mega": MegaMixer,
    "mrconv": MRConvMixer,
    "s4": S4Mixer,
    "s4d": S4DMixer,
    "s5": S5Mixer,
    "sgconv": SGConvMixer,
}


class HybridPreTrainedModel(LongSequencePreTrainedModel):
    config: HybridConfig
    _supports_sdpa = TransformerPreTrainedModel._supports_sdpa
    _supports_flash_attn = TransformerPreTrainedModel._supports_flash_attn
    _supports_flex_attn = TransformerPreTrainedModel._supports_flex_attn
    _supports_attention_backend = TransformerPreTrainedModel._supports_attention_backend
    _can_record_outputs: dict[str, Any] = {
        "hidden_states": ResidualBlock,
        "attentions": [
            TransformerPreTrainedModel._can_record_outputs["attentions"],
            MegaPreTrainedModel._can_record_outputs["attentions"],
        ],
    }

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, for the configs of the layers too."""
        super().set_attn_implementation(*args, **kwargs)
        for module in self.modules():
            for config in getattr(module, "layer_configs", ()):
                config._attn_implementation = self.config._attn_implementation


class HybridModel(HybridPreTrainedModel, LongSequenceModel):
    def __init__(self, config: HybridConfig) -> None:
        # One config for layers described alike, which then share masks and tables.
        self.configs_by_key: dict[str, PreTrainedConfig] = {}
        super().__init__(config)

    def build_positions(self, config: HybridConfig) -> nn.Module | None:
        return added_positions(config)

    def layer_config(self, layer_idx: int) -> PreTrainedConfig:
        key = self.config.layer_key(layer_idx)
        if key not in self.configs_by_key:
            config = self.config.layer_config(layer_idx)
            config._attn_implementation = self.config._attn_implementation
            config._output_attentions = self.config._output_attentions
            self.configs_by_key[key] = config
        return self.configs_by_key[key]

    def layer_mixer_class(self, layer_idx: int) -> type[Mixer]:
        return MIXERS[self.config.mixer_type(layer_idx)]


HybridPreTrainedModel.model_class = HybridModel


class HybridForMaskedLM(HybridPreTrainedModel, LongSequenceForMaskedLM):
    pass


class HybridForCausalLM(HybridPreTrainedModel, LongSequenceForCausalLM):
    pass


class HybridForReconstruction(HybridPreTrainedModel, LongSequenceForReconstruction):
    pass


class HybridForSequenceClassification(HybridPreTrainedModel, LongSequenceForSequenceClassification):
    pass


HybridModel.register_for_auto_class("AutoModel")
HybridForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
HybridForCausalLM.register_for_auto_class("AutoModelForCausalLM")
HybridForReconstruction.register_for_auto_class("AutoModelForPreTraining")
HybridForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "HybridForCausalLM",
    "HybridForMaskedLM",
    "HybridForReconstruction",
    "HybridForSequenceClassification",
    "HybridModel",
    "HybridPreTrainedModel",
]
