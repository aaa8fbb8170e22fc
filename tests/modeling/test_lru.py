"""LRU: the ring it starts on, the system against explicit sums and S4D, stability, directions, steps and packing."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from neverscratch.modeling import LRUConfig
from neverscratch.modeling.blocks import Packing
from neverscratch.modeling.modeling_lru import LRUForMaskedLM, LRUMixer, LRUModel
from neverscratch.modeling.ops_ssm import diagonal_kernel


def make_config(**changes) -> LRUConfig:
    fields = {"vocab_size": 11, "hidden_size": 6, "d_state": 8, "num_hidden_layers": 2}
    return LRUConfig(**{**fields, **changes})


def make_mixer(**changes) -> LRUMixer:
    torch.manual_seed(0)
    mixer = LRUMixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    mixer.output_linear.reset_parameters()
    return mixer


def eigenvalues(mixer: LRUMixer) -> Tensor:
    return torch.exp(torch.complex(-mixer.log_nu.double().exp(), mixer.log_theta.double().exp()))


def dense_kernel(mixer: LRUMixer, length: int) -> Tensor:
    """C diag(z^l gamma) B for all lags, (R, L, H, H), float64."""
    powers = eigenvalues(mixer) ** torch.arange(length)[:, None]  # (L, P)
    B = mixer.log_gamma.double().exp()[:, None] * torch.view_as_complex(mixer.B.double())
    return torch.einsum("rhp,lp,pg->rlhg", torch.view_as_complex(mixer.C.double()), powers, B).real


@pytest.mark.parametrize(("r_min", "r_max", "max_phase"), [(0.0, 1.0, 2 * math.pi), (0.9, 0.999, 0.3), (0.5, 1, 1)])
def test_start_on_the_ring(r_min: float, r_max: float, max_phase: float) -> None:
    mixer = make_mixer(d_state=20000, hidden_size=2, r_min=r_min, r_max=r_max, max_phase=max_phase)
    z = eigenvalues(mixer).detach()
    assert all(torch.isfinite(parameter).all() for parameter in mixer.parameters())
    modulus, phase = z.abs(), mixer.log_theta.double().exp()
    assert r_min - 1e-6 <= modulus.min() and modulus.max() <= r_max + 1e-6 and modulus.max() < 1
    assert phase.min() > 0 and phase.max() <= max_phase * (1 + 1e-6)
    # Uniform on the area, and in the phase: the mean of a uniform number, to four standard errors.
    tolerance = 4 * (r_max**2 - r_min**2) / math.sqrt(12 * 20000)
    assert abs(modulus.square().mean().item() - (r_max**2 + r_min**2) / 2) < tolerance
    assert abs(phase.mean().item() - max_phase / 2) < 4 * max_phase / math.sqrt(12 * 20000)
    gamma = mixer.log_gamma.double().exp()
    assert torch.allclose(gamma.square(), -torch.expm1(-2 * mixer.log_nu.double().exp()), rtol=1e-5)


def test_draws_of_zero_and_one_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (0.0, 1.0):
        monkeypatch.setattr(torch, "rand", lambda *shape, value=value, **kwargs: torch.full(shape, value, **kwargs))
        mixer = make_mixer()
        assert all(torch.isfinite(parameter).all() for parameter in mixer.parameters())
        assert (eigenvalues(mixer).abs() < 1).all()


def test_start_of_B_C_D() -> None:
    mixer = make_mixer(d_state=200, hidden_size=100)
    assert abs(mixer.B.std().item() * math.sqrt(200) - 1) < 0.02
    assert abs(mixer.C.std().item() * math.sqrt(200) - 1) < 0.02
    assert abs(mixer.D.std().item() - 1) < 0.3


def test_gamma_keeps_the_states_of_white_input_at_its_size() -> None:
    mixer = make_mixer(d_state=64, hidden_size=16, r_min=0.9, r_max=0.99, bidirectional=False).double()
    system = mixer.system(torch.float64)
    u = torch.randn(4, 4000, 16, dtype=torch.float64)
    state = torch.zeros(4, 64, dtype=torch.complex128)
    drive = torch.view_as_complex((u @ system.input_matrix.T).unflatten(-1, (-1, 2)))
    sizes = []
    for t in range(4000):
        state = eigenvalues(mixer) * state + drive[:, t]
        sizes.append(state.abs().square())
    # E |B u|^2 is one, since each part of B has variance 1 / (2 H).
    assert abs(torch.stack(sizes[1000:]).mean().item() - 1) < 0.15


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 100])
def test_kernel_equals_the_explicit_sum(length: int, dtype: torch.dtype, tolerance: float) -> None:
    mixer = make_mixer(bidirectional=False).to(dtype)
    # The response to an impulse in each feature, (H inputs, L, H outputs).
    impulses = torch.zeros(6, length, 6, dtype=dtype)
    impulses[:, 0] = torch.eye(6, dtype=dtype)
    response = mixer.run(impulses, None).permute(1, 2, 0).double()
    expected = dense_kernel(mixer, length)[0]
    assert (response - expected).abs().max() < tolerance * expected.abs().max()


def test_both_directions_equal_explicit_sums_with_the_present_once() -> None:
    mixer = make_mixer().double()
    length = 41
    u = torch.randn(2, length, 6, dtype=torch.float64)
    forward, backward = dense_kernel(mixer, length)
    expected = torch.zeros_like(u)
    for t in range(length):
        for s in range(length):
            kernel = forward[t - s] if s <= t else backward[s - t - 1]
            expected[:, t] += u[:, s] @ kernel.T
    assert torch.allclose(mixer.run(u, None), expected, atol=1e-11)


def test_one_feature_with_conjugate_states_is_s4d() -> None:
    pairs, length = 4, 200
    mixer = make_mixer(hidden_size=1, d_state=2 * pairs, bidirectional=False).double()
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    with torch.no_grad():
        for name in ("log_nu", "log_gamma"):
            getattr(mixer, name)[pairs:] = getattr(mixer, name)[:pairs]
        # The phase is the exponential of a number and cannot be negative: conjugate states have 2 pi minus it.
        mixer.log_theta[pairs:] = (2 * math.pi - mixer.log_theta[:pairs].exp()).log()
        mixer.B[pairs:] = mixer.B[:pairs] * sign
        mixer.C[:, :, pairs:] = mixer.C[:, :, :pairs] * sign
    impulse = torch.zeros(1, length, 1, dtype=torch.float64)
    impulse[:, 0] = 1.0
    log_z = mixer.system(torch.float64).log_z[:pairs].detach()
    A = torch.view_as_complex(log_z)
    # S4D multiplies B by its gain of dt = 1, LRU by gamma.
    gain = (torch.exp(A) - 1) / A
    B = torch.view_as_complex(mixer.B[:pairs, 0].detach()) * mixer.log_gamma[:pairs].detach().exp() / gain
    kernel = diagonal_kernel(
        dt=torch.ones(1, dtype=torch.float64),
        A_real=log_z[None, :, 0],
        A_imag=log_z[None, :, 1],
        B=torch.view_as_real(B)[None],
        C=mixer.C[:, :, :pairs].detach(),
        length=length,
    )
    assert torch.allclose(mixer.run(impulse, None)[0, :, 0], kernel[0, 0], atol=1e-12)


def test_stays_stable_after_a_thousand_noisy_steps() -> None:
    mixer = make_mixer(r_min=0.99, bidirectional=False)
    start = eigenvalues(mixer).abs().detach()
    optimizer = torch.optim.Adam(mixer.parameters(), lr=2e-2)
    u = torch.randn(2, 24, 6)
    for _ in range(1000):
        optimizer.zero_grad()
        # The gradient asks for outputs that grow without bound.
        (-mixer.run(u, None).square().mean().log()).backward()
        for name in ("log_nu", "log_theta", "log_gamma"):
            grad = getattr(mixer, name).grad
            grad.add_(torch.randn_like(grad), alpha=0.1)
        optimizer.step()
    end = eigenvalues(mixer).abs()
    assert (end < 1).all() and (mixer.system(torch.float32).log_z[:, 0] < 0).all()
    # The walk was long enough to have left the circle, had that been possible.
    assert (mixer.log_nu.detach() - torch.log(-torch.log(start))).abs().max() > 1
    assert torch.isfinite(mixer(torch.randn(1, 1025, 6))).all()


def test_block_is_gelu_and_glu() -> None:
    mixer = make_mixer()
    u = torch.randn(2, 20, 6)
    g = F.gelu(mixer.run(u, None) + mixer.D * u, approximate="tanh")
    weight, bias = mixer.output_linear.weight, mixer.output_linear.bias
    expected = (g @ weight[:6].T + bias[:6]) * torch.sigmoid(g @ weight[6:].T + bias[6:])
    assert torch.allclose(mixer(u), expected, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_parameter_count(bidirectional: bool) -> None:
    hidden, states, layers, vocab = 6, 8, 2, 11
    directions = 2 if bidirectional else 1
    layer = 3 * states + 2 * states * hidden + 2 * directions * states * hidden + hidden
    layer += 2 * hidden**2 + 2 * hidden + 2 * hidden
    model = LRUModel(make_config(bidirectional=bidirectional))
    # Beside the layers: the embedding and the norm after the last one.
    assert sum(p.numel() for p in model.parameters()) == layers * layer + vocab * hidden + 2 * hidden


@pytest.mark.parametrize("bidirectional", [True, False])
def test_padding_and_packing_change_nothing(bidirectional: bool) -> None:
    mixer = make_mixer(bidirectional=bidirectional, r_min=0.9)
    u = torch.randn(3, 40, 6)
    lengths = (40, 25, 1)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    garbage = u.masked_fill(~mask[..., None], float("nan"))
    padded = mixer(garbage, mask)
    packing = Packing(mask)
    packed = mixer(packing.pack(garbage), packing=packing)
    for row, (alone, length) in enumerate(zip(u, lengths, strict=True)):
        expected = mixer(alone[None, :length])[0]
        assert torch.allclose(padded[row, :length], expected, atol=1e-6)
        assert torch.allclose(packed[0, packing.row == row], expected, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("chunks", [[1] * 50, [20, 1, 1, 28], [49, 1]], ids=str)
def test_steps_equal_the_whole(chunks: list[int], dtype: torch.dtype, tolerance: float) -> None:
    config = make_config(bidirectional=False, num_hidden_layers=1)
    mixer = make_mixer(bidirectional=False, r_min=0.99).to(dtype)
    assert mixer.has_step and not make_mixer().has_step
    u = torch.randn(2, 50, 6, dtype=dtype)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        found = torch.cat([mixer(piece, cache=cache) for piece in u.split(chunks, dim=1)], dim=1)
        assert torch.allclose(found, mixer(u), atol=tolerance, rtol=tolerance)


def test_half_precision() -> None:
    mixer = make_mixer()
    u = torch.randn(2, 300, 6)
    expected = mixer(u)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (mixer(u) - expected).abs().max() < 0.03 * expected.abs().max()
    y = mixer.bfloat16()(u.bfloat16())
    assert y.dtype == torch.bfloat16 and torch.isfinite(y).all()
    y.float().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


def test_every_parameter_gets_a_gradient() -> None:
    mixer = make_mixer()
    mixer(torch.randn(2, 17, 6)).square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in mixer.parameters())
    assert set(mixer.ssm_parameters) <= {name for name, _ in mixer.named_parameters()}


def test_saving_and_loading(tmp_path) -> None:
    torch.manual_seed(0)
    model = LRUForMaskedLM(make_config()).eval()
    ids = torch.randint(3, 11, (2, 21))
    model.save_pretrained(tmp_path)
    assert torch.equal(model(input_ids=ids).logits, LRUForMaskedLM.from_pretrained(tmp_path)(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_state": 0}, "d_state=0 is not a number of states; use at least 1"),
        ({"r_min": 0.9, "r_max": 0.9}, "r_min=0.9 and r_max=0.9 are not a ring.*such as 0.9 and 0.999"),
        ({"r_max": 1.1}, "r_max=1.1 are not a ring inside the unit circle"),
        ({"r_min": -0.1}, "r_min=-0.1 and r_max=1.0 are not a ring"),
        ({"max_phase": 0.0}, "max_phase=0.0 is not an angle.*such as 6.28"),
        ({"max_phase": 7.0}, "max_phase=7.0 is not an angle"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)
