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
the kernel at the roots of unity instead, which takes complex sums over M for each frequency, needs C (1 - Abar^L)
as the stored parameter, and has no value where Lambda = 0.

What lost on one CPU core, H 256, N 64: blocks of two and four times as many features (kernel of L 4,096, forward and
backward, 99 and 105 ms against 94); a step with the dense Abar or with batched products for the low-rank part (388 and
101 us in float32 against 38 for elementwise operations; in float64, which is used, 484, 136 and 63). Building the first
powers of Abar from their low rank would save three of nine squarings, by count about what its small operations cost;
it was not tried.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .ops_ssm import as_complex, batched_matmul, full_precision_matmul, grid_dtype

# A block of features goes through all steps before the next one, so that its matrices stay in the cache of a CPU.
_CPU_BLOCK_ELEMENTS = 1 << 16
# Smaller values of float32 rows are set to zero.
_SMALLEST_ROW_VALUE = 1e-20
# In a graph for any length a kernel is made of 2^8 columns and up to 2^12 rows.
_TRACED_COLUMN_BITS, _TRACED_ROW_BITS = 8, 12
# Up to so many steps of a recurrence are done one after the other; beyond, in chunks of at most so many.
_MAX_SINGLE_STEPS, _MAX_CHUNK = 16, 128


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
    grid = grid_dtype(dt.device)
    dt = dt.to(grid)[:, None]
    repeats = dt.shape[0] // A_real.shape[0]
    A = torch.complex(A_real.to(grid), A_imag.to(grid))
    B, P = as_complex(B, grid), as_complex(P, grid).transpose(0, 1)
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


class DPLRSystem(NamedTuple):
    """A sampled system in real coordinates: Abar x = D x - sum_r U_r (V_r . x), y = C . x.

    D is (H, M) complex; U and V (H, r, N); bbar (H, N); C (H, R, N), one for each direction. All float64.
    """

    D: Tensor
    U: Tensor
    V: Tensor
    bbar: Tensor
    C: Tensor


def dplr_system(dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor, C: Tensor) -> DPLRSystem:
    """What a recurrence needs of the parameters; see `dplr_kernel` for arguments."""
    D, U, V, bbar = discretize_dplr(dt, A_real, A_imag, P, B)
    functionals = 2 * _rows(as_complex(C, bbar.dtype).conj()).transpose(0, 1)
    return DPLRSystem(D, U, V, bbar, functionals)


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
    rows obey a recurrence with Abar^Q, and the gradient of Abar^Q is one product of rows with them. That part of the
    backward which is no recurrence is float32 for float32 kernels.
    """

    @staticmethod
    def forward(
        ctx: Any, D: Tensor, U: Tensor, V: Tensor, bbar: Tensor, C: Tensor, length: int, dtype: torch.dtype
    ) -> Tensor:
        hidden, directions, size = C.shape
        plan = _Plan(length, directions)
        # Where float32 products are cut to fewer digits (TF32), all products are float64.
        work = dtype if full_precision_matmul(C.device) else C.dtype
        padded = plan.num_groups * plan.group * plan.block
        kernel = torch.empty(directions, hidden, padded, dtype=dtype, device=C.device)
        ctx.blocks = _feature_blocks(C, plan)
        keep = any(ctx.needs_input_grad)
        saved = []
        with torch.autocast(C.device.type, enabled=False):
            for block in ctx.blocks:
                factors = _factors(D[block], U[block], V[block], bbar[block], C[block], plan, work)
                lags = torch.bmm(factors[1], factors[0].transpose(1, 2))  # (h, r2 R r1, Q)
                lags = lags.view(-1, plan.num_groups, directions, plan.group * plan.block)
                kernel.view(directions, hidden, plan.num_groups, -1)[:, block] = lags.permute(2, 0, 1, 3)
                if keep:
                    saved += factors
        ctx.plan, ctx.work = plan, work
        ctx.save_for_backward(U, V, *saved)
        return kernel[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        U, V, *saved = ctx.saved_tensors
        plan, directions = ctx.plan, grad.shape[0]
        padded = plan.num_groups * plan.group * plan.block
        if padded > grad.shape[2]:
            grad = torch.nn.functional.pad(grad, (0, padded - grad.shape[2]))
        count = len(saved) // len(ctx.blocks)
        gradients = []
        with torch.autocast(grad.device.type, enabled=False):
            for number, block in enumerate(ctx.blocks):
                part = grad[:, block].unflatten(2, (plan.num_groups, plan.group, plan.block))
                part = part.permute(1, 2, 0, 3, 4).to(ctx.work).reshape(-1, plan.rows, plan.block)
                factors = saved[number * count : (number + 1) * count]
                gradients.append(_factor_gradients(part, U[block], V[block], directions, plan, factors))
        return *(torch.cat(parts) for parts in zip(*gradients, strict=True)), None, None


def _feature_blocks(C: Tensor, plan: _Plan) -> list[slice]:
    hidden, _, size = C.shape
    elements = size * max(size, plan.rows, plan.block)
    step = max(1, _CPU_BLOCK_ELEMENTS // elements) if C.device.type == "cpu" else hidden
    return [slice(start, min(start + step, hidden)) for start in range(0, hidden, step)]


def _factors(D: Tensor, U: Tensor, V: Tensor, bbar: Tensor, C: Tensor, plan: _Plan, work: torch.dtype) -> list[Tensor]:
    """X (h, Q, N), Y (h, r2 R r1, N); T, T^2, ..., T^{Q/2}; and T^Q, T^{2 Q}, ..., T^{r1 Q} in float64."""
    hidden, directions, size = C.shape
    power = _dense(D, U, V)
    column_powers = []
    X = bbar.new_empty(hidden, plan.block, size)
    X[:, 0] = bbar
    have = 1
    while have < plan.block:
        X[:, have : 2 * have] = torch.bmm(X[:, :have], power)
        column_powers.append(power.to(work))
        have *= 2
        if have < plan.block or plan.num_groups * plan.group > 1:
            power = torch.bmm(power, power)
    row_powers = [power]
    Y = C.new_empty(hidden, plan.num_groups, directions, plan.group, size)
    Y[:, 0, :, 0] = C
    have = 1
    while have < plan.group:
        rows = Y[:, 0, :, :have].reshape(hidden, directions * have, size)
        Y[:, 0, :, have : 2 * have] = torch.bmm(rows, power.transpose(1, 2)).view(hidden, directions, have, size)
        have *= 2
        if have < plan.group or plan.num_groups > 1:
            power = torch.bmm(power, power)
            row_powers.append(power)
    Y = Y.view(hidden, plan.num_groups, directions * plan.group, size)
    transposed = power.transpose(1, 2)
    if plan.num_groups > 2:
        transposed = transposed.contiguous()
    for group in range(1, plan.num_groups):
        Y[:, group] = torch.bmm(Y[:, group - 1], transposed)
    Y = Y.view(hidden, plan.rows, size)
    if work == torch.float32:
        # Rows that have died out would be subnormal in float32, which makes products up to eight times slower.
        Y = torch.nn.functional.hardshrink(Y, _SMALLEST_ROW_VALUE)
    return [X.to(work), Y.to(work), *column_powers, *row_powers]


def _factor_gradients(
    grad: Tensor, U: Tensor, V: Tensor, directions: int, plan: _Plan, factors: list[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of D, U, V, bbar and C from that of the kernel (h, r2 R r1, Q)."""
    X, Y, *powers = factors
    levels = plan.block.bit_length() - 1
    column_powers, row_powers = powers[:levels], powers[levels:]
    d_X = torch.bmm(grad.transpose(1, 2), Y)
    adjoint, d_C = _adjoint_rows(torch.bmm(grad, X).to(U.dtype), row_powers, directions, plan)
    d_power = torch.bmm(adjoint.to(Y.dtype).transpose(1, 2), Y)
    have = plan.block
    for power in reversed(column_powers):
        have //= 2
        transposed = power.transpose(1, 2)
        d_power = torch.bmm(transposed, d_power).baddbmm_(d_power, transposed)
        d_power.baddbmm_(X[:, :have].transpose(1, 2), d_X[:, have:])
        d_X = torch.baddbmm(d_X[:, :have], d_X[:, have:], transposed)
    d_D, d_U, d_V = _dense_gradients(d_power.to(U.dtype), U, V)
    return d_D, d_U, d_V, d_X[:, 0].to(U.dtype), d_C


def _adjoint_rows(d_Y: Tensor, row_powers: list[Tensor], directions: int, plan: _Plan) -> tuple[Tensor, Tensor]:
    """Gradients z_i = dY_i + z_{i+1} T^Q of the whole chain of rows: z_{i+1} at the place of row i, and z_0.

    A tree in each group: sums over pairs, pairs of pairs, and so on, go up, and what comes after each goes down.
    """
    hidden, _, size = d_Y.shape
    groups, levels = plan.num_groups, plan.group.bit_length() - 1
    sums = [d_Y]
    for level in range(levels if groups > 1 else levels - 1):
        sums.append(torch.baddbmm(sums[-1][:, ::2], sums[-1][:, 1::2], row_powers[level]))
    after = d_Y.new_zeros(hidden, groups, directions, size)
    if groups > 1:
        total = sums[levels].view(hidden, groups, directions, size)
        for group in range(groups - 2, -1, -1):
            after[:, group] = torch.baddbmm(total[:, group + 1], after[:, group + 1], row_powers[levels])
    after = after.view(hidden, groups * directions, size)
    for level in range(levels - 1, -1, -1):
        before = torch.baddbmm(sums[level][:, 1::2], after, row_powers[level])
        after = torch.stack([before, after], dim=2).flatten(1, 2)
    first = slice(0, None, plan.group)
    z_0 = torch.baddbmm(d_Y[:, first][:, :directions], after[:, first][:, :directions], row_powers[0])
    return after, z_0


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
    system = dplr_system(dt, A_real, A_imag, P, B, C)
    if torch.compiler.is_compiling():
        return _traced_kernel(system, length, dtype)
    return _KrylovKernel.apply(*system, length, dtype)


def _columns(power: Tensor, bbar: Tensor, bits: int) -> tuple[Tensor, list[Tensor]]:
    """X (H, 2^bits, N), rows bbar T^j, and T, T^2, T^4, ..., T^(2^bits), in operations of autograd."""
    X, powers = bbar[:, None], [power]
    for _ in range(bits):
        X = torch.cat([X, torch.bmm(X, powers[-1])], dim=1)
        powers.append(torch.bmm(powers[-1], powers[-1]))
    return X, powers


def _traced_kernel(system: DPLRSystem, length: int, dtype: torch.dtype) -> Tensor:
    """The same kernels in operations that a graph can hold for any length: row i takes the powers of its bits."""
    longest = 1 << (_TRACED_COLUMN_BITS + _TRACED_ROW_BITS)
    if length > longest:
        raise ValueError(f"length={length} is more than {longest}, the longest kernel a graph for any length can hold.")
    D, U, V, bbar, C = system
    X, powers = _columns(_dense(D, U, V), bbar, _TRACED_COLUMN_BITS)
    block = 1 << _TRACED_COLUMN_BITS
    # One row more than it takes: export would fix a single one for all lengths.
    number = torch.arange((length + block - 1) // block + 1, device=C.device)
    power = powers[-1].transpose(1, 2)[:, None]
    Y = C[:, :, None] + bbar.new_zeros(number.shape[0], 1)  # (H, R, I, N)
    for bit in range(_TRACED_ROW_BITS):
        is_set = torch.bitwise_and(number, 1 << bit)[:, None] > 0
        Y = torch.where(is_set, Y @ power, Y)
        power = power @ power
    if dtype == torch.float32:
        with torch.autocast(C.device.type, enabled=False):
            kernel = Y.to(dtype) @ X.to(dtype).transpose(1, 2)[:, None]
    else:
        kernel = Y @ X.transpose(1, 2)[:, None]
    # A slice would have export prove that the length is at most that of the blocks, which it cannot.
    return kernel.flatten(2).index_select(2, torch.arange(length, device=C.device)).transpose(0, 1)


def _dense_reference(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Abar (H, N, N), bbar (H, N) and C (R, H, N) over both halves of the spectrum, complex128."""
    copy = torch.arange(dt.shape[0], device=dt.device) % A_real.shape[0]

    def both(half: Tensor) -> Tensor:
        return torch.cat([half, half.conj()], dim=-1)

    P = both(as_complex(P, torch.float64)[:, copy]).permute(1, 2, 0)  # (H, N, r)
    A = torch.diag_embed(both(torch.complex(A_real.double(), A_imag.double())[copy])) - P @ P.mH
    half_step = dt.double()[:, None, None] / 2 * A
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    Abar = torch.linalg.solve(identity - half_step, identity + half_step)
    drive = dt.double()[:, None] * both(as_complex(B, torch.float64)[copy])
    return Abar, torch.linalg.solve(identity - half_step, drive), both(as_complex(C, torch.float64))


def dplr_kernel_reference(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, B: Tensor, C: Tensor, length: int
) -> Tensor:
    """The impulse response of the dense complex system, one step at a time in complex128; see `dplr_kernel`."""
    Abar, state, C = _dense_reference(dt, A_real, A_imag, P, B, C)
    outputs = []
    for _ in range(length):
        outputs.append((C * state).sum(-1).real)
        state = (Abar @ state[..., None])[..., 0]
    return torch.stack(outputs, dim=-1)


def dplr_step(system: DPLRSystem, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the causal recurrence, in O(r N) for each feature.

    Args:
        system: From `dplr_system`; its first direction is used.
        u: Input (B, H), float64.
        state: State (B, H, N), float64.

    Returns:
        Output (B, H) and the new state.
    """
    D, U, V, bbar, C = system
    pairs = torch.view_as_complex(state.view(*state.shape[:-1], -1, 2))
    new = torch.view_as_real(pairs * D).flatten(-2)
    for r in range(U.shape[1]):
        new = torch.addcmul(new, torch.linalg.vecdot(state, V[:, r])[..., None], U[:, r], value=-1)
    new = torch.addcmul(new, u[..., None], bbar)
    return torch.linalg.vecdot(new, C[:, 0]), new


def dplr_scan(system: DPLRSystem, u: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Run the causal recurrence x_t = Abar x_{t-1} + bbar u_t, y_t = C x_t from a state.

    A long input is cut into chunks of Q: within a chunk the output is a matrix product with the kernel's Toeplitz
    matrix, between chunks only the state is carried, in float64. Differentiable with respect to all arguments.

    Args:
        system: From `dplr_system`; its first direction is used.
        u: Input (B, L, H), L >= 1, float32 or float64.
        initial_state: State before the first step, (B, H, N), or None for zeros.

    Returns:
        Output (B, L, H) and the state after the last step (B, H, N), in the dtype of `u`.

    Source: arXiv 2111.00396 for the recurrence; the chunks are ours.
    """
    batch, length, hidden = u.shape
    grid = system.bbar.dtype
    if initial_state is None:
        state = torch.zeros(batch, hidden, system.bbar.shape[-1], dtype=grid, device=u.device)
    else:
        state = initial_state.to(grid)
    if length <= _MAX_SINGLE_STEPS:
        outputs = []
        for step in u.to(grid).unbind(1):
            y, state = dplr_step(system, step, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1).to(u.dtype), state.to(u.dtype)
    bits = (min(length, _MAX_CHUNK) - 1).bit_length()
    y, state = _scan_chunks(system, u.permute(2, 0, 1), state.transpose(0, 1), bits)
    return y.permute(1, 2, 0), state.transpose(0, 1).to(u.dtype)


def _scan_chunks(system: DPLRSystem, u: Tensor, state: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """`dplr_scan` in chunks of 2^bits, after a shorter one where the length is no multiple; feature first."""
    hidden, batch, length = u.shape
    chunk = 1 << bits
    X, powers = _columns(_dense(system.D, system.U, system.V), system.bbar, bits)
    responses, _ = _columns(powers[0].transpose(1, 2), system.C[:, 0], bits)
    kernel = torch.bmm(X, system.C[:, 0, :, None])[..., 0]
    responses = torch.bmm(responses, powers[0].transpose(1, 2))  # C Abar^{t+1}
    taps = torch.nn.functional.pad(kernel.to(u.dtype), (chunk - 1, 0))
    toeplitz = taps.unfold(1, chunk, 1).flip(1)  # (H, s, t) holds lag t - s
    inputs, responses = X.flip(1).to(u.dtype), responses.transpose(1, 2).to(u.dtype)

    outputs = []
    head = length % chunk
    if head:
        part = u[..., :head]
        y = batched_matmul(part, toeplitz[:, :head, :head])
        outputs.append(y + batched_matmul(state.to(u.dtype), responses[..., :head]))
        for bit in range(bits):
            if head >> bit & 1:
                state = torch.bmm(state, powers[bit])
        state = state + batched_matmul(part, inputs[:, chunk - head :]).to(state.dtype)
    if length > head:
        count = length // chunk
        part = u[..., head:].reshape(hidden, batch * count, chunk)
        drive = batched_matmul(part, inputs).to(state.dtype).view(hidden, batch, count, -1)
        before, state = _carry(state, drive, powers[-1])
        before = before.to(u.dtype).view(hidden, batch * count, -1)
        y = batched_matmul(part, toeplitz) + batched_matmul(before, responses)
        outputs.append(y.view(hidden, batch, count * chunk))
    return torch.cat(outputs, dim=-1), state


def _carry(state: Tensor, drive: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """States x_c before each chunk, x_{c+1} = x_c T^Q + drive_c, and the last one; in two levels if there are many.

    Args:
        state: x_0, (H, B, N).
        drive: (H, B, chunks, N).
        power: T^Q, (H, N, N).
    """
    hidden, batch, count, size = drive.shape
    group = 1 if count < 32 else 1 << (count.bit_length() // 2)
    single = count % group if group > 1 else count
    before = []
    for number in range(single):
        before.append(state)
        state = torch.baddbmm(drive[:, :, number], state, power)
    if single == count:
        return torch.stack(before, dim=2), state
    num_groups = count // group
    grouped = drive[:, :, single:].reshape(hidden, batch * num_groups, group, size)
    total = grouped[:, :, 0]
    for number in range(1, group):
        total = torch.baddbmm(grouped[:, :, number], total, power)
    # What a group adds up to, from zero, is the drive of the coarser recurrence between groups.
    starts, state = _carry(state, total.view(hidden, batch, num_groups, size), torch.linalg.matrix_power(power, group))
    states = [starts.reshape(hidden, batch * num_groups, size)]
    for number in range(group - 1):
        states.append(torch.baddbmm(grouped[:, :, number], states[-1], power))
    inner = torch.stack(states, dim=2).view(hidden, batch, num_groups * group, size)
    return (torch.cat([torch.stack(before, dim=2), inner], dim=2) if before else inner), state


def dplr_scan_reference(
    dt: Tensor,
    A_real: Tensor,
    A_imag: Tensor,
    P: Tensor,
    B: Tensor,
    C: Tensor,
    u: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence with the dense complex matrix, one step at a time in complex128; see `dplr_scan`.

    Args:
        dt, A_real, A_imag, P, B, C: As in `dplr_kernel`; the first direction is used.
        u, initial_state: As in `dplr_scan`.
    """
    Abar, drive, C = _dense_reference(dt, A_real, A_imag, P, B, C)
    size = Abar.shape[-1]
    state = torch.zeros(u.shape[0], dt.shape[0], size, dtype=Abar.dtype, device=u.device)
    if initial_state is not None:
        half = torch.view_as_complex(initial_state.double().unflatten(-1, (-1, 2)))
        state = torch.cat([half, half.conj()], dim=-1)
    outputs = []
    for step in u.double().unbind(1):
        state = (Abar @ state[..., None])[..., 0] + drive * step[..., None]
        outputs.append((C[0] * state).sum(-1).real)
    return torch.stack(outputs, dim=1), torch.view_as_real(state[..., : size // 2]).flatten(-2)
