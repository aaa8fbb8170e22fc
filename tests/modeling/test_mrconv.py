"""MRConv: kernels of the branches, batch norms that leave padding out, and the merged kernel against the branches."""

import math

import pytest
import torch
from common import pad
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from neverscratch.modeling.configuration_mrconv import MRConvConfig
from neverscratch.modeling.modeling_mrconv import MRConvMixer, MRConvModel
from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_multiscale import dilated_kernel, fourier_kernel

HIDDEN, FIRST, LONGEST = 8, 4, 50
KINDS = pytest.mark.parametrize("kind", ["dilated", "fourier"])
BOTH_WAYS = pytest.mark.parametrize("bidirectional", [True, False], ids=["bidirectional", "causal"])


def make_config(**changes) -> MRConvConfig:
    fields = {"vocab_size": 11, "hidden_size": HIDDEN, "num_hidden_layers": 2}
    return MRConvConfig(**(fields | {"kernel_length": LONGEST, "sub_kernel_size": FIRST} | changes))


def make_mixer(**changes) -> MRConvMixer:
    """A mixer whose norms have seen something."""
    torch.manual_seed(0)
    mixer = MRConvMixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    for norm in mixer.norms:
        norm.init_weights()
        with torch.no_grad():
            for x in (norm.weight, norm.bias, norm.running_mean):
                x.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    return mixer


def branch_kernels(mixer: MRConvMixer, kind: str) -> list[torch.Tensor]:
    """Kernels (R, H, FIRST 2^i) of all branches, value by value, in float64."""
    kernels = []
    for i, numbers in enumerate(mixer.sub_kernels.detach().double()):
        length = FIRST << i
        values = torch.zeros(*numbers.shape[:2], length, dtype=torch.float64)
        for lag in range(length):
            if kind == "dilated":
                if lag % (1 << i) == 0:
                    values[..., lag] = numbers[..., lag >> i]
            else:
                count = FIRST // 2
                value = numbers[..., 0]
                for k in range(1, count):
                    angle = 2 * math.pi * k * lag / length
                    value = value + 2 * numbers[..., k] * math.cos(angle)
                    value = value - 2 * numbers[..., count - 1 + k] * math.sin(angle)
                values[..., lag] = value / math.sqrt(length)
        kernels.append(values)
    return kernels


def convolved(mixer: MRConvMixer, kind: str, u: torch.Tensor) -> list[torch.Tensor]:
    """Outputs (B, L, H) of all branches before their norms, float64."""
    length = u.shape[1]
    outputs = []
    for kernels in branch_kernels(mixer, kind):
        kernels = F.pad(kernels, (0, length))[..., :length]
        outputs.append(long_conv_reference(u.double(), kernels[0], kernels[1] if len(kernels) == 2 else None))
    return outputs


def finish(mixer: MRConvMixer, y: torch.Tensor) -> torch.Tensor:
    linear = mixer.output_linear
    return F.glu(F.linear(F.gelu(y), linear.weight.double(), linear.bias.double()))


@KINDS
@BOTH_WAYS
def test_merged_kernel_equals_the_normed_branches(kind: str, bidirectional: bool) -> None:
    mixer = make_mixer(kernel_kind=kind, bidirectional=bidirectional).eval()
    # 4 values in the first of 5 branches, 64 in the last, for the longest input of 50.
    assert len(mixer.norms) == 5
    for length in (1, 3, 33, 50):
        u = torch.randn(2, length, HIDDEN)
        y = u.double() * mixer.D.double()
        for part, norm, scale in zip(convolved(mixer, kind, u), mixer.norms, mixer.branch_scale.double(), strict=True):
            spread = (norm.running_var.double() + norm.eps).sqrt()
            normed = (part - norm.running_mean.double()) / spread * norm.weight.double() + norm.bias.double()
            y = y + scale * normed
        torch.testing.assert_close(mixer(u).double(), finish(mixer, y), atol=5e-6, rtol=1e-5)


@KINDS
@BOTH_WAYS
def test_training_norms_leave_padding_out(kind: str, bidirectional: bool) -> None:
    mixer = make_mixer(kernel_kind=kind, bidirectional=bidirectional).train()
    lengths = (17, 9, 1)
    kept = torch.arange(20) < torch.tensor(lengths)[:, None]
    u = torch.randn(3, 20, HIDDEN)
    y = u.double() * mixer.D.double()
    parts = convolved(mixer, kind, u.masked_fill(~kept[..., None], 0.0))
    before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in mixer.norms]
    for part, norm, scale in zip(parts, mixer.norms, mixer.branch_scale.double(), strict=True):
        variance, mean = torch.var_mean(part[kept], dim=0, correction=0)
        normed = (part - mean) / (variance + norm.eps).sqrt() * norm.weight.double() + norm.bias.double()
        y = y + scale * normed
    got = mixer(u.masked_fill(~kept[..., None], math.nan), kept)
    torch.testing.assert_close(got.double()[kept], finish(mixer, y)[kept], atol=1e-5, rtol=1e-5)
    for part, norm, (mean, variance) in zip(parts, mixer.norms, before, strict=True):
        expected = 0.9 * mean + 0.1 * part[kept].mean(0)
        torch.testing.assert_close(norm.running_mean.double(), expected, atol=1e-5, rtol=1e-5)
        expected = 0.9 * variance + 0.1 * part[kept].var(0)
        torch.testing.assert_close(norm.running_var.double(), expected, atol=1e-5, rtol=1e-5)


def test_training_and_evaluation_meet_once_the_statistics_have_settled() -> None:
    torch.manual_seed(0)
    model = MRConvModel(make_config(num_hidden_layers=1))
    inputs = {"input_ids": torch.randint(3, 11, (8, 40))}
    trained = model.train()(**inputs).last_hidden_state
    for _ in range(200):
        model(**inputs)
    # What is left is the correction by n / (n - 1) of n = 320 positions.
    torch.testing.assert_close(model.eval()(**inputs).last_hidden_state, trained, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("spacing", [1, 2, 8])
def test_dilated_kernel(spacing: int) -> None:
    taps = torch.randn(2, 3, 5)
    kernel = dilated_kernel(taps, spacing)
    assert kernel.shape == (2, 3, 5 * spacing) and torch.equal(kernel[..., ::spacing], taps)
    assert kernel.norm() == taps.norm()


@pytest.mark.parametrize("length", [6, 12, 96])
def test_fourier_kernel_has_these_frequencies_and_no_others(length: int) -> None:
    modes = torch.randn(2, 5, dtype=torch.float64)
    spectrum = torch.fft.rfft(fourier_kernel(modes, length), norm="ortho")
    torch.testing.assert_close(spectrum[:, :3].real, modes[:, :3])
    torch.testing.assert_close(spectrum[:, 1:3].imag, modes[:, 3:])
    assert spectrum[:, 3:].abs().max() < 1e-13


@KINDS
def test_start_values(kind: str) -> None:
    torch.manual_seed(0)
    mixer = MRConvModel(make_config(kernel_kind=kind, hidden_size=512, sub_kernel_size=8)).layers[1].mixer
    for branch in range(len(mixer.norms)):
        squared = mixer.branch_kernel(branch).square().sum(-1)
        assert squared.shape == (2, 512) and abs(squared.mean().item() - 1) < 0.1
    torch.testing.assert_close(mixer.branch_scale.sum(0), torch.ones(512))
    torch.testing.assert_close(mixer.branch_scale[1:] / mixer.branch_scale[:-1], torch.full((3, 512), 0.5))


@KINDS
@BOTH_WAYS
def test_parameter_count(kind: str, bidirectional: bool) -> None:
    model = MRConvModel(make_config(kernel_kind=kind, bidirectional=bidirectional))
    directions, branches, numbers = 2 if bidirectional else 1, 5, FIRST - (kind == "fourier")
    block = HIDDEN + 2 * HIDDEN**2 + 2 * HIDDEN + 2 * HIDDEN
    layer = directions * HIDDEN * numbers * branches + 3 * HIDDEN * branches + block
    assert sum(parameter.numel() for parameter in model.parameters()) == 11 * HIDDEN + 2 * layer + 2 * HIDDEN


def test_statistics_stay_float32(tmp_path) -> None:
    model = MRConvModel(make_config())
    model.train()(input_ids=torch.randint(3, 11, (4, 30)))
    model.eval().save_pretrained(tmp_path)
    loaded = MRConvModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for layer, other in zip(loaded.layers, model.layers, strict=True):
        for norm, expected in zip(layer.mixer.norms, other.mixer.norms, strict=True):
            assert torch.equal(norm.running_mean, expected.running_mean)
            assert torch.equal(norm.running_var, expected.running_var)


def test_padding_does_not_count_as_length() -> None:
    model = MRConvModel(make_config(kernel_length=9)).eval()
    inputs = {"input_ids": torch.randint(3, 11, (2, 9))}
    expected = model(**inputs).last_hidden_state
    for length in (10, 17, 30):
        got = model(**pad(inputs, length, "left")).last_hidden_state[:, length - 9 :]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="has 10 positions, but the kernel was made for kernel_length=9; shorten"):
        model(input_ids=torch.randint(3, 11, (2, 10)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_length": 0}, "kernel_length=0, which must be at least 1"),
        ({"sub_kernel_size": 0}, "sub_kernel_size=0, which must be at least 1"),
        (
            {"kernel_length": 10, "sub_kernel_size": 12},
            "sub_kernel_size=12, which is more than kernel_length=10; use at",
        ),
        ({"sub_kernel_size": 5}, "sub_kernel_size=5, which is odd; use an even number such as 32"),
        ({"kernel_kind": "sparse"}, "kernel_kind"),
    ],
)
def test_config_refuses(changes: dict, message: str) -> None:
    with pytest.raises(StrictDataclassError, match=message):
        make_config(**changes)
