"""S5: each layer is one diagonal state space model with many inputs and outputs, evaluated by a parallel scan.

Paper: Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling", arXiv 2208.04933.
Code: https://github.com/lindermanlab/S5
Differences: complex parameters are stored as real pairs, with eigenvalues of positive imaginary part; the scan is ours
(see ops_scan). The container adds a norm after the last block, and its linear layers start by fan-in in every family.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_s5 import S5Config
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
from .ops_hippo import hippo_legs
from .ops_ssm import discretize, wide
from .scan_mixer import DiagonalSystem, ScanMixer, complex_product, input_matrix, output_matrix


def hippo_block(d_state: int, half: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the normal part of HiPPO-LegS.

    Args:
        d_state: Number of real states N.
        half: Whether to leave out the conjugate half, those with negative imaginary part.

    Returns:
        Eigenvalues (M,) by increasing imaginary part, and orthonormal eigenvectors (N, M), both complex128; M is N, or
        N / 2 if `half`. The phase of an eigenvector v makes v* B_legs positive.

    Source: arXiv 2208.04933, section 4.2.
    """
    A, B = hippo_legs(d_state)
    p = torch.sqrt(torch.arange(d_state, dtype=torch.float64) + 0.5)
    skew = A + torch.outer(p, p) + 0.5 * torch.eye(d_state, dtype=torch.float64)
    # i times a skew matrix is Hermitian, whose eigenvectors `eigh` returns orthonormal.
    frequency, V = torch.linalg.eigh(-1j * skew)
    if half:
        frequency, V = frequency[d_state // 2 :], V[:, d_state // 2 :]
    V = V * torch.sgn(V.conj().T @ B.to(V.dtype))
    return torch.complex(torch.full_like(frequency, -0.5), frequency), V


def truncated_normal(*shape: int) -> Tensor:
    """Normal numbers within two standard deviations, scaled to variance one, float64."""
    edge = math.erf(math.sqrt(2))
    normal = math.sqrt(2) * torch.erfinv((2 * torch.rand(*shape, dtype=torch.float64) - 1) * edge)
    variance = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / edge
    return normal / math.sqrt(variance)


class S5Mixer(ScanMixer):
    """The system, a tanh-form GELU and one of four gates; (B, L, H) in and out."""

    ssm_parameters = ("A_real", "A_imag", "log_dt", "B")
    float32_tensors = ("C",)
    both_see_present = True

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden = config.hidden_size
        states = config.d_state // 2 if config.conj_sym else config.d_state
        self.state_shape = (states, 2)
        self.d_state = config.d_state
        self.num_hippo_blocks = config.num_hippo_blocks
        self.conj_sym = config.conj_sym
        self.c_init = config.c_init
        self.discretization = config.discretization
        self.clip_eigs = config.clip_eigs
        self.activation = config.activation
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.A_real = nn.Parameter(torch.empty(states))
        self.A_imag = nn.Parameter(torch.empty(states))
        self.log_dt = nn.Parameter(torch.empty(states))
        self.B = nn.Parameter(torch.empty(states, hidden, 2))
        self.C = nn.Parameter(torch.empty(self.num_directions, hidden, states, 2))
        if config.activation == "full_glu":
            self.value_linear = nn.Linear(hidden, hidden)
        if config.activation != "gelu":
            self.gate_linear = nn.Linear(hidden, hidden)

    def init_weights(self) -> None:
        super().init_weights()
        eigenvalues, V = hippo_block(self.d_state // self.num_hippo_blocks, self.conj_sym)
        V = torch.block_diag(*[V] * self.num_hippo_blocks)  # (d_state, P)
        init.copy_(self.A_real, eigenvalues.real.repeat(self.num_hippo_blocks))
        init.copy_(self.A_imag, eigenvalues.imag.repeat(self.num_hippo_blocks))
        init.uniform_(self.log_dt, *self.log_dt_range)
        hidden = self.B.shape[1]
        # Drawn as real matrices in the coordinates of HiPPO, then turned into those of its eigenvectors.
        B = self.d_state**-0.5 * truncated_normal(self.d_state, hidden)
        init.copy_(self.B, torch.view_as_real(V.conj().T @ B.to(V.dtype)))
        if self.c_init == "complex_normal":
            init.normal_(self.C, std=math.sqrt(0.5))
            return
        fan_in = self.d_state * (hidden if self.c_init == "lecun_normal" else 1)
        C = fan_in**-0.5 * torch.view_as_complex(truncated_normal(self.num_directions, hidden, self.d_state, 2))
        init.copy_(self.C, torch.view_as_real(C @ V))

    def system(self, dtype: torch.dtype) -> DiagonalSystem:
        A_real, A_imag = wide(self.A_real), wide(self.A_imag)
        if self.clip_eigs:
            A_real = A_real.clamp(max=-1e-4)
        A = torch.stack([A_real, A_imag], dim=-1)[:, None]  # (P, 1, 2)
        log_z, gain = discretize(A, wide(self.log_dt).exp(), self.discretization)
        # A state stands for its conjugate, too.
        C = self.C.to(dtype) * (2 if self.conj_sym else 1)
        B = complex_product(gain.to(dtype), self.B.to(dtype))
        return DiagonalSystem(log_z[:, 0], input_matrix(B), output_matrix(C))

    def activate(self, y: Tensor) -> Tensor:
        g = F.gelu(y, approximate="tanh")
        if self.activation == "gelu":
            return g
        g = self.dropout(g)
        value = g
        if self.activation == "half_glu2":
            value = y
        elif self.activation == "full_glu":
            value = self.value_linear(g)
        return value * torch.sigmoid(self.gate_linear(g))


class S5PreTrainedModel(LongSequencePreTrainedModel):
    config: S5Config
    mixer_class = S5Mixer


class S5Model(S5PreTrainedModel, LongSequenceModel):
    pass


S5PreTrainedModel.model_class = S5Model


class S5ForMaskedLM(S5PreTrainedModel, LongSequenceForMaskedLM):
    pass


class S5ForCausalLM(S5PreTrainedModel, LongSequenceForCausalLM):
    pass


class S5ForReconstruction(S5PreTrainedModel, LongSequenceForReconstruction):
    pass


class S5ForSequenceClassification(S5PreTrainedModel, LongSequenceForSequenceClassification):
    pass


S5Model.register_for_auto_class("AutoModel")
S5ForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
S5ForCausalLM.register_for_auto_class("AutoModelForCausalLM")
S5ForReconstruction.register_for_auto_class("AutoModelForPreTraining")
S5ForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "S5ForCausalLM",
    "S5ForMaskedLM",
    "S5ForReconstruction",
    "S5ForSequenceClassification",
    "S5Mixer",
    "S5Model",
    "S5PreTrainedModel",
]
