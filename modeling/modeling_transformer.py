"""The Transformer encoder, or decoder if `bidirectional=False`: softmax attention and a feed-forward per block.

Paper: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
Code: https://github.com/tensorflow/tensor2tensor
Differences: pre-norm by default, GELU, no dropout on the embedded input, a choice of positions, and attention over
nearby blocks as an option.
"""

from torch import nn
from transformers.utils.output_capturing import OutputRecorder

from .attention import AttentionCore, FullAttention
from .blocks import ResidualBlock
from .configuration_transformer import TransformerConfig
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
from .positions import added_positions


class TransformerPreTrainedModel(LongSequencePreTrainedModel):
    config: TransformerConfig
    mixer_class = FullAttention
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {
        "hidden_states": ResidualBlock,
        "attentions": OutputRecorder(AttentionCore, index=1),
    }


class TransformerModel(TransformerPreTrainedModel, LongSequenceModel):
    def build_positions(self, config: TransformerConfig) -> nn.Module | None:
        return added_positions(config)


TransformerPreTrainedModel.model_class = TransformerModel


class TransformerForMaskedLM(TransformerPreTrainedModel, LongSequenceForMaskedLM):
    pass


class TransformerForCausalLM(TransformerPreTrainedModel, LongSequenceForCausalLM):
    pass


class TransformerForReconstruction(TransformerPreTrainedModel, LongSequenceForReconstruction):
    pass


class TransformerForSequenceClassification(TransformerPreTrainedModel, LongSequenceForSequenceClassification):
    pass


TransformerModel.register_for_auto_class("AutoModel")
TransformerForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
TransformerForCausalLM.register_for_auto_class("AutoModelForCausalLM")
TransformerForReconstruction.register_for_auto_class("AutoModelForPreTraining")
TransformerForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "TransformerForCausalLM",
    "TransformerForMaskedLM",
    "TransformerForReconstruction",
    "TransformerForSequenceClassification",
    "TransformerModel",
    "TransformerPreTrainedModel",
]
