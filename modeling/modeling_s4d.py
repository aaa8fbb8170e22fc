"""S4D: every feature is a long convolution whose kernel is the impulse response of a diagonal state space model.

Paper: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models", arXiv 2206.11893.
Code: https://github.com/state-spaces/s4
Differences: complex parameters are stored as real pairs, and kernels are computed with float64 powers by a two-level
product (see ops_ssm). As published, B starts at one for all starts of A, and the second direction of a bidirectional
model has its own C and shares dt, A and B. S4D-Real has d_state real states, where the public code has half as many,
counted twice.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_s4d import S4DConfig
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
from .ops_hippo import hippo_legs_normal, s4d_inv, s4d_legs, s4d_lin, s4d_real
from .ops_ssm import diagonal_system, wide

COMPLEX_STARTS = {"lin": s4d_lin, "inv": s4d_inv, "legs": s4d_legs}


class S4DMixer(DiagonalMixer):
    """Convolution with the impulse response of a diagonal SSM; (B, L, H) in and out."""

    float32_tensors = ("B", "C")

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.is_real = config.ssm_init == "real"
        self.ssm_parameters = ("log_dt", "log_A_real", *(() if self.is_real else ("A_imag",)), "B")
        hidden, states = config.hidden_size, config.d_state if self.is_real else config.d_state // 2
        copies = hidden if config.n_ssm is None else config.n_ssm
        part = () if self.is_real else (2,)
        self.state_shape = (hidden, states, *part)
        self.discretization = config.discretization
        self.ssm_init, self.b_init, self.random_std = config.ssm_init, config.b_init, config.random_std
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.log_dt = nn.Parameter(torch.empty(hidden, states) if config.dt_per_state else torch.empty(hidden))
        self.log_A_real = nn.Parameter(torch.empty(copies, states))
        if not self.is_real:
            self.A_imag = nn.Parameter(torch.empty(copies, states))
        if config.train_B:
            self.B = nn.Parameter(torch.empty(copies, states, *part))
        else:
            # A buffer of the same name: `requires_grad=False` would be lost in `from_pretrained`.
            self.register_buffer("B", torch.empty(copies, states, *part))
        self.C = nn.Parameter(torch.empty(self.num_directions, hidden, states, *part))

    def init_weights(self) -> None:
        states = self.log_A_real.shape[1]
        if self.ssm_init == "random":
            for parameter in (self.log_dt, self.log_A_real, self.A_imag, self.B, self.C):
                init.normal_(parameter, std=self.random_std)
        elif self.is_real:
            init.copy_(self.log_A_real, torch.log(-s4d_real(states)).expand_as(self.log_A_real))
            init.uniform_(self.log_dt, *self.log_dt_range)
            init.ones_(self.B)
            init.normal_(self.C)
        else:
            A = COMPLEX_STARTS[self.ssm_init](2 * states)
            init.copy_(self.log_A_real, torch.log(-A[:, 0]).expand_as(self.log_A_real))
            init.copy_(self.A_imag, A[:, 1].expand_as(self.A_imag))
            init.uniform_(self.log_dt, *self.log_dt_range)
            init.copy_(self.B, self.start_of_B(states).expand_as(self.B))
            # A complex normal with E |C|^2 = 1.
            init.normal_(self.C, std=math.sqrt(0.5))
        super().init_weights()

    def start_of_B(self, states: int) -> Tensor:
        if self.b_init == "ones":
            return torch.tensor([1.0, 0.0])
        B = hippo_legs_normal(2 * states)[1]
        return B / 2 if self.b_init == "hippo_half" else B

    def system(self) -> tuple[Tensor, Tensor]:
        # exp in float64: a rounded step or decay would shift the phase of late kernel values.
        return diagonal_system(
            dt=wide(self.log_dt).exp(),
            A_real=-wide(self.log_A_real).exp(),
            A_imag=None if self.is_real else self.A_imag,
            B=self.B,
            C=self.C,
            discretization=self.discretization,
            factor=1 if self.is_real else 2,
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
