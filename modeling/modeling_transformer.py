"""The Transformer encoder, or decoder if `bidirectional=False`: full softmax attention and a feed-forward per block.

Paper: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
Code: https://github.com/tensorflow/tensor2tensor
Differences: pre-norm by default, GELU, no dropout on the embedded input, and a choice of positions.
"""

from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils.output_capturing import OutputRecorder

from .attention import AttentionCore, FullAttention
from .blocks import ResidualBlock
from .configuration_transformer import TransformerConfig
from .modeling_common import (
    LongSequenceForCausalLM,
    LongSequenceForMaskedLM,
    LongSequenceForReconstruction,
    LongSequenceForSequenceClassification,
    LongSequenceModel,
    LongSequencePreTrainedModel,
)
from .positions import LearnedPositions, SinusoidalPositions, rotary_table


class TransformerPreTrainedModel(LongSequencePreTrainedModel):
    config: TransformerConfig
    mixer_class = FullAttention
    _supports_sdpa = True
    _can_record_outputs = {
        "hidden_states": ResidualBlock,
        "attentions": OutputRecorder(AttentionCore, index=1),
    }


class TransformerModel(TransformerPreTrainedModel, LongSequenceModel):
    def build_positions(self, config: TransformerConfig) -> nn.Module | None:
        classes = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        position_class = classes.get(config.position_embedding_type)
        return position_class(config) if position_class else None

    def mixer_inputs(self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> dict[str, Any]:
        config = self.config
        implementation = config._attn_implementation
        if kwargs.get("output_attentions") and implementation != "eager":
            raise ValueError(
                f'output_attentions=True needs attn_implementation="eager", but it is "{implementation}"; '
                'call model.set_attn_implementation("eager") first.'
            )
        inputs: dict[str, Any] = {}
        if config.position_embedding_type == "rope":
            cosine, sine = rotary_table(
                hidden_states.shape[1],
                config.hidden_size // config.num_attention_heads,
                config.rope_theta,
                hidden_states.device,
            )
            inputs["rotary"] = (cosine.to(hidden_states.dtype), sine.to(hidden_states.dtype))
        if config.bidirectional:
            if attention_mask is not None:
                inputs["full_attention_mask"] = create_bidirectional_mask(config, hidden_states, attention_mask)
        # Without padding, every kernel but the plain one makes the causal pattern itself.
        elif attention_mask is not None or implementation == "eager":
            inputs["full_attention_mask"] = create_causal_mask(config, hidden_states, attention_mask, cache=None)
        return inputs


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
