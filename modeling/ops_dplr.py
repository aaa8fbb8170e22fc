"""Diagonal plus low-rank (DPLR) state space models: discretisation and long convolution kernels.

Legend: B batch, L length, H hidden, M stored conjugate pairs (N = 2 M real states), S independent copies of (A, B, P),
r rank, R directions, Q steps in a block, I blocks, Q * I >= L.

One feature follows x' = A x + B u, y = 2 Re(C x), A = diag(Lambda) - sum_r P_r P_r^*, with M complex states; the
conjugate half is the factor 2, and P^* x means 2 Re sum conj(P_n) x_n. Sampled with step dt by the bilinear rule it is
x_t = Abar x_{t-1} + bbar u_t with Abar = (1 - dt A / 2)^-1 (1 + dt A / 2), again diagonal plus low rank by the Woodbury
identity; the kernel is K_l = 2 Re(C Abar^l bbar). Since A + A^* <= 0, Abar is a contraction and its powers cannot grow.

Real coordinates are (Re x_0, Im x_0, Re x_1, ...): complex numbers are pairs in memory. States are rows here, so that a
step is x <- x T with T the transpose of Abar. A functional, such as C, is the row (2 Re C, -2 Im C) of the dot product.
All arithmetic up to the last matmul is float64, whatever the inputs are: powers of a float32 matrix lose three digits.

Sources: Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces" (S4), arXiv 2111.00396, for
the model; the real Krylov form of the kernel and its backward are ours. The paper evaluates the generating function of
the kernel at the roots of unity instead, which takes complex sums over M for each frequency, needs C (1 - Abar^L) as the
parameter, and has no value where Lambda = 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .ops_ssm import batched_matmul

# A block of features goes through all steps before the next one, so that its matrices stay in the cache of a CPU.
_CPU_BLOCK_ELEMENTS = 1 << 16


def _grid_dtype(device: torch.device) -> torch.dtype:
    # Apple's mps has no float64.
    return torch.float32 if device.type == "mps" else torch.float64


def _complex(pairs: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_complex(pairs.to(dtype).contiguous())


def _rows(x: Tensor) -> Tensor:
    """(..., M) complex to (..., N) real."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2)


def discretize_dplr(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Discretise by the bilinear rule: Abar x = D x - sum_r U_r (V_r . x), in real coordinates.

    Feature h uses copy h mod S of (A, P, B). Computed in float64.

    Args:
        dt: Step size in units of one sample, (H,), > 0. Pass float64 if it was computed, so that no digit is lost.
        A_real: Real part of Lambda, (S, M), <= 0, S divides H; float64 likewise.
        A_imag: Imaginary part, (S, M).
        P: Low-rank factor as real pairs, (r, S, M, 2).
        B: Input matrix as real pairs, (S, M, 2).

    Returns:
        D (H, M) complex; U (H, r, N), columns of the correction; V (H, r, N), its functionals; bbar (H, N).

    Source: arXiv 2111.00396.
    """
    grid = _grid_dtype(dt.device)
    dt = dt.to(grid)[:, None]
    repeats = dt.shape[0] // A_real.shape[0]
    A = torch.complex(A_real.to(grid), A_imag.to(grid))
    B, P = _complex(B, grid), _complex(P, grid).transpose(0, 1)
    if repeats > 1:
        A, B, P = A.repeat(repeats, 1), B.repeat(repeats, 1), P.repeat(repeats, 1, 1)
    x = dt * A / 2
    inverse = 1 / (1 - x)  # (H, M)
    # (2 / dt - A)^-1 = R - R P (1 + P^* R P)^-1 P^* R with R = inverse dt / 2.
    scaled = inverse[:, None] * P  # (H, r, M)
    functionals = dt[:, None] * _rows(inverse[:, None].conj() * P)  # 2 conj(P^* R)
    gram = functionals @ _rows(P).transpose(1, 2)  # (H, r, r)
    drive = _rows(inverse * B)  # 2 R B / dt
    gain = functionals @ _rows(B)[..., None]  # (H, r, 1)
    columns = 2 * _rows(scaled)
    if gram.shape[1] == 1:
        columns = columns / (1 + gram)
    else:
        identity = torch.eye(gram.shape[1], dtype=grid, device=dt.device)
        columns = torch.linalg.solve((identity + gram).transpose(1, 2), columns)
    bbar = dt * (drive - (gain * columns).sum(1) / 2)
    return (1 + x) * inverse, columns, functionals, bbar


def _dense(D: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """T (H, N, N), the transpose of Abar."""
    step = torch.bmm(V.transpose(1, 2), U).neg_()
    hidden, size, _ = step.shape
    entries = step.view(hidden, size * size)
    # The four diagonals of the blocks [[Re D, Im D], [-Im D, Re D]].
    entries[:, :: 2 * size + 2] += D.real
    entries[:, size + 1 :: 2 * size + 2] += D.real
    entries[:, 1 :: 2 * size + 2] += D.imag
    entries[:, size :: 2 * size + 2] -= D.imag
    return step


def _dense_gradients(grad: Tensor, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of D, U and V from that of T."""
    hidden, size, _ = grad.shape
    entries = grad.view(hidden, size * size)
    real = entries[:, :: 2 * size + 2] + entries[:, size + 1 :: 2 * size + 2]
    imag = entries[:, 1 :: 2 * size + 2] - entries[:, size :: 2 * size + 2]
    return torch.complex(real, imag), torch.bmm(V, grad).neg_(), torch.bmm(U, grad.transpose(1, 2)).neg_()


class _Plan:
    """How many powers: Q columns Abar^j bbar, and r2 groups of r1 rows C Abar^{Q i}."""

    def __init__(self, length: int, directions: int) -> None:
        bits = (length - 1).bit_length()
        self.block = 1 << (bits + 1) // 2  # Q
        num_blocks = -(-length // self.block)  # I
        self.group = 1 << ((num_blocks - 1).bit_length() + 1) // 2  # r1
        self.num_groups = -(-num_blocks // self.group)  # r2
        self.rows = self.num_groups * directions * self.group


class _KrylovKernel(torch.autograd.Function):
    """K[r, h, l] = C[h, r] Abar^l bbar with l = Q i + j, as the product of rows C Abar^{Q i} and columns Abar^j bbar.

    The columns come by doubling, X <- [X, X T], T <- T T; the rows by doubling up to r1 of them, then by r2 products
    with Abar^{Q r1}. The backward follows the doublings of the columns down; for the rows it needs none: the adjoint
    rows obey a recurrence with Abar^Q, run in two levels, and the gradient of Abar^Q is one product of rows with them.
    """

    @staticmethod
    def forward(
        ctx: Any, D: Tensor, U: Tensor, V: Tensor, bbar: Tensor, C: Tensor, length: int, dtype: torch.dtype
    ) -> Tensor:
        hidden, directions, size = C.shape
        plan = _Plan(length, directions)
        padded = plan.num_groups * plan.group * plan.block
        kernel = torch.empty(directions, hidden, padded, dtype=dtype, device=C.device)
        blocks = _feature_blocks(C, plan)
        keep = any(ctx.needs_input_grad)
        saved = []
        for block in blocks:
            factors = _factors(D[block], U[block], V[block], bbar[block], C[block], plan, dtype)
            X, Y = factors[0], factors[1]
            lags = batched_matmul(Y, X.transpose(1, 2))  # (h, r2 R r1, Q)
            lags = lags.view(-1, plan.num_groups, directions, plan.group * plan.block)
            kernel.view(directions, hidden, plan.num_groups, -1)[:, block] = lags.permute(2, 0, 1, 3)
            if keep:
                saved += factors
        ctx.plan, ctx.blocks, ctx.dtype = plan, blocks, dtype
        ctx.save_for_backward(U, V, *saved)
        return kernel[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        U, V, *saved = ctx.saved_tensors
        plan, directions = ctx.plan, grad.shape[0]
        padded = plan.num_groups * plan.group * plan.block
        grad = torch.nn.functional.pad(grad.to(ctx.dtype), (0, padded - grad.shape[2]))
        count = len(saved) // len(ctx.blocks)
        gradients = []
        for number, block in enumerate(ctx.blocks):
            part = grad[:, block].view(directions, -1, plan.num_groups, plan.group, plan.block)
            part = part.permute(1, 2, 0, 3, 4).reshape(-1, plan.rows, plan.block)
            factors = saved[number * count : (number + 1) * count]
            gradients.append(_factor_gradients(part, U[block], V[block], directions, plan, factors))
        return *(torch.cat(parts) for parts in zip(*gradients, strict=True)), None, None


def _feature_blocks(C: Tensor, plan: _Plan) -> list[slice]:
    hidden, _, size = C.shape
    elements = size * max(size, plan.rows, plan.block)
    step = max(1, _CPU_BLOCK_ELEMENTS // elements) if C.device.type == "cpu" else hidden
    return [slice(start, min(start + step, hidden)) for start in range(0, hidden, step)]


def _factors(D: Tensor, U: Tensor, V: Tensor, bbar: Tensor, C: Tensor, plan: _Plan, dtype: torch.dtype) -> list[Tensor]:
    """X (h, Q, N), Y (h, r2 R r1, N), T^Q and T^{Q r1} in float64, and T, T^2, ..., T^{Q/2}."""
    hidden, directions, size = C.shape
    power = _dense(D, U, V)
    powers = []
    X = bbar.new_empty(hidden, plan.block, size)
    X[:, 0] = bbar
    have = 1
    while have < plan.block:
        X[:, have : 2 * have] = torch.bmm(X[:, :have], power)
        powers.append(power.to(dtype))
        have *= 2
        if have < plan.block or plan.num_groups * plan.group > 1:
            power = torch.bmm(power, power)
    block_power = power
    Y = C.new_empty(hidden, plan.num_groups, directions, plan.group, size)
    Y[:, 0, :, 0] = C
    have = 1
    while have < plan.group:
        rows = Y[:, 0, :, :have].reshape(hidden, directions * have, size)
        Y[:, 0, :, have : 2 * have] = torch.bmm(rows, power.transpose(1, 2)).view(hidden, directions, have, size)
        have *= 2
        if have < plan.group or plan.num_groups > 1:
            power = torch.bmm(power, power)
    Y = Y.view(hidden, plan.num_groups, directions * plan.group, size)
    for group in range(1, plan.num_groups):
        Y[:, group] = torch.bmm(Y[:, group - 1], power.transpose(1, 2))
    return [X.to(dtype), Y.view(hidden, plan.rows, size).to(dtype), block_power, power, *powers]


def _factor_gradients(
    grad: Tensor, U: Tensor, V: Tensor, directions: int, plan: _Plan, factors: list[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of D, U, V, bbar and C from that of the kernel (h, r2 R r1, Q)."""
    X, Y, block_power, group_power, *powers = factors
    d_X = batched_matmul(grad.transpose(1, 2), Y)
    d_Y = batched_matmul(grad, X).to(block_power.dtype)
    adjoint, d_C = _adjoint_rows(d_Y, block_power, group_power, directions, plan)
    d_power = batched_matmul(adjoint.to(Y.dtype).transpose(1, 2), Y)
    have = plan.block
    for power in reversed(powers):
        have //= 2
        transposed = power.transpose(1, 2)
        d_power = batched_matmul(transposed, d_power) + batched_matmul(d_power, transposed)
        d_power += batched_matmul(X[:, :have].transpose(1, 2), d_X[:, have : 2 * have])
        d_X[:, :have] += batched_matmul(d_X[:, have : 2 * have], transposed)
    d_D, d_U, d_V = _dense_gradients(d_power.to(U.dtype), U, V)
    return d_D, d_U, d_V, d_X[:, 0].to(U.dtype), d_C


def _adjoint_rows(
    d_Y: Tensor, block_power: Tensor, group_power: Tensor, directions: int, plan: _Plan
) -> tuple[Tensor, Tensor]:
    """Gradients z_i = dY_i + z_{i+1} T^Q of the whole chain of rows: z_{i+1} at the place of row i, and z_0."""
    hidden, _, size = d_Y.shape
    groups, step = plan.num_groups, plan.group
    d_Y = d_Y.view(hidden, groups * directions, step, size)
    adjoint = d_Y.new_zeros(d_Y.shape)
    if groups > 1:
        total = d_Y[:, :, step - 1]
        for row in range(step - 2, -1, -1):
            total = torch.baddbmm(d_Y[:, :, row], total, block_power)
        # `total` is what a group adds up to if nothing comes after it.
        last = adjoint.view(hidden, groups, directions, step, size)[:, :, :, step - 1]
        total = total.view(hidden, groups, directions, size)
        carry = total[:, groups - 1]
        for group in range(groups - 2, -1, -1):
            last[:, group] = carry
            carry = torch.baddbmm(total[:, group], carry, group_power)
    for row in range(step - 2, -1, -1):
        adjoint[:, :, row] = torch.baddbmm(d_Y[:, :, row + 1], adjoint[:, :, row + 1], block_power)
    first = torch.baddbmm(d_Y[:, :directions, 0], adjoint[:, :directions, 0], block_power)
    return adjoint.view(hidden, plan.rows, size), first


def dplr_kernel(dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor, C: Tensor, length: int) -> Tensor:
    """Long convolution kernels K[r, h, l] = 2 Re(C[r, h] Abar^l bbar) of a DPLR state space model, bilinear rule.

    Args:
        dt, A_real, A_imag, P, B: As in `discretize_dplr`.
        C: Output matrix as real pairs, (R, H, M, 2), one for each direction.
        length: Number of kernel values L, >= 1.

    Returns:
        Kernels (R, H, L), lag 0 first, float32 (float64 where `C` is float64).

    Source: arXiv 2111.00396 for the model.
    """
    dtype = torch.float64 if C.dtype == torch.float64 else torch.float32
    D, U, V, bbar = discretize_dplr(dt, A_real, A_imag, P, B)
    functionals = 2 * _rows(_complex(C, bbar.dtype).conj()).transpose(0, 1)
    return _KrylovKernel.apply(D, U, V, bbar, functionals, length, dtype)


def dplr_kernel_reference(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor, C: Tensor, length: int
) -> Tensor:
    """The impulse response of the dense complex system, one step at a time in complex128; see `dplr_kernel`."""
    copy = torch.arange(dt.shape[0], device=dt.device) % A_real.shape[0]

    def both(half: Tensor) -> Tensor:
        return torch.cat([half, half.conj()], dim=-1)

    P = both(_complex(P, torch.float64)[:, copy]).permute(1, 2, 0)  # (H, N, r)
    A = torch.diag_embed(both(torch.complex(A_real.double(), A_imag.double())[copy])) - P @ P.mH
    half_step = dt.double()[:, None, None] / 2 * A
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    Abar = torch.linalg.solve(identity - half_step, identity + half_step)
    drive = dt.double()[:, None] * both(_complex(B, torch.float64)[copy])
    state = torch.linalg.solve(identity - half_step, drive)
    C = both(_complex(C, torch.float64))
    outputs = []
    for _ in range(length):
        outputs.append((C * state).sum(-1).real)
        state = (Abar @ state[..., None])[..., 0]
    return torch.stack(outputs, dim=-1)
