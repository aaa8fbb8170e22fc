"""Full softmax attention through transformers' attention interface: eager, sdpa and later kernels are one switch.

Legend: B batch, L length, H hidden, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocks import Mixer
from .positions import apply_rotary


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
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class AttentionCore(nn.Module):
    """The part without parameters; a module of its own so that its weights can be recorded (`output_attentions`)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = not config.bidirectional
        self.scaling = (config.hidden_size // config.num_attention_heads) ** -0.5

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        return attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            is_causal=self.is_causal,
        )


class FullAttention(Mixer):
    """Mixer: multi-head softmax attention over the whole sequence.

    Args of `forward`:
        hidden_states: (B, L, H).
        attention_mask: Unused here, as `full_attention_mask` holds it in the form the kernel wants.
        full_attention_mask: (B, 1, L, L), or None if the kernel needs no mask.
        rotary: Cosine and sine, each (L, D), or None.
    """

    ssm_parameters: tuple[str, ...] = ()
    has_feed_forward = True
    no_step_reason = "attention keeps the whole past and has no finite state"

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size)
        self.v_proj = nn.Linear(size, size)
        self.o_proj = nn.Linear(size, size)
        self.core = AttentionCore(config, layer_idx)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        full_attention_mask: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        batch, length, size = hidden_states.shape
        shape = (batch, length, self.num_heads, size // self.num_heads)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)  # (B, heads, L, D)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        if rotary is not None:
            query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        mixed, _ = self.core(query, key, value, full_attention_mask)
        return self.o_proj(mixed.reshape(batch, length, size))
