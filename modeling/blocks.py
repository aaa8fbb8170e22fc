"""Parts of the shared container: input embedding, norms, dropout, feed-forward, the residual block and pooling.

Legend: B batch, L length, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer


class SequenceEmbeddings(nn.Module):
    """Token ids (B, L) or real values (B, L, channels) to hidden states (B, L, H).

    A masked value is zeroed and marked by a learned vector, which is the same as an extra 0/1 input channel except
    that the input layer keeps its shape when pretraining ends.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        if config.vocab_size is not None:
            self.input: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            self.input = nn.Linear(config.num_channels, config.hidden_size)
            self.mask_vector = nn.Parameter(torch.empty(config.hidden_size))

    def init_weights(self) -> None:
        if hasattr(self, "mask_vector"):
            # As the weights of a further input channel.
            bound = self.input.in_features**-0.5
            init.uniform_(self.mask_vector, -bound, bound)

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        return self.input(input_ids)

    def embed_values(self, input_values: Tensor, hidden: Tensor | None, bool_masked_pos: Tensor | None) -> Tensor:
        """Project values.

        Args:
            input_values: (B, L, channels).
            hidden: Positions whose value must not be read, padded or masked, (B, L) bool, or None.
            bool_masked_pos: Masked positions, (B, L) bool, or None.
        """
        weight = self.input.weight
        input_values = input_values.to(weight.dtype)
        if hidden is not None:
            # masked_fill rather than a product: a NaN in a padded position has to vanish.
            input_values = input_values.masked_fill(hidden[..., None], 0.0)
        # Always part of the graph, so that no parameter is unused in any process.
        marks = weight.new_zeros(1) if bool_masked_pos is None else bool_masked_pos[..., None].to(weight.dtype)
        return self.input(input_values) + marks * self.mask_vector


class MaskedBatchNorm(nn.Module):
    """Batch norm over (B, L) whose training statistics leave padding out.

    `updated` is a set that lives as long as one forward pass of the model: a layer that is in it has already moved its
    running statistics, so recomputing the layer under gradient checkpointing does not move them again.
    """

    def __init__(self, hidden_size: int, eps: float, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.register_buffer("running_mean", torch.empty(hidden_size))
        self.register_buffer("running_var", torch.empty(hidden_size))

    def init_weights(self) -> None:
        init.ones_(self.weight)
        init.zeros_(self.bias)
        init.zeros_(self.running_mean)
        init.ones_(self.running_var)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, updated: set[int] | None) -> Tensor:
        x = hidden_states.float()
        if self.training:
            kept = x.flatten(0, 1) if attention_mask is None else x[attention_mask]  # (positions, H)
            variance, mean = torch.var_mean(kept, dim=0, correction=0)
            if updated is None or id(self) not in updated:
                count = kept.shape[0]
                unbiased = variance.detach() * (count / max(count - 1, 1))
                self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
                if updated is not None:
                    updated.add(id(self))
        else:
            mean, variance = self.running_mean.float(), self.running_var.float()
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return ((x - mean) * scale + self.bias).to(hidden_states.dtype)


class Norm(nn.Module):
    """The norm chosen by `config.norm_type`, with one call for all three."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.is_batch = config.norm_type == "batch"
        self.norm: nn.Module
        if config.norm_type == "layer":
            self.norm = nn.LayerNorm(size, eps=eps)
        elif config.norm_type == "rms":
            self.norm = nn.RMSNorm(size, eps=eps)
        else:
            self.norm = MaskedBatchNorm(size, eps=eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None, updated: set[int] | None) -> Tensor:
        if self.is_batch:
            return self.norm(hidden_states, attention_mask, updated)
        return self.norm(hidden_states)


class SequenceDropout(nn.Module):
    """Dropout on (B, L, H); if `tied`, a channel is dropped at all positions of a sequence or at none."""

    def __init__(self, p: float, tied: bool = False) -> None:
        super().__init__()
        self.p = p
        self.tied = tied

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return hidden_states
        if self.tied:
            batch, _, hidden = hidden_states.shape
            return hidden_states * F.dropout(hidden_states.new_ones(batch, 1, hidden), self.p)
        return F.dropout(hidden_states, self.p)


class FeedForward(nn.Module):
    """Linear, GELU, dropout, Linear, at each position."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.down(self.dropout(F.gelu(self.up(hidden_states))))


class ResidualBlock(GradientCheckpointingLayer):
    """A mixer, and a feed-forward where the mixer's class has `has_feed_forward = True`, each with norm and residual.

    The mixer is `mixer_class(config, layer_idx)` with `forward(hidden_states, attention_mask, **kwargs)`:
    (B, L, H) in and out; `attention_mask` is bool (B, L), True = keep, pads on the right, or None.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int, mixer_class: type[nn.Module]) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.mixer_norm = Norm(config)
        self.mixer = mixer_class(config, layer_idx)
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)
        self.has_feed_forward = mixer_class.has_feed_forward
        if self.has_feed_forward:
            self.feed_forward_norm = Norm(config)
            self.feed_forward = FeedForward(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        norms_updated: set[int] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        norm_args = (attention_mask, norms_updated)
        if self.pre_norm:
            mixed = self.mixer(self.mixer_norm(hidden_states, *norm_args), attention_mask, **kwargs)
            hidden_states = hidden_states + self.dropout(mixed)
            if self.has_feed_forward:
                fed = self.feed_forward(self.feed_forward_norm(hidden_states, *norm_args))
                hidden_states = hidden_states + self.dropout(fed)
        else:
            mixed = self.mixer(hidden_states, attention_mask, **kwargs)
            hidden_states = self.mixer_norm(hidden_states + self.dropout(mixed), *norm_args)
            if self.has_feed_forward:
                fed = self.feed_forward(hidden_states)
                hidden_states = self.feed_forward_norm(hidden_states + self.dropout(fed), *norm_args)
        return hidden_states


class SequencePooling(nn.Module):
    """One vector (B, H) from the kept positions of (B, L, H)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.kind = config.pooling
        if self.kind == "attention":
            self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        if self.kind == "mean":
            if mask is None:
                return hidden_states.mean(1)
            total = (hidden_states * mask[..., None]).sum(1)
            return total / mask.sum(1, keepdim=True).to(total.dtype)
        if self.kind == "max":
            if mask is not None:
                hidden_states = hidden_states.masked_fill(~mask[..., None], torch.finfo(hidden_states.dtype).min)
            return hidden_states.amax(1)
        if self.kind == "attention":
            scores = self.score(hidden_states).float()  # (B, L, 1)
            if mask is not None:
                scores = scores.masked_fill(~mask[..., None], torch.finfo(torch.float32).min)
            return (scores.softmax(1).to(hidden_states.dtype) * hidden_states).sum(1)
        if mask is None:
            return hidden_states[:, 0 if self.kind == "first" else -1]
        index = mask.long().argmax(1)
        if self.kind == "last":
            index = index + mask.sum(1) - 1
        return hidden_states[torch.arange(len(index), device=index.device), index]
