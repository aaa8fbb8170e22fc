"""Position information: added to the input (sinusoidal, learned) or turned into the queries and keys (RoPE).

Legend: B batch, L length, H hidden, D head size. Padding is on the right here, so a position is its index.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init


def check_length(length: int, attention_mask: Tensor | None, limit: int) -> None:
    """Raise if the longest sequence, padding not counted, has more positions than `limit`."""
    if length <= limit:
        return
    if attention_mask is not None:
        length = int(attention_mask.sum(-1).max())
    if length > limit:
        raise ValueError(
            f"A sequence has {length} positions but the model has max_position_embeddings={limit}; "
            'shorten the sequences, or build the model with a larger value or with position_embedding_type="rope".'
        )


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


def rotary_table(length: int, size: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which RoPE turns channel i together with channel i + size / 2.

    Returns:
        Cosine and sine, each (length, size), float32.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", equation 34,
    arXiv 2104.09864, with the pairs laid out in halves.
    """
    dtype = torch.float32 if device.type == "mps" else torch.float64
    position = torch.arange(length, dtype=dtype, device=device)
    rate = theta ** (-torch.arange(0, size, 2, dtype=dtype, device=device) / size)
    angle = torch.outer(position, rate)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().float(), angle.sin().float()


def apply_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair of channels of `x`, (B, heads, L, D), by the angle of its position."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)


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
        check_length(length, attention_mask, limit)
        table = self.table[:length].to(hidden_states.dtype)
        return hidden_states + fill_padding(table, length)


class LearnedPositions(nn.Module):
    """Adds a trained vector for each position."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        length, limit = hidden_states.shape[1], self.table.num_embeddings
        check_length(length, attention_mask, limit)
        return hidden_states + fill_padding(self.table.weight[:length], length)


def fill_padding(table: Tensor, length: int) -> Tensor:
    """Lengthen `table` with zeros to `length`: only padding stands beyond its end."""
    return table if table.shape[0] == length else nn.functional.pad(table, (0, 0, 0, length - table.shape[0]))
