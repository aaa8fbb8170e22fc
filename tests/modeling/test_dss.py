"""DSS: kernels against the softmax of the definition, growing eigenvalues, and what is refused."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from neverscratch.modeling.configuration_dss import DSSConfig
from neverscratch.modeling.modeling_dss import DSSMixer, DSSModel
from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_dss import softmax_kernel, softmax_kernel_reference, softmax_system
from neverscratch.modeling.ops_hippo import s4d_legs


def make_config(**changes) -> DSSConfig:
    fields = {"vocab_size": 11, "hidden_size": 6, "d_state": 5, "num_hidden_layers": 2, "kernel_length": 64}
    if changes.get("version", "softmax") != "softmax":
        del fields["kernel_length"]
    return DSSConfig(**fields | changes)


def make_mixer(**changes) -> DSSMixer:
    torch.manual_seed(0)
    mixer = DSSMixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    return mixer


def softmax_case(signs: str, hidden: int = 4, states: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """A, dt A and W in complex128, with eigenvalues left, right or on both sides of the imaginary axis."""
    generator = torch.Generator().manual_seed(0)
    real = torch.logspace(-4, 0, states, dtype=torch.float64)
    if signs == "growing":
        pass
    elif signs == "decaying":
        real = -real
    elif signs == "undamped":
        real = 0 * real
    else:
        real[::2] *= -1
    A = torch.complex(real, 1 + 9 * torch.rand(states, generator=generator, dtype=torch.float64))
    dt = torch.logspace(-4, -1, hidden, dtype=torch.float64)
    W = torch.randn(2, hidden, states, 2, generator=generator, dtype=torch.float64)
    return A, dt[:, None] * A, torch.view_as_complex(W)


def worst(actual: Tensor, expected: Tensor, dims: tuple[int, ...] = (-1,)) -> float:
    return ((actual - expected).abs().amax(dims) / expected.abs().amax(dims)).max().item()


@pytest.mark.parametrize("signs", ["decaying", "growing", "both", "undamped"])
@pytest.mark.parametrize(("length", "kernel_length"), [(1, 1), (2, 3), (63, 63), (63, 100), (1000, 1025), (2000, 2000)])
def test_kernel_is_the_softmax_of_the_definition(signs: str, length: int, kernel_length: int) -> None:
    arguments = [x.requires_grad_() for x in softmax_case(signs)]
    reference = softmax_kernel_reference(*arguments, length, kernel_length)
    weights = torch.randn(reference.shape, generator=torch.Generator().manual_seed(1)).double()
    expected_gradients = torch.autograd.grad(reference, arguments, weights)
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 5e-6)):
        kernel = softmax_kernel(*arguments, length, kernel_length, dtype)
        assert kernel.dtype == dtype
        assert worst(kernel.double(), reference) < bound
        gradients = torch.autograd.grad(kernel, arguments, weights.to(dtype))
        for actual, expected in zip(gradients, expected_gradients, strict=True):
            # The softmax over one lag is constant: its gradient is zero but for rounding.
            assert (actual - expected).abs().max() < bound * expected.abs().max() + 1e-11


def test_rows_sum_to_the_softmax() -> None:
    # With W = A each row is a softmax, whose sum over all lags is one.
    A, x, _ = softmax_case("both")
    kernel = softmax_kernel(A, x, A.expand(1, 4, -1).clone(), 300, 300, torch.float64)
    assert torch.allclose(kernel.sum(-1), torch.full((1, 4), 6.0, dtype=torch.float64), atol=1e-10)


def test_strong_growth_overflows_nowhere() -> None:
    A = torch.tensor([300.0 + 2.0j, -300.0 + 1.0j, 30.0 + 5.0j], dtype=torch.complex128, requires_grad=True)
    W = torch.ones(1, 1, 3, dtype=torch.complex128, requires_grad=True)
    kernel = softmax_kernel(A, 0.1 * A[None], W, 65536, 65536)
    gradients = torch.autograd.grad(kernel.sum() + kernel[..., -1].sum(), (A, W))
    assert torch.isfinite(kernel).all() and all(torch.isfinite(torch.view_as_real(x)).all() for x in gradients)
    # The growing states stand on the last lag, in closed form there.
    z = torch.exp(-0.1 * A[[0, 2]])
    assert abs(kernel[0, 0, -1] - ((1 - z) / A[[0, 2]]).sum().real) < 1e-7
    assert abs(kernel[0, 0, 0] - ((1 - torch.exp(0.1 * A[1])) / A[1]).real) < 1e-7


def test_long_softmax_kernels_keep_their_digits() -> None:
    for signs in ("decaying", "both", "undamped"):
        arguments = softmax_case(signs)
        reference = softmax_kernel_reference(*arguments, 65536, 65536) if signs != "both" else None
        kernel = softmax_kernel(*arguments, 65536, 65536)
        exact = softmax_kernel(*arguments, 65536, 65536, torch.float64)
        assert worst(kernel.double(), exact) < 5e-6
        if reference is not None:
            assert worst(exact, reference) < 1e-9


@pytest.mark.parametrize("version", ["softmax", "exp", "exp_no_scale"])
@pytest.mark.parametrize("separate_dt", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("ssm_init", ["hippo", "lin"])
def test_mixer_equals_its_definition(version: str, separate_dt: bool, bidirectional: bool, ssm_init: str) -> None:
    mixer = make_mixer(version=version, separate_dt=separate_dt, bidirectional=bidirectional, ssm_init=ssm_init)
    length = 33
    A_real = mixer.A_real if version == "softmax" else -mixer.log_A_real.double().exp()
    A = torch.complex(A_real.double(), mixer.A_imag.double())
    dt = mixer.log_dt.double().exp()
    assert dt.shape == ((6, 2) if separate_dt else (6,))
    dt = dt if separate_dt else torch.stack([dt, dt], dim=-1)
    x = torch.complex(dt[:, :1] * A.real, dt[:, 1:] * A.imag)
    W = torch.view_as_complex(mixer.W.double())
    if version == "softmax":
        kernels = softmax_kernel_reference(A, x, W, length, 64)
    else:
        gain = (torch.exp(x) - 1) / A if version == "exp" else 1.0
        kernels = torch.einsum("rhn,hnl->rhl", W * gain, torch.exp(x[..., None] * torch.arange(length))).real
    assert worst(mixer.kernel(length).double(), kernels) < 5e-6
    u = torch.randn(2, length, 6)
    y = long_conv_reference(u.double(), *kernels, *([] if bidirectional else [None]), mixer.D.double())
    expected = F.linear(F.gelu(y), mixer.output_linear.weight.double(), mixer.output_linear.bias.double())
    assert torch.allclose(mixer(u).double(), expected, atol=5e-6)


def test_start_values() -> None:
    mixer = make_mixer(hidden_size=512, d_state=32)
    assert torch.allclose(mixer.A_real, torch.full((32,), -0.5))
    assert torch.allclose(mixer.A_imag.double(), s4d_legs(64)[:, 1], rtol=1e-6)
    assert abs(mixer.W.std().item() - 1) < 0.02
    dt = mixer.log_dt.exp()
    assert 1e-3 <= dt.min() < 2e-3 and 5e-2 < dt.max() <= 1e-1
    assert torch.allclose(make_mixer(version="exp").log_A_real.exp(), torch.full((5,), 0.5))
    assert torch.allclose(make_mixer(ssm_init="lin").A_imag, math.pi * torch.arange(5.0))


def test_parameter_count() -> None:
    # Per layer: dt, D, A of all features together, W of two directions, the output and its bias.
    hidden, states = 6, 5
    expected = 2 * hidden + 2 * states + 2 * 2 * hidden * states + hidden**2 + hidden
    assert sum(parameter.numel() for parameter in make_mixer().parameters()) == expected


def test_longer_input_is_refused() -> None:
    model = DSSModel(make_config())
    model(input_ids=torch.ones(1, 64, dtype=torch.long))
    with pytest.raises(
        ValueError, match="The input has length 65, but the softmax of the kernel runs over kernel_leng"
    ):
        model(input_ids=torch.ones(1, 65, dtype=torch.long))


def test_a_growing_state_has_no_step() -> None:
    model = DSSModel(make_config(bidirectional=False)).eval()
    ids = torch.ones(1, 5, dtype=torch.long)
    model(input_ids=ids, use_cache=True)
    with torch.no_grad():
        model.layers[1].mixer.A_real[2] = 1e-3
    model(input_ids=ids)
    with pytest.raises(
        ValueError, match="1 of 5 eigenvalues of layer 1 have a positive real part.*use use_cache=False"
    ):
        model(input_ids=ids, use_cache=True)
    assert softmax_system(*softmax_case("growing"), 10)[2].all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kernel_length": None},
            'version="softmax" and kernel_length=None.*set kernel_length to the length of the lon',
        ),
        ({"kernel_length": 0}, "kernel_length=0"),
        ({"version": "exp", "kernel_length": 9}, "kernel_length=9, which has no effect with version='exp'"),
        ({"d_state": 0}, "d_state=0, which must be at least 1"),
        ({"dt_min": 0.2}, "dt_min=0.2 and dt_max=0.1 are not a range"),
        ({"version": "clip"}, "version"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)
