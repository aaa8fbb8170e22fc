"""Configuration of SGConv, the structured global convolution."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class SGConvConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        kernel_length (`int`, defaults to 4096): Length of the kernel, and so the longest sequence. It says how many
            sub-kernels there are, and is part of the saved model.
        sub_kernel_size (`int`, defaults to 64): Taps of each sub-kernel.
        decay_min (`float`, defaults to 2.0): By how much a sub-kernel is smaller than the one before, first feature.
        decay_max (`float`, defaults to 2.0): The same for the last feature; between them it is evenly spaced.
        train_decay (`bool`, defaults to False): Whether the decay of each feature is trained from there.
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_sgconv"

    kernel_length: int = 4096
    sub_kernel_size: int = 64
    decay_min: float | int = 2.0
    decay_max: float | int = 2.0
    train_decay: bool = False
    output_gate: Literal["glu", "none"] = "glu"

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        for field in ("kernel_length", "sub_kernel_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"SGConvConfig has {field}={getattr(self, field)}, which must be at least 1.")
        if self.sub_kernel_size > self.kernel_length:
            raise ValueError(
                f"SGConvConfig has sub_kernel_size={self.sub_kernel_size}, which is more than "
                f"kernel_length={self.kernel_length}; use at most that, or raise kernel_length to the longest sequence."
            )
        if not 1 <= self.decay_min <= self.decay_max:
            raise ValueError(
                f"decay_min={self.decay_min} and decay_max={self.decay_max} are not a range of decays, by which a "
                "sub-kernel is smaller than the one before; use 1 <= decay_min <= decay_max, such as 2 and 2."
            )


SGConvConfig.register_for_auto_class()

__all__ = ["SGConvConfig"]
