"""Kernels of DSS whose powers are normalised over the length.

Legend: H hidden, N complex states, R directions, L length of the kernel, T lags of the softmax, T >= L.

With x = dt A the kernel is K_l = Re sum_n W_n / A_n s_n(l), s(l) = e^{l x} / sum_{t < T} e^{t x}, a softmax of complex
numbers over the lags, and s(l) = e^{l x} (e^x - 1) / (e^{T x} - 1). A may have any sign: where Re x > 0 the same is
e^{(T - 1 - l) x'} (e^{x'} - 1) / (e^{T x'} - 1) with x' = -x, that is a decaying sequence read backwards from the last
lag, and nothing overflows. K has a pole where A = 0, and where T x is a multiple of 2 pi i while x is not.

Source: Gupta, Gu and Berant 2022, "Diagonal State Spaces are as Effective as Structured State Spaces" (DSS), arXiv
2203.14343.
"""

import torch
from torch import Tensor

from .ops_ssm import power_kernel


def softmax_system(A: Tensor, x: Tensor, W: Tensor, kernel_length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decaying powers of a DSS, their weights, and which of them run backwards.

    Args:
        A: Eigenvalues (N,), complex128.
        x: dt A, (H, N), complex128.
        W: Weights (R, H, N), complex128.
        kernel_length: Lags of the softmax, T.

    Returns:
        log z (H, N) with real part <= 0; weights (R, H, N); and a mask (H, N), True where K_l has z^{T - 1 - l} in
        place of z^l.
    """
    grows = x.real > 0
    log_z = torch.where(grows, -x, x)
    return log_z, W * (torch.expm1(log_z) / (A * torch.expm1(kernel_length * log_z))), grows


def softmax_kernel(
    A: Tensor, x: Tensor, W: Tensor, length: int, kernel_length: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Kernels (R, H, L) of a DSS in `dtype`; see `softmax_system` for arguments.

    Args:
        length: L, at most `kernel_length`.
    """
    log_z, weight, grows = softmax_system(A, x, W, kernel_length)
    if not torch.compiler.is_compiling() and not bool(grows.any()):
        return power_kernel(log_z, weight, length, dtype)
    late = weight * torch.exp((kernel_length - length) * log_z)
    weights = torch.cat([torch.where(grows, 0.0, weight), torch.where(grows, late, 0.0)])
    forward, backward = power_kernel(log_z, weights, length, dtype).chunk(2)
    return forward + backward.flip(-1)


def softmax_kernel_reference(A: Tensor, x: Tensor, W: Tensor, length: int, kernel_length: int) -> Tensor:
    """The softmax of the definition over a grid of all powers, complex128; overflows where Re x T is large."""
    powers = torch.exp(x[..., None] * torch.arange(kernel_length))  # (H, N, T)
    rows = powers / powers.sum(-1, keepdim=True)
    return torch.einsum("rhn,hnl->rhl", W / A, rows[..., :length]).real
