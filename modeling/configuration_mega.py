"""Configuration of Mega, moving averages and gated attention."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class MegaConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        query_key_size (`int`, defaults to 64): Width of queries and keys; even with `position_bias="rotary"`.
        value_size (`int`, defaults to 256): Width of the values; twice `hidden_size` in the paper.
        intermediate_size (`int`, defaults to 256): Width inside the feed-forward; `value_size` in the paper.
        d_state (`int`, defaults to 16): Moving averages per feature and direction, each with one real state.
        ema_truncation (`int`, *optional*): How many positions the moving averages look back; None is all of them.
        attention_activation (`str`, defaults to `"softmax"`): `"softmax"`, or `"laplace"`, which weighs each key by
            itself.
        position_bias (`str`, defaults to `"rotary"`): What is added to the scores by the offset of two positions:
            `"simple"`, a number learned for each offset, or `"rotary"`, two learned vectors turned by the positions.
        max_position_embeddings (`int`, *optional*): Longest sequence of `"simple"` without `chunk_size`.
        chunk_size (`int`, *optional*): Attention stays within chunks of this many positions, and the moving averages
            alone reach over their borders; None is attention over the whole sequence.
        attention_dropout (`float`, defaults to 0.0): Dropout on the attention weights.
        feed_forward_activation (`str`, defaults to `"silu"`): `"silu"` or `"gelu"`.
    """

    model_type = "neverscratch_mega"

    query_key_size: int = 64
    value_size: int = 256
    intermediate_size: int = 256
    d_state: int = 16
    ema_truncation: int | None = None
    attention_activation: Literal["softmax", "laplace"] = "softmax"
    position_bias: Literal["simple", "rotary"] = "rotary"
    max_position_embeddings: int | None = None
    chunk_size: int | None = None
    attention_dropout: float | int = 0.0
    feed_forward_activation: Literal["silu", "gelu"] = "silu"

    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {"max_position_embeddings": ("position_bias", ("simple",))}

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        sizes = ("query_key_size", "value_size", "intermediate_size", "d_state")
        for field in (*sizes, "ema_truncation", "max_position_embeddings", "chunk_size"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"MegaConfig has {field}={value}, which must be at least 1.")
        if self.position_bias == "rotary" and self.query_key_size % 2:
            raise ValueError(
                f'position_bias="rotary" turns pairs of channels, but query_key_size={self.query_key_size} is odd; '
                'use an even number, or position_bias="simple".'
            )
        if self.position_bias == "simple":
            self.check_reach_of_offsets()

    def check_reach_of_offsets(self) -> None:
        """Raise unless exactly one field says for how many positions offsets are learned."""
        if self.chunk_size is None and self.max_position_embeddings is None:
            raise ValueError(
                'position_bias="simple" learns a number for each offset and must know how many there are: set '
                'max_position_embeddings to the longest sequence, or chunk_size, or use position_bias="rotary".'
            )
        if self.chunk_size is not None and self.max_position_embeddings is not None:
            raise ValueError(
                f"MegaConfig has max_position_embeddings={self.max_position_embeddings}, which has no effect with "
                f"chunk_size={self.chunk_size}, as no offset is larger than a chunk; leave one of them out."
            )


MegaConfig.register_for_auto_class()

__all__ = ["MegaConfig"]
