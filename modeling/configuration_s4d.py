"""Configuration of S4D, the diagonal state space model."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig


@strict
class S4DConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 64): Real states per feature, even: half as many conjugate pairs are stored.
        n_ssm (`int`, *optional*): Independent copies of (A, B); feature h uses h mod n_ssm. None is one per feature.
        ssm_init (`str`, defaults to `"lin"`): Start of A, `"lin"` (S4D-Lin) or `"legs"` (S4D-LegS).
        discretization (`str`, defaults to `"zoh"`): `"zoh"` or `"bilinear"`.
        dt_min (`float`, defaults to 1e-3): Smallest starting step; about 1 / (longest time scale in samples).
        dt_max (`float`, defaults to 1e-1): Largest starting step.
        train_B (`bool`, defaults to True): Whether B is trained, or stays at one.
    """

    model_type = "neverscratch_s4d"

    d_state: int = 64
    n_ssm: int | None = None
    ssm_init: Literal["lin", "legs"] = "lin"
    discretization: Literal["zoh", "bilinear"] = "zoh"
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    train_B: bool = True

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        if self.d_state < 2 or self.d_state % 2:
            raise ValueError(
                f"d_state={self.d_state} is not a positive even number, but states come in conjugate pairs; "
                "use an even number such as 64."
            )
        if self.n_ssm is not None and (self.n_ssm < 1 or self.hidden_size % self.n_ssm):
            raise ValueError(
                f"n_ssm={self.n_ssm} does not divide hidden_size={self.hidden_size}, but every copy serves the same "
                "number of features; use a divisor, or None for one copy per feature."
            )
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                f"dt_min={self.dt_min} and dt_max={self.dt_max} are not a range of positive steps; "
                "use 0 < dt_min <= dt_max, such as 0.001 and 0.1."
            )


S4DConfig.register_for_auto_class()

__all__ = ["S4DConfig"]
