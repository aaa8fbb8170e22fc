"""Configuration of the Transformer encoder or decoder."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class TransformerConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        num_attention_heads (`int`, defaults to 4): Heads; divides `hidden_size`.
        intermediate_size (`int`, defaults to 512): Width inside the feed-forward.
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"none"`, `"sinusoidal"` or `"learned"` (added to
            the input), `"rope"` (turned into queries and keys), `"alibi"` or `"fire"` (added to the scores).
        max_position_embeddings (`int`, defaults to 4096): Longest sequence of the sinusoidal and learned tables.
        rope_theta (`float`, defaults to 10000.0): Base of the RoPE wavelengths.
        rope_layout (`str`, defaults to `"half"`): Channels that RoPE turns together: `"half"` is i and i + D / 2,
            `"interleaved"` is 2 i and 2 i + 1. It matters only for weights that come from elsewhere.
        fire_threshold (`float`, defaults to 512.0): Start of FIRE's learned threshold, up to which distances are not
            taken relative to the length; half the length of the training sequences is a good one.
        fire_width (`int`, defaults to 32): Width of FIRE's network.
        fire_signed (`bool`, defaults to False): Tell FIRE's network also whether a key is before or after the query.
        attention_window (`int`, *optional*): Size w of the blocks of block-local attention. None is full attention.
        attention_neighbors (`int`, defaults to 1): Blocks on each side, in a causal model before it only, that a block
            of `attention_window` positions sees beside itself.
        attention_dropout (`float`, defaults to 0.0): Dropout on the attention weights.
    """

    model_type = "neverscratch_transformer"
    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {
        "max_position_embeddings": ("position_embedding_type", ("sinusoidal", "learned")),
        "rope_theta": ("position_embedding_type", ("rope",)),
        "rope_layout": ("position_embedding_type", ("rope",)),
        "fire_threshold": ("position_embedding_type", ("fire",)),
        "fire_width": ("position_embedding_type", ("fire",)),
        "fire_signed": ("position_embedding_type", ("fire",)),
    }

    RANGES = LongSequenceConfig.RANGES | {"rope_theta": "(0, inf)", "fire_threshold": "(0, inf)"}

    num_attention_heads: int = 4
    intermediate_size: int = 512
    position_embedding_type: Literal["none", "sinusoidal", "learned", "rope", "alibi", "fire"] = "sinusoidal"
    max_position_embeddings: int = 4096
    rope_theta: float | int = 10000.0
    rope_layout: Literal["half", "interleaved"] = "half"
    fire_threshold: float | int = 512.0
    fire_width: int = 32
    fire_signed: bool = False
    attention_window: int | None = None
    attention_neighbors: int = 1
    attention_dropout: float | int = 0.0

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        sizes = ("num_attention_heads", "intermediate_size", "max_position_embeddings", "fire_width")
        for field in (*sizes, "attention_window"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"TransformerConfig has {field}={value}, which must be at least 1.")
        if self.attention_neighbors < 0:
            raise ValueError(
                f"TransformerConfig has attention_neighbors={self.attention_neighbors}, which must be at least 0."
            )
        if self.attention_window is None and self.attention_neighbors != 1:
            raise ValueError(
                f"TransformerConfig has attention_neighbors={self.attention_neighbors}, which has no effect without "
                "attention_window; leave it out, or set attention_window to the size of a block."
            )
        if self.fire_signed and not self.bidirectional:
            raise ValueError(
                "TransformerConfig has fire_signed=True, which has no effect with bidirectional=False, where every key "
                "is before its query; leave it out."
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} cannot be split among num_attention_heads={self.num_attention_heads}; "
                "choose a number of heads that divides it."
            )
        head_size = self.hidden_size // self.num_attention_heads
        if self.position_embedding_type == "rope" and head_size % 2:
            raise ValueError(
                f'position_embedding_type="rope" turns pairs of channels, but the head size {self.hidden_size} / '
                f"{self.num_attention_heads} = {head_size} is odd; change hidden_size or num_attention_heads."
            )


TransformerConfig.register_for_auto_class()

__all__ = ["TransformerConfig"]
