"""Damped exponential moving averages of each feature, several at a time, as one long convolution kernel (Mega).

Legend: B batch, L length, H hidden, N states of a feature, R directions.

State n of a feature follows h_t = q h_{t-1} + p beta x_t with p = sigmoid(delta) and q = 1 - p sigmoid(alpha), and the
feature's average is y_t = N^{-1/2} sum_n gamma_n h_{t,n}. The kernel is K_l = N^{-1/2} sum_n gamma_n p_n beta_n q_n^l.

Source: Ma et al. 2023, "Mega: Moving Average Equipped Gated Attention", arXiv 2209.10655. There alpha is called what is
p here, and delta what is sigmoid(alpha); the names here are those of the public code, of the values before the sigmoid.
The stable log q is ours.
"""

import torch
from torch import Tensor

from .ops_ssm import grid_dtype, power_kernel


def log_retention(delta: Tensor, alpha: Tensor) -> Tensor:
    """log q = log(1 - sigmoid(delta) sigmoid(alpha)), neither cancelled near 0 nor infinite near q = 0.

    Args:
        delta, alpha: Any shape, any real values.
    """
    product = delta.sigmoid() * alpha.sigmoid()
    is_small = product < 0.5
    # The unused branch must stay finite, also in its slope.
    near_one = torch.log1p(-torch.where(is_small, product, 0.0))
    # 1 - s(a) s(d) = (e^-a + e^-d + e^-(a + d)) s(a) s(d).
    terms = torch.stack([-alpha, -delta, -alpha - delta])
    logsigmoid = torch.nn.functional.logsigmoid
    near_zero = torch.logsumexp(terms, dim=0) + logsigmoid(alpha) + logsigmoid(delta)
    return torch.where(is_small, near_one, near_zero)


def ema_kernel(
    delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, length: int, truncation: int | None = None
) -> Tensor:
    """Kernels K_l = N^{-1/2} sum_n gamma_n p_n beta_n q_n^l of damped moving averages.

    Everything but the last product is float64, since q^l magnifies a rounding of log q by l; see `power_kernel`.

    Args:
        delta, alpha, beta, gamma: (R, H, N).
        length: Number of kernel values L, >= 1.
        truncation: Number of first values to keep, the others are zero; None keeps all.

    Returns:
        Kernels (R, H, L), lag 0 first, float32 (float64 where `gamma` is float64).

    Source: arXiv 2209.10655.
    """
    grid = grid_dtype(gamma.device)
    dtype = torch.float64 if gamma.dtype == torch.float64 else torch.float32
    directions, hidden, states = gamma.shape
    delta, alpha = delta.to(grid), alpha.to(grid)
    weight = delta.sigmoid() * beta.to(grid) * gamma.to(grid) * states**-0.5  # (R, H, N)
    # Each direction has states of its own, as if it were so many more features.
    log_q, weight = log_retention(delta, alpha).flatten(0, 1), weight.flatten(0, 1)
    kernel = power_kernel(log_q, weight[None], length, dtype).view(directions, hidden, length)
    if truncation is None:
        return kernel
    return kernel.masked_fill(torch.arange(length, device=kernel.device) >= truncation, 0.0)


def ema_reference(
    x: Tensor, delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, reverse: bool = False
) -> Tensor:
    """The recurrence of the definition, one step at a time in float64.

    Args:
        x: (B, L, H).
        delta, alpha, beta, gamma: (H, N).
        reverse: Run from the last position to the first.

    Returns:
        (B, L, H), float64.
    """
    delta, alpha, beta, gamma = (parameter.double() for parameter in (delta, alpha, beta, gamma))
    p = delta.sigmoid()
    q = 1 - p * alpha.sigmoid()
    state = x.new_zeros(x.shape[0], *gamma.shape, dtype=torch.float64)
    outputs = []
    steps = x.double().unbind(1)
    for step in reversed(steps) if reverse else steps:
        state = q * state + p * beta * step[..., None]
        outputs.append((gamma * state).sum(-1) * gamma.shape[-1] ** -0.5)
    return torch.stack(outputs[::-1] if reverse else outputs, dim=1)
