"""Diagonal state space models run from a state: one step, or a chunk of any length.

Legend: B batch, L length, H hidden, M stored states of a feature.

The system is x_t = z x_{t-1} + u_t, y_t = Re(W x_t), with log z and W as in ops_ssm: the input matrix is part of W, so
a state is driven by the input itself. A chunk needs no loop. Its output is the convolution of the chunk plus
Re(W z^{t+1} x_{-1}), which is a power kernel for each sequence, and the state after it is z^L x_{-1} plus the sum of
z^{L-1-s} u_s. Each is exact whatever the length; powers come from float64, so nothing is lost from chunk to chunk but
the rounding of the state that is handed on.

Sources: Gu et al. 2022, arXiv 2111.00396 and 2206.11893, for the two views of one system.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .ops_conv import long_conv
from .ops_ssm import power_kernel, power_sums, with_parts

# Largest error of a float32 step's rounded factor over the memory of a state, relative to the state.
_LARGEST_DRIFT = 5e-5


class StepConstants(NamedTuple):
    """What one step needs: z in double or z - 1 in single precision, and W by parts in that of the steps."""

    factor: Tensor  # (H or 1, M), complex, or real for real states
    is_increment: bool  # whether `factor` is z - 1
    read: Tensor  # (H, 2 M), Re W and -Im W by turns; (H, M) for real states


def _as_complex(state: Tensor, log_z: Tensor) -> Tensor:
    """(B, H, M, 2) to complex (B, H, M); a real state as it is."""
    return torch.view_as_complex(state.contiguous()) if log_z.is_complex() else state


def _as_real(state: Tensor) -> Tensor:
    return torch.view_as_real(state) if state.is_complex() else state


def diagonal_step_constants(log_z: Tensor, weight: Tensor, dtype: torch.dtype) -> StepConstants:
    """Prepare `diagonal_step`.

    A rounded factor errs alike in every step, so its error grows with the memory of a state, 1 / (1 - |z|) steps. In
    float32 x + (z - 1) x errs by z - 1 only, which is small where the memory is long; states that turn fast and decay
    slowly are multiplied in double precision instead, as are all while gradients are wanted or a graph is captured.

    Args:
        log_z: log z, (H, M) or (1, M), complex128 or float64.
        weight: W, (H, M), of the same dtype.
        dtype: Of the steps, float32 or float64.
    """
    read = _as_real(weight.conj().resolve_conj()).flatten(1).to(dtype)
    if dtype == torch.float32 and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        increment = torch.expm1(log_z)
        drift = torch.finfo(dtype).eps / 2 * increment.abs() / -torch.expm1(log_z.real)
        if bool((drift < _LARGEST_DRIFT).all()):
            return StepConstants(with_parts(increment, dtype), True, read)
    return StepConstants(torch.exp(log_z), False, read)


def diagonal_step(u: Tensor, state: Tensor | None, constants: StepConstants) -> tuple[Tensor, Tensor]:
    """One step of `diagonal_recurrence`.

    Args:
        u: Input (B, H), float32 or float64.
        state: State before the step, (B, H, M, 2), (B, H, M) for real states, or None for zeros.
        constants: Of `diagonal_step_constants` in the dtype of `u`.

    Returns:
        Output (B, H) and the state after the step.
    """
    factor, is_increment, read = constants
    x = u[..., None]
    if state is None:
        x = x.to(factor.dtype).expand(*u.shape, factor.shape[1]).contiguous()
    else:
        state = torch.view_as_complex(state) if factor.is_complex() else state
        if is_increment:
            x = (state * factor).add_(state).add_(x)
        else:
            x = torch.addcmul(x.to(factor.dtype), state.to(factor.dtype), factor)
    state = _as_real(x).to(read.dtype)
    return torch.linalg.vecdot(state.flatten(2), read), state


def diagonal_recurrence(
    u: Tensor, log_z: Tensor, weight: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs and final state of x_t = z x_{t-1} + u_t, y_t = Re(W x_t), without a loop over the length.

    Args:
        u: Input (B, L, H), L >= 1, float32 or float64.
        log_z: log z, (H, M), or (1, M) if all features share it; complex128, or float64 for real states.
        weight: W, (H, M), of the same dtype.
        initial_state: State before the first step, real pairs (B, H, M, 2), (B, H, M) for real states, or None for
            zeros.

    Returns:
        Outputs (B, L, H) and the final state, in the dtype of `u`. All inputs receive gradients.
    """
    length = u.shape[1]
    y = long_conv(u, power_kernel(log_z, weight[None], length, u.dtype)[0])
    x = power_sums(log_z, u.flip(1).transpose(1, 2))
    if initial_state is not None:
        start = _as_complex(initial_state, log_z).to(log_z.dtype)
        response = power_kernel(log_z, weight * torch.exp(log_z) * start, length, u.dtype)
        y = y + response.transpose(1, 2)
        x = x + torch.exp(length * log_z) * start
    return y, _as_real(x).to(u.dtype)


def diagonal_recurrence_reference(
    u: Tensor, log_z: Tensor, weight: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence as a loop in double precision; see `diagonal_recurrence` for arguments."""
    z, u = torch.exp(log_z), u.double()
    x = torch.zeros(1, 1, 1, dtype=log_z.dtype)
    if initial_state is not None:
        x = _as_complex(initial_state.double(), log_z)
    outputs = []
    for t in range(u.shape[1]):
        x = z * x + u[:, t, :, None]
        outputs.append((weight * x).sum(-1).real)
    return torch.stack(outputs, dim=1), _as_real(x)
