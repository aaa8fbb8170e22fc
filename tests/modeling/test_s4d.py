"""S4D: configuration, mixer, and what is particular to the family among the models."""

import pytest
import torch
from torch.nn import functional as F

from neverscratch.modeling.configuration_s4d import S4DConfig
from neverscratch.modeling.modeling_s4d import (
    S4DForCausalLM,
    S4DForMaskedLM,
    S4DForReconstruction,
    S4DForSequenceClassification,
    S4DMixer,
    S4DModel,
)
from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_hippo import hippo_legs, hippo_legs_normal, s4d_legs
from neverscratch.modeling.ops_ssm import diagonal_kernel_reference


def make_mixer(**changes) -> S4DMixer:
    torch.manual_seed(0)
    mixer = S4DMixer(S4DConfig(**{"vocab_size": 11, "hidden_size": 8, "d_state": 8, **changes}), layer_idx=0)
    mixer.init_weights()
    return mixer


def make_config(**changes) -> S4DConfig:
    return S4DConfig(**{"vocab_size": 11, "hidden_size": 8, "d_state": 4, "num_hidden_layers": 2, **changes})


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("ssm_init", ["lin", "inv", "legs", "real", "random"])
@pytest.mark.parametrize("dt_per_state", [False, True])
def test_mixer_equals_its_definition(bidirectional, discretization, ssm_init, dt_per_state) -> None:
    fields = {"bidirectional": bidirectional, "discretization": discretization, "dt_per_state": dt_per_state}
    mixer = make_mixer(ssm_init=ssm_init, n_ssm=4, **fields)
    u = torch.randn(2, 33, 8)
    is_real = ssm_init == "real"
    kernels = diagonal_kernel_reference(
        mixer.log_dt.double().exp(),
        -mixer.log_A_real.double().exp(),
        None if is_real else mixer.A_imag,
        mixer.B,
        mixer.C,
        33,
        discretization,
        factor=1 if is_real else 2,
    )
    assert kernels.shape[0] == (2 if bidirectional else 1)
    assert mixer.log_dt.shape == ((8, 8 if is_real else 4) if dt_per_state else (8,))
    y = long_conv_reference(u.double(), *kernels, *([] if bidirectional else [None]), mixer.D.double())
    expected = F.glu(F.linear(F.gelu(y), mixer.output_linear.weight.double(), mixer.output_linear.bias.double()))
    assert torch.allclose(mixer(u).double(), expected, atol=2e-6)


def test_start_values() -> None:
    mixer = make_mixer(hidden_size=512, n_ssm=2, ssm_init="legs", d_state=64)
    assert torch.allclose(mixer.log_A_real.exp(), torch.full((2, 32), 0.5))
    assert torch.allclose(mixer.A_imag[1].double(), s4d_legs(64)[:, 1], rtol=1e-6)
    dt = mixer.log_dt.exp()
    assert 1e-3 <= dt.min() < 2e-3 and 5e-2 < dt.max() <= 1e-1
    assert torch.equal(mixer.B, torch.tensor([1.0, 0.0]).expand(2, 32, 2))
    assert abs(mixer.C.square().sum(-1).mean().item() - 1) < 0.05
    assert abs(mixer.D.std().item() - 1) < 0.1
    bound = 512**-0.5
    for parameter in mixer.output_linear.parameters():
        assert 0.95 * bound < parameter.abs().max() <= bound


def test_parameter_count() -> None:
    # Per layer: dt and D, A and B, C of two directions, and the gated output.
    hidden, state = 8, 4
    expected = 2 * hidden + 2 * hidden * state + 2 * hidden * state + 2 * hidden**2 + 2 * hidden
    assert sum(parameter.numel() for parameter in make_mixer(d_state=state).parameters()) == expected


def test_causal_mixer_ignores_the_future() -> None:
    mixer = make_mixer(bidirectional=False)
    u = torch.randn(2, 150, 8)
    changed = u.clone()
    changed[:, 70:] = 5.0
    assert torch.allclose(mixer(u)[:, :70], mixer(changed)[:, :70], atol=1e-5)


def test_bidirectional_mixer_sees_the_future() -> None:
    mixer = make_mixer()
    u = torch.randn(1, 30, 8)
    changed = u.clone()
    changed[:, 29] = 5.0
    assert (mixer(u)[:, 0] - mixer(changed)[:, 0]).abs().max() > 1e-4


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("fill", [3.0, float("nan")])
def test_padding_changes_nothing(bidirectional: bool, fill: float) -> None:
    mixer = make_mixer(bidirectional=bidirectional)
    u = torch.randn(2, 40, 8)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 25:] = False
    padded = u.clone()
    padded[1, 25:] = fill
    y = mixer(padded, mask)
    assert torch.allclose(y[:1], mixer(u[:1]), atol=1e-6)
    assert torch.allclose(y[1:, :25], mixer(u[1:, :25]), atol=1e-6)


@pytest.mark.parametrize("length", [40, 300])
def test_bfloat16(length: int) -> None:
    mixer = make_mixer()
    u = torch.randn(2, length, 8)
    expected = mixer(u)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (mixer(u) - expected).abs().max() < 0.03 * expected.abs().max()
    y = mixer.bfloat16()(u.bfloat16())
    assert y.dtype == torch.bfloat16
    assert torch.isfinite(y).all()
    y.float().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


def test_every_parameter_gets_a_gradient() -> None:
    mixer = make_mixer()
    mixer(torch.randn(2, 17, 8)).square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in mixer.parameters())
    names = {name for name, _ in mixer.named_parameters()}
    assert set(mixer.ssm_parameters) <= names


def test_frozen_B(tmp_path) -> None:
    S4DModel(make_config()).save_pretrained(tmp_path)
    model = S4DModel.from_pretrained(tmp_path, train_B=False)
    assert torch.equal(model.layers[1].mixer.B, torch.tensor([1.0, 0.0]).expand(8, 2, 2))
    assert not model.layers[1].mixer.B.requires_grad
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(name.endswith(".B") for name, _ in model.named_parameters())
    model(input_ids=torch.randint(3, 11, (2, 9))).last_hidden_state.sum().backward()
    assert model.layers[0].mixer.C.grad is not None


def test_model_starts_as_the_mixer_says() -> None:
    torch.manual_seed(0)
    model = S4DModel(make_config(hidden_size=64))
    weight = model.layers[1].mixer.output_linear.weight
    assert 0.95 / 8 < weight.abs().max() <= 1 / 8
    assert torch.allclose(model.layers[1].mixer.log_A_real.exp(), torch.full((64, 2), 0.5))


def test_save_and_load_is_exact(tmp_path) -> None:
    torch.manual_seed(0)
    model = S4DForMaskedLM(make_config()).eval()
    ids = torch.randint(3, 11, (2, 21))
    model.save_pretrained(tmp_path)
    loaded = S4DForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model(input_ids=ids).logits, loaded(input_ids=ids).logits)
    classifier = S4DForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(classifier.model.layers[0].mixer.C, model.model.layers[0].mixer.C)


def test_heads_train_a_step() -> None:
    ids = torch.randint(3, 11, (2, 16))
    values = torch.randn(2, 16, 1)
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[:, 3:7] = True
    losses = [
        S4DForMaskedLM(make_config())(input_ids=ids, labels=ids).loss,
        S4DForCausalLM(make_config(bidirectional=False))(input_ids=ids, labels=ids).loss,
        S4DForSequenceClassification(make_config(num_labels=3))(input_ids=ids, labels=torch.tensor([0, 2])).loss,
        S4DForReconstruction(make_config(vocab_size=None, num_channels=1))(
            input_values=values, labels=values, bool_masked_pos=mask
        ).loss,
    ]
    for loss in losses:
        assert torch.isfinite(loss)
        loss.backward()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_state": 63}, "d_state=63 is not a positive even number.*use an even number such as 64"),
        ({"n_ssm": 3}, "n_ssm=3 does not divide hidden_size=8.*use a divisor"),
        ({"n_ssm": 0}, "n_ssm=0 does not divide"),
        ({"dt_min": 0.0}, "dt_min=0.0 and dt_max=0.1 are not a range"),
        ({"dt_min": 0.2}, "dt_min=0.2 and dt_max=0.1 are not a range.*use 0 < dt_min <= dt_max"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)


@pytest.mark.parametrize("changes", [{"ssm_init": "foo"}, {"discretization": "euler"}, {"b_init": "two"}])
def test_config_refuses_unknown_names(changes: dict) -> None:
    with pytest.raises(Exception, match=next(iter(changes))):
        make_config(**changes)


def test_starts_of_the_other_kinds() -> None:
    mixer = make_mixer(ssm_init="inv", d_state=6)
    assert torch.allclose(mixer.log_A_real.exp(), torch.full((8, 3), 0.5))
    assert torch.allclose(mixer.A_imag[0], 6 / torch.pi * torch.tensor([5.0, 1.0, 1 / 5]))
    mixer = make_mixer(ssm_init="real", d_state=5, n_ssm=2)
    assert torch.allclose(-mixer.log_A_real.exp(), -torch.arange(1.0, 6.0).expand(2, 5))
    assert torch.equal(mixer.B, torch.ones(2, 5)) and mixer.C.shape == (2, 8, 5)
    assert not hasattr(mixer, "A_imag") and mixer.ssm_parameters == ("log_dt", "log_A_real", "B")
    mixer = make_mixer(ssm_init="random", random_std=0.3, hidden_size=64, d_state=64)
    assert all(abs(x.std().item() - 0.3) < 0.09 for x in (mixer.log_dt, mixer.A_imag, mixer.log_A_real, mixer.B))


def test_start_of_B() -> None:
    B = hippo_legs_normal(8)[1].float()
    assert torch.allclose(make_mixer(ssm_init="legs", b_init="hippo").B, B.expand(8, 4, 2))
    assert torch.allclose(make_mixer(ssm_init="legs", b_init="hippo_half").B, B.expand(8, 4, 2) / 2)


@pytest.mark.parametrize(("d_state", "bound"), [(64, 2e-2), (256, 1e-3)])
def test_legs_with_half_of_B_answers_smooth_input_as_s4_does(d_state: int, bound: float) -> None:
    # The answer to e^{st}, read by B itself: S4D falls short of the dense system by |s| / N of it, so they meet for a
    # given input as N grows, though not in the kernel, that is for all s at once.
    A, B = (x.to(torch.complex128) for x in hippo_legs(d_state))
    eigenvalues, drive, _ = (torch.view_as_complex(x) for x in hippo_legs_normal(d_state))
    eigenvalues, drive = torch.cat([eigenvalues, eigenvalues.conj()]), torch.cat([drive, drive.conj()])
    for s in (0.01j, 0.25j, 1j, 2j):
        dense = B @ torch.linalg.solve(s * torch.eye(d_state) - A, B)
        diagonal = (drive.abs().square() / 2 / (s - eigenvalues)).sum()
        error = abs(dense - diagonal) / abs(dense)
        assert error < 1.02 * abs(s) / d_state
        assert error < bound or abs(s) > 0.25


def test_real_states_are_moving_averages() -> None:
    mixer = make_mixer(ssm_init="real", d_state=3, bidirectional=False, hidden_size=1).double()
    u = torch.randn(30, dtype=torch.float64)
    A, dt = -mixer.log_A_real[0].exp(), mixer.log_dt.exp()
    q = torch.exp(dt * A)
    states, outputs = torch.zeros(3, dtype=torch.float64), []
    for value in u:
        states = q * states + (q - 1) / A * mixer.B[0] * value
        outputs.append((mixer.C[0, 0] * states).sum())
    kernel = mixer.kernel(30)[0, 0]
    convolved = torch.stack([(kernel[: t + 1].flip(0) * u[: t + 1]).sum() for t in range(30)])
    assert torch.allclose(convolved, torch.stack(outputs), atol=1e-12)


@pytest.mark.parametrize(("ssm_init", "d_state"), [("lin", 4), ("real", 4), ("real", 3)])
@pytest.mark.parametrize("dt_per_state", [False, True])
def test_parameter_count_of_all_kinds(ssm_init: str, d_state: int, dt_per_state: bool) -> None:
    hidden, copies = 8, 2
    stored = d_state if ssm_init == "real" else d_state // 2
    expected = hidden * (stored if dt_per_state else 1) + 2 * copies * d_state + 2 * hidden * d_state
    expected += hidden + 2 * hidden**2 + 2 * hidden
    mixer = make_mixer(ssm_init=ssm_init, d_state=d_state, dt_per_state=dt_per_state, n_ssm=copies)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b_init": "hippo"}, "b_init='hippo', which has no effect with ssm_init='lin'"),
        ({"random_std": 0.2}, "random_std=0.2, which has no effect with ssm_init='lin'"),
        ({"ssm_init": "random", "random_std": 0.0}, "random_std=0.0, which must be in"),
        ({"ssm_init": "random", "random_std": 100.0}, "random_std=100.0, which must be in"),
        ({"ssm_init": "random", "dt_min": 1e-4}, "dt_min=0.0001, which has no effect with ssm_init='random'"),
        ({"ssm_init": "real", "d_state": 0}, "d_state=0, which must be at least 1"),
    ],
)
def test_config_messages_of_starts(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)
