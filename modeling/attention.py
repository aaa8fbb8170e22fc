"""Softmax attention through transformers' attention interface, over the whole sequence or within nearby blocks.

Legend: B batch, L length, H hidden, D head size, T kept tokens of a packed batch. Of block-local attention: N blocks of
all sequences together, w positions in a block, K keys that a block sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocks import Mixer, Packing
from .positions import FireBias, alibi_bias, apply_rotary, rotary_table

# Kernels that take any matrix added to the scores as their mask; it is made once for all layers.
ADDITIVE = ("eager", "sdpa")

# Packed sequences of fewer positions on average are padded again for attention: a call for each would cost more.
SPLIT_LENGTH = 32


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Plain attention: queries, keys, values (B, heads, L, D) to outputs (B, L, heads, D) and weights (B, heads, L, L).

    `attention_mask` is added to the scores; under causal attention it must hold the causal pattern.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def forbid(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to the scores: 0 where `allowed`, else the lowest number."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)


def causal_pattern(rows: int, columns: int, first: int, device: torch.device) -> Tensor:
    """Whether key j is not after query i, (rows, columns); the first query stands `first` after the first key."""
    query = torch.arange(rows, device=device)[:, None] + first
    return torch.arange(columns, device=device) <= query


# A length that is not known while a graph is captured must not be compared with another: an index does not compare.


def fill_up(x: Tensor, length: int, size: int) -> Tensor:
    """Lengthen (B, L, ...) to `length` with zeros, which are at most 2 `size`."""
    around = (0, 0) * (x.dim() - 2)
    if torch.compiler.is_compiling():
        return F.pad(x, (*around, 0, 2 * size))[:, torch.arange(length, device=x.device)]
    return F.pad(x, (*around, 0, length - x.shape[1]))


def cut(x: Tensor, length: int) -> Tensor:
    """The first `length` of (B, L, ...)."""
    return x[:, torch.arange(length, device=x.device)] if torch.compiler.is_compiling() else x[:, :length]


def windows(x: Tensor, count: int, columns: int, step: int) -> Tensor:
    """(L, ...) to (count, columns, ...), where a window starts `step` after the one before."""
    if torch.compiler.is_compiling():
        start = torch.arange(count, device=x.device) * step
        return x[start[:, None] + torch.arange(columns, device=x.device)]
    return x.unfold(0, columns, step).movedim(-1, 1)


@dataclass
class BlockLayout:
    """Where the positions of a batch stand in blocks of w, one sequence after another, each from a new block on.

    A block sees itself, `before` blocks before it and `after` blocks after it, as far as they are of its sequence.

    Args:
        size: w.
        before, after: Neighbours on either side; K = (before + 1 + after) w.
        count: N.
        rows: B, or 1 if packed.
        place: Slot of each token of a packed batch, (T,), or None.
        allowed: Whether a key is of the block's own sequence, (N, K). Only in a block all of padding, padding is.
        start: Position of the first slot of each block in its sequence, (N,).
        last: Last position of the sequence of each block, (N,).
    """

    size: int
    before: int
    after: int
    count: int
    rows: int
    place: Tensor | None
    allowed: Tensor
    start: Tensor
    last: Tensor

    @property
    def num_keys(self) -> int:
        return (self.before + 1 + self.after) * self.size

    def fold(self, x: Tensor) -> Tensor:
        """(B, L, heads, D), or (1, T, heads, D) if packed, to slots (N w, heads, D), zero where there is no token."""
        if self.place is not None:
            return x.new_zeros(self.count * self.size, *x.shape[2:]).index_copy(0, self.place, x[0])
        return fill_up(x, self.count // self.rows * self.size, self.size).flatten(0, 1)

    def unfold(self, x: Tensor, length: int) -> Tensor:
        """(N, w, heads, D) back to (B, L, heads, D) or (1, T, heads, D)."""
        x = x.flatten(0, 1)
        if self.place is not None:
            return x.index_select(0, self.place)[None]
        return cut(x.unflatten(0, (self.rows, self.count // self.rows * self.size)), length)

    def windows(self, slots: Tensor) -> Tensor:
        """Keys or values that each block sees: (N w, heads, D) to (N, heads, K, D), a view of overlapping windows."""
        slots = F.pad(slots, (0, 0, 0, 0, self.before * self.size, self.after * self.size))
        return windows(slots, self.count, self.num_keys, self.size).transpose(1, 2)

    def scatter(self, weights: Tensor, length: int) -> Tensor:
        """Attention weights (N, heads, w, K) in the full matrix (B, heads, L, L)."""
        heads, blocks = weights.shape[1], self.count // self.rows
        wide = (self.before + blocks + self.after) * self.size
        index = torch.arange(blocks, device=weights.device)[:, None] * self.size
        index = (index + torch.arange(self.num_keys, device=weights.device))[:, None, :]  # (blocks, 1, K)
        weights = weights.unflatten(0, (self.rows, blocks)).transpose(1, 2)  # (B, heads, blocks, w, K)
        full = weights.new_zeros(self.rows, heads, blocks, self.size, wide).scatter(
            -1, index.expand_as(weights), weights
        )
        start = self.before * self.size
        return full.flatten(2, 3)[:, :, :length, start : start + length]


def block_layout(
    config: PreTrainedConfig, hidden_states: Tensor, attention_mask: Tensor | None, packing: Packing | None
) -> BlockLayout:
    """Lay out a batch (B, L, H), or (1, T, H) with `packing`, for block-local attention."""
    size, device = config.attention_window, hidden_states.device
    before = config.attention_neighbors
    lengths = None if packing is None else torch.tensor(packing.lengths, device=device)
    rows, longest = hidden_states.shape[:2]
    if packing is not None:
        longest = max(packing.lengths)
    compiling = torch.compiler.is_compiling()
    if not compiling:
        # One block that is not full, and neighbours that no sequence has, need no room.
        size = min(size, longest)
        before = min(before, (longest + size - 1) // size - 1)
    if lengths is None:
        # A further one, all of padding, where a graph is captured, to which one block would be another case than many.
        per_row = (longest + size - 1) // size + compiling
        count = rows * per_row
        row = torch.arange(rows, device=device)[:, None]
        segment = (row + 1).expand(rows, longest)
        if attention_mask is not None:
            segment = segment.masked_fill(~attention_mask, 0)
        segment = fill_up(segment, per_row * size, size).flatten()
        start = (torch.arange(per_row, device=device) * size).expand(rows, per_row).flatten()
        last = torch.full_like(row, longest - 1) if attention_mask is None else attention_mask.sum(1, keepdim=True) - 1
        last = last.expand(rows, per_row).flatten()
        place = None
    else:
        assert packing is not None
        rows, blocks = 1, (lengths + size - 1) // size
        count = int(blocks.sum())
        first = blocks.cumsum(0) - blocks
        place = first[packing.row] * size + packing.position
        segment = torch.zeros(count * size, dtype=torch.long, device=device).index_copy(0, place, packing.row + 1)
        start = (torch.arange(count, device=device) - first.repeat_interleave(blocks)) * size
        last = (lengths - 1).repeat_interleave(blocks)
    after = before if config.bidirectional else 0
    keys = F.pad(segment, (before * size, after * size), value=-1)
    keys = windows(keys, count, (before + 1 + after) * size, size)
    allowed = keys == segment.view(count, size)[:, :1]
    return BlockLayout(size, before, after, count, rows, place, allowed, start, last)


class AttentionCore(nn.Module):
    """The part without projections; a module of its own so that its weights can be recorded (`output_attentions`)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = not config.bidirectional
        self.scaling = (config.hidden_size // config.num_attention_heads) ** -0.5
        if config.position_embedding_type == "fire":
            self.fire = FireBias(config)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any = None,
        bias: Tensor | None = None,
        blocks: BlockLayout | None = None,
        last: Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query, key, value: (B, L, heads, D).
            mask: In the form that the kernel wants; of windows (N, 1 or heads, 1 or w, K) with `blocks`.
            bias: To be added to the scores beside the mask, (1, heads, rows, columns), or None.
            blocks: The layout of block-local attention, None for attention over the whole sequence.
            last: Last position of each sequence, (B,), if padding is masked; read by FIRE.
            return_weights: Whether the weights of block-local attention are wanted.

        Returns:
            (B, L, heads, D), and the weights (B, heads, L, L) or None.
        """
        length = query.shape[1]
        if blocks is None:
            if self.config.position_embedding_type == "fire":
                start = torch.zeros(1, dtype=torch.long, device=query.device)
                bias = self.fire(length, length, 0, start, start + length - 1 if last is None else last)
            return self.attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, bias)
        if self.config.position_embedding_type == "fire":
            fire = self.fire(blocks.size, blocks.num_keys, blocks.before * blocks.size, blocks.start, blocks.last)
            bias = fire if bias is None else bias + fire
        query, key, value = (blocks.fold(x) for x in (query, key, value))
        query = query.unflatten(0, (blocks.count, blocks.size)).transpose(1, 2)
        key, value = blocks.windows(key), blocks.windows(value)
        if self.config._attn_implementation not in ADDITIVE:
            # Other kernels need not expect windows that overlap in memory.
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        mixed, weights = self.attend(query, key, value, mask, bias)
        weights = blocks.scatter(weights, length) if return_weights else None
        return blocks.unfold(mixed, length), weights

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Queries, keys and values (B, heads, L, D) to (B, L, heads, D) and weights or None."""
        implementation = self.config._attn_implementation
        kwargs: dict[str, Any] = {}
        if bias is not None:
            bias = bias.to(query.dtype)
            if implementation in ADDITIVE:
                mask = bias if mask is None else mask + bias
            else:
                kwargs["position_bias"] = bias.expand(*query.shape[:2], -1, -1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        return attend(
            self,
            query,
            key,
            value,
            mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            is_causal=self.is_causal,
            **kwargs,
        )


def check_implementation(config: PreTrainedConfig, hidden_states: Tensor, output_attentions: bool) -> None:
    """Raise if the attention kernel cannot do what the config or the call asks for."""
    implementation = config._attn_implementation
    if implementation == "flex_attention" and hidden_states.requires_grad and hidden_states.device.type == "cpu":
        raise ValueError(
            'attn_implementation="flex_attention" has no gradients on a CPU; run it under torch.no_grad(), or call '
            'model.set_attn_implementation("sdpa").'
        )
    if output_attentions and implementation != "eager":
        raise ValueError(
            f'output_attentions=True needs attn_implementation="eager", but it is "{implementation}"; '
            'call model.set_attn_implementation("eager") first.'
        )
    if implementation is not None and "flash" in implementation:
        position = config.position_embedding_type
        reason = None
        if position in ("alibi", "fire"):
            reason = f'position_embedding_type="{position}", which is added to the scores'
        elif config.attention_window is not None:
            reason = f"attention_window={config.attention_window}, which masks blocks"
        if reason is not None:
            raise ValueError(
                f'attn_implementation="{implementation}" cannot do {reason}; '
                'use "sdpa": model.set_attn_implementation("sdpa").'
            )


class FullAttention(Mixer):
    """Mixer: multi-head softmax attention over the whole sequence or, with `attention_window`, over nearby blocks."""

    has_feed_forward = True
    no_step_reason = "attention keeps the whole past and has no finite state"
    supports_packing = True

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.rope_layout = config.rope_layout
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size)
        self.v_proj = nn.Linear(size, size)
        self.o_proj = nn.Linear(size, size)
        self.core = AttentionCore(config, layer_idx)

    @staticmethod
    def prepare_inputs(
        config: PreTrainedConfig,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Tables, masks and biases for all layers of a config: the keyword arguments of `forward`."""
        if output_attentions is None:
            output_attentions = config.output_attentions
        check_implementation(config, hidden_states, output_attentions)
        inputs = {"rotary": rotary_inputs(config, hidden_states, packing)}
        if config.attention_window is not None:
            blocks = block_layout(config, hidden_states, attention_mask, packing)
            mask, bias = local_mask(config, blocks, hidden_states.dtype)
            return inputs | {"blocks": blocks, "mask": mask, "bias": bias, "return_weights": bool(output_attentions)}
        length = hidden_states.shape[1]
        if packing is not None:
            # The kernels of flex attention are compiled, which one call for each length would do again and again.
            splits = config._attn_implementation != "flex_attention" and length >= SPLIT_LENGTH * len(packing.lengths)
            inputs["splits"] = splits
            attention_mask = None if splits else packing.attention_mask
            length = max(packing.lengths) if splits else packing.attention_mask.shape[1]
        inputs["mask"], inputs["bias"] = full_mask(config, hidden_states, length, attention_mask)
        if attention_mask is not None:
            inputs["last"] = attention_mask.sum(1) - 1
        return inputs

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        packing: Packing | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        splits: bool = False,
        **prepared: Any,
    ) -> Tensor:
        """Mix positions.

        Args:
            hidden_states: (B, L, H), or (1, T, H) with `packing`.
            attention_mask: Unused, as `mask` holds it in the form the kernel wants.
            packing: Where the tokens of a packed batch belong.
            rotary: Cosine and sine, each (L or T, 1, D), or None.
            splits: Whether to attend to each sequence of a packed batch by itself.
            prepared: Further arguments of `AttentionCore`.
        """
        batch, length, size = hidden_states.shape
        shape = (batch, length, self.num_heads, size // self.num_heads)
        query, key, value = (project(hidden_states).view(shape) for project in (self.q_proj, self.k_proj, self.v_proj))
        if rotary is not None:
            query, key = (apply_rotary(x, *rotary, self.rope_layout) for x in (query, key))
        if splits and packing is not None:
            mixed = self.attend_each(query, key, value, packing.lengths, prepared["mask"], prepared["bias"])
        elif packing is not None and prepared.get("blocks") is None:
            query, key, value = (packing.unpack(x) for x in (query, key, value))
            mixed = packing.pack(self.core(query, key, value, **prepared)[0])
        else:
            mixed, _ = self.core(query, key, value, **prepared)
        return self.o_proj(mixed.reshape(batch, length, size))

    def attend_each(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: list[int], mask: Any, bias: Tensor | None
    ) -> Tensor:
        """Attention within each sequence of (1, T, heads, D), without padding; mask and bias are of the longest."""
        mixed = []
        parts = (x.split(lengths, dim=1) for x in (query, key, value))
        for length, *part in zip(lengths, *parts, strict=True):
            start = (None if x is None else x[..., :length, :length] for x in (mask, bias))
            mixed.append(self.core(*part, *start)[0])
        return torch.cat(mixed, dim=1)


def rotary_inputs(
    config: PreTrainedConfig, hidden_states: Tensor, packing: Packing | None
) -> tuple[Tensor, Tensor] | None:
    """Cosine and sine of RoPE for each position, (L, 1, D), or each packed token, (T, 1, D); None without RoPE."""
    if config.position_embedding_type != "rope":
        return None
    length = hidden_states.shape[1] if packing is None else max(packing.lengths)
    size = config.hidden_size // config.num_attention_heads
    cosine, sine = rotary_table(
        length, size, config.rope_theta, hidden_states.device, config.rope_layout, hidden_states.dtype
    )
    if packing is not None:
        cosine, sine = cosine[packing.position], sine[packing.position]
    return cosine[:, None], sine[:, None]


def full_mask(
    config: PreTrainedConfig, hidden_states: Tensor, length: int, attention_mask: Tensor | None
) -> tuple[Any, Tensor | None]:
    """The mask that the kernel wants over whole sequences, and what else is to be added to the scores.

    Pads are on the right, so that a causal model needs no mask for them: no kept position looks there.
    """
    implementation, dtype, device = config._attn_implementation, hidden_states.dtype, hidden_states.device
    position, causal = config.position_embedding_type, not config.bidirectional
    bias = None
    if position == "alibi":
        bias = alibi_bias(config.num_attention_heads, length, length, 0, device).to(dtype)
    if implementation not in ADDITIVE:
        if attention_mask is not None:
            hidden_states = hidden_states.new_empty(*attention_mask.shape, 1)
        if causal:
            return create_causal_mask(config, hidden_states, attention_mask, cache=None), bias
        if attention_mask is None:
            return None, bias
        return create_bidirectional_mask(config, hidden_states, attention_mask), bias
    mask = None
    if causal and (implementation == "eager" or position in ("alibi", "fire")):
        mask = forbid(causal_pattern(length, length, 0, device)[None, None], dtype)
    elif not causal and attention_mask is not None:
        mask = forbid(attention_mask[:, None, None], dtype)  # (B, 1, 1, L)
    if bias is None or mask is None:
        return (bias, None) if mask is None else (mask, None)
    return mask + bias, None


def local_mask(config: PreTrainedConfig, blocks: BlockLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The mask of windows, (N, 1 or heads, 1 or w, K), and what else is to be added to the scores."""
    device = blocks.allowed.device
    rows, columns, first = blocks.size, blocks.num_keys, blocks.before * blocks.size
    allowed = blocks.allowed[:, None, None]
    if not config.bidirectional:
        allowed = allowed & causal_pattern(rows, columns, first, device)
    mask, bias = forbid(allowed, dtype), None
    if config.position_embedding_type == "alibi":
        bias = alibi_bias(config.num_attention_heads, rows, columns, first, device).to(dtype)
    total = mask if bias is None else mask + bias
    if config._attn_implementation in ADDITIVE:
        return total, None
    if config._attn_implementation == "flex_attention":
        # Its way of reading a mask that is a tensor writes outside its memory on CPU (torch 2.13); biases go well.
        return None, total.expand(-1, -1, rows, -1)
    return mask.expand(-1, -1, rows, -1), bias
