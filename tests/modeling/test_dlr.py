"""DLR: kernels against the plain sum, starts, and counts."""

import math

import pytest
import torch
from torch.nn import functional as F

from neverscratch.modeling.configuration_dlr import DLRConfig
from neverscratch.modeling.modeling_dlr import DLRMixer
from neverscratch.modeling.ops_conv import long_conv_reference


def make_config(**changes) -> DLRConfig:
    return DLRConfig(**{"vocab_size": 11, "hidden_size": 6, "d_state": 16, **changes})


def make_mixer(**changes) -> DLRMixer:
    torch.manual_seed(0)
    mixer = DLRMixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    return mixer


def plain_kernel(mixer: DLRMixer, length: int) -> torch.Tensor:
    """The sum of the definition, complex128."""
    log_z = torch.complex(-(mixer.decay_root.double() ** 2), mixer.frequency.double())
    powers = torch.exp(log_z[:, None] * torch.arange(length))
    return torch.einsum("rhn,nl->rhl", torch.view_as_complex(mixer.W.double()), powers).real


def check_kernel(mixer: DLRMixer, length: int) -> None:
    """Values and gradients in float32 within 5e-6."""
    expected, actual = plain_kernel(mixer, length), mixer.kernel(length)
    assert actual.dtype == torch.float32 and actual.shape == expected.shape
    errors = (actual - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert errors.max() < 5e-6
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    parameters = [mixer.decay_root, mixer.frequency, mixer.W]
    wanted = torch.autograd.grad(expected, parameters, weights.double())
    got = torch.autograd.grad(actual, parameters, weights)
    for gradient, target in zip(got, wanted, strict=True):
        # At length 1 no power depends on the eigenvalues.
        assert (gradient - target).abs().max() <= 5e-6 * target.abs().max()


@pytest.mark.parametrize("ssm_init", ["structured", "random_frequency", "random"])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 1000, 1025])
def test_kernel_equals_the_plain_sum(ssm_init: str, length: int) -> None:
    check_kernel(make_mixer(ssm_init=ssm_init), length)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_kernel_of_the_published_size(bidirectional: bool) -> None:
    check_kernel(make_mixer(d_state=1024, hidden_size=16, bidirectional=bidirectional), 1024)


def test_kernel_at_the_longest_length() -> None:
    mixer = make_mixer(bidirectional=False)
    with torch.no_grad():
        # An undamped state, and one that neither decays nor turns.
        mixer.decay_root[:2] = 0.0
        mixer.frequency[1] = 0.0
    check_kernel(mixer, 65536)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_mixer_equals_its_definition(bidirectional: bool) -> None:
    mixer = make_mixer(bidirectional=bidirectional)
    u = torch.randn(2, 33, 6)
    kernels = plain_kernel(mixer, 33)
    y = long_conv_reference(u.double(), *kernels, *([] if bidirectional else [None]), mixer.D.double())
    expected = F.glu(F.linear(F.gelu(y), mixer.output_linear.weight.double(), mixer.output_linear.bias.double()))
    assert torch.allclose(mixer(u).double(), expected, atol=2e-6)


def test_start_values() -> None:
    mixer = make_mixer(d_state=1024, hidden_size=32)
    decay = mixer.decay_root.square()
    assert 0.5e-4 <= decay.min() < 0.6e-4 and 0.4e-1 < decay.max() <= 0.5e-1 * (1 + 1e-6)
    # Log-uniform: the median is the geometric mean of the ends.
    assert abs(math.log10(decay.median().item()) - math.log10(0.5 * 10**-2.5)) < 0.15
    assert torch.allclose(mixer.frequency, 2 * math.pi * torch.arange(1024) / 1024)
    assert abs(mixer.W.std().item() * 1024 - 1) < 0.01
    frequency = make_mixer(d_state=1024, ssm_init="random_frequency").frequency
    assert abs(frequency.std().item() - 1) < 0.1
    random = make_mixer(d_state=1024, ssm_init="random", random_std=0.2)
    assert all(abs(x.std().item() - 0.2) < 0.02 for x in (random.decay_root, random.frequency, random.W))


def test_sign_of_the_root_does_not_matter_and_its_gradient_vanishes_at_zero() -> None:
    mixer = make_mixer()
    kernel = mixer.kernel(20)
    with torch.no_grad():
        mixer.decay_root.neg_()
    assert torch.equal(mixer.kernel(20), kernel)
    with torch.no_grad():
        mixer.decay_root.zero_()
    mixer.kernel(20).square().sum().backward()
    assert not mixer.decay_root.grad.any() and mixer.frequency.grad.any()


def test_parameter_count() -> None:
    # Per layer: eigenvalues of all features together, W of two directions, D, and the gated output.
    hidden, states = 6, 16
    expected = 2 * states + 2 * 2 * hidden * states + hidden + 2 * hidden**2 + 2 * hidden
    assert sum(parameter.numel() for parameter in make_mixer().parameters()) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_state": 0}, "d_state=0, which must be at least 1"),
        ({"dt_min": 0.2}, "dt_min=0.2 and dt_max=0.1 are not a range"),
        ({"random_std": 0.2}, "random_std=0.2, which has no effect with ssm_init='structured'"),
        ({"ssm_init": "random", "random_std": 0}, "random_std=0, which must be in"),
        ({"ssm_init": "random", "dt_min": 1e-3}, "dt_min=0.001, which has no effect with ssm_init='random'"),
        ({"ssm_init": "omega"}, "ssm_init"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)
