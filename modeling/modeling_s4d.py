"""S4D: every feature is a long convolution whose kernel is the impulse response of a diagonal state space model.

Paper: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models", arXiv 2206.11893.
Code: https://github.com/state-spaces/s4
Differences: complex parameters are stored as real pairs, and kernels are computed with float64 powers by a two-level
product (see ops_ssm). As published, B starts at one for both starts of A, and the second direction of a bidirectional
model has its own C and shares dt, A and B.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_s4d import S4DConfig
from .convolution_mixer import ConvolutionMixer
from .modeling_common import (
    LongSequenceForCausalLM,
    LongSequenceForMaskedLM,
    LongSequenceForReconstruction,
    LongSequenceForSequenceClassification,
    LongSequenceModel,
    LongSequencePreTrainedModel,
)
from .ops_hippo import s4d_legs, s4d_lin
from .ops_ssm import diagonal_kernel


class S4DMixer(ConvolutionMixer):
    """Convolution with the impulse response of a diagonal SSM; (B, L, H) in and out."""

    ssm_parameters = ("log_dt", "log_A_real", "A_imag", "B")

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, pairs = config.hidden_size, config.d_state // 2
        copies = hidden if config.n_ssm is None else config.n_ssm
        self.discretization = config.discretization
        self.ssm_init = config.ssm_init
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.log_dt = nn.Parameter(torch.empty(hidden))
        self.log_A_real = nn.Parameter(torch.empty(copies, pairs))
        self.A_imag = nn.Parameter(torch.empty(copies, pairs))
        if config.train_B:
            self.B = nn.Parameter(torch.empty(copies, pairs, 2))
        else:
            # A buffer of the same name: `requires_grad=False` would be lost in `from_pretrained`.
            self.register_buffer("B", torch.empty(copies, pairs, 2))
        self.C = nn.Parameter(torch.empty(self.num_directions, hidden, pairs, 2))

    def init_weights(self) -> None:
        A = (s4d_legs if self.ssm_init == "legs" else s4d_lin)(2 * self.A_imag.shape[1])
        init.copy_(self.log_A_real, torch.log(-A[:, 0]).expand_as(self.log_A_real))
        init.copy_(self.A_imag, A[:, 1].expand_as(self.A_imag))
        init.uniform_(self.log_dt, *self.log_dt_range)
        init.copy_(self.B, torch.tensor([1.0, 0.0]).expand_as(self.B))
        # A complex normal with E |C|^2 = 1.
        init.normal_(self.C, std=math.sqrt(0.5))
        super().init_weights()

    def kernel(self, length: int) -> Tensor:
        """Kernels (directions, H, L) in float32; the second direction is strictly anti-causal."""
        # exp in float64: a rounded step or decay would shift the phase of late kernel values.
        return diagonal_kernel(
            dt=self.log_dt.double().exp(),
            A_real=-self.log_A_real.double().exp(),
            A_imag=self.A_imag,
            B=self.B,
            C=self.C,
            length=length,
            discretization=self.discretization,
        )


class S4DPreTrainedModel(LongSequencePreTrainedModel):
    config: S4DConfig
    mixer_class = S4DMixer


class S4DModel(S4DPreTrainedModel, LongSequenceModel):
    pass


S4DPreTrainedModel.model_class = S4DModel


class S4DForMaskedLM(S4DPreTrainedModel, LongSequenceForMaskedLM):
    pass


class S4DForCausalLM(S4DPreTrainedModel, LongSequenceForCausalLM):
    pass


class S4DForReconstruction(S4DPreTrainedModel, LongSequenceForReconstruction):
    pass


class S4DForSequenceClassification(S4DPreTrainedModel, LongSequenceForSequenceClassification):
    pass


S4DModel.register_for_auto_class("AutoModel")
S4DForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
S4DForCausalLM.register_for_auto_class("AutoModelForCausalLM")
S4DForReconstruction.register_for_auto_class("AutoModelForPreTraining")
S4DForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "S4DForCausalLM",
    "S4DForMaskedLM",
    "S4DForReconstruction",
    "S4DForSequenceClassification",
    "S4DMixer",
    "S4DModel",
    "S4DPreTrainedModel",
]
