"""Diagonal state space models: discretisation and long convolution kernels.

Legend: H hidden, M stored conjugate pairs (N = 2 M real states), S independent copies of (A, B), R directions,
L length, Q steps in a block, I blocks, Q * I >= L.

One feature follows x' = A x + B u, y = 2 Re(C x) with M complex states; the conjugate half is the factor 2. Sampled
with step dt it is x_t = z x_{t-1} + gain B u_t, z = exp(log_z); the kernel is K_l = 2 Re sum_n C_n gain_n B_n z_n^l.
Complex numbers come in and go out as real pairs (..., 2) or as two tensors. The small algebra and the grids of powers
are float64 whatever the inputs are: the phase l Im(log_z) reaches 1e5 and would magnify a float32 rounding of log_z.

Source: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models", arXiv 2206.11893.
The two-level form of the kernel and its hand-written backward are ours.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A rule maps x = dt A to log z, its slope d log z / dx (None where it is 1), phi = gain / dt, and d phi / dx.
_Rule = Callable[[Tensor], tuple[Tensor, Tensor | None, Tensor, Tensor]]


def _zoh_rule(x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """log z = x and phi = phi_1(x) = (exp(x) - 1) / x, value and slope without cancellation at and around 0."""
    small = x.abs() < (1e-4 if x.dtype == torch.complex128 else 1e-2)
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
    modulus = torch.log1p(2 * r / ((1 - r / 2).square() + s.square() / 4)) / 2
    angle = torch.atan2(s, 1 - (r.square() + s.square()) / 4)
    phi = 1 / (1 - x / 2)
    return torch.complex(modulus, angle), phi / (1 + x / 2), phi, phi.square() / 2


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


def discretize_zoh(A: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Zero-order hold, z = exp(dt A) and gain = (z - 1) / A, exact at A = 0; see `discretize`."""
    return discretize(A, dt, "zoh")


def discretize_bilinear(A: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear rule, z = (1 + dt A / 2) / (1 - dt A / 2) and gain = dt / (1 - dt A / 2); see `discretize`."""
    return discretize(A, dt, "bilinear")


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


def _grid_dtype(device: torch.device) -> torch.dtype:
    # Apple's mps has no float64; kernels there are as exact as float32 phases are, about 1e-5 for damped states.
    return torch.float32 if device.type == "mps" else torch.float64


def _complex(pairs: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_complex(pairs.to(dtype).contiguous())


def _pairs(conjugate: Tensor) -> Tensor:
    return torch.view_as_real(conjugate.conj_physical())


class _DiagonalKernel(torch.autograd.Function):
    """K[h, r, l] = Re sum_n W[h, r, n] z[h, n]^l with W = 2 C gain B, by one batched real matmul of two short grids.

    With l = i Q + j the sum is (W z^{iQ}) . z^j: M (Q + I) exponentials for each feature in place of M L, and the
    backward keeps only the two grids. It is written by hand since the many small steps of autograd would cost more than
    the maths.
    """

    @staticmethod
    def forward(
        ctx: Any, dt: Tensor, A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, length: int, discretization: str
    ) -> Tensor:
        directions, hidden, pairs, _ = C.shape
        copies = A_real.shape[0]
        grid = _grid_dtype(C.device)
        dtype = torch.float64 if C.dtype == torch.float64 else torch.float32
        ctx.dtypes = (dt.dtype, A_real.dtype, A_imag.dtype, B.dtype, C.dtype)
        dt = dt.to(grid)[:, None]
        A, B = torch.complex(A_real.to(grid), A_imag.to(grid)), _complex(B, grid)
        if copies != hidden:
            A, B = A.repeat(hidden // copies, 1), B.repeat(hidden // copies, 1)
        C = _complex(C.transpose(0, 1), grid)  # (H, R, M)
        log_z, slope, phi, phi_slope = _get_rule(discretization)(dt * A)
        gain = dt * phi
        drive = 2 * gain * B
        weight = C * drive[:, None]  # (H, R, M)

        block = 1 << ((length - 1).bit_length() + 1) // 2  # Q
        num_blocks = -(-length // block)  # I
        small_steps = torch.arange(block, device=C.device, dtype=grid)
        giant_steps = torch.arange(0, num_blocks * block, block, device=C.device, dtype=grid)
        steps = torch.cat([small_steps, giant_steps])[:, None]
        # One product for each part: exp, cos and sin are several times faster on contiguous memory.
        modulus = torch.exp(log_z.real[:, None] * steps)  # (H, Q + I, M)
        angle = log_z.imag[:, None] * steps
        powers = modulus.new_empty(*modulus.shape, 2)
        torch.mul(modulus, torch.cos(angle), out=powers[..., 0])
        torch.mul(modulus, torch.sin(angle), out=powers[..., 1])
        small, giant = powers.split([block, num_blocks], dim=1)
        # Re(x y) is the dot product of the real pairs of conj(x) and y.
        left = weight[:, :, None] * torch.view_as_complex(giant)[:, None]  # (H, R, I, M)
        left = _pairs(left).to(dtype).view(hidden, directions * num_blocks, 2 * pairs)
        small, giant = small.to(dtype).view(hidden, block, 2 * pairs), giant.to(dtype)
        kernel = batched_matmul(left, small.transpose(1, 2))  # (H, R I, Q)
        ctx.copies = copies
        ctx.save_for_backward(dt, A, B, C, slope, phi, phi_slope, gain, drive, weight, small, giant)
        return kernel.view(hidden, directions, num_blocks * block)[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dt, A, B, C, slope, phi, phi_slope, gain, drive, weight, small, giant = ctx.saved_tensors
        hidden, directions, length = grad.shape
        block, num_blocks, pairs = small.shape[1], giant.shape[1], giant.shape[2]
        # sum_l w_l z^l with w = dK belongs to W, with w = l dK to log z.
        lags = torch.arange(length, device=grad.device, dtype=grad.dtype)
        moments = torch.stack([grad, grad * lags], dim=1)  # (H, 2, R, L)
        if length < num_blocks * block:
            moments = torch.nn.functional.pad(moments, (0, num_blocks * block - length))
        moments = batched_matmul(moments.view(hidden, -1, block), small)
        moments = torch.view_as_complex(moments.view(hidden, 2 * directions, num_blocks, pairs, 2))
        moments = (moments * torch.view_as_complex(giant)[:, None]).sum(2)  # (H, 2 R, M)
        d_weight, d_log_z = moments.to(weight.dtype).view(hidden, 2, directions, pairs).unbind(1)

        # d_x is the derivative of the loss along x, so a chain is a plain product; the gradient is its conjugate.
        d_log_z = (d_log_z * weight).sum(1)
        d_drive = (d_weight * C).sum(1)
        d_gain = 2 * d_drive * B
        d_x = dt * d_gain * phi_slope + (d_log_z if slope is None else d_log_z * slope)
        d_dt = (d_gain * phi + d_x * A).sum(1).real
        d_A, d_B, d_C = d_x * dt, 2 * d_drive * gain, d_weight * drive[:, None]
        if ctx.copies != hidden:
            d_A = d_A.view(-1, ctx.copies, pairs).sum(0)
            d_B = d_B.view(-1, ctx.copies, pairs).sum(0)
        grads = (d_dt, d_A.real, -d_A.imag, _pairs(d_B), _pairs(d_C).transpose(0, 1))
        return *(gradient.to(dtype) for gradient, dtype in zip(grads, ctx.dtypes, strict=True)), None, None


def diagonal_kernel(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, length: int, discretization: str = "zoh"
) -> Tensor:
    """Long convolution kernels K[r, h, l] = 2 Re sum_n C[r, h, n] gain_n B_n z_n^l of a diagonal SSM.

    Feature h uses copy h mod S of (A, B). Everything before the last matmul is float64; the matmul is float32, or
    float64 where `C` is.

    Args:
        dt: Step size in units of one sample, (H,), > 0. Pass float64 if it was computed, so that no digit is lost.
        A_real: Real part of the continuous eigenvalues, (S, M), <= 0, S divides H; float64 likewise.
        A_imag: Imaginary part, (S, M).
        B: Input matrix as real pairs, (S, M, 2).
        C: Output matrix as real pairs, (R, H, M, 2), one for each direction.
        length: Number of kernel values L, >= 1.
        discretization: "zoh" or "bilinear".

    Returns:
        Kernels (R, H, L), lag 0 first, float32 (float64 where `C` is float64).

    Source: arXiv 2206.11893; the kernel is a Vandermonde product.
    """
    return _DiagonalKernel.apply(dt, A_real, A_imag, B, C, length, discretization).transpose(0, 1)


def diagonal_kernel_reference(
    dt: Tensor, A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, length: int, discretization: str = "zoh"
) -> Tensor:
    """The impulse response of x_t = z x_{t-1} + gain B u_t, y_t = 2 Re(C x_t), one step at a time in complex128.

    Args:
        dt, A_real, A_imag, B, C, length, discretization: As in `diagonal_kernel`, but A = 0 is not allowed.

    Returns:
        Kernels (R, H, L), float64.
    """
    copy = torch.arange(C.shape[1], device=C.device) % A_real.shape[0]
    A = torch.complex(A_real.double(), A_imag.double())[copy]
    B, C = _complex(B, torch.float64)[copy], _complex(C, torch.float64)
    dt = dt.double()[:, None]
    if discretization == "zoh":
        z = torch.exp(dt * A)
        gain = (z - 1) / A
    else:
        z = (1 + dt * A / 2) / (1 - dt * A / 2)
        gain = dt / (1 - dt * A / 2)
    state = gain * B
    outputs = []
    for _ in range(length):
        outputs.append(2 * (C * state).sum(-1).real)
        state = z * state
    return torch.stack(outputs, dim=-1)
