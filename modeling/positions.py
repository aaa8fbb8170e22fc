"""Position information: added to the input (sinusoidal, learned), turned into queries and keys (RoPE), or added to the
scores of attention (ALiBi, FIRE).

Legend: B batch, L length, H hidden, D head size. Padding is on the right here, so a position is its index.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init

from .blocks import check_length
from .ops_ssm import grid_dtype


def added_positions(config: PreTrainedConfig) -> nn.Module | None:
    """The module that adds positions to the input, or None where they come in otherwise or not at all."""
    classes = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
    position_class = classes.get(config.position_embedding_type)
    return position_class(config) if position_class else None


def sinusoidal_table(length: int, size: int) -> Tensor:
    """Sines in even columns, cosines in odd ones, wavelengths from 2 pi to 10000 * 2 pi.

    Computed in float64, since float32 angles are off by 1e-3 at positions of some ten thousand.

    Returns:
        (length, size), float32.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5, arXiv 1706.03762.
    """
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    rate = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size)
    angle = torch.outer(position, rate)  # (length, ceil(size / 2))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :size].float()


def rotary_table(
    length: int,
    size: int,
    theta: float,
    device: torch.device,
    layout: str = "half",
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which RoPE turns a pair of channels.

    Args:
        length: Number of positions.
        size: Head size, even.
        theta: Base of the wavelengths.
        device: Where to put the tables.
        layout: "half" turns channel i together with channel i + size / 2, "interleaved" channel 2 i with 2 i + 1.
        dtype: Of the tables; the angles are computed in float64, where the device has it.

    Returns:
        Cosine and sine, each (length, size).

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equation 34,
    arXiv 2104.09864, whose pairs are the interleaved ones.
    """
    exact = grid_dtype(device)
    position = torch.arange(length, dtype=exact, device=device)
    rate = theta ** (-torch.arange(0, size, 2, dtype=exact, device=device) / size)
    angle = torch.outer(position, rate)
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
    if layout == "interleaved":
        return cosine.repeat_interleave(2, dim=-1), sine.repeat_interleave(2, dim=-1)
    return torch.cat([cosine, cosine], dim=-1), torch.cat([sine, sine], dim=-1)


def apply_rotary(x: Tensor, cosine: Tensor, sine: Tensor, layout: str = "half") -> Tensor:
    """Turn each pair of channels of `x` by the angle of its position.

    Args:
        x: (..., D).
        cosine, sine: Of `rotary_table`, broadcast against `x`.
        layout: Which channels are a pair, as for the tables.
    """
    if layout == "interleaved":
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    else:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
    return torch.addcmul(x * cosine, turned, sine).to(x.dtype)


def toeplitz(table: Tensor, rows: int, columns: int) -> Tensor:
    """Matrix (..., rows, columns) with number rows - 1 + j - i of a table (..., rows + columns - 1) as entry (i, j)."""
    if torch.compiler.is_compiling():
        query, key = (torch.arange(size, device=table.device) for size in (rows, columns))
        return table[..., rows - 1 + key - query[:, None]]
    # Windows of a table have a cheap gradient, an index would have a slow one.
    return table.unfold(-1, columns, 1).narrow(-2, 0, rows).flip(-2)


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes of ALiBi: 2^(-8 h / heads) for heads h = 1, 2, ... if their number is a power of two.

    Otherwise those of the next lower power, then every second slope of twice that power, as in the paper's code.

    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", arXiv 2108.12409.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / lower) for h in range(1, lower + 1)]
    slopes += [2.0 ** (-4 * h / lower) for h in range(1, 2 * lower + 1, 2)]
    return slopes[:num_heads]


def alibi_bias(num_heads: int, rows: int, columns: int, first: int, device: torch.device) -> Tensor:
    """-slope |i - j| for each head, the distance of query i and key j counting both ways.

    Args:
        num_heads: Heads.
        rows, columns: Number of queries and of keys.
        first: Position of the first query less that of the first key.
        device: Where to put it.

    Returns:
        (1, heads, rows, columns), float32.
    """
    offset = torch.arange(rows + columns - 1, device=device) - (rows - 1 + first)
    slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float32, device=device)
    return toeplitz(-slopes[:, None] * offset.abs().to(torch.float32), rows, columns)[None]


class FireBias(nn.Module):
    """FIRE: a small network of the distance of query i and key j, on a log scale and relative to the length.

        bias(i, j) = f(psi(|i - j|) / psi(max(threshold, n))),   psi(x) = log(c x + 1),   f: Linear, ReLU, Linear

    Causal: n is the position i of the query, as published. Bidirectional: n is the last position of the sequence, so
    that the bias is symmetric. c and the threshold are learned. The last layer has no bias, as softmax
    would not notice it.

    Source: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context Transformers",
    arXiv 2310.04418; constants and the guards (absolute values, 1e-6 below the fraction) as in public code.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.is_causal = not config.bidirectional
        self.is_signed = config.fire_signed
        self.initial_threshold = config.fire_threshold
        self.scale = nn.Parameter(torch.empty(1))
        self.threshold = nn.Parameter(torch.empty(1))
        self.up = nn.Linear(2 if self.is_signed else 1, config.fire_width)
        self.down = nn.Linear(config.fire_width, config.num_attention_heads, bias=False)

    def init_weights(self) -> None:
        init.constant_(self.scale, 0.1)
        # A factor of `initial_threshold`, so that both parameters are of a size that one learning rate suits.
        init.ones_(self.threshold)

    def network(self, offset: Tensor, last: Tensor) -> Tensor:
        """The biases of offsets j - i, broadcast against `last`, the n above, to (S, ...).

        Returns:
            (S, heads, ...).
        """
        dtype = torch.promote_types(self.up.weight.dtype, torch.float32)
        scale, threshold = self.scale.to(dtype), self.threshold.to(dtype) * self.initial_threshold
        psi = torch.log1p((scale * offset.abs().to(dtype)).abs())
        longest = torch.maximum(threshold.abs(), last.to(dtype))
        features = (psi / (torch.log1p((scale * longest).abs()) + 1e-6))[..., None]
        if self.is_signed:
            sign = offset.sign().to(dtype)[..., None].expand_as(features)
            features = torch.cat([features, sign], dim=-1)
        hidden = F.relu(F.linear(features, self.up.weight.to(dtype), self.up.bias.to(dtype)))
        return F.linear(hidden, self.down.weight.to(dtype)).movedim(-1, 1)

    def forward(self, rows: int, columns: int, first: int, start: Tensor, last: Tensor) -> Tensor:
        """Biases of several windows of queries and keys.

        Args:
            rows, columns: Number of queries and of keys of a window.
            first: Position of the first query less that of the first key.
            start: Position of the first query of each window, (S,).
            last: Last position of the sequence of each window, (S,).

        Returns:
            (S or 1, heads, rows, columns), float32 (float64 in float64 models).
        """
        offset = torch.arange(rows + columns - 1, device=start.device) - (rows - 1 + first)
        if not self.is_causal:
            return toeplitz(self.network(offset, last[:, None]), rows, columns)
        query = torch.arange(rows, device=start.device)
        matrix = toeplitz(offset, rows, columns)  # (rows, columns)
        return self.network(matrix, (start[:, None] + query)[..., None])


class SinusoidalPositions(nn.Module):
    """Adds a fixed table of sines and cosines."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        shape = (config.max_position_embeddings, config.hidden_size)
        self.register_buffer("table", torch.empty(shape), persistent=False)

    def init_weights(self) -> None:
        init.copy_(self.table, sinusoidal_table(*self.table.shape))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        length, limit = hidden_states.shape[1], self.table.shape[0]
        check_length(length, attention_mask, limit, "the model has max_position_embeddings", "a larger value")
        table = self.table[:length].to(hidden_states.dtype)
        return hidden_states + fill_padding(table, length)


class LearnedPositions(nn.Module):
    """Adds a trained vector for each position."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        length, limit = hidden_states.shape[1], self.table.num_embeddings
        check_length(length, attention_mask, limit, "the model has max_position_embeddings", "a larger value")
        return hidden_states + fill_padding(self.table.weight[:length], length)


def fill_padding(table: Tensor, length: int) -> Tensor:
    """Lengthen `table` with zeros to `length`: only padding stands beyond its end."""
    return table if table.shape[0] == length else nn.functional.pad(table, (0, 0, 0, length - table.shape[0]))
