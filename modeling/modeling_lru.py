"""LRU: each layer is one diagonal linear recurrence with many inputs and outputs, parametrised to be stable.

Paper: Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", arXiv 2303.06349.
Code: the paper's appendix A; there is no official repository.
Differences: complex parameters are stored as real pairs; the scan is ours (see ops_scan). The paper's model is causal:
a bidirectional one here has a second read-out of the same states, run from the end, of what lies after a position. The
container adds a norm after the last block.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_lru import LRUConfig
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
from .ops_ssm import wide
from .scan_mixer import DiagonalSystem, ScanMixer, input_matrix, output_matrix


class LRUMixer(ScanMixer):
    """x_t = z x_{t-1} + gamma B u_t, y_t = Re(C x_t) + D u_t, a tanh-form GELU and a GLU; (B, L, H) in and out.

    z = exp(-exp(log_nu) + i exp(log_theta)) stays inside the unit circle whatever the parameters are. gamma starts as
    sqrt(1 - |z|^2), which keeps the states of white input at the size of the input, and is free from then on.
    """

    ssm_parameters = ("log_nu", "log_theta", "log_gamma", "B")
    float32_tensors = ("C",)

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, states = config.hidden_size, config.d_state
        self.state_shape = (states, 2)
        self.r_min, self.r_max, self.max_phase = config.r_min, config.r_max, config.max_phase
        self.log_nu = nn.Parameter(torch.empty(states))
        self.log_theta = nn.Parameter(torch.empty(states))
        self.log_gamma = nn.Parameter(torch.empty(states))
        self.B = nn.Parameter(torch.empty(states, hidden, 2))
        self.C = nn.Parameter(torch.empty(self.num_directions, hidden, states, 2))
        self.output_linear = nn.Linear(hidden, 2 * hidden)

    def init_weights(self) -> None:
        super().init_weights()
        states, hidden, _ = self.B.shape
        # At 0 and 1 the logarithms could be infinite.
        radius, angle = torch.rand(2, states, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        # Uniform on the area of the ring.
        squared = radius * (self.r_max**2 - self.r_min**2) + self.r_min**2  # |z|^2
        init.copy_(self.log_nu, torch.log(-0.5 * torch.log(squared)))
        init.copy_(self.log_theta, torch.log(angle * self.max_phase))
        init.copy_(self.log_gamma, 0.5 * torch.log1p(-squared))
        init.normal_(self.B, std=(2 * hidden) ** -0.5)
        init.normal_(self.C, std=states**-0.5)

    def system(self, dtype: torch.dtype) -> DiagonalSystem:
        log_z = torch.stack([-wide(self.log_nu).exp(), wide(self.log_theta).exp()], dim=-1)
        B = self.B.to(dtype) * self.log_gamma.to(dtype).exp()[:, None, None]
        return DiagonalSystem(log_z, input_matrix(B), output_matrix(self.C.to(dtype)))

    def activate(self, y: Tensor) -> Tensor:
        return F.glu(self.output_linear(self.dropout(F.gelu(y, approximate="tanh"))))


class LRUPreTrainedModel(LongSequencePreTrainedModel):
    config: LRUConfig
    mixer_class = LRUMixer


class LRUModel(LRUPreTrainedModel, LongSequenceModel):
    pass


LRUPreTrainedModel.model_class = LRUModel


class LRUForMaskedLM(LRUPreTrainedModel, LongSequenceForMaskedLM):
    pass


class LRUForCausalLM(LRUPreTrainedModel, LongSequenceForCausalLM):
    pass


class LRUForReconstruction(LRUPreTrainedModel, LongSequenceForReconstruction):
    pass


class LRUForSequenceClassification(LRUPreTrainedModel, LongSequenceForSequenceClassification):
    pass


LRUModel.register_for_auto_class("AutoModel")
LRUForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
LRUForCausalLM.register_for_auto_class("AutoModelForCausalLM")
LRUForReconstruction.register_for_auto_class("AutoModelForPreTraining")
LRUForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "LRUForCausalLM",
    "LRUForMaskedLM",
    "LRUForReconstruction",
    "LRUForSequenceClassification",
    "LRUMixer",
    "LRUModel",
    "LRUPreTrainedModel",
]
