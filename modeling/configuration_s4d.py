"""Configuration of S4D, the diagonal state space model."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_copies, check_dt_range, check_even


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
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_s4d"

    d_state: int = 64
    n_ssm: int | None = None
    ssm_init: Literal["lin", "legs"] = "lin"
    discretization: Literal["zoh", "bilinear"] = "zoh"
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    train_B: bool = True
    output_gate: Literal["glu", "none"] = "glu"

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        check_even(self)
        check_copies(self)
        check_dt_range(self)


S4DConfig.register_for_auto_class()

__all__ = ["S4DConfig"]
