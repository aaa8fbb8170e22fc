"""Configuration of S4, the diagonal plus low-rank (DPLR) state space model."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_copies, check_dt_range, check_even
from .ops_hippo import DPLR_STARTS, dplr_rank


@strict
class S4Config(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 64): Real states per feature, even: half as many conjugate pairs are stored.
        n_ssm (`int`, *optional*): Independent copies of (A, B); feature h uses h mod n_ssm. None is one per feature.
        ssm_init (`str`, defaults to `"legs"`): HiPPO start, `"legs"`, `"legt"` or `"fout"`; several joined by "+", such
            as `"legs+fout"`, between which the copies alternate; or `"random"`, where dt, A, B and C as they are stored
            (logarithms of dt and of -Re A) are normal with mean 0, so that dt and -Re A are about 1.
        random_std (`float`, defaults to 0.1): Standard deviation of `ssm_init="random"`.
        rank (`int`, *optional*): Rank of the low-rank part. None is what the start needs: 2 with LegT, else 1. Only a
            random start can be given another, since a part that starts at zero never gets a gradient.
        dt_min (`float`, defaults to 1e-3): Smallest starting step; about 1 / (longest time scale in samples).
        dt_max (`float`, defaults to 1e-1): Largest starting step.
        real_floor (`float`, defaults to 1e-4): Least starting decay -Re A; LegT and FouT have states without any.
        b_clip (`float`, *optional*, defaults to 2.0): Largest starting |B_n|; None is exactly HiPPO.
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_s4"

    d_state: int = 64
    n_ssm: int | None = None
    ssm_init: str = "legs"
    random_std: float | int = 0.1
    rank: int | None = None
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    real_floor: float | int = 1e-4
    b_clip: float | int | None = 2.0
    output_gate: Literal["glu", "none"] = "glu"

    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {"random_std": ("ssm_init", ("random",))}

    @property
    def low_rank(self) -> int:
        """The rank in use: `rank`, or what `ssm_init` needs."""
        return dplr_rank(self.ssm_init) if self.rank is None else self.rank

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        check_even(self)
        check_copies(self)
        check_dt_range(self)
        if self.real_floor <= 0:
            raise ValueError(
                f"real_floor={self.real_floor} has no logarithm; use a small positive number such as 1e-4."
            )
        if self.b_clip is not None and self.b_clip <= 0:
            raise ValueError(f"b_clip={self.b_clip} would leave no input; use a positive number such as 2.0, or None.")
        if self.ssm_init == "random":
            self._validate_random()
        else:
            self._validate_starts()

    def _validate_random(self) -> None:
        for name in ("dt_min", "dt_max", "real_floor", "b_clip"):
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise ValueError(
                    f'{name}={value} has no effect with ssm_init="random"; leave it out, or use a HiPPO start.'
                )
        if self.low_rank < 1:
            raise ValueError(f"rank={self.rank} is not a positive number; use 1 or 2, or the family s4d for no rank.")

    def _validate_starts(self) -> None:
        starts = self.ssm_init.split("+")
        unknown = [name for name in starts if name not in DPLR_STARTS]
        if unknown or len(set(starts)) < len(starts):
            raise ValueError(
                f"ssm_init={self.ssm_init!r} is not a start; use random, or one of {', '.join(DPLR_STARTS)}, "
                'or different ones joined by "+".'
            )
        copies = self.hidden_size if self.n_ssm is None else self.n_ssm
        if copies < len(starts):
            raise ValueError(
                f"ssm_init={self.ssm_init!r} needs at least {len(starts)} copies to alternate between, but there are "
                f"{copies}; raise n_ssm, or name fewer starts."
            )
        if self.low_rank != dplr_rank(self.ssm_init):
            raise ValueError(
                f"rank={self.rank}, but ssm_init={self.ssm_init!r} is of rank {dplr_rank(self.ssm_init)}; "
                'leave rank out, or use ssm_init="random".'
            )
        if self.real_floor != 1e-4 and set(starts) == {"legs"}:
            raise ValueError(
                f'real_floor={self.real_floor} has no effect with ssm_init="legs", whose decay is 1/2; leave it out.'
            )


S4Config.register_for_auto_class()

__all__ = ["S4Config"]
