"""Configuration of LRU, the linear recurrent unit."""

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class LRUConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 128): Complex states of a layer, shared by all features; none has a conjugate.
        r_min (`float`, defaults to 0.0): Smallest starting modulus of an eigenvalue.
        r_max (`float`, defaults to 1.0): Largest starting modulus. Long inputs want a narrow ring close to one.
        max_phase (`float`, defaults to 2 pi): Largest starting phase; long inputs want a small one, such as pi / 10.
    """

    model_type = "neverscratch_lru"

    d_state: int = 128
    r_min: float | int = 0.0
    r_max: float | int = 1.0
    max_phase: float | int = 6.283185307179586

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        if self.d_state < 1:
            raise ValueError(f"d_state={self.d_state} is not a number of states; use at least 1.")
        if not 0 <= self.r_min < self.r_max <= 1:
            raise ValueError(
                f"r_min={self.r_min} and r_max={self.r_max} are not a ring inside the unit circle; "
                "use 0 <= r_min < r_max <= 1, such as 0.9 and 0.999."
            )
        if not 0 < self.max_phase <= 6.283185307179586:
            raise ValueError(
                f"max_phase={self.max_phase} is not an angle; use 0 < max_phase <= 2 pi, such as 6.28 or 0.314."
            )


LRUConfig.register_for_auto_class()

__all__ = ["LRUConfig"]
