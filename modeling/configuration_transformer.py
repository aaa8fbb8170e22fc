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
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"none"`, `"sinusoidal"`, `"learned"` or `"rope"`.
        max_position_embeddings (`int`, defaults to 4096): Longest sequence of the sinusoidal and learned tables.
        rope_theta (`float`, defaults to 10000.0): Base of the RoPE wavelengths.
        attention_dropout (`float`, defaults to 0.0): Dropout on the attention weights.
    """

    model_type = "neverscratch_transformer"

    num_attention_heads: int = 4
    intermediate_size: int = 512
    position_embedding_type: Literal["none", "sinusoidal", "learned", "rope"] = "sinusoidal"
    max_position_embeddings: int = 4096
    rope_theta: float | int = 10000.0
    attention_dropout: float | int = 0.0

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        for field in ("num_attention_heads", "intermediate_size", "max_position_embeddings"):
            if getattr(self, field) < 1:
                raise ValueError(f"TransformerConfig has {field}={getattr(self, field)}, which must be at least 1.")
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
