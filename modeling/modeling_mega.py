"""Mega: moving averages of the input drive a gate and a single attention head, over the sequence or within chunks.

Paper: Ma et al. 2023, "Mega: Moving Average Equipped Gated Attention", arXiv 2209.10655.
Code: https://github.com/facebookresearch/mega
Differences: linear layers start uniform by fan-in, as in all families here, where the public code draws N(0, 0.02^2);
the moving averages have the optimiser settings of state space models; the kernel of the averages is full by default,
where the settings for the Long Range Arena cut it (`ema_truncation`); ScaleNorm and the weights relu^2 are left out.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.utils.output_capturing import OutputRecorder

from .blocks import Mixer, Packing, ResidualBlock, SequenceDropout, check_length
from .configuration_mega import MegaConfig
from .heads import (
    LongSequenceForCausalLM,
    LongSequenceForMaskedLM,
    LongSequenceForReconstruction,
    LongSequenceForSequenceClassification,
)
from .modeling_common import (
    LongSequenceModel,
    LongSequencePreTrainedModel,
)
from .ops_conv import long_conv
from .ops_ema import ema_kernel
from .positions import rotary_table

# With these, value and slope are those of the squared ReLU where that is 1/2.
LAPLACE_MEAN = math.sqrt(1 / 2)
LAPLACE_STD = math.sqrt(1 / (4 * math.pi))


def laplace(scores: Tensor) -> Tensor:
    """Weights in (0, 1) of scores, each by itself: the distribution function of a normal variable.

    Source: arXiv 2209.10655.
    """
    return 0.5 * (1 + torch.erf((scores - LAPLACE_MEAN) / (LAPLACE_STD * math.sqrt(2))))


def offset_matrix(later: Tensor, earlier: Tensor) -> Tensor:
    """Entry (i, j) of (C, C) is the value of the offset j - i.

    Args:
        later: Values of the offsets 0, ..., C - 1.
        earlier: Values of the offsets -C, ..., -1, of which the first is not used.
    """
    size = later.shape[0]
    # Rows of a cycle of length 2 C, read on with a width of 2 C - 1, move by one place each. Its gradient is a sum over
    # rows, where that of an index would be a slow scatter.
    rows = torch.cat([later, earlier]).expand(size, 2 * size).reshape(-1)
    return rows[: size * (2 * size - 1)].view(size, 2 * size - 1)[:, :size]


def chunk_layout(length: int, chunk_size: int | None) -> tuple[int, int]:
    """Number of chunks and their size; together they may be longer than the sequence."""
    if chunk_size is None:
        return 1, length
    if torch.compiler.is_compiling():
        # At least two: a graph would take a single one for granted.
        return length // chunk_size + 2, chunk_size
    chunk_size = min(chunk_size, length)
    return -(-length // chunk_size), chunk_size


def to_chunks(x: Tensor, chunk_size: int | None) -> Tensor:
    """(B, L, ...) to chunks (B, K, C, ...), zero beyond the end."""
    num, size = chunk_layout(x.shape[1], chunk_size)
    if chunk_size is None:
        return x[:, None]
    around = (0, 0) * (x.dim() - 2)
    if torch.compiler.is_compiling():
        # A graph could not prove how many zeros are missing.
        start = torch.arange(num, device=x.device)[:, None] * size
        return F.pad(x, (*around, 0, 2 * size))[:, start + torch.arange(size, device=x.device)]
    if num * size != x.shape[1]:
        x = F.pad(x, (*around, 0, num * size - x.shape[1]))
    return x.unflatten(1, (num, size))


def from_chunks(x: Tensor, length: int) -> Tensor:
    """The inverse of `to_chunks`."""
    x = x.flatten(1, 2)
    if torch.compiler.is_compiling():
        return x.index_select(1, torch.arange(length, device=x.device))
    return x[:, :length]


class GatedAttention(nn.Module):
    """One head of attention within chunks; a module of its own so that its weights can be recorded.

    C is the size of a chunk and K the number of chunks, 1 for attention over the whole sequence.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.is_softmax = config.attention_activation == "softmax"
        self.is_simple = config.position_bias == "simple"
        self.dropout = config.attention_dropout
        if self.is_simple:
            reach = config.max_position_embeddings if config.chunk_size is None else config.chunk_size
            # Offsets 0, ..., reach - 1, then -(reach - 1), ..., -1.
            self.offset_bias = nn.Parameter(torch.empty(2 * reach - 1))
        else:
            self.rotary_query = nn.Parameter(torch.empty(config.query_key_size))
            self.rotary_key = nn.Parameter(torch.empty(config.query_key_size))

    def init_weights(self) -> None:
        for parameter in self.parameters():
            init.normal_(parameter, std=0.02)

    def position_bias(self, size: int, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """What is added to the scores, (C, C)."""
        if rotary is None:
            reach = (self.offset_bias.shape[0] + 1) // 2
            later, earlier = self.offset_bias.split([reach, reach - 1])
            # Cut, or if longer than all offsets, filled up with zeros: only pads stand there.
            return offset_matrix(F.pad(later, (0, size - reach)), F.pad(earlier, (size - reach + 1, 0)))
        # R(a, i) . R(c, j) is Re a conj(c) exp(sqrt(-1) (i - j) rate), for the pairs of channels as complex numbers.
        (a, b), (c, d) = self.rotary_query.chunk(2), self.rotary_key.chunk(2)
        cosine, sine = (part[:, : a.shape[0]].to(a.dtype) for part in rotary)  # (C + 1, pairs)
        even, odd = cosine @ (a * c + b * d), sine @ (b * c - a * d)  # (C + 1,)
        return offset_matrix((even + odd)[:-1], (even - odd)[1:].flip(0))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        allowed: Tensor | None,
        rotary: tuple[Tensor, Tensor] | None,
        map_length: int | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query, key: (B, K, C, Z).
            value: (B, K, C, E).
            allowed: Keys that a query may see, bool, of shape (B or 1, K, C or 1, C); None is all of them.
            rotary: Cosines and sines (C + 1, Z), None for learned offsets.
            map_length: Number of positions L for which to return the weights too; None returns none.

        Returns:
            (B, K, C, E), and the weights (B, 1, L, L), zero outside of the chunks, or None.
        """
        size = query.shape[2]
        if self.is_softmax:
            query = query * query.shape[-1] ** -0.5
        scores = torch.matmul(query, key.transpose(2, 3))  # (B, K, C, C)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        bias = self.position_bias(size, rotary).to(scores.dtype)
        if self.is_softmax:
            scores = scores + bias
            if allowed is not None:
                # Not -inf: a pad may see no key at all, and has to stay finite.
                scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1)
        elif allowed is None:
            weights = laplace(scores / size + bias)
        else:
            # The number of keys that count: neither pads nor, in a causal model, what comes after.
            count = allowed.sum(-1, keepdim=True).clamp(min=1)
            weights = laplace(scores / count + bias).masked_fill(~allowed, 0.0)
        weights = F.dropout(weights.to(value.dtype), self.dropout, self.training)
        mixed = torch.matmul(weights, value)
        if map_length is None:
            return mixed, None
        # Chunks on the diagonal of (K C, K C).
        square = torch.diag_embed(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 4, 2)  # (B, K, C, K, C)
        return mixed, square.flatten(3, 4).flatten(1, 2)[:, None, :map_length, :map_length]


class MegaMixer(Mixer):
    """x + u * (h - x): a gate u chooses between the stream x and the candidate h that attention has made.

    Everything but the values comes of the moving averages of the normed input: the gate, the shared queries and keys,
    the reset gate on what was attended to, and a part of the candidate.
    """

    ssm_parameters = ("ema_delta", "ema_alpha", "ema_beta", "ema_gamma")
    has_feed_forward = True
    is_gated_residual = True
    no_step_reason = "its attention reads earlier keys and values, which it does not keep"

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        hidden, keys, values = config.hidden_size, config.query_key_size, config.value_size
        self.sizes = (hidden, keys, values)
        self.chunk_size = config.chunk_size
        self.truncation = config.ema_truncation
        directions = 2 if config.bidirectional else 1
        for name in self.ssm_parameters:
            setattr(self, name, nn.Parameter(torch.empty(directions, hidden, config.d_state)))
        self.ema_skip = nn.Parameter(torch.empty(hidden))
        self.query_key_scale = nn.Parameter(torch.empty(2, keys))
        self.query_key_shift = nn.Parameter(torch.empty(2, keys))
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)
        self.value_linear = nn.Linear(hidden, values)
        self.average_linear = nn.Linear(hidden, 2 * hidden + keys + values)
        self.mixed_linear = nn.Linear(values, hidden)
        self.attention = GatedAttention(config)

    def init_weights(self) -> None:
        init.normal_(self.ema_delta, std=0.2)
        init.normal_(self.ema_alpha, std=0.2)
        # Signs in turns, so that the averages of a feature differ from the start.
        signs = torch.ones(self.ema_beta.shape[-1])
        signs[1::2] = -1.0
        init.copy_(self.ema_beta, signs + 0.02 * torch.randn(self.ema_beta.shape))
        init.normal_(self.ema_gamma)
        init.normal_(self.ema_skip)
        init.normal_(self.query_key_scale, std=0.02)
        init.zeros_(self.query_key_shift)

    @staticmethod
    def prepare_inputs(
        config: PreTrainedConfig,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        length, device = hidden_states.shape[1], hidden_states.device
        learned = "offsets are learned for max_position_embeddings"
        remedy = 'a larger value, with chunk_size, or with position_bias="rotary"'
        check_length(length, attention_mask, config.max_position_embeddings, learned, remedy)
        num, size = chunk_layout(length, config.chunk_size)
        allowed = attention_mask
        is_filled_up = config.chunk_size is not None and (torch.compiler.is_compiling() or num * size != length)
        if allowed is None and is_filled_up:
            allowed = torch.ones(1, length, dtype=torch.bool, device=device)
        if allowed is not None:
            allowed = to_chunks(allowed, config.chunk_size)[:, :, None]  # (B or 1, K, 1, C)
        if not config.bidirectional:
            causal = torch.ones(size, size, dtype=torch.bool, device=device).tril()
            allowed = causal if allowed is None else allowed & causal
        wanted = kwargs.get("output_attentions", config.output_attentions)
        rotary = None
        if config.position_bias == "rotary":
            rotary = rotary_table(size + 1, config.query_key_size, 10000.0, device)
        return {
            "allowed": allowed,
            "rotary": rotary,
            "map_length": length if wanted else None,
        }

    def moving_average(self, x: Tensor) -> Tensor:
        """The averages of both directions, which both count the position itself, plus its own share; (B, L, H)."""
        length = x.shape[1]
        # The lag 0 of the second direction goes to the skip, and what is left of it is strictly anti-causal.
        kernels = ema_kernel(self.ema_delta, self.ema_alpha, self.ema_beta, self.ema_gamma, length + 1, self.truncation)
        if kernels.shape[0] == 1:
            return long_conv(x, kernels[0], skip=self.ema_skip)
        return long_conv(x, kernels[0], kernels[1, :, 1:], skip=self.ema_skip + kernels[1, :, 0])

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        residual: Tensor | None = None,
        allowed: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        map_length: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix positions, (B, L, H) in and out.

        Args:
            hidden_states: The normed stream; see `Mixer`.
            attention_mask: See `Mixer`.
            residual: The stream itself.
            allowed, rotary, map_length: See `GatedAttention`; made by `prepare_inputs`.
        """
        x = hidden_states
        if attention_mask is not None:
            x = x.masked_fill(~attention_mask[..., None], 0.0)
        hidden, keys, values = self.sizes
        average = self.dropout(F.silu(self.moving_average(x)))
        gate, shared, candidate = self.average_linear(average).split([hidden, keys + values, hidden], dim=-1)
        shared, reset = F.silu(shared).split([keys, values], dim=-1)
        query, key = (shared[..., None, :] * self.query_key_scale + self.query_key_shift).unbind(-2)
        value = F.silu(self.value_linear(x))
        query, key, value = (to_chunks(part, self.chunk_size) for part in (query, key, value))
        mixed, _ = self.attention(query, key, value, allowed, rotary, map_length)
        mixed = from_chunks(mixed, x.shape[1])  # (B, L, E)
        candidate = F.silu(candidate + self.mixed_linear(mixed * reset))
        return residual + gate.sigmoid() * (self.dropout(candidate) - residual)


class MegaPreTrainedModel(LongSequencePreTrainedModel):
    config: MegaConfig
    mixer_class = MegaMixer
    _can_record_outputs = {
        "hidden_states": ResidualBlock,
        "attentions": OutputRecorder(GatedAttention, index=1),
    }


class MegaModel(MegaPreTrainedModel, LongSequenceModel):
    pass


MegaPreTrainedModel.model_class = MegaModel


class MegaForMaskedLM(MegaPreTrainedModel, LongSequenceForMaskedLM):
    pass


class MegaForCausalLM(MegaPreTrainedModel, LongSequenceForCausalLM):
    pass


class MegaForReconstruction(MegaPreTrainedModel, LongSequenceForReconstruction):
    pass


class MegaForSequenceClassification(MegaPreTrainedModel, LongSequenceForSequenceClassification):
    pass


MegaModel.register_for_auto_class("AutoModel")
MegaForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
MegaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
MegaForReconstruction.register_for_auto_class("AutoModelForPreTraining")
MegaForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = [
    "GatedAttention",
    "MegaForCausalLM",
    "MegaForMaskedLM",
    "MegaForReconstruction",
    "MegaForSequenceClassification",
    "MegaMixer",
    "MegaModel",
    "MegaPreTrainedModel",
]
