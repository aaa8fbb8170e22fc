"""Linear recurrence x_t = z x_{t-1} + v_t with diagonal z, for states shared by all features (S5, LRU).

Legend: B batch, L length, P complex states, Q steps in a block, I blocks, Q * I >= L.

Complex numbers come in and go out as real pairs (..., 2). z is given by its logarithm, in float64, because a modulus
near one has few digits left as a float32 number and because the phase of z^l is l times that of z.

All blocks take their steps side by side from a zero state, Q elementwise operations on (B, I, P); the states that enter
the blocks are the same recurrence on I elements with z^Q, in float64; then every block adds z^{j+1} times its entry.
That reads and writes the data about twice, whatever Q is. Measured on one CPU core at B 4, L 4096, P 64, forward and
backward: this 10 ms, doubling scan with the same adjoint 41 ms, products with (Q, Q) Toeplitz blocks and autograd
114 ms (Q = 32), complex FFT and autograd 138 ms.

Sources: Smith et al. 2023, "Simplified State Space Layers for Sequence Modeling" (S5), arXiv 2208.04933; Orvieto et al.
2023, "Resurrecting Recurrent Neural Networks for Long Sequences" (LRU), arXiv 2303.06349. The blocked form is ours.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .ops_ssm import as_complex, grid_dtype

# A rounded z drifts by its rounding error at each step, so blocks stay short; a longer one would hardly be faster.
_MAX_BLOCK = 32


def _wide(x: Tensor) -> Tensor:
    """Complex pairs as complex numbers of the dtype of grids."""
    return as_complex(x, grid_dtype(x.device))


def _block_length(length: int) -> int:
    return min(_MAX_BLOCK, math.isqrt(length - 1) + 1)


def _powers(log_z: Tensor, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """z^first, ..., z^{first + count - 1} as (count, P)."""
    steps = torch.arange(first, first + count, device=log_z.device, dtype=log_z.real.dtype)
    return torch.exp(steps[:, None] * log_z).to(dtype)


def _steps(v: Tensor, z: Tensor, x: Tensor, block: int, reverse: bool) -> None:
    """Write into x the recurrence of each block of v from a zero state; the last block may be shorter."""
    order = reversed(range(block)) if reverse else range(block)
    before: Tensor | None = None
    for j in order:
        drive, state = v[:, j::block], x[:, j::block]
        # Going forward fewer blocks have a step j than a step j - 1, going back more.
        known = 0 if before is None else min(before.shape[1], state.shape[1])
        if known < state.shape[1]:
            state[:, known:] = drive[:, known:]
        if before is not None and known:
            torch.addcmul(drive[:, :known], before[:, :known], z, out=state[:, :known])
        before = state


def _recur(v: Tensor, log_z: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """All states (B, L, P) of the recurrence on complex v (B, L, P), log_z (P,), initial (B, P) or None."""
    length = v.shape[1]
    block = _block_length(length)
    count = -(-length // block)
    x = torch.empty_like(v)
    _steps(v, torch.exp(log_z).to(v.dtype), x, block, reverse)
    if initial is not None:
        # Into the block it enters; the other blocks receive it through that one.
        start = (count - 1) * block if reverse else 0
        size = length - start if reverse else min(block, length)
        powers = _powers(log_z, 1, size, v.dtype)
        x[:, start : start + size] += (powers.flip(0) if reverse else powers) * initial[:, None]
    if count == 1:
        return x
    full = length // block
    if reverse:
        entries = _recur(x[:, block::block].to(log_z.dtype), block * log_z, None, True)
        targets = [x[:, : (count - 1) * block]]
        powers = _powers(log_z, 1, block, v.dtype).flip(0)
    else:
        entries = _recur(x[:, block - 1 : (count - 1) * block : block].to(log_z.dtype), block * log_z, None, False)
        targets = [x[:, block : full * block], x[:, full * block :]]
        powers = _powers(log_z, 1, block, v.dtype)
    entries = entries.to(v.dtype)  # (B, I - 1, P)
    if targets[0].shape[1]:
        targets[0].unflatten(1, (-1, block)).addcmul_(powers, entries[:, : targets[0].shape[1] // block, None])
    if not reverse and targets[1].shape[1]:
        targets[1].addcmul_(powers[: targets[1].shape[1]], entries[:, -1:])
    return x


def _dot_over_time(s: Tensor, x: Tensor) -> Tensor:
    """sum_{b,t} s conj(x) over (B, L, P), block by block so that no large product is stored, complex (P,)."""
    total = s.new_zeros(s.shape[-1])
    steps = max(1, (1 << 16) // s.shape[-1])
    rows = max(1, steps // max(1, s.shape[1]))
    for some_s, some_x in zip(s.split(rows), x.split(rows), strict=True):
        for start in range(0, s.shape[1], steps):
            total += (some_s[:, start : start + steps] * some_x[:, start : start + steps].conj()).sum((0, 1))
    return total


class _DiagonalScan(torch.autograd.Function):
    """The states; the backward is the same recurrence from the other end with the conjugate of z."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, log_z: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
        ctx.dtypes = (log_z.dtype, None if initial is None else initial.dtype)
        dtype = torch.complex128 if v.dtype == torch.float64 else torch.complex64
        wide = _wide(log_z)
        start = None if initial is None else torch.view_as_complex(initial.to(v.dtype).contiguous())
        x = torch.view_as_real(_recur(torch.view_as_complex(v.contiguous()), wide, start, reverse))
        ctx.reverse, ctx.dtype = reverse, dtype
        ctx.save_for_backward(wide, start, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        log_z, start, x = ctx.saved_tensors
        x = torch.view_as_complex(x)
        s = _recur(torch.view_as_complex(grad.contiguous()), log_z.conj().resolve_conj(), None, not ctx.reverse)
        z_conj = torch.exp(log_z.conj())
        grad_log_z = grad_initial = None
        first = s[:, -1 if ctx.reverse else 0]  # the adjoint of the first step taken
        if ctx.needs_input_grad[1]:
            pair = (s[:, :-1], x[:, 1:]) if ctx.reverse else (s[:, 1:], x[:, :-1])
            moment = _dot_over_time(*pair).to(log_z.dtype)
            if start is not None:
                moment = moment + (first * start.conj()).sum(0)
            grad_log_z = torch.view_as_real(moment * z_conj).to(ctx.dtypes[0])
        if ctx.needs_input_grad[2]:
            grad_initial = torch.view_as_real(first * z_conj.to(first.dtype)).to(ctx.dtypes[1])
        return torch.view_as_real(s), grad_log_z, grad_initial, None


def _scan_by_fft(v: Tensor, log_z: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """The same states as a convolution with z^l: without a loop over the length, a graph serves all lengths."""
    length = v.shape[1]
    log_z = _wide(log_z)
    steps = torch.arange(length, device=v.device, dtype=log_z.real.dtype)
    powers = torch.exp(log_z[:, None] * steps)  # (P, L)
    x = torch.view_as_complex(v.transpose(1, 2).contiguous())  # (B, P, L)
    x = x.flip(2) if reverse else x
    if initial is not None:
        start = torch.exp(log_z).to(x.dtype) * torch.view_as_complex(initial.to(v.dtype).contiguous())
        x = torch.cat([x[..., :1] + start[..., None], x[..., 1:]], dim=2)
    spectrum = torch.fft.fft(x, n=2 * length) * torch.fft.fft(powers.to(x.dtype), n=2 * length)
    x = torch.fft.ifft(spectrum)[..., :length]
    return torch.view_as_real((x.flip(2) if reverse else x).transpose(1, 2))


def diagonal_scan(
    v: Tensor, log_z: Tensor, initial_state: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """States of x_t = z x_{t-1} + v_t, all of them and the last.

    Args:
        v: Drive as real pairs, (B, L, P, 2), L >= 1; half precision is computed in float32.
        log_z: log z as real pairs, (P, 2). Pass float64 if it was computed, so that no digit is lost.
        initial_state: State before the first step, (B, P, 2), or None for zeros.
        reverse: Whether time runs from the end: x_t = z x_{t+1} + v_t, and the last state is that of t = 0.

    Returns:
        States (B, L, P, 2) and the final state (B, P, 2), float32 (float64 where `v` is). All inputs receive gradients;
        memory is that of the states.

    Source: arXiv 2208.04933, with a scan of our own.
    """
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    scan = _scan_by_fft if torch.compiler.is_compiling() else _DiagonalScan.apply
    x = scan(v, log_z, initial_state, reverse)
    return x, x[:, 0 if reverse else -1]


def diagonal_scan_reference(
    v: Tensor, log_z: Tensor, initial_state: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """The recurrence as a loop in complex128; see `diagonal_scan` for arguments."""
    z = torch.exp(torch.view_as_complex(log_z.double()))
    drive = torch.view_as_complex(v.double())
    state = torch.zeros_like(drive[:, 0])
    if initial_state is not None:
        state = torch.view_as_complex(initial_state.double())
    states = []
    for t in reversed(range(v.shape[1])) if reverse else range(v.shape[1]):
        state = z * state + drive[:, t]
        states.append(state)
    states = torch.stack(states[::-1] if reverse else states, dim=1)
    return torch.view_as_real(states), torch.view_as_real(state)
