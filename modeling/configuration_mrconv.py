"""Configuration of MRConv, the reparameterised multi-resolution convolution."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class MRConvConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        kernel_length (`int`, defaults to 4096): Length that the longest branch reaches, and so the longest sequence.
        sub_kernel_size (`int`, defaults to 32): Length of the first branch; each further one is twice as long.
        kernel_kind (`str`, defaults to `"fourier"`): What a branch is made of: `"dilated"`, `sub_kernel_size` taps with
            zeros between them, or `"fourier"`, its lowest `sub_kernel_size` / 2 frequencies; then that is even.
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_mrconv"

    kernel_length: int = 4096
    sub_kernel_size: int = 32
    kernel_kind: Literal["dilated", "fourier"] = "fourier"
    output_gate: Literal["glu", "none"] = "glu"

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        for field in ("kernel_length", "sub_kernel_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"MRConvConfig has {field}={getattr(self, field)}, which must be at least 1.")
        if self.sub_kernel_size > self.kernel_length:
            raise ValueError(
                f"MRConvConfig has sub_kernel_size={self.sub_kernel_size}, which is more than "
                f"kernel_length={self.kernel_length}; use at most that, or raise kernel_length to the longest sequence."
            )
        if self.kernel_kind == "fourier" and self.sub_kernel_size % 2:
            raise ValueError(
                f'kernel_kind="fourier" has half as many frequencies as sub_kernel_size={self.sub_kernel_size}, which '
                'is odd; use an even number such as 32, or kernel_kind="dilated".'
            )


MRConvConfig.register_for_auto_class()

__all__ = ["MRConvConfig"]
