"""DSS: S4D with one set of eigenvalues for all features, complex weights, and kernels normalised over the length.

Paper: Gupta, Gu and Berant 2022, "Diagonal State Spaces are as Effective as Structured State Spaces", arXiv 2203.14343.
Code: https://github.com/ag1988/dss
Differences: the length of the softmax is fixed by the config and not that of the batch; divisions are exact where the
code adds 1e-7 to denominators; powers are made in float64 (see ops_ssm), and those of a growing state are counted from
the last lag, so that nothing overflows. The container adds a norm after the last block.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_dss import DSSConfig
from .diagonal_mixer import DiagonalMixer
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
from .ops_dss import softmax_kernel, softmax_system
from .ops_hippo import s4d_legs, s4d_lin
from .ops_ssm import wide


class DSSMixer(DiagonalMixer):
    """Convolution with K_l = Re sum_n W_n gain_n e^{l dt A_n}; (B, L, H) in and out.

    gain is (e^{dt A} - 1) / A under "exp", 1 under "exp_no_scale", and under "softmax" (e^{dt A} - 1) /
    (A (e^{dt A kernel_length} - 1)), by which the powers become a softmax over the lags, divided by A.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, states = config.hidden_size, config.d_state
        self.state_shape = (hidden, states, 2)
        decay = "A_real" if config.version == "softmax" else "log_A_real"
        self.ssm_parameters = ("log_dt", decay, "A_imag", "W")
        self.version, self.ssm_init, self.kernel_length = config.version, config.ssm_init, config.kernel_length
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.log_dt = nn.Parameter(torch.empty(hidden, 2) if config.separate_dt else torch.empty(hidden))
        self.register_parameter(decay, nn.Parameter(torch.empty(states)))
        self.A_imag = nn.Parameter(torch.empty(states))
        self.W = nn.Parameter(torch.empty(self.num_directions, hidden, states, 2))

    def init_weights(self) -> None:
        A = (s4d_legs if self.ssm_init == "hippo" else s4d_lin)(2 * len(self.A_imag))
        if self.version == "softmax":
            init.copy_(self.A_real, A[:, 0])
        else:
            init.copy_(self.log_A_real, torch.log(-A[:, 0]))
        init.copy_(self.A_imag, A[:, 1])
        init.uniform_(self.log_dt, *self.log_dt_range)
        init.normal_(self.W)
        super().init_weights()

    def eigenvalues(self) -> tuple[Tensor, Tensor]:
        """A (N,) and dt A (H, N), complex128."""
        A_real = wide(self.A_real) if self.version == "softmax" else -wide(self.log_A_real).exp()
        A_imag, dt = wide(self.A_imag), wide(self.log_dt).exp()
        dt_real, dt_imag = dt.unbind(-1) if dt.dim() == 2 else (dt, dt)
        x = torch.complex(dt_real[:, None] * A_real, dt_imag[:, None] * A_imag)
        return torch.complex(A_real, A_imag), x

    def weights(self) -> Tensor:
        return torch.view_as_complex(wide(self.W))

    def system(self) -> tuple[Tensor, Tensor]:
        A, x = self.eigenvalues()
        if self.version == "softmax":
            log_z, weight, grows = softmax_system(A, x, self.weights(), self.kernel_length)
            if not torch.compiler.is_compiling() and bool(grows.any()):
                raise ValueError(
                    f"{int((A.real > 0).sum())} of {len(A)} eigenvalues of layer {self.layer_idx} have a positive real "
                    "part: the softmax reads their powers from the last lag, which a step cannot; use use_cache=False, "
                    'or a model with version="exp".'
                )
            return log_z, weight
        if self.version == "exp":
            return x, self.weights() * (torch.expm1(x) / A)
        return x, self.weights()

    def kernel(self, length: int) -> Tensor:
        """Kernels (R, H, L); the second direction is strictly anti-causal."""
        if self.version != "softmax":
            return super().kernel(length)
        if length > self.kernel_length:
            raise ValueError(
                f"The input has length {length}, but the softmax of the kernel runs over kernel_length="
                f"{self.kernel_length}; cut the input, or build the model with a larger kernel_length."
            )
        return softmax_kernel(*self.eigenvalues(), self.weights(), length, self.kernel_length, self.kernel_dtype())


class DSSPreTrainedModel(LongSequencePreTrainedModel):
    config: DSSConfig
    mixer_class = DSSMixer


class DSSModel(DSSPreTrainedModel, LongSequenceModel):
    pass


DSSPreTrainedModel.model_class = DSSModel


class DSSForMaskedLM(DSSPreTrainedModel, LongSequenceForMaskedLM):
    pass


class DSSForCausalLM(DSSPreTrainedModel, LongSequenceForCausalLM):
    pass


class DSSForReconstruction(DSSPreTrainedModel, LongSequenceForReconstruction):
    pass


class DSSForSequenceClassification(DSSPreTrainedModel, LongSequenceForSequenceClassification):
    pass


DSSModel.register_for_auto_class("AutoModel")
DSSForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
DSSForCausalLM.register_for_auto_class("AutoModelForCausalLM")
DSSForReconstruction.register_for_auto_class("AutoModelForPreTraining")
DSSForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "DSSForCausalLM",
    "DSSForMaskedLM",
    "DSSForReconstruction",
    "DSSForSequenceClassification",
    "DSSMixer",
    "DSSModel",
    "DSSPreTrainedModel",
]
