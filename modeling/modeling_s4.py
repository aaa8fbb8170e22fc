"""S4: every feature is a long convolution whose kernel is the impulse response of a DPLR state space model.

Paper: Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", arXiv 2111.00396.
Code: https://github.com/state-spaces/s4
Differences: complex parameters are stored as real pairs; C itself is the parameter, not C (1 - Abar^L), so that a
kernel does not depend on the length it was made for; kernels are real products of powers in float64 (see ops_dplr) and
not sums over roots of unity; B is limited by its absolute value, which does not depend on LAPACK. The second direction
of a bidirectional model has its own C and shares dt, A, P and B.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache

from .blocks import step_constants
from .configuration_s4 import S4Config
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
from .ops_dplr import DPLRSystem, dplr_kernel, dplr_scan, dplr_system
from .ops_hippo import dplr_start
from .ops_ssm import wide


class S4Mixer(ConvolutionMixer):
    """Convolution with the impulse response of a DPLR state space model; (B, L, H) in and out."""

    ssm_parameters = ("log_dt", "log_A_real", "A_imag", "P", "B")
    float32_tensors = ("C",)

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, pairs = config.hidden_size, config.d_state // 2
        copies = hidden if config.n_ssm is None else config.n_ssm
        self.has_step = not config.bidirectional
        self.state_shape = (hidden, config.d_state)
        self.ssm_init = config.ssm_init
        self.random_std = config.random_std
        self.real_floor, self.b_clip = config.real_floor, config.b_clip
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.log_dt = nn.Parameter(torch.empty(hidden))
        self.log_A_real = nn.Parameter(torch.empty(copies, pairs))
        self.A_imag = nn.Parameter(torch.empty(copies, pairs))
        self.P = nn.Parameter(torch.empty(config.low_rank, copies, pairs, 2))
        self.B = nn.Parameter(torch.empty(copies, pairs, 2))
        self.C = nn.Parameter(torch.empty(self.num_directions, hidden, pairs, 2))

    def init_weights(self) -> None:
        super().init_weights()
        if self.ssm_init == "random":
            for parameter in (self.log_dt, self.log_A_real, self.A_imag, self.P, self.B, self.C):
                init.normal_(parameter, std=self.random_std)
            return
        copies, pairs = self.A_imag.shape
        A, B, P = dplr_start(self.ssm_init, 2 * pairs, copies, self.real_floor, self.b_clip)
        init.copy_(self.log_A_real, torch.log(-A[..., 0]))
        init.copy_(self.A_imag, A[..., 1])
        init.copy_(self.B, B)
        init.copy_(self.P, P)
        init.uniform_(self.log_dt, *self.log_dt_range)
        # A complex normal with E |C|^2 = 1.
        init.normal_(self.C, std=math.sqrt(0.5))

    def system(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """dt, Re A, Im A, P, B and C, as the ops take them."""
        # exp in float64: a rounded step or decay would shift the phase of late kernel values.
        return wide(self.log_dt).exp(), -wide(self.log_A_real).exp(), self.A_imag, self.P, self.B, self.C

    def kernel(self, length: int) -> Tensor:
        """Kernels (directions, H, L) in float32; the second direction is strictly anti-causal."""
        return dplr_kernel(*self.system(), length)

    def recur(self, u: Tensor, state: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor]:
        """Outputs (B, L, H) without the skip, and the state (B, H, N) in real coordinates."""

        def build() -> DPLRSystem:
            return dplr_system(*self.system())

        parameters = (self.log_dt, self.log_A_real, self.A_imag, self.P, self.B, self.C)
        return dplr_scan(step_constants(cache, self.layer_idx, parameters, build), u, state)


class S4PreTrainedModel(LongSequencePreTrainedModel):
    config: S4Config
    mixer_class = S4Mixer


class S4Model(S4PreTrainedModel, LongSequenceModel):
    pass


S4PreTrainedModel.model_class = S4Model


class S4ForMaskedLM(S4PreTrainedModel, LongSequenceForMaskedLM):
    pass


class S4ForCausalLM(S4PreTrainedModel, LongSequenceForCausalLM):
    pass


class S4ForReconstruction(S4PreTrainedModel, LongSequenceForReconstruction):
    pass


class S4ForSequenceClassification(S4PreTrainedModel, LongSequenceForSequenceClassification):
    pass


S4Model.register_for_auto_class("AutoModel")
S4ForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
S4ForCausalLM.register_for_auto_class("AutoModelForCausalLM")
S4ForReconstruction.register_for_auto_class("AutoModelForPreTraining")
S4ForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "S4ForCausalLM",
    "S4ForMaskedLM",
    "S4ForReconstruction",
    "S4ForSequenceClassification",
    "S4Mixer",
    "S4Model",
    "S4PreTrainedModel",
]
