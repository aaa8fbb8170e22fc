"""Configuration of DLR, the diagonal linear recurrence."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_dt_range


@strict
class DLRConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 1024): Complex states, whose eigenvalues all features of a layer share.
        ssm_init (`str`, defaults to `"structured"`): Start of the eigenvalues -a^2 + i b: `"structured"` (decays a^2
            half a step drawn log-uniform, frequencies b even over the circle), `"random_frequency"` (the same
            decays, b from N(0, 1)) or `"random"` (a, b and the output matrix from a normal distribution).
        random_std (`float`, defaults to 0.1): Standard deviation of `ssm_init="random"`.
        dt_min (`float`, defaults to 1e-4): Smallest step, that is twice the smallest decay.
        dt_max (`float`, defaults to 1e-1): Largest step.
        output_gate (`str`, defaults to `"glu"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_dlr"

    d_state: int = 1024
    ssm_init: Literal["structured", "random_frequency", "random"] = "structured"
    random_std: float | int = 0.1
    dt_min: float | int = 1e-4
    dt_max: float | int = 1e-1
    output_gate: Literal["glu", "none"] = "glu"

    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {
        "random_std": ("ssm_init", ("random",)),
        "dt_min": ("ssm_init", ("structured", "random_frequency")),
        "dt_max": ("ssm_init", ("structured", "random_frequency")),
    }

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        if self.d_state < 1:
            raise ValueError(f"{type(self).__name__} has d_state={self.d_state}, which must be at least 1.")
        check_dt_range(self)


DLRConfig.register_for_auto_class()
