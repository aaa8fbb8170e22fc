"""Configuration of DSS, the diagonal state space model with normalised kernels."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_dt_range


@strict
class DSSConfig(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 64): Complex states per feature; none stands for its conjugate.
        version (`str`, defaults to `"softmax"`): `"softmax"` (powers normalised by a softmax over `kernel_length` lags,
            eigenvalues unconstrained), `"exp"` (real parts of the eigenvalues negative) or `"exp_no_scale"` (the same
            without the factor of the discretisation).
        kernel_length (`int`, *optional*): Lags of the softmax: the longest input the model takes. Needed by
            `version="softmax"`.
        ssm_init (`str`, defaults to `"hippo"`): Start of the eigenvalues, `"hippo"` (those of HiPPO-LegS' normal part,
            of size 2 d_state, with positive imaginary part) or `"lin"` (-1/2 + i pi n).
        dt_min (`float`, defaults to 1e-3): Smallest starting step.
        dt_max (`float`, defaults to 1e-1): Largest starting step.
        separate_dt (`bool`, defaults to False): Whether real and imaginary parts have steps of their own.
        output_gate (`str`, defaults to `"none"`): Output projection, `"glu"` (twice as wide, gated) or `"none"`.
    """

    model_type = "neverscratch_dss"

    d_state: int = 64
    version: Literal["softmax", "exp", "exp_no_scale"] = "softmax"
    kernel_length: int | None = None
    ssm_init: Literal["hippo", "lin"] = "hippo"
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    separate_dt: bool = False
    output_gate: Literal["glu", "none"] = "none"

    ACTIVE_IF = LongSequenceConfig.ACTIVE_IF | {"kernel_length": ("version", ("softmax",))}

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        name = type(self).__name__
        if self.d_state < 1:
            raise ValueError(f"{name} has d_state={self.d_state}, which must be at least 1.")
        if self.version == "softmax" and (self.kernel_length is None or self.kernel_length < 1):
            raise ValueError(
                f'{name} has version="softmax" and kernel_length={self.kernel_length}, but the softmax runs over that '
                'many lags; set kernel_length to the length of the longest input, or use version="exp".'
            )
        check_dt_range(self)


DSSConfig.register_for_auto_class()
