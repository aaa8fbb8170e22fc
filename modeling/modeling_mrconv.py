"""MRConv: every feature is a sum of convolutions of doubling length, each batch-normed, that are merged for inference.

Paper: Cunningham et al. 2024, "Reparameterized Multi-Resolution Convolutions for Long Sequence Modelling",
arXiv 2408.09453.
Differences: from a description of the paper, not its code. A branch with both directions has one batch norm for their
sum; statistics leave padding out; kernels start with norm one in the mean, and branch i with a weight proportional to
2^-i. Branches of sparse taps, and sums of kinds, are left out.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .blocks import MaskedBatchNorm, Packing, check_length
from .configuration_mrconv import MRConvConfig
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
from .ops_conv import long_conv
from .ops_multiscale import dilated_kernel, fit_length, fourier_kernel, num_scales


class MRConvMixer(ConvolutionMixer):
    """y = sum_i branch_scale_i BatchNorm_i(k_i * u) + D u with kernels k_i of doubling length; (B, L, H) in and out.

    In evaluation the norms are fixed, so the sum is one convolution and a bias: the cost is that of any other family.
    """

    ssm_parameters = ("sub_kernels", "branch_scale")
    float32_tensors = ("running_mean", "running_var")
    no_step_reason = "its kernel is not that of a recurrence with a finite state"

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, self.first_length = config.hidden_size, config.sub_kernel_size
        self.is_fourier = config.kernel_kind == "fourier"
        branches = num_scales(config.kernel_length, self.first_length)
        numbers = self.first_length - 1 if self.is_fourier else self.first_length
        self.sub_kernels = nn.Parameter(torch.empty(branches, self.num_directions, hidden, numbers))
        self.branch_scale = nn.Parameter(torch.empty(branches, hidden))
        self.norms = nn.ModuleList(MaskedBatchNorm(hidden, config.layer_norm_eps) for _ in range(branches))

    def init_weights(self) -> None:
        super().init_weights()
        branches, _, _, numbers = self.sub_kernels.shape
        # All frequencies but the lowest count twice, for their conjugates.
        init.normal_(self.sub_kernels, std=(2 * numbers - 1 if self.is_fourier else numbers) ** -0.5)
        scale = 0.5 ** torch.arange(branches)
        init.copy_(self.branch_scale, (scale / scale.sum())[:, None].expand_as(self.branch_scale))

    def branch_kernel(self, branch: int) -> Tensor:
        """Kernels of a branch, (R, H, first_length 2^branch), float32 or float64."""
        numbers = self.sub_kernels[branch]
        numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
        if self.is_fourier:
            return fourier_kernel(numbers, self.first_length << branch)
        return dilated_kernel(numbers, 1 << branch)

    def merged(self, length: int) -> tuple[Tensor, Tensor]:
        """The one kernel (R, H, L) and bias (H,) that the branches are with the running statistics."""
        total = self.first_length << (len(self.norms) - 1)
        kernel, bias = 0.0, 0.0
        for branch, norm in enumerate(self.norms):
            part = self.branch_kernel(branch)
            variance = norm.running_var.to(part.dtype)
            gain = norm.weight.to(part.dtype) * torch.rsqrt(variance + norm.eps)
            scale = self.branch_scale[branch].to(part.dtype)
            kernel = kernel + fit_length(part * (scale * gain)[:, None], total)
            bias = bias + scale * (norm.bias - gain * norm.running_mean.to(part.dtype))
        return fit_length(kernel, length), bias

    def kernel(self, length: int) -> Tensor:
        return self.merged(length)[0]

    def convolve(
        self, u: Tensor, attention_mask: Tensor | None, norms_moved: set[int] | None = None, **kwargs: Any
    ) -> Tensor:
        length, is_two_sided = u.shape[1], self.num_directions == 2
        if not self.training:
            kernels, bias = self.merged(length)
            return long_conv(u, kernels[0], kernels[1] if is_two_sided else None, skip=self.D) + bias.to(u.dtype)
        # Convolutions give back (B, L, H) with the positions of a feature side by side; so is everything here.
        u = u.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        y = u * self.D.to(u.dtype)
        for branch, norm in enumerate(self.norms):
            kernels = fit_length(self.branch_kernel(branch), length)
            part = long_conv(u, kernels[0], kernels[1] if is_two_sided else None)
            y = y + self.branch_scale[branch].to(u.dtype) * norm(part, attention_mask, norms_moved)
        return y

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
        # Lives as long as one forward pass: a layer computed again for its gradient does not move its norms again.
        return {"norms_moved": None if torch.compiler.is_compiling() else set()}


class MRConvPreTrainedModel(LongSequencePreTrainedModel):
    config: MRConvConfig
    mixer_class = MRConvMixer


class MRConvModel(MRConvPreTrainedModel, LongSequenceModel):
    pass


MRConvPreTrainedModel.model_class = MRConvModel


class MRConvForMaskedLM(MRConvPreTrainedModel, LongSequenceForMaskedLM):
    pass


class MRConvForCausalLM(MRConvPreTrainedModel, LongSequenceForCausalLM):
    pass


class MRConvForReconstruction(MRConvPreTrainedModel, LongSequenceForReconstruction):
    pass


class MRConvForSequenceClassification(MRConvPreTrainedModel, LongSequenceForSequenceClassification):
    pass


MRConvModel.register_for_auto_class("AutoModel")
MRConvForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
MRConvForCausalLM.register_for_auto_class("AutoModelForCausalLM")
MRConvForReconstruction.register_for_auto_class("AutoModelForPreTraining")
MRConvForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "MRConvForCausalLM",
    "MRConvForMaskedLM",
    "MRConvForReconstruction",
    "MRConvForSequenceClassification",
    "MRConvMixer",
    "MRConvModel",
    "MRConvPreTrainedModel",
]
