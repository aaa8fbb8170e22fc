"""What S4D, DSS and DLR share: the kernel and the recurrence of a sampled diagonal system.

Legend: B batch, L length, H hidden, M stored states of a feature, R directions.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from .blocks import step_constants
from .convolution_mixer import ConvolutionMixer
from .ops_recurrence import StepConstants, diagonal_recurrence, diagonal_step, diagonal_step_constants
from .ops_ssm import power_kernel


class PreparedSystem(NamedTuple):
    """A system, and what a single step needs of it."""

    log_z: Tensor
    weight: Tensor  # (H, M)
    constants: StepConstants


class DiagonalMixer(ConvolutionMixer):
    """A convolution whose kernel is a sum of powers, which also runs step by step if it is causal."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.has_step = not config.bidirectional

    def system(self) -> tuple[Tensor, Tensor]:
        """log z (H, M), or (1, M) if all features share it, and W (R, H, M), as `power_kernel` takes them."""
        raise NotImplementedError

    def kernel_dtype(self) -> torch.dtype:
        return torch.float64 if self.D.dtype == torch.float64 else torch.float32

    def kernel(self, length: int) -> Tensor:
        """Kernels (R, H, L); the second direction is strictly anti-causal."""
        return power_kernel(*self.system(), length, self.kernel_dtype())

    def prepare(self, dtype: torch.dtype) -> PreparedSystem:
        log_z, weight = self.system()
        return PreparedSystem(log_z, weight[0], diagonal_step_constants(log_z, weight[0], dtype))

    def recur(self, u: Tensor, state: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor]:
        """Causal convolution of a chunk u (B, L, H) that goes on from `state`, and the state after it.

        The state is (B, H, M, 2), or (B, H, M) for real states.
        """
        parameters = [*self._parameters.values(), *self._buffers.values()]
        prepared = step_constants(cache, self.layer_idx, parameters, lambda: self.prepare(u.dtype))
        if u.shape[1] == 1:
            y, state = diagonal_step(u[:, 0], state, prepared.constants)
            return y[:, None], state
        return diagonal_recurrence(u, prepared.log_z, prepared.weight, state)
