"""The block of the S4 family: every feature is a long convolution, then skip, GELU, and a gated output projection.

A family gives the kernel, and where it has a finite state the recurrence; all else is the same for all of them, so that
what is compared is the kernel.

Sources: Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces", arXiv 2111.00396, for the
block; the two directions are those of its public code, https://github.com/state-spaces/s4.

Legend: B batch, L length, H hidden, R directions, T kept tokens of a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache

from .blocks import Mixer, Packing, SequenceDropout, autocast_disabled, get_state, set_state
from .ops_conv import long_conv

# As tensors: a Python number costs a step as much as an operation.
_HALF, _HALF_ROOT = torch.tensor(0.5), torch.tensor(0.5**0.5)


def step_gelu(x: Tensor) -> Tensor:
    """Exact GELU of one step; by plain operations, as setting up the fused one takes longer than these few numbers."""
    if x.dtype != torch.float32 or x.numel() > 1024 or torch.compiler.is_compiling():
        return F.gelu(x)
    half = x * _HALF
    return torch.addcmul(half, half, torch.erf(x * _HALF_ROOT))


class ConvolutionMixer(Mixer):
    """A long convolution of each feature with its own kernel; `config.output_gate` is "glu" or "none"."""

    supports_packing = True
    no_step_reason = "a bidirectional model needs what comes after"

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.layer_idx = layer_idx
        self.is_gated = config.output_gate == "glu"
        self.num_directions = 2 if config.bidirectional else 1
        self.D = nn.Parameter(torch.empty(hidden))
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)
        self.output_linear = nn.Linear(hidden, 2 * hidden if self.is_gated else hidden)

    def init_weights(self) -> None:
        init.normal_(self.D)

    def kernel(self, length: int) -> Tensor:
        """Kernels (R, H, L), float32 or better, lag 0 first; the second direction is strictly anti-causal."""
        raise NotImplementedError

    def convolve(self, u: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> Tensor:
        """Convolve u (B, L, H), zero at pads, and add the skip; kwargs are what `prepare_inputs` made."""
        kernels = self.kernel(u.shape[1])
        return long_conv(u, kernels[0], kernels[1] if self.num_directions == 2 else None, skip=self.D)

    def recur(self, u: Tensor, state: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor]:
        """Causal convolution, without the skip, of a chunk u (B, L, H) that goes on from `state`; and the new state."""
        raise NotImplementedError

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Tensor:
        u = hidden_states
        if packing is not None:
            u = packing.unpack(u)
        elif attention_mask is not None:
            u = u.masked_fill(~attention_mask[..., None], 0.0)
        if cache is None:
            y = self.convolve(u, attention_mask if packing is None else packing.attention_mask, **kwargs)
        else:
            u = u.to(torch.promote_types(u.dtype, torch.float32))
            with autocast_disabled(u.device.type):
                y, state = self.recur(u, get_state(cache, self.layer_idx), cache)
                y = torch.addcmul(y, u, self.D.to(u.dtype)).to(hidden_states.dtype)
            set_state(cache, self.layer_idx, state)
        if packing is not None:
            y = packing.pack(y)
        y = F.gelu(y) if cache is None else step_gelu(y)
        if self.training:
            y = self.dropout(y)
        batch, length, hidden = y.shape
        # `long_conv` is feature first in memory: as a matrix it is a transposed one, which the product takes as it is.
        y = self.output_linear(y.reshape(batch * length, hidden))
        return (F.glu(y) if self.is_gated else y).view(batch, length, hidden)
