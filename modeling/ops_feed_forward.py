"""The feed-forward of a Transformer on a CPU, in pieces whose hidden activations stay in the cache.

Legend: T tokens, H hidden, F width inside.

y = W2 gelu(W1 x + b1) + b2. For many tokens the hidden (T, F) leaves the cache between the two products, and the plain
backward reads and writes it several times more; here each piece of tokens goes through both products at once, forward
and backward, and gelu is computed again in the backward in place of kept.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.3, arXiv 1706.03762, with GELU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Tokens in a piece; measured with H = 256 and F = 1,024 on one CPU core.
_PIECE = 512


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        hidden = x.new_empty(x.shape[0], up.shape[0])
        y = torch.empty_like(x)
        for h, given, out in zip(hidden.split(_PIECE), x.split(_PIECE), y.split(_PIECE), strict=True):
            torch.addmm(up_bias, given, up.t(), out=h)
            torch.addmm(down_bias, F.gelu(h), down.t(), out=out)
        ctx.save_for_backward(x, hidden, up, down)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, hidden, up, down = ctx.saved_tensors
        grad = grad.contiguous()
        d_x, d_up, d_down = torch.empty_like(x), torch.zeros_like(up), torch.zeros_like(down)
        d_up_bias = up.new_zeros(up.shape[0])
        pieces = (hidden.split(_PIECE), x.split(_PIECE), grad.split(_PIECE), d_x.split(_PIECE))
        for h, given, g, out in zip(*pieces, strict=True):
            torch.addmm(d_down, g.t(), F.gelu(h), out=d_down)
            d_hidden = g @ down
            torch.ops.aten.gelu_backward.grad_input(d_hidden, h, grad_input=d_hidden)
            torch.addmm(d_up, d_hidden.t(), given, out=d_up)
            d_up_bias += d_hidden.sum(0)
            torch.mm(d_hidden, up, out=out)
        return d_x, d_up, d_up_bias, d_down, grad.sum(0)


def gelu_feed_forward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """down gelu(up x + up_bias) + down_bias, the faster way for these arguments.

    Args:
        x: (..., H).
        up, up_bias: (F, H) and (F,).
        down, down_bias: (H, F) and (H,).

    Returns:
        (..., H).
    """
    # A graph must hold for any number of tokens, so it is not even looked at.
    if torch.compiler.is_compiling() or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return gelu_feed_forward_reference(x, up, up_bias, down, down_bias)
    tokens = x.numel() // x.shape[-1]
    is_plain = x.dtype in (torch.float32, torch.float64) and x.dtype == up.dtype
    # Without a backward, or for four pieces and less, nothing is gained.
    if not is_plain or tokens <= 4 * _PIECE or not torch.is_grad_enabled():
        return gelu_feed_forward_reference(x, up, up_bias, down, down_bias)
    return _FeedForward.apply(x.reshape(tokens, -1), up, up_bias, down, down_bias).view(x.shape)


def gelu_feed_forward_reference(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """The same by one operation after the other."""
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
