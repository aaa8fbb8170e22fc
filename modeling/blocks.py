"""Parts of the shared container: input embedding, norms, dropout, what a mixer is, the residual block and pooling.

Legend: B batch, L length, H hidden, T kept tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .ops_feed_forward import gelu_feed_forward


def check_length(
    length: int, attention_mask: Tensor | None, limit: int | None, what_is_limited: str, remedy: str
) -> None:
    """Raise if the longest sequence, padding not counted, has more positions than `limit`; None is no limit."""
    if limit is None or length <= limit:
        return
    if attention_mask is not None:
        length = int(attention_mask.sum(-1).max())
    if length > limit:
        raise ValueError(
            f"A sequence has {length} positions, but {what_is_limited}={limit}; shorten the sequences, or build the "
            f"model with {remedy}."
        )


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

    # They move by a small part of themselves, which half precision rounds away.
    float32_tensors = ("running_mean", "running_var")

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
        x = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        if not self.training:
            mean, variance = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
            return self._normalize(x, mean, variance).to(hidden_states.dtype)
        moves = updated is None or id(self) not in updated
        if updated is not None:
            updated.add(id(self))
        can_fuse = attention_mask is None and self.running_mean.dtype == self.weight.dtype == x.dtype
        if can_fuse and x.shape[0] * x.shape[1] > 1:
            return self._fused(x, moves).to(hidden_states.dtype)
        kept = x.flatten(0, 1) if attention_mask is None else x[attention_mask]  # (positions, H)
        variance, mean = torch.var_mean(kept, dim=0, correction=0)
        if moves:
            count = kept.shape[0]
            unbiased = variance.detach() * (count / max(count - 1, 1))
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return self._normalize(x, mean, variance).to(hidden_states.dtype)

    def _fused(self, x: Tensor, moves: bool) -> Tensor:
        """PyTorch's own operation, five times faster in the layout that `x` has; it knows no padding."""
        moved = (self.running_mean, self.running_var)
        if not moves:  # checkpointing wants the same number of tensors saved
            moved = (self.running_mean.clone(), self.running_var.clone())
        batch, length, hidden = x.shape
        rows = x.flatten(0, 1) if x.stride(2) == 1 else x.permute(2, 0, 1).reshape(1, hidden, batch * length)
        y = F.batch_norm(rows, *moved, self.weight, self.bias, True, self.momentum, self.eps)
        return y.view_as(x) if y.dim() == 2 else y.view(hidden, batch, length).permute(1, 2, 0)

    def _normalize(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (x - mean) * scale + self.bias


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
    """Linear, activation, dropout, Linear, at each position."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        # A family whose paper has another activation has a field for it.
        self.activation = F.silu if getattr(config, "feed_forward_activation", "gelu") == "silu" else F.gelu
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.dropout = SequenceDropout(config.hidden_dropout_prob, config.tie_dropout)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        up, down = self.up, self.down
        # An adapter or a quantiser puts a layer of its own in place of a linear one.
        is_plain = type(up) is nn.Linear and type(down) is nn.Linear and self.activation is F.gelu
        if is_plain and not (self.training and self.dropout.p > 0):
            return gelu_feed_forward(hidden_states, up.weight, up.bias, down.weight, down.bias)
        return down(self.dropout(self.activation(up(hidden_states))))


class Packing:
    """The kept tokens of a batch padded on the right, one sequence after another: blocks need not compute the pads."""

    def __init__(self, attention_mask: Tensor) -> None:
        self.attention_mask = attention_mask
        self.lengths: list[int] = attention_mask.sum(1).tolist()
        self.index = attention_mask.flatten().nonzero().squeeze(1)  # (T,)
        length = attention_mask.shape[1]
        self.row = self.index // length
        self.position = self.index % length

    def pack(self, x: Tensor) -> Tensor:
        """(B, L, ...) to (1, T, ...)."""
        return x.flatten(0, 1).index_select(0, self.index)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, T, ...) to (B, L, ...), zero at pads."""
        batch, length = self.attention_mask.shape
        padded = x.new_zeros(batch * length, *x.shape[2:]).index_copy(0, self.index, x[0])
        return padded.unflatten(0, (batch, length))


def autocast_disabled(device_type: str) -> AbstractContextManager[Any]:
    """Where a state space model computes in its own precision; nothing, as it costs a step, where autocast is off."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def get_state(cache: Cache, layer_idx: int) -> Tensor | None:
    """The recurrent state a layer left in the cache, (B, ...), or None before its first step."""
    state = cache.layers[layer_idx].recurrent_states[0]
    # The next state is written over it, and a backward pass may still need this one.
    return state.clone() if state is not None and torch.is_grad_enabled() else state


def set_state(cache: Cache, layer_idx: int, state: Tensor) -> None:
    """Keep a layer's state. No gradient goes through it: backpropagation is truncated where a cache is handed on."""
    layer = cache.layers[layer_idx]
    layer.update_recurrent_state(state.detach() if state.requires_grad else state)
    layer.has_previous_state[0] = True


def step_constants(cache: Cache, layer_idx: int, parameters: Sequence[Tensor], build: Callable[[], Any]) -> Any:
    """What a step needs of the parameters, such as discretised matrices: built once for a cache.

    Built anew if a parameter has changed since, and at each call where a gradient is wanted.
    """
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return build()
    layer = cache.layers[layer_idx]
    key = [(parameter.data_ptr(), parameter._version) for parameter in parameters]
    if getattr(layer, "step_constants_key", None) != key:
        with torch.no_grad():
            layer.step_constants = build()
        layer.step_constants_key = key
    return layer.step_constants


class Mixer(nn.Module):
    """What mixes positions inside a block; each family has one, `Mixer(config, layer_idx)`.

    Class attributes:
        ssm_parameters: Leaf names of parameters that want their own learning rate and no weight decay.
        float32_tensors: Leaf names of further parameters, and of buffers, that stay in float32 as the former do where
            the rest goes to half precision: a rounded kernel is off at every lag.
        has_feed_forward: Whether the block adds a feed-forward, of `config.intermediate_size`.
        has_step: Whether it runs step by step with a finite state; set on the instance where the config decides.
        no_step_reason: Why not, as half a sentence.
        state_shape: Shape of the state of one sequence, if it runs step by step.
        supports_packing: Whether `forward` takes `packing`.
        is_gated_residual: Whether `forward` takes the stream as `residual`, and returns the new stream.
    """

    ssm_parameters: tuple[str, ...] = ()
    float32_tensors: tuple[str, ...] = ()
    has_feed_forward = False
    has_step = False
    no_step_reason = ""
    state_shape: tuple[int, ...] = ()
    supports_packing = False
    is_gated_residual = False

    @staticmethod
    def prepare_inputs(
        config: PreTrainedConfig,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments of `forward` made once for all layers of one config, such as a kernel's form of the mask."""
        return {}

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Mix positions, (B, L, H) in and out.

        Args:
            hidden_states: (B, L, H), or (1, T, H) with `packing`.
            attention_mask: (B, L) bool, True = keep, pads on the right (on the left with `cache`), or None.
            cache: Holds the state to go on from, and takes the state after the last position.
            packing: Where the tokens of a packed batch belong.
        """
        raise NotImplementedError


class ResidualBlock(GradientCheckpointingLayer):
    """A mixer, and a feed-forward where the mixer's class has one, each with norm and residual."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int, mixer_class: type[Mixer]) -> None:
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
        residual = hidden_states
        if self.pre_norm:
            hidden_states = self.mixer_norm(hidden_states, *norm_args)
        if self.mixer.is_gated_residual:
            hidden_states = self.mixer(hidden_states, attention_mask, residual=residual, **kwargs)
        else:
            hidden_states = self.mixer(hidden_states, attention_mask, **kwargs)
            # Not a call of a module that does nothing: a single step would feel it.
            hidden_states = residual + (self.dropout(hidden_states) if self.training else hidden_states)
        if not self.pre_norm:
            hidden_states = self.mixer_norm(hidden_states, *norm_args)
        if self.has_feed_forward:
            residual = hidden_states
            if self.pre_norm:
                hidden_states = self.feed_forward_norm(hidden_states, *norm_args)
            hidden_states = residual + self.dropout(self.feed_forward(hidden_states))
            if not self.pre_norm:
                hidden_states = self.feed_forward_norm(hidden_states, *norm_args)
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
            # Half precision can hold neither the sum nor the count of a long sequence.
            exact = torch.promote_types(hidden_states.dtype, torch.float32)
            total = (hidden_states * mask[..., None]).sum(1, dtype=exact)
            return (total / mask.sum(1, keepdim=True)).to(hidden_states.dtype)
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
