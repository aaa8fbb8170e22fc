"""Diagonal state space models: discretisation and long convolution kernels.

Legend: H hidden, M stored states of a feature, S independent copies of (A, B), R directions, L length, Q steps in a
block, I blocks, Q * I >= L; G groups of rows with eigenvalues of their own (H, or 1 if all features share them).

One feature follows x' = A x + B u, y = factor Re(C x). Where the M complex states stand for N = 2 M real ones, the
conjugate half is the factor 2; it is 1 where they stand for themselves, and where all is real. Sampled with step dt it
is x_t = z x_{t-1} + gain B u_t, z = exp(log_z); the kernel is K_l = Re sum_n W_n z_n^l with W = factor C gain B.
Parameters come in as real pairs (..., 2) or as two tensors; log_z and W are complex tensors, or real for real states.
The small algebra and the grids of powers are float64 whatever the parameters are: the phase l Im(log_z) reaches 1e5 and
would magnify a float32 rounding of log_z.

Source: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models", arXiv 2206.11893.
The two-level form of the kernel and its hand-written backward are ours.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A rule maps x = dt A to log z, its slope d log z / dx (None where it is 1), phi = gain / dt, and d phi / dx.
_Rule = Callable[[Tensor], tuple[Tensor, Tensor | None, Tensor, Tensor]]


def _zoh_rule(x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """log z = x and phi = phi_1(x) = (exp(x) - 1) / x, value and slope without cancellation at and around 0."""
    small = x.abs() < (1e-4 if x.dtype in (torch.complex128, torch.float64) else 1e-2)
    # The unused branch must stay finite, so its denominator is replaced before the division.
    divisor = torch.where(small, 1.0, x)
    far = (torch.expm1(x) / divisor - 1) / divisor
    # phi_2 = (phi_1 - 1) / x = 1/2! + x/3! + x^2/4! + ...; the rest is below the rounding of `far` at the border.
    near = x * (x * (1 / 24) + 1 / 6) + 1 / 2
    phi2 = torch.where(small, near, far)
    phi1 = x * phi2 + 1
    return x, None, phi1, phi1 - phi2


def _bilinear_rule(x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """log z = log((1 + x/2) / (1 - x/2)) and phi = 1 / (1 - x/2); log1p and atan2 keep slow decays exact."""
    r, s = x.real, x.imag
    numerator = 1 + x / 2
    # z = 0 at x = -2: a logarithm that stays finite, and whose slope times z is right in float32, too.
    numerator = torch.where(numerator == 0, 1e-30, numerator)
    squared = (1 - r / 2).square() + s.square() / 4  # |1 - x/2|^2
    # Near that point the numerator keeps digits that log1p has not.
    is_near = numerator.abs() < 0.5
    near = torch.log(torch.where(is_near, numerator, 1.0).abs()) - torch.log(squared) / 2
    modulus = torch.where(is_near, near, torch.log1p(torch.where(is_near, 0.0, 2 * r / squared)) / 2)
    angle = torch.atan2(s, 1 - (r.square() + s.square()) / 4)
    phi = 1 / (1 - x / 2)
    return torch.complex(modulus, angle), phi / numerator, phi, phi.square() / 2


_RULES: dict[str, _Rule] = {"zoh": _zoh_rule, "bilinear": _bilinear_rule}


def _get_rule(discretization: str) -> _Rule:
    if discretization not in _RULES:
        raise ValueError(f"discretization={discretization!r} is unknown; use one of {', '.join(_RULES)}.")
    return _RULES[discretization]


class _Discretize(torch.autograd.Function):
    """log z and phi of a rule, differentiated by the rule's own slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rule: _Rule) -> tuple[Tensor, Tensor]:
        log_z, slope, phi, phi_slope = rule(x)
        ctx.save_for_backward(slope, phi_slope)
        return log_z.clone(), phi

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_z: Tensor, grad_phi: Tensor) -> tuple[Tensor, None]:
        slope, phi_slope = ctx.saved_tensors
        if slope is not None:
            grad_log_z = grad_log_z * slope.conj()
        return grad_log_z + grad_phi * phi_slope.conj(), None


def discretize(A: Tensor, dt: Tensor, discretization: str) -> tuple[Tensor, Tensor]:
    """Discretise diagonal states.

    Args:
        A: Continuous eigenvalues as real pairs, (H, M, 2), real part <= 0; exactly 0 is allowed.
        dt: Step size in units of one sample, (H,), > 0, in the dtype of `A`.
        discretization: "zoh" or "bilinear".

    Returns:
        log z and gain, each (H, M, 2), in the dtype of `A`: x_t = z x_{t-1} + gain B u_t.

    Raises:
        ValueError: If `discretization` is unknown.

    Source: arXiv 2206.11893.
    """
    rule = _get_rule(discretization)
    log_z, phi = _Discretize.apply(dt[:, None] * torch.view_as_complex(A.contiguous()), rule)
    return torch.view_as_real(log_z), torch.view_as_real(dt[:, None] * phi)


# A graph is captured under the switches of that moment.
@torch.compiler.assume_constant_result
def full_precision_matmul(device: torch.device) -> bool:
    """Whether a float32 matmul keeps all its digits: TF32 on CUDA and bfloat16 on CPUs, where allowed, leave 3 of 7."""
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    # From torch 2.9 on, reading the older switch raises once the newer one is set, as by the Trainer with `tf32=True`.
    precision = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if precision is None:
        return torch.get_float32_matmul_precision() == "highest"
    return precision in ("none", "ieee")


def batched_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`torch.bmm` that keeps the digits of its dtype under autocast and under TF32."""
    if torch.is_autocast_enabled(left.device.type):
        with torch.autocast(left.device.type, enabled=False):
            return batched_matmul(left, right)
    if left.dtype == torch.float32 and not full_precision_matmul(left.device):
        return torch.bmm(left.double(), right.double()).float()
    return torch.bmm(left, right)


def grid_dtype(device: torch.device) -> torch.dtype:
    """What grids of powers and discrete systems are made in: float64 where the device has it."""
    # Apple's mps has not; kernels there are as exact as float32 phases are, about 1e-5 for damped states.
    return torch.float32 if device.type == "mps" else torch.float64


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype of grids."""
    return x.to(grid_dtype(x.device))


def as_complex(pairs: Tensor, dtype: torch.dtype) -> Tensor:
    """Real pairs (..., 2) as complex numbers with parts of `dtype`."""
    return torch.view_as_complex(pairs.to(dtype).contiguous())


def _conj(x: Tensor) -> Tensor:
    return x.conj_physical() if x.is_complex() else x


def _reals(x: Tensor) -> Tensor:
    """(..., M) complex to (..., 2 M) reals, real and imaginary part by turns; a real tensor as it is."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def with_parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A complex or real tensor with parts of `dtype`, float32 or float64."""
    if x.is_complex():
        return x.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return x.to(dtype)


class _System(torch.autograd.Function):
    """log z (H, M) and W (H, R, M) of a sampled system, differentiated by the rule's own slopes.

    Written by hand since the many small steps of autograd would cost more than the maths. On the way back d_* is the
    derivative of the loss along a variable, so that a chain is a plain product; the gradient is its conjugate.
    """

    @staticmethod
    def forward(
        ctx: Any, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, discretization: str, factor: float
    ) -> tuple[Tensor, Tensor]:
        is_tied = dt.dim() == 1
        hidden, copies = C.shape[0], A.shape[0]
        ctx.is_tied, ctx.copies, ctx.factor = is_tied, copies, factor
        dt = dt[:, None] if is_tied else dt
        if copies != hidden:
            A, B = A.repeat(hidden // copies, 1), B.repeat(hidden // copies, 1)
        log_z, slope, phi, phi_slope = _get_rule(discretization)(dt * A)
        gain = dt * phi
        drive = factor * gain * B
        ctx.save_for_backward(dt, A, B, C, slope, phi, phi_slope, gain, drive)
        return log_z, C * drive[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log_z: Tensor, d_weight: Tensor) -> tuple[Tensor | None, ...]:
        dt, A, B, C, slope, phi, phi_slope, gain, drive = ctx.saved_tensors
        d_log_z, d_weight = _conj(d_log_z), _conj(d_weight)
        d_drive = (d_weight * C).sum(1)
        d_gain = ctx.factor * d_drive * B
        d_x = dt * d_gain * phi_slope + (d_log_z if slope is None else d_log_z * slope)
        d_dt = d_gain * phi + d_x * A
        d_dt = (d_dt.sum(1) if ctx.is_tied else d_dt).real
        d_A, d_B, d_C = d_x * dt, ctx.factor * d_drive * gain, d_weight * drive[:, None]
        if ctx.copies != len(d_A):
            d_A = d_A.view(-1, ctx.copies, d_A.shape[1]).sum(0)
            d_B = d_B.view(-1, ctx.copies, d_B.shape[1]).sum(0)
        return d_dt, _conj(d_A), _conj(d_B), _conj(d_C), None, None


def diagonal_system(
    dt: Tensor,
    A_real: Tensor,
    A_imag: Tensor | None,
    B: Tensor,
    C: Tensor,
    discretization: str = "zoh",
    factor: int = 2,
) -> tuple[Tensor, Tensor]:
    """Sample a diagonal SSM: log z and W of x_t = z x_{t-1} + u_t, y_t = Re(W x_t), in float64.

    Feature h uses copy h mod S of (A, B).

    Args:
        dt: Step size in units of one sample, (H,), or (H, M) if each state has its own, > 0. Pass float64 if it was
            computed, so that no digit is lost.
        A_real: Real part of the continuous eigenvalues, (S, M), <= 0, S divides H; float64 likewise.
        A_imag: Imaginary part, (S, M), or None for real states.
        B: Input matrix as real pairs, (S, M, 2); of real states (S, M).
        C: Output matrix as real pairs, (R, H, M, 2), one for each direction; of real states (R, H, M).
        discretization: "zoh" or "bilinear".
        factor: 2 if a state stands for a conjugate pair; 1 if it does not, or is real.

    Returns:
        log z (H, M), and W (R, H, M), complex; both real for real states under "zoh". "bilinear" can make z negative.

    Raises:
        ValueError: If `discretization` is unknown.

    Source: arXiv 2206.11893.
    """
    grid = grid_dtype(C.device)
    rule = _get_rule(discretization)
    if A_imag is not None:
        A = torch.complex(A_real.to(grid), A_imag.to(grid))
        B, C = as_complex(B, grid), as_complex(C.transpose(0, 1), grid)
    else:
        A, B, C = A_real.to(grid), B.to(grid), C.transpose(0, 1).to(grid)
        if discretization == "bilinear":
            A, B, C = (torch.complex(x, torch.zeros_like(x)) for x in (A, B, C))
    dt = dt.to(grid)
    if not torch.compiler.is_compiling():
        log_z, weight = _System.apply(dt, A, B, C, discretization, factor)
        return log_z, weight.transpose(0, 1)
    dt = dt[:, None] if dt.dim() == 1 else dt
    repeats = (C.shape[0] // A.shape[0], 1)
    A, B = A.repeat(repeats), B.repeat(repeats)
    log_z, phi = _Discretize.apply(dt * A, rule)
    return log_z, (C * (factor * dt * phi * B)[:, None]).transpose(0, 1)


def _grids(log_z: Tensor, block: int, num_blocks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Short powers z^j as reals (G, Q, m) in `dtype`, and long ones z^{i Q} (G, I, M) like log z.

    z^l is the product of two of them.
    """
    small_steps = torch.arange(block, device=log_z.device, dtype=log_z.real.dtype)
    giant_steps = torch.arange(num_blocks, device=log_z.device, dtype=log_z.real.dtype) * block
    steps = torch.cat([small_steps, giant_steps])[:, None]
    # Denormal numbers take a processor a hundred times longer, and are nothing beside the first values of a kernel.
    smallest = 100 * torch.finfo(dtype).tiny
    sizes = [block, num_blocks]
    if torch.compiler.is_compiling():
        powers = torch.exp(log_z[:, None] * steps)
        small, giant = torch.where(powers.abs() > smallest, powers, 0.0).split(sizes, dim=1)
        return _reals(small).to(dtype), giant
    # Only called where no gradient is recorded. exp, cos and sin are several times faster on contiguous memory.
    modulus = torch.nn.functional.threshold_((log_z.real[:, None] * steps).exp_(), smallest, 0.0)
    if not log_z.is_complex():
        small, giant = modulus.split(sizes, dim=1)
        return small.to(dtype), giant
    sin = log_z.imag[:, None] * steps
    cos = torch.cos(sin)
    sin.sin_()
    groups, states = log_z.shape
    small = modulus.new_empty(groups, block, states, 2, dtype=dtype)
    giant = modulus.new_empty(groups, num_blocks, states, 2)
    for grid, part in ((small, slice(block)), (giant, slice(block, None))):
        torch.mul(modulus[:, part], cos[:, part], out=grid[..., 0])
        torch.mul(modulus[:, part], sin[:, part], out=grid[..., 1])
    return small.flatten(2), torch.view_as_complex(giant)


def _split_length(length: int, rows: int) -> tuple[int, int]:
    """Q and I for `rows` kernels of the same powers: where they are many, a row costs more than a power."""
    block = 1 << ((length - 1).bit_length() + 1 + max(0, (rows - 1).bit_length() - 3)) // 2
    block = min(block, 1 << (length - 1).bit_length())
    return block, -(-length // block)


def _parts(count: int, elements: int, device: torch.device) -> list[slice]:
    """Slices of `count` things of so many elements, on CPUs such that what is made of one stays in the cache."""
    size = max(1, (1 << 17) // elements) if device.type == "cpu" else count
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _expand(weight: Tensor, small: Tensor, giant: Tensor) -> Tensor:
    """Re sum_n W_n z_n^l by one batched real product: weight (G, R, M), small (G, Q, m), giant (G, I, M)."""
    # Re(x y) is the dot product of the real pairs of conj(x) and y.
    left = _conj(weight)[:, :, None] * _conj(giant)[:, None]
    left = _reals(left).to(small.dtype)  # (G, R, I, m)
    kernel = batched_matmul(left.flatten(1, 2), small.transpose(1, 2))  # (G, R I, Q)
    return kernel.view(*weight.shape[:2], -1)


def _first(small: Tensor, like: Tensor, count: int) -> Tensor:
    """The powers of the first `count` states, of which a complex one has two numbers."""
    return small[..., : (1 + like.is_complex()) * count]


def _moments(x: Tensor, small: Tensor, giant: Tensor) -> Tensor:
    """sum_l x_l z_n^l for x (G, R, L), small (G, Q, m), giant (G, I, M): (G, R, M)."""
    groups, rows, length = x.shape
    block, num_blocks = small.shape[1], giant.shape[1]
    x = torch.nn.functional.pad(x, (0, num_blocks * block - length))
    moments = batched_matmul(x.reshape(groups, -1, block), small).view(groups, rows, num_blocks, -1)
    if giant.is_complex():
        moments = torch.view_as_complex(moments.unflatten(-1, (-1, 2)))
    return (moments * giant[:, None]).sum(2)


def _weighted_by_lag(x: Tensor) -> Tensor:
    return x * torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)


def _row_parts(rows: int, elements: int, device: torch.device) -> list[slice]:
    # Larger than other parts, as each reads the small powers anew.
    return _parts(rows, max(1, elements >> 2), device)


def _alive(log_z: Tensor, block: int, num_blocks: int, dtype: torch.dtype) -> list[tuple[slice, int]]:
    """Blocks of lags, and how many of the states have to be summed there; beyond the last one all states are dead.

    A state counts as dead where z^l is below a thousandth of the rounding error of `dtype`, beside its first value.

    Args:
        log_z: (G, M); of a single group sorted by falling modulus, so that dead states are the last ones.
    """
    groups, states = log_z.shape
    if log_z.device.type != "cpu":  # others would have to be waited for
        return [(slice(0, num_blocks), states)]
    decay = -log_z.real * block
    limit = math.log(1000 / torch.finfo(dtype).eps)
    if groups > 1:
        slowest = decay.min().item()
        if slowest * num_blocks > limit:
            num_blocks = min(num_blocks, 1 + int(limit / slowest))
        return [(slice(0, num_blocks), states)]
    starts = list(range(0, num_blocks, -(-num_blocks // 16)))
    # NaN counts as alive.
    counts = (decay * torch.tensor(starts)[:, None] > limit).logical_not_().sum(1).tolist()
    lags = [slice(start, stop) for start, stop in zip(starts, [*starts[1:], num_blocks], strict=True)]
    return [(part, count) for part, count in zip(lags, counts, strict=True) if count]


class _PowerKernel(torch.autograd.Function):
    """K[g, r, l] = Re sum_n W[g, r, n] z[g, n]^l from two short grids of powers.

    With l = i Q + j the sum is (W z^{iQ}) . z^j: M (Q + I) exponentials for each group in place of M L, and the
    backward keeps only the two grids. States that have died out are left out of the sum.
    """

    @staticmethod
    def forward(ctx: Any, log_z: Tensor, weight: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        groups, rows, states = weight.shape
        ctx.order = None
        if groups == 1:
            ctx.order = log_z.real[0].argsort(descending=True)
            log_z, weight = log_z[:, ctx.order], weight[..., ctx.order]
        block, num_blocks = _split_length(length, rows)
        small = log_z.new_empty(groups, block, (1 + log_z.is_complex()) * states, dtype=dtype)
        giant = with_parts(log_z.new_empty(groups, num_blocks, 0), dtype).new_empty(groups, num_blocks, states)
        kernel = small.new_empty(groups, rows, num_blocks, block)
        ctx.alive = []
        for part in _parts(groups, (block + num_blocks) * states, log_z.device):
            short, long = _grids(log_z[part], block, num_blocks, dtype)
            small[part], giant[part] = short, long
            alive = _alive(log_z[part], block, num_blocks, dtype)
            ctx.alive.append(alive)
            kernel[part, :, alive[-1][0].stop :] = 0
            for row in _row_parts(rows, len(long) * num_blocks * states, log_z.device):
                for lags, count in alive:
                    values = _expand(weight[part, row, :count], _first(short, log_z, count), long[:, lags, :count])
                    kernel[part, row, lags] = values.unflatten(-1, (-1, block))
        ctx.save_for_backward(weight, small, giant)
        return kernel.flatten(2)[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, small, giant = ctx.saved_tensors
        groups, rows, states = weight.shape
        block = small.shape[1]
        grad_log_z, grad_weight = weight.new_zeros(groups, states), torch.empty_like(weight)
        parts = _parts(groups, (block + giant.shape[1]) * states, grad.device)
        for part, alive in zip(parts, ctx.alive, strict=True):
            for row in _row_parts(rows, len(giant[part]) * giant.shape[1] * states, grad.device):
                # sum_l w_l z^l with w = dK belongs to W, with w = l dK to log z.
                w = grad[part, row, : alive[-1][0].stop * block]
                w = torch.cat([w, _weighted_by_lag(w)], dim=1)
                moments = weight.new_zeros(*w.shape[:2], states)
                for lags, count in alive:
                    short, long = _first(small[part], weight, count), giant[part, lags, :count]
                    moments[..., :count] += _moments(w[..., lags.start * block : lags.stop * block], short, long)
                d_weight, d_log_z = moments.chunk(2, dim=1)
                grad_weight[part, row] = _conj(d_weight)
                grad_log_z[part] += _conj((d_log_z * weight[part, row]).sum(1))
        if ctx.order is not None:
            back = ctx.order.argsort()
            grad_log_z, grad_weight = grad_log_z[:, back], grad_weight[..., back]
        return grad_log_z, grad_weight, None, None


class _PowerSums(torch.autograd.Function):
    """sum_l x_l z^l, the adjoint of `_PowerKernel`."""

    @staticmethod
    def forward(ctx: Any, log_z: Tensor, x: Tensor) -> Tensor:
        small, giant = _grids(log_z, *_split_length(x.shape[2], x.shape[1]), x.dtype)
        giant = with_parts(giant, x.dtype)
        ctx.save_for_backward(x, small, giant)
        ctx.dtype = log_z.dtype
        return _moments(x, small, giant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, small, giant = ctx.saved_tensors
        grad_log_z = None
        if ctx.needs_input_grad[0]:
            grad_log_z = (_conj(_moments(_weighted_by_lag(x), small, giant)) * grad).sum(1).to(ctx.dtype)
        return grad_log_z, _expand(_conj(grad), small, giant)[..., : x.shape[2]]


def _traced_grids(log_z: Tensor, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The grids while a graph is captured, when the length is a symbol: blocks of 256, and always more than one."""
    return _grids(log_z, 256, (length + 255) // 256 + 1, dtype)


def _rows(x: Tensor, groups: int) -> Tensor:
    """(R, H, ...) to (G, rows, ...): the rows that share the powers of a group."""
    return x.flatten(0, 1)[None] if groups == 1 else x.transpose(0, 1)


def _unrows(x: Tensor, count: int, groups: int) -> Tensor:
    """The inverse of `_rows` for R = `count`."""
    return x[0].unflatten(0, (count, -1)) if groups == 1 else x.transpose(0, 1)


def power_kernel(log_z: Tensor, weight: Tensor, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sums of powers K[r, h, l] = Re sum_n W[r, h, n] z[h, n]^l, l = 0, ..., L - 1.

    Args:
        log_z: log z, (H, M), or (1, M) if all features share it; float64 or complex128, real part <= 0.
        weight: W, (R, H, M), of the same dtype.
        length: L, >= 1.
        dtype: Of the result and of the product of the two grids of powers, which are made in float64.

    Returns:
        (R, H, L) in `dtype`.
    """
    count, groups = weight.shape[0], log_z.shape[0]
    weight = _rows(weight, groups)
    if not torch.compiler.is_compiling():
        return _unrows(_PowerKernel.apply(log_z, weight, length, dtype), count, groups)
    small, giant = _traced_grids(log_z, length, dtype)
    kernel = _expand(weight, small, giant)
    # A slice would need a proof that the blocks cover the length.
    return _unrows(kernel.index_select(2, torch.arange(length, device=kernel.device)), count, groups)


def power_sums(log_z: Tensor, x: Tensor) -> Tensor:
    """sum_l x[b, h, l] z[h, n]^l, the adjoint of `power_kernel`.

    Args:
        log_z: log z, (H, M), or (1, M) if all features share it; float64 or complex128, real part <= 0.
        x: Real numbers (B, H, L), float32 or float64.

    Returns:
        (B, H, M), real or complex like `log_z`, as exact as `x`.
    """
    count, groups = x.shape[0], log_z.shape[0]
    x = _rows(x, groups)
    if not torch.compiler.is_compiling():
        return _unrows(_PowerSums.apply(log_z, x), count, groups)
    small, giant = _traced_grids(log_z, x.shape[2], x.dtype)
    return _unrows(_moments(x, small, with_parts(giant, x.dtype)), count, groups)


def diagonal_kernel(
    dt: Tensor,
    A_real: Tensor,
    A_imag: Tensor | None,
    B: Tensor,
    C: Tensor,
    length: int,
    discretization: str = "zoh",
    factor: int = 2,
) -> Tensor:
    """Long convolution kernels K[r, h, l] = factor Re sum_n C[r, h, n] gain_n B_n z_n^l of a diagonal SSM.

    Everything before the last product is float64; the product is float32, or float64 where `C` is.

    Args:
        dt, A_real, A_imag, B, C, discretization, factor: As in `diagonal_system`.
        length: Number of kernel values L, >= 1.

    Returns:
        Kernels (R, H, L), lag 0 first, float32 (float64 where `C` is float64).

    Source: arXiv 2206.11893; the kernel is a Vandermonde product.
    """
    log_z, weight = diagonal_system(dt, A_real, A_imag, B, C, discretization, factor)
    dtype = torch.float64 if C.dtype == torch.float64 else torch.float32
    return power_kernel(log_z, weight, length, dtype)


def power_kernel_reference(log_z: Tensor, weight: Tensor, length: int) -> Tensor:
    """The output of x_t = z x_{t-1}, x_0 = 1, y_t = Re(W x_t), one step at a time; see `power_kernel`."""
    z, state = torch.exp(log_z), weight
    outputs = []
    for _ in range(length):
        outputs.append(state.sum(-1).real)
        state = z * state
    return torch.stack(outputs, dim=-1)


def diagonal_kernel_reference(
    dt: Tensor,
    A_real: Tensor,
    A_imag: Tensor | None,
    B: Tensor,
    C: Tensor,
    length: int,
    discretization: str = "zoh",
    factor: int = 2,
) -> Tensor:
    """The impulse response of x_t = z x_{t-1} + gain B u_t, y_t = factor Re(C x_t), step by step in complex128.

    Args:
        dt, A_real, A_imag, B, C, length, discretization, factor: As in `diagonal_kernel`, but A = 0 is not allowed.

    Returns:
        Kernels (R, H, L), float64.
    """
    copy = torch.arange(C.shape[1], device=C.device) % A_real.shape[0]
    if A_imag is None:
        A, B, C = A_real.to(torch.complex128)[copy], B.to(torch.complex128)[copy], C.to(torch.complex128)
    else:
        A = torch.complex(A_real.double(), A_imag.double())[copy]
        B, C = as_complex(B, torch.float64)[copy], as_complex(C, torch.float64)
    dt = dt.double() if dt.dim() == 2 else dt.double()[:, None]
    if discretization == "zoh":
        z = torch.exp(dt * A)
        gain = (z - 1) / A
    else:
        z = (1 + dt * A / 2) / (1 - dt * A / 2)
        gain = dt / (1 - dt * A / 2)
    state = gain * B
    outputs = []
    for _ in range(length):
        outputs.append(factor * (C * state).sum(-1).real)
        state = z * state
    return torch.stack(outputs, dim=-1)
