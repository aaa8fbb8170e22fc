"""DLR: every feature is a long convolution with a sum of many damped oscillations, the same ones for all features.

Paper: Gupta, Mehta and Berant 2022, "Simplifying and Understanding State Space Models with Diagonal Linear RNNs", arXiv
2212.00768. As a backbone: Amos, Berant and Gupta 2024, "Never Train from Scratch", arXiv 2310.02980.
Code: https://github.com/ag1988/dlr
Differences: only the real part of the kernel is offered (the code also has imaginary part, sum and product); kernels
come from a two-level product with float64 powers (see ops_ssm) and are not cut at a maximal length.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration_dlr import DLRConfig
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
from .ops_ssm import wide


class DLRMixer(DiagonalMixer):
    """Convolution with K_l = Re sum_n W_n z_n^l, log z = -decay_root^2 + i frequency; (B, L, H) in and out.

    The decay is the square of a parameter, as published: its sign does not matter, no value is unstable, and its
    gradient vanishes at 0, so a state that has lost its decay gets it back only slowly. (The public code calls this
    parameter log_neg_re, but it holds a root and no logarithm.)
    """

    ssm_parameters = ("decay_root", "frequency", "W")

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        hidden, states = config.hidden_size, config.d_state
        self.state_shape = (hidden, states, 2)
        self.ssm_init, self.random_std = config.ssm_init, config.random_std
        self.log_dt_range = (math.log(config.dt_min), math.log(config.dt_max))
        self.decay_root = nn.Parameter(torch.empty(states))
        self.frequency = nn.Parameter(torch.empty(states))
        self.W = nn.Parameter(torch.empty(self.num_directions, hidden, states, 2))

    def init_weights(self) -> None:
        states = len(self.frequency)
        if self.ssm_init == "random":
            for parameter in (self.decay_root, self.frequency, self.W):
                init.normal_(parameter, std=self.random_std)
        else:
            dt = torch.empty(states, dtype=torch.float64).uniform_(*self.log_dt_range).exp()
            init.copy_(self.decay_root, torch.sqrt(dt / 2))
            if self.ssm_init == "random_frequency":
                init.normal_(self.frequency)
            else:
                init.copy_(self.frequency, 2 * torch.pi * torch.arange(states, dtype=torch.float64) / states)
            init.normal_(self.W, std=1 / states)
        super().init_weights()

    def system(self) -> tuple[Tensor, Tensor]:
        log_z = torch.complex(-wide(self.decay_root).square(), wide(self.frequency))
        return log_z[None], torch.view_as_complex(wide(self.W))


class DLRPreTrainedModel(LongSequencePreTrainedModel):
    config: DLRConfig
    mixer_class = DLRMixer


class DLRModel(DLRPreTrainedModel, LongSequenceModel):
    pass


DLRPreTrainedModel.model_class = DLRModel


class DLRForMaskedLM(DLRPreTrainedModel, LongSequenceForMaskedLM):
    pass


class DLRForCausalLM(DLRPreTrainedModel, LongSequenceForCausalLM):
    pass


class DLRForReconstruction(DLRPreTrainedModel, LongSequenceForReconstruction):
    pass


class DLRForSequenceClassification(DLRPreTrainedModel, LongSequenceForSequenceClassification):
    pass


DLRModel.register_for_auto_class("AutoModel")
DLRForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
DLRForCausalLM.register_for_auto_class("AutoModelForCausalLM")
DLRForReconstruction.register_for_auto_class("AutoModelForPreTraining")
DLRForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "DLRForCausalLM",
    "DLRForMaskedLM",
    "DLRForReconstruction",
    "DLRForSequenceClassification",
    "DLRMixer",
    "DLRModel",
    "DLRPreTrainedModel",
]
