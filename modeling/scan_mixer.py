"""The block of S5 and LRU: one diagonal system with many inputs and outputs, then a position-wise activation.

A family gives its discrete system and its activation; all else is the same for both. The dense maps into and out of the
states are computed on kept tokens only, the scan over whole rows.

Legend: B batch, L length, H hidden, P complex states, R directions, T kept tokens of a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache

from .blocks import Mixer, Packing, SequenceDropout, autocast_disabled, get_state, set_state, step_constants
from .ops_scan import diagonal_scan


class DiagonalSystem(NamedTuple):
    """x_t = z x_{t-1} + input_matrix u_t, y_t = output_matrix x_t, with x as 2 P reals, real and imaginary by turns."""

    log_z: Tensor  # (P, 2), float64
    input_matrix: Tensor  # (2 P, H)
    output_matrix: Tensor  # (R, H, 2 P)


class StepConstants(NamedTuple):
    """The system, and z itself for single steps."""

    system: DiagonalSystem
    z: Tensor  # (P,), complex


def complex_product(a: Tensor, b: Tensor) -> Tensor:
    """Product of two broadcastable tensors of real pairs (..., 2)."""
    real = a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1]
    imag = a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0]
    return torch.stack([real, imag], dim=-1)


def input_matrix(B: Tensor) -> Tensor:
    """Real map (2 P, H) of a complex input matrix (P, H, 2)."""
    return B.transpose(1, 2).flatten(0, 1)


def output_matrix(C: Tensor) -> Tensor:
    """Real map (R, H, 2 P) that gives Re(C x), from a complex output matrix (R, H, P, 2)."""
    return torch.stack([C[..., 0], -C[..., 1]], dim=-1).flatten(-2)


class ScanMixer(Mixer):
    """A diagonal system shared by all features, with skip D, scanned in one or both directions."""

    supports_packing = True
    no_step_reason = "a bidirectional model needs the future"
    # Whether the second direction sees the present too, or only what comes after it.
    both_see_present = False

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.has_step = not config.bidirectional
        self.num_directions = 2 if config.bidirectional else 1
        self.D = nn.Parameter(torch.empty(config.hidden_size))
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)

    def init_weights(self) -> None:
        init.normal_(self.D)

    def system(self, dtype: torch.dtype) -> DiagonalSystem:
        """The discrete system with its matrices in `dtype`."""
        raise NotImplementedError

    def activate(self, y: Tensor) -> Tensor:
        """What follows the system at each position, (B, L, H)."""
        raise NotImplementedError

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Tensor:
        u = hidden_states
        if packing is None and attention_mask is not None:
            u = u.masked_fill(~attention_mask[..., None], 0.0)
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        with autocast_disabled(u.device.type):
            y = self.run(u, packing) if cache is None else self.run_from_cache(u, cache)
            y = torch.addcmul(y, u, self.D.to(u.dtype))
        return self.activate(y.to(hidden_states.dtype))

    def run(self, u: Tensor, packing: Packing | None) -> Tensor:
        """Outputs without the skip for whole sequences, (B, L, H), or (1, T, H) with `packing`."""
        system = self.system(u.dtype)
        v = F.linear(u, system.input_matrix)
        if packing is not None:
            v = packing.unpack(v)
        v = v.unflatten(-1, (-1, 2))  # (B, L, P, 2)
        y = None
        for direction, matrix in enumerate(system.output_matrix):
            x = diagonal_scan(v, system.log_z, reverse=direction == 1)[0].flatten(-2)
            if direction == 1 and not self.both_see_present:
                x = F.pad(x[:, 1:], (0, 0, 0, 1))
            if packing is not None:
                x = packing.pack(x)
            y = F.linear(x, matrix) if y is None else y + F.linear(x, matrix)
        return y

    def run_from_cache(self, u: Tensor, cache: Cache) -> Tensor:
        """Outputs without the skip for a chunk (B, L, H) that goes on from the cached state (B, P, 2)."""
        constants = step_constants(
            cache, self.layer_idx, list(self.parameters(recurse=False)), lambda: self.step_constants(u.dtype)
        )
        system, state = constants.system, get_state(cache, self.layer_idx)
        v = F.linear(u, system.input_matrix).unflatten(-1, (-1, 2))
        if u.shape[1] == 1:
            x = v
            if state is not None:
                carried = torch.view_as_complex(state)[:, None]
                x = torch.view_as_real(torch.addcmul(torch.view_as_complex(v), carried, constants.z))
            state = x[:, 0]
        else:
            x, state = diagonal_scan(v, system.log_z, state)
        set_state(cache, self.layer_idx, state)
        return F.linear(x.flatten(-2), system.output_matrix[0])

    def step_constants(self, dtype: torch.dtype) -> StepConstants:
        """Made once for a cache and the present parameters."""
        system = self.system(dtype)
        z = torch.exp(torch.view_as_complex(system.log_z))
        return StepConstants(system, z.to(torch.complex128 if dtype == torch.float64 else torch.complex64))
