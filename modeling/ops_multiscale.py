"""Long convolution kernels put together from short ones at several scales (SGConv, MRConv).

Legend: R directions, H hidden, S scales, d taps of a sub-kernel, L length.

Sources: Li et al. 2022, "What Makes Convolutional Models Great on Long Sequence Modeling?" (SGConv), arXiv 2210.09298;
Cunningham et al. 2024, "Reparameterized Multi-Resolution Convolutions for Long Sequence Modelling" (MRConv),
arXiv 2408.09453.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def num_scales(length: int, taps: int) -> int:
    """Scales S of a kernel whose parts are 1, 1, 2, 4, ... times `taps` long and together at least `length`."""
    return 1 + (-(-length // taps) - 1).bit_length()


def stretch(taps: Tensor, factor: int) -> Tensor:
    """Stretch (..., d) to (..., factor d) by linear interpolation.

    A tap stands in the middle of its `factor` values; before the first middle and after the last one the values stay.
    """
    if factor == 1:
        return taps
    # Where a value stands between two taps, from -1/2 to 1/2 around its own.
    offset = (torch.arange(factor, device=taps.device, dtype=taps.dtype) + 0.5) / factor - 0.5
    step = taps.diff(dim=-1)
    values = taps[..., None] + F.pad(step, (0, 1))[..., None] * offset.clamp(min=0)  # (..., d, factor)
    values = values + F.pad(step, (1, 0))[..., None] * offset.clamp(max=0)
    return values.flatten(-2)


def concatenated_kernel(sub_kernels: Tensor, decay: Tensor, length: int | None = None) -> Tensor:
    """Sub-kernels one after another, scaled by decay^0, decay^1, ... and 1, 1, 2, 4, ... times as long.

    Args:
        sub_kernels: (R, H, S, d).
        decay: (H,), > 0.
        length: Number of values L; None for all d 2^(S - 1), beyond which there are zeros.

    Returns:
        (R, H, L).

    Source: arXiv 2210.09298, without the division by a norm.
    """
    taps = sub_kernels.shape[3]
    parts = []
    for scale, part in enumerate(sub_kernels.unbind(2)):
        # While a graph is captured the length is a symbol.
        if not torch.compiler.is_compiling() and length is not None and scale and taps << (scale - 1) >= length:
            break
        parts.append(stretch(part * decay[:, None] ** scale, 1 << max(0, scale - 1)))
    kernel = torch.cat(parts, dim=-1)
    return kernel if length is None else fit_length(kernel, length)


def dilated_kernel(taps: Tensor, spacing: int) -> Tensor:
    """Taps (..., d) at lags 0, spacing, 2 spacing, ..., zeros between them: (..., d spacing).

    Source: arXiv 2408.09453.
    """
    return F.pad(taps[..., None], (0, spacing - 1)).flatten(-2)


def fourier_kernel(modes: Tensor, length: int) -> Tensor:
    """The lowest frequencies of a kernel of `length` values, as an orthonormal real transform.

    Args:
        modes: (..., 2 K - 1): real parts of the frequencies 0, ..., K - 1, then imaginary parts of 1, ..., K - 1.
        length: Number of values, >= 2 K.

    Returns:
        (..., length).

    Source: arXiv 2408.09453.
    """
    count = (modes.shape[-1] + 1) // 2
    real, imag = modes.split([count, count - 1], dim=-1)
    return torch.fft.irfft(torch.complex(real, F.pad(imag, (1, 0))), n=length, norm="ortho")


def fit_length(kernel: Tensor, length: int) -> Tensor:
    """Cut a kernel (..., l), or fill it up with zeros, to `length`."""
    size = kernel.shape[-1]
    return F.pad(kernel, (0, length - size)) if size < length else kernel[..., :length]


def concatenated_kernel_reference(sub_kernels: Tensor, decay: Tensor, length: int) -> Tensor:
    """The values of `concatenated_kernel` one by one, in float64.

    Returns:
        (R, H, L), float64.
    """
    taps = sub_kernels.shape[3]
    values: list[Tensor] = []
    for lag in range(length):
        scale, start, factor = 0, 0, 1
        while lag >= start + taps * factor:
            start, scale = start + taps * factor, scale + 1
            factor = 1 << (scale - 1)
        if scale == sub_kernels.shape[2]:
            values.append(torch.zeros_like(values[0]))
            continue
        part = sub_kernels[:, :, scale].double() * decay.double()[:, None] ** scale
        place = (lag - start + 0.5) / factor - 0.5
        before = min(max(int(place // 1), 0), taps - 1)
        after = min(before + 1, taps - 1)
        share = min(max(place - before, 0.0), 1.0)
        values.append(part[..., before] * (1 - share) + part[..., after] * share)
    return torch.stack(values, dim=-1)
