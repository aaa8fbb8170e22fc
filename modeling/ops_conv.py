"""Long convolutions of every feature with its own kernel, causal or two-sided.

Legend: B batch, L length, H hidden, n padded length of the transform, F = n / 2 + 1 frequencies.

A causal convolution is y_t = sum_{s<=t} K_{t-s} u_s + D u_t. With a backward kernel K' the sum over the future
sum_{s>t} K'_{s-t-1} u_s is added: K' is strictly anti-causal, so lag 0 is counted once, by K.

The work is done on copies laid out (H, B, L), feature first: time is contiguous for the transforms, and a kernel is
shared by neighbouring rows. The result is that memory seen as (B, L, H), so that an elementwise operation and a matrix
product over features can follow without another copy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .ops_ssm import batched_matmul, full_precision_matmul

# Blocks of features are transformed one after the other on CPUs, so that a block's transforms stay in the cache. Of
# 2^19, 2^20 and 2^21 elements the first was best at 1,024 steps, the last at 65,536, and this one lies between. A long
# transform of one row alone takes MKL ten times as long as a row of several, hence at least four.
_CPU_BLOCK_ELEMENTS = 1 << 20
_CPU_MIN_ROWS = 4


def fast_fft_length(minimum: int) -> int:
    """Smallest even number 2^a 3^b 5^c, a >= 1, that is at least `minimum`."""
    best = 1 << max(1, (minimum - 1).bit_length())
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = 2 * threes
            while twos < minimum:
                twos *= 2
            best = min(best, twos)
            threes *= 3
        fives *= 5
    return best


def _feature_first(u: Tensor) -> Tensor:
    """(B, L, H) to contiguous (H, B, L): free for a result of this file, else one transposition of a matrix."""
    batch, length, hidden = u.shape
    return u.reshape(batch * length, hidden).t().contiguous().view(hidden, batch, length)


def _feature_last(u: Tensor) -> Tensor:
    """(H, B, L) to contiguous (B, L, H)."""
    hidden, batch, length = u.shape
    return u.view(hidden, batch * length).t().contiguous().view(batch, length, hidden)


def _feature_blocks(hidden: int, elements: int, device: torch.device) -> list[slice]:
    size = max(_CPU_MIN_ROWS, _CPU_BLOCK_ELEMENTS // elements) if device.type == "cpu" else hidden
    return [slice(start, min(start + size, hidden)) for start in range(0, hidden, size)]


class _FFTConv(torch.autograd.Function):
    """Convolution by real FFTs on a circle; the spectra of input and kernel are kept for the backward.

    On a CPU a block of features goes through all steps before the next one, kernels included: whole spectra would leave
    the cache at each of them.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor, kernel_backward: Tensor | None, skip: Tensor | None) -> Tensor:
        batch, length, hidden = u.shape
        padded = fast_fft_length(2 * length - 1)
        u = _feature_first(u)
        y = torch.empty_like(u)
        keep = any(ctx.needs_input_grad)
        spectra = []
        ctx.blocks = _feature_blocks(hidden, batch * padded, u.device)
        for block in ctx.blocks:
            circle = _circle(kernel, kernel_backward, skip, block, padded)
            kernel_spectrum = torch.fft.rfft(circle)[:, None]  # (h, 1, F)
            spectrum = torch.fft.rfft(u[block], n=padded)  # (h, B, F)
            y[block] = torch.fft.irfft(spectrum * kernel_spectrum, n=padded)[..., :length]
            if keep:
                spectra += [kernel_spectrum, spectrum]
        ctx.padded, ctx.has = padded, (kernel_backward is not None, skip is not None)
        ctx.save_for_backward(*spectra)
        return y.permute(1, 2, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        _, length, hidden = grad.shape
        grad = _feature_first(grad)
        grad_u = torch.empty_like(grad)
        positive = grad.new_empty(hidden, length)
        negative = grad.new_empty(hidden, length - 1) if ctx.has[0] else None
        spectra = ctx.saved_tensors
        for block, kernel_spectrum, spectrum in zip(ctx.blocks, spectra[::2], spectra[1::2], strict=True):
            grad_spectrum = torch.fft.rfft(grad[block], n=ctx.padded)
            # A correlation with the kernel, and one with the input summed over the batch.
            product = grad_spectrum * kernel_spectrum.conj_physical()
            grad_u[block] = torch.fft.irfft(product, n=ctx.padded)[..., :length]
            grad_circle = grad_spectrum.conj_physical_().mul_(spectrum).sum(1)
            lags = torch.fft.irfft(grad_circle.conj_physical_(), n=ctx.padded)
            positive[block] = lags[:, :length]
            if negative is not None:
                negative[block] = lags[:, ctx.padded - length + 1 :]
        return _feature_last(grad_u), *_kernel_gradients(positive, negative, ctx.has)


def _circle(kernel: Tensor, kernel_backward: Tensor | None, skip: Tensor | None, block: slice, padded: int) -> Tensor:
    """The kernels of a block of features on a circle, (h, n): negative lags at its end, zeros between."""
    part = kernel[block]
    length = part.shape[1]
    circle = part.new_zeros(part.shape[0], padded)
    circle[:, :length] = part
    if skip is not None:
        circle[:, 0] += skip[block]
    if kernel_backward is not None:
        circle[:, padded - length + 1 :] = kernel_backward[block, : length - 1].flip(1)
    return circle


class _ToeplitzConv(torch.autograd.Function):
    """Convolution as one matrix product for each feature."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor, kernel_backward: Tensor | None, skip: Tensor | None) -> Tensor:
        _, length, hidden = u.shape
        # Tap m = 0 .. 2 L - 2 holds lag m - (L - 1).
        taps = kernel.new_empty(hidden, 2 * length - 1)
        taps[:, length - 1 :] = kernel
        taps[:, : length - 1] = 0.0 if kernel_backward is None else kernel_backward[:, : length - 1].flip(1)
        if skip is not None:
            taps[:, length - 1] += skip
        u = _feature_first(u)
        toeplitz = taps.unfold(1, length, 1).flip(1)  # (H, s, t) holds lag t - s
        ctx.has = (kernel_backward is not None, skip is not None)
        ctx.save_for_backward(u, toeplitz)
        return batched_matmul(u, toeplitz).permute(1, 2, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        u, toeplitz = ctx.saved_tensors
        hidden, _, length = u.shape
        grad = _feature_first(grad)
        grad_u = batched_matmul(grad, toeplitz.transpose(1, 2))
        # In rows of 2 L - 1 values, each written one further to the left, equal lags stand in one column.
        skewed = grad.new_zeros(hidden, length, 2 * length - 1)
        rows = skewed.as_strided((hidden, length, length), (skewed.stride(0), 2 * length - 2, 1), length - 1)
        rows.copy_(batched_matmul(u.transpose(1, 2), grad))
        lags = skewed.sum(1)
        return _feature_last(grad_u), *_kernel_gradients(lags[:, length - 1 :], lags[:, : length - 1], ctx.has)


def _kernel_gradients(
    positive: Tensor, negative: Tensor | None, has: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """From gradients of lags 0 .. L - 1 and -(L - 1) .. -1 to those of kernel, backward kernel and skip."""
    has_backward, has_skip = has
    # The last value of a backward kernel of length L reaches beyond the sequence.
    grad_backward = None if negative is None or not has_backward else F.pad(negative.flip(1), (0, 1))
    return positive, grad_backward, positive[:, 0].clone() if has_skip else None


def _apply(
    function: type[torch.autograd.Function],
    u: Tensor,
    kernel: Tensor,
    kernel_backward: Tensor | None,
    skip: Tensor | None,
) -> Tensor:
    length = u.shape[1]
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)

    def cut(half: Tensor) -> Tensor:
        return (half if half.shape[1] == length else half[:, :length]).to(dtype)

    y = function.apply(
        u.to(dtype),
        cut(kernel),
        None if kernel_backward is None else cut(kernel_backward),
        None if skip is None else skip.to(dtype),
    )
    return y.to(u.dtype)


def fft_conv(u: Tensor, kernel: Tensor, kernel_backward: Tensor | None = None, skip: Tensor | None = None) -> Tensor:
    """Convolve along the length by FFT, in O(L log L).

    Args:
        u: Input (B, L, H); half precision is computed in float32.
        kernel: Causal kernel (H, L) or longer, lag 0 first.
        kernel_backward: Strictly anti-causal kernel (H, L) or longer, lag -1 first; None for a causal convolution.
        skip: Feed-through D (H,), added to lag 0; None for none.

    Returns:
        (B, L, H) in the dtype of `u`, feature first in memory.
    """
    return _apply(_FFTConv, u, kernel, kernel_backward, skip)


def traced_conv(u: Tensor, kernel: Tensor, kernel_backward: Tensor | None = None, skip: Tensor | None = None) -> Tensor:
    """The same as `fft_conv` in operations that a graph can hold for any length; see there for arguments."""
    length = u.shape[1]
    padded = 2 * length
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    # Lags 0 .. L - 1, an unused one, then -(L - 1) .. -1.
    circle = F.pad(kernel[:, :length].to(dtype), (0, length))
    if kernel_backward is not None:
        negative = F.pad(kernel_backward[:, :length].to(dtype).flip(1), (length, 0))
        # The value that reaches beyond the sequence stands on the unused lag, where it would meet no input that counts.
        circle = circle + negative
    spectrum = torch.fft.rfft(u.to(dtype).transpose(1, 2), n=padded) * torch.fft.rfft(circle, n=padded)
    y = torch.fft.irfft(spectrum, n=padded)[..., :length].transpose(1, 2)
    if skip is not None:
        y = y + u * skip
    return y.to(u.dtype)


def toeplitz_conv(
    u: Tensor, kernel: Tensor, kernel_backward: Tensor | None = None, skip: Tensor | None = None
) -> Tensor:
    """The same as `fft_conv` by dense matrix products, in O(L^2): faster where L is short and the batch is large."""
    return _apply(_ToeplitzConv, u, kernel, kernel_backward, skip)


def long_conv(u: Tensor, kernel: Tensor, kernel_backward: Tensor | None = None, skip: Tensor | None = None) -> Tensor:
    """Convolve along the length by the faster of `fft_conv` and `toeplitz_conv`; see `fft_conv` for arguments."""
    batch, length, _ = u.shape
    if torch.compiler.is_compiling():
        return traced_conv(u, kernel, kernel_backward, skip)
    # Measured on one CPU core: the products win on short sequences, once the batch repays building the matrices.
    if u.device.type == "cpu" and length <= 128 and 3 * batch >= length and full_precision_matmul(u.device):
        return toeplitz_conv(u, kernel, kernel_backward, skip)
    return fft_conv(u, kernel, kernel_backward, skip)


def long_conv_reference(
    u: Tensor, kernel: Tensor, kernel_backward: Tensor | None = None, skip: Tensor | None = None
) -> Tensor:
    """The sums of the definition, one lag at a time; see `fft_conv` for arguments."""
    length = u.shape[1]
    y = torch.zeros_like(u) if skip is None else u * skip
    for lag in range(length):
        y = y + F.pad(u[:, : length - lag] * kernel[:, lag], (0, 0, lag, 0))
    if kernel_backward is not None:
        for lag in range(1, length):
            y = y + F.pad(u[:, lag:] * kernel_backward[:, lag - 1], (0, 0, 0, lag))
    return y
