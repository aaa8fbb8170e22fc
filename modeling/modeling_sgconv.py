"""SGConv: every feature is a long convolution whose kernel is laid out from short ones, longer and weaker with the lag.

Paper: Li et al. 2022, "What Makes Convolutional Models Great on Long Sequence Modeling?", arXiv 2210.09298.
Code: https://github.com/ctlllll/SGConv
Differences: the norm of the kernel, by which it is divided, is measured when the weights are drawn and not in the first
forward pass; the decay is divided out of later sub-kernels rather than multiplied onto earlier ones, which that norm
makes the same; only linear interpolation, and only sub-kernels one after another.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .blocks import Packing, check_length
from .configuration_sgconv import SGConvConfig
from .convolution_mixer import ConvolutionMixer
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
from .ops_multiscale import concatenated_kernel, num_scales


class SGConvMixer(ConvolutionMixer):
    """Convolution with sub-kernels of growing length and falling size; (B, L, H) in and out.

    `kernel_norm` is the norm of the whole kernel, before it is cut to `kernel_length`, of the weights as they are when
    it is made: at the start, where the kernel then has norm one, and as a saved constant ever after. Where a checkpoint
    lacks it, it is the norm of the loaded weights; where a checkpoint has it but lacks the weights, it stays, and new
    weights have a kernel of about norm one if the old ones were near their start.
    """

    ssm_parameters: tuple[str, ...] = ("sub_kernels",)
    float32_tensors = ("kernel_norm",)
    no_step_reason = "its kernel is not that of a recurrence with a finite state"

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, taps = config.hidden_size, config.sub_kernel_size
        self.decay_range = (config.decay_min, config.decay_max)
        scales = num_scales(config.kernel_length, taps)
        self.sub_kernels = nn.Parameter(torch.empty(self.num_directions, hidden, scales, taps))
        self.register_buffer("kernel_norm", torch.empty(self.num_directions, hidden))
        self.train_decay = config.train_decay
        if self.train_decay:
            self.ssm_parameters = ("sub_kernels", "log_decay")
            self.log_decay = nn.Parameter(torch.empty(hidden))

    def init_weights(self) -> None:
        super().init_weights()
        init.normal_(self.sub_kernels)
        if self.train_decay:
            init.copy_(self.log_decay, -torch.linspace(*self.decay_range, len(self.D)).log())
        # After the weights, drawn or loaded.
        norm = torch.linalg.vector_norm(self.unscaled_kernel(None).detach(), dim=-1)
        init.copy_(self.kernel_norm, norm.to(self.kernel_norm.dtype))

    def unscaled_kernel(self, length: int | None) -> Tensor:
        """The kernel before division by its norm, (R, H, L), float32 or float64."""
        weights = self.sub_kernels
        weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
        if self.train_decay:
            decay = self.log_decay.to(weights.dtype).exp()
        else:
            steps = torch.linspace(*self.decay_range, len(self.D), device=weights.device, dtype=weights.dtype)
            decay = 1 / steps
        return concatenated_kernel(weights, decay, length)

    def kernel(self, length: int) -> Tensor:
        kernel = self.unscaled_kernel(length)
        return kernel / self.kernel_norm.to(kernel.dtype)[..., None]

    @staticmethod
    def prepare_inputs(
        config: PreTrainedConfig,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        length = hidden_states.shape[1] if packing is None else max(packing.lengths)
        made_for = "the kernel was made for kernel_length"
        check_length(length, attention_mask, config.kernel_length, made_for, "a larger kernel_length")
        return {}


class SGConvPreTrainedModel(LongSequencePreTrainedModel):
    config: SGConvConfig
    mixer_class = SGConvMixer


class SGConvModel(SGConvPreTrainedModel, LongSequenceModel):
    pass


SGConvPreTrainedModel.model_class = SGConvModel


class SGConvForMaskedLM(SGConvPreTrainedModel, LongSequenceForMaskedLM):
    pass


class SGConvForCausalLM(SGConvPreTrainedModel, LongSequenceForCausalLM):
    pass


class SGConvForReconstruction(SGConvPreTrainedModel, LongSequenceForReconstruction):
    pass


class SGConvForSequenceClassification(SGConvPreTrainedModel, LongSequenceForSequenceClassification):
    pass


SGConvModel.register_for_auto_class("AutoModel")
SGConvForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
SGConvForCausalLM.register_for_auto_class("AutoModelForCausalLM")
SGConvForReconstruction.register_for_auto_class("AutoModelForPreTraining")
SGConvForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "SGConvForCausalLM",
    "SGConvForMaskedLM",
    "SGConvForReconstruction",
    "SGConvForSequenceClassification",
    "SGConvMixer",
    "SGConvModel",
    "SGConvPreTrainedModel",
]
