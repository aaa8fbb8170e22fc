"""Configuration of S4D, the diagonal state space model."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_copies, check_dt_range, check_even


@strict
class S4DConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 64): Real states per feature. Even, as half as many conjugate pairs are stored, but
            for `ssm_init="real"`.
        n_ssm (`int`, *optional*): Independent copies of (A, B); feature h uses h mod n_ssm. None is one per feature.
        ssm_init (`str`, defaults to `"lin"`): Start of A, `"lin"` (S4D-Lin), `"inv"` (S4D-Inv), `"legs"` (S4D-LegS) or
            `"real"` (S4D-Real, whose states stay real); `"random"` draws log dt, log(-Re A), Im A, B and C from a
            normal distribution.
        random_std (`float`, defaults to 0.1): Standard deviation of `ssm_init="random"`.
        b_init (`str`, defaults to `"ones"`): Start of B for `ssm_init="legs"`, `"ones"`, `"hippo"` (B of HiPPO-LegS in
            the eigenbasis) or `"hippo_half"` (half of that, the limit of S4 for smooth input).
        discretization (`str`, defaults to `"zoh"`): `"zoh"` or `"bilinear"`.
        dt_min (`float`, defaults to 1e-3): Smallest starting step; about 1 / (longest time scale in samples).
        dt_max (`float`, defaults to 1e-1): Largest starting step.
        dt_per_state (`bool`, defaults to False): Whether each stored state of a feature has a step of its own.
        train_B (`bool`, defaults to True): Whether B is trained, or stays at its start.
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_s4d"

    d_state: int = 64
    n_ssm: int | None = None
    ssm_init: Literal["lin", "inv", "legs", "real", "random"] = "lin"
    b_init: Literal["ones", "hippo", "hippo_half"] = "ones"
    random_std: float | int = 0.1
    discretization: Literal["zoh", "bilinear"] = "zoh"
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    dt_per_state: bool = False
    train_B: bool = True
    output_gate: Literal["glu", "none"] = "glu"

    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {
        "b_init": ("ssm_init", ("legs",)),
        "random_std": ("ssm_init", ("random",)),
        "dt_min": ("ssm_init", ("lin", "inv", "legs", "real")),
        "dt_max": ("ssm_init", ("lin", "inv", "legs", "real")),
    }

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        if self.ssm_init != "real":
            check_even(self)
        elif self.d_state < 1:
            raise ValueError(f"{type(self).__name__} has d_state={self.d_state}, which must be at least 1.")
        check_copies(self)
        check_dt_range(self)


S4DConfig.register_for_auto_class()
