"""Configuration of S5, the state space model with one multi-input, multi-output system per layer."""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_common import LongSequenceConfig, check_dt_range


@strict
class S5Config(LongSequenceConfig):
    r"""
    Args (beside those of `LongSequenceConfig`):
        d_state (`int`, defaults to 256): Real states of a layer, shared by all features; half as many complex ones are
            stored, or all of them without `conj_sym`.
        num_hippo_blocks (`int`, defaults to 8): Equal blocks of the states, each of which starts as its own HiPPO.
        c_init (`str`, defaults to `"trunc_standard_normal"`): Start of C: `"trunc_standard_normal"` (standard deviation
            1 / sqrt(d_state)) and `"lecun_normal"` (1 / sqrt(d_state hidden_size)) in the coordinates of HiPPO, or
            `"complex_normal"` (variance 1) in those of the states.
        discretization (`str`, defaults to `"zoh"`): `"zoh"` or `"bilinear"`.
        dt_min (`float`, defaults to 1e-3): Smallest starting step; about 1 / (longest time scale in samples).
        dt_max (`float`, defaults to 1e-1): Largest starting step; each state has its own.
        clip_eigs (`bool`, defaults to False): Hold the real parts of A at or below -1e-4; otherwise training may move
            one above zero, where the state grows.
        conj_sym (`bool`, defaults to True): Keep one state of each conjugate pair and count it twice.
        activation (`str`, defaults to `"half_glu1"`): What follows the system, with g = gelu(y): `"half_glu1"` is
            g sigmoid(W g), `"half_glu2"` y sigmoid(W g), `"full_glu"` (V g) sigmoid(W g), `"gelu"` g.
    """

    model_type = "neverscratch_s5"

    d_state: int = 256
    num_hippo_blocks: int = 8
    c_init: Literal["trunc_standard_normal", "lecun_normal", "complex_normal"] = "trunc_standard_normal"
    discretization: Literal["zoh", "bilinear"] = "zoh"
    dt_min: float | int = 1e-3
    dt_max: float | int = 1e-1
    clip_eigs: bool = False
    conj_sym: bool = True
    activation: Literal["half_glu1", "half_glu2", "full_glu", "gelu"] = "half_glu1"

    def validate_architecture(self) -> None:
        """Check the fields against one another; runs at construction and when saving."""
        super().validate_architecture()
        d_state, blocks = self.d_state, self.num_hippo_blocks
        if d_state < 1 or blocks < 1 or d_state % blocks:
            raise ValueError(
                f"num_hippo_blocks={blocks} does not divide d_state={d_state}, but all blocks have the same size; "
                "use a divisor, or 1 for a single block."
            )
        if self.conj_sym and d_state // blocks % 2:
            raise ValueError(
                f"d_state={d_state} in num_hippo_blocks={blocks} makes blocks of {d_state // blocks} states, but "
                "states come in conjugate pairs; use blocks of an even size, or conj_sym=False to store all states."
            )
        check_dt_range(self)


S5Config.register_for_auto_class()

__all__ = ["S5Config"]
