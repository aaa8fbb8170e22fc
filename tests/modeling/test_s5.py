"""S5: starting values, the system against its definition, directions, steps, packing, and what the config refuses."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from neverscratch.modeling import S5Config
from neverscratch.modeling.blocks import Packing
from neverscratch.modeling.modeling_s5 import S5ForMaskedLM, S5Mixer, S5Model, hippo_block, truncated_normal
from neverscratch.modeling.ops_hippo import hippo_legs, hippo_legs_normal

C_INITS = ("trunc_standard_normal", "lecun_normal", "complex_normal")
ACTIVATIONS = ("half_glu1", "half_glu2", "full_glu", "gelu")


def make_config(**changes) -> S5Config:
    fields = {"vocab_size": 11, "hidden_size": 6, "d_state": 16, "num_hippo_blocks": 2, "num_hidden_layers": 2}
    return S5Config(**{**fields, **changes})


def make_mixer(**changes) -> S5Mixer:
    torch.manual_seed(0)
    mixer = S5Mixer(make_config(**changes), layer_idx=0)
    mixer.init_weights()
    for module in mixer.children():
        if isinstance(module, torch.nn.Linear):
            module.reset_parameters()
    return mixer


def normal_part(d_state: int) -> Tensor:
    A, _ = hippo_legs(d_state)
    p = torch.sqrt(torch.arange(d_state, dtype=torch.float64) + 0.5)
    return A + torch.outer(p, p)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("d_state", [2, 8, 32])
def test_hippo_block(d_state: int, half: bool) -> None:
    eigenvalues, V = hippo_block(d_state, half)
    assert torch.allclose(V.conj().T @ V, torch.eye(V.shape[1], dtype=V.dtype), atol=1e-12)
    assert torch.allclose(normal_part(d_state).to(V.dtype) @ V, V * eigenvalues, atol=1e-9)
    if half:
        assert torch.allclose(torch.view_as_real(eigenvalues), hippo_legs_normal(d_state)[0])
        rebuilt = 2 * (V * eigenvalues @ V.conj().T).real
        assert torch.allclose(rebuilt, normal_part(d_state), atol=1e-9)


def test_truncated_normal() -> None:
    torch.manual_seed(0)
    x = truncated_normal(400, 500)
    assert abs(x.std().item() - 1) < 0.01 and abs(x.mean().item()) < 0.01
    # Two standard deviations of the normal before it was cut, whose own deviation became 0.8796.
    assert 2.25 < x.abs().max().item() <= 2 / 0.8796


@pytest.mark.parametrize("conj_sym", [True, False])
@pytest.mark.parametrize("c_init", C_INITS)
def test_start_values(c_init: str, conj_sym: bool) -> None:
    hidden, d_state, blocks = 128, 64, 4
    mixer = make_mixer(
        hidden_size=hidden, d_state=d_state, num_hippo_blocks=blocks, c_init=c_init, conj_sym=conj_sym, dt_min=1e-4
    )
    one = hippo_block(d_state // blocks, conj_sym)[0]
    assert mixer.A_real.shape == (d_state // 2 if conj_sym else d_state,)
    assert torch.allclose(mixer.A_real, torch.tensor(-0.5))
    assert torch.allclose(mixer.A_imag.double(), one.imag.repeat(blocks), rtol=1e-6)
    dt = mixer.log_dt.detach().exp()
    assert 1e-4 <= dt.min() < 5e-4 and 3e-2 < dt.max() <= 1e-1
    # B0 is real, so its rows share their size between both parts.
    assert abs(mixer.B.square().sum(-1).mean().item() * d_state - 1) < 0.1
    std = {
        "trunc_standard_normal": d_state**-0.5,
        "lecun_normal": (d_state * hidden) ** -0.5,
        "complex_normal": 0.5**0.5,
    }[c_init]
    for part in (mixer.C[..., 0], mixer.C[..., 1]):
        assert abs(part.std().item() / std - 1) < 0.05
    assert mixer.C.shape == (2, hidden, mixer.A_real.shape[0], 2)
    assert abs(mixer.D.std().item() - 1) < 0.3


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("c_init", C_INITS)
def test_system_equals_a_dense_recurrence(c_init: str, discretization: str) -> None:
    d_state, dt = 16, 0.07
    mixer = make_mixer(c_init=c_init, discretization=discretization, bidirectional=False).double()
    with torch.no_grad():
        mixer.log_dt.fill_(math.log(dt))
    u = torch.randn(2, 50, 6, dtype=torch.float64)
    # The real system that was diagonalised: x' = A x + B u with the normal part of HiPPO in each block.
    A = torch.block_diag(normal_part(d_state // 2), normal_part(d_state // 2))
    V = torch.block_diag(*[hippo_block(d_state // 2, True)[1]] * 2)
    B = 2 * (V @ torch.view_as_complex(mixer.B.detach())).real
    C = 2 * (torch.view_as_complex(mixer.C.detach()[0]) @ V.conj().T).real
    eye = torch.eye(d_state, dtype=torch.float64)
    if discretization == "zoh":
        A_bar = torch.matrix_exp(dt * A)
        B_bar = torch.linalg.solve(A, (A_bar - eye) @ B)
    else:
        A_bar = torch.linalg.solve(eye - dt / 2 * A, eye + dt / 2 * A)
        B_bar = torch.linalg.solve(eye - dt / 2 * A, dt * B)
    state, outputs = torch.zeros(2, d_state, dtype=torch.float64), []
    for t in range(50):
        state = state @ A_bar.T + u[:, t] @ B_bar.T
        outputs.append(state @ C.T)
    expected = torch.stack(outputs, dim=1)
    # The parameters were stored in float32.
    assert (mixer.run(u, None) - expected).abs().max() < 2e-6 * expected.abs().max()
    assert (mixer.float().run(u.float(), None) - expected).abs().max() < 1e-5 * expected.abs().max()


def dense_outputs(mixer: S5Mixer, u: Tensor) -> Tensor:
    """Outputs without the skip as explicit sums over all pairs of positions, lag 0 in both directions."""
    A = torch.complex(mixer.A_real.double(), mixer.A_imag.double())
    if mixer.clip_eigs:
        A = torch.complex(A.real.clamp(max=-1e-4), A.imag)
    dt = mixer.log_dt.double().exp()
    if mixer.discretization == "zoh":
        z, gain = torch.exp(dt * A), (torch.exp(dt * A) - 1) / A
    else:
        z, gain = (1 + dt * A / 2) / (1 - dt * A / 2), dt / (1 - dt * A / 2)
    B = gain[:, None] * torch.view_as_complex(mixer.B.double())
    C = torch.view_as_complex(mixer.C.double())
    position = torch.arange(u.shape[1])
    lag = position[:, None] - position  # (t, s)
    y = 0
    for direction in range(len(C)):
        one_lag = lag if direction == 0 else -lag
        powers = torch.where(one_lag[..., None] >= 0, z ** one_lag.clamp(min=0)[..., None], 0)
        y = y + torch.einsum("hp,tsp,pg,bsg->bth", C[direction], powers, B, u.to(B.dtype)).real
    return (2 if mixer.conj_sym else 1) * y


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("conj_sym", [True, False])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_system_equals_explicit_sums(discretization: str, conj_sym: bool, bidirectional: bool) -> None:
    mixer = make_mixer(
        discretization=discretization, conj_sym=conj_sym, bidirectional=bidirectional, dt_max=0.3, clip_eigs=True
    ).double()
    u = torch.randn(2, 37, 6, dtype=torch.float64)
    expected = dense_outputs(mixer, u)
    assert (mixer.run(u, None) - expected).abs().max() < 1e-12 * expected.abs().max()


def test_conjugate_pairs_equal_all_states() -> None:
    half = make_mixer().double()
    whole = make_mixer(conj_sym=False).double()
    sign = torch.tensor([1.0, -1.0])
    with torch.no_grad():
        for name in ("A_real", "log_dt", "D"):
            given = getattr(half, name)
            getattr(whole, name).copy_(given if name == "D" else given.repeat(2))
        whole.A_imag.copy_(torch.cat([half.A_imag, -half.A_imag]))
        whole.B.copy_(torch.cat([half.B, half.B * sign]))
        whole.C.copy_(torch.cat([half.C, half.C * sign], dim=2))
    u = torch.randn(2, 70, 6, dtype=torch.float64)
    assert torch.allclose(half.run(u, None), whole.run(u, None), atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    mixer = make_mixer(activation=activation)
    u = torch.randn(2, 20, 6)
    y = mixer.run(u, None) + mixer.D * u
    g = F.gelu(y, approximate="tanh")
    expected = {
        "gelu": lambda: g,
        "half_glu1": lambda: g * torch.sigmoid(mixer.gate_linear(g)),
        "half_glu2": lambda: y * torch.sigmoid(mixer.gate_linear(g)),
        "full_glu": lambda: mixer.value_linear(g) * torch.sigmoid(mixer.gate_linear(g)),
    }[activation]()
    assert torch.allclose(mixer(u), expected, atol=1e-6)


def test_clip_eigs_holds_a_growing_state() -> None:
    u = torch.randn(1, 300, 6)
    sizes = []
    for clip_eigs in (True, False):
        mixer = make_mixer(clip_eigs=clip_eigs, bidirectional=False)
        with torch.no_grad():
            mixer.A_real.fill_(1.0)
            mixer.log_dt.fill_(math.log(0.1))
        sizes.append(mixer.run(u, None).abs().max().item())
        assert (mixer.system(torch.float32).log_z[:, 0] < 0).all().item() is clip_eigs
    assert sizes[0] < 1e-3 * sizes[1]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_parameter_count(activation: str, bidirectional: bool) -> None:
    hidden, pairs, layers, vocab = 6, 8, 2, 11
    directions = 2 if bidirectional else 1
    linear = {"gelu": 0, "full_glu": 2}.get(activation, 1) * (hidden**2 + hidden)
    layer = 3 * pairs + 2 * pairs * hidden + 2 * directions * pairs * hidden + hidden + linear + 2 * hidden
    model = S5Model(make_config(activation=activation, bidirectional=bidirectional))
    # Beside the layers: the embedding and the norm after the last one.
    assert sum(p.numel() for p in model.parameters()) == layers * layer + vocab * hidden + 2 * hidden


def test_parameter_counts_of_the_paper() -> None:
    # Path-X and Image of the official scripts, about 0.69M and 5.1M.
    for fields, published in (
        ({"hidden_size": 128, "d_state": 256, "num_hippo_blocks": 16}, 0.69e6),
        ({"hidden_size": 512, "d_state": 384, "num_hippo_blocks": 3}, 5.1e6),
    ):
        config = S5Config(num_channels=1, num_hidden_layers=6, **fields)
        with torch.device("meta"):
            layers = S5Model(config).layers
        assert abs(sum(p.numel() for p in layers.parameters()) / published - 1) < 0.02


@pytest.mark.parametrize("bidirectional", [True, False])
def test_padding_and_packing_change_nothing(bidirectional: bool) -> None:
    mixer = make_mixer(bidirectional=bidirectional)
    u = torch.randn(3, 40, 6)
    lengths = (40, 25, 1)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    garbage = u.masked_fill(~mask[..., None], float("nan"))
    padded = mixer(garbage, mask)
    packing = Packing(mask)
    packed = mixer(packing.pack(garbage), packing=packing)
    assert packed.shape == (1, sum(lengths), 6)
    for row, (alone, length) in enumerate(zip(u, lengths, strict=True)):
        expected = mixer(alone[None, :length])[0]
        assert torch.allclose(padded[row, :length], expected, atol=1e-6)
        assert torch.allclose(packed[0, packing.row == row], expected, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("chunks", [[1] * 50, [20, 1, 1, 28], [49, 1]], ids=str)
def test_steps_equal_the_whole(chunks: list[int], dtype: torch.dtype, tolerance: float) -> None:
    config = make_config(bidirectional=False, num_hidden_layers=1)
    mixer = make_mixer(bidirectional=False).to(dtype)
    assert mixer.has_step and not make_mixer().has_step
    u = torch.randn(2, 50, 6, dtype=dtype)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        found = torch.cat([mixer(piece, cache=cache) for piece in u.split(chunks, dim=1)], dim=1)
        assert torch.allclose(found, mixer(u), atol=tolerance, rtol=tolerance)
        # A changed parameter is noticed, and a gradient reaches it.
        mixer.A_real.mul_(2.0)
        state = cache.layers[0].recurrent_states[0].clone()
        y = mixer(u[:, :1], cache=cache)
        other = DynamicCache(config=config)
        other.layers[0].update_recurrent_state(state)
        assert torch.equal(y, mixer(u[:, :1], cache=other))
    # The chunk after it does not disturb the backward of the first.
    losses = [mixer(piece, cache=cache).square().sum() for piece in u.split([1, 9, 1, 39], dim=1)]
    sum(losses).backward()
    assert mixer.log_dt.grad.any()


def test_float32_inside_half_precision() -> None:
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
    mixer = make_mixer(activation="full_glu")
    mixer(torch.randn(2, 17, 6)).square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in mixer.parameters())
    assert set(mixer.ssm_parameters) <= {name for name, _ in mixer.named_parameters()}


def test_undamped_and_zero_eigenvalues_are_finite() -> None:
    mixer = make_mixer()
    with torch.no_grad():
        mixer.A_real.zero_()
        mixer.A_imag[::2] = 0.0
    y = mixer(torch.randn(1, 1025, 6))
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


def test_saving_and_loading(tmp_path) -> None:
    torch.manual_seed(0)
    model = S5ForMaskedLM(make_config()).eval()
    ids = torch.randint(3, 11, (2, 21))
    model.save_pretrained(tmp_path)
    assert torch.equal(model(input_ids=ids).logits, S5ForMaskedLM.from_pretrained(tmp_path)(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hippo_blocks": 3}, "num_hippo_blocks=3 does not divide d_state=16.*use a divisor"),
        ({"num_hippo_blocks": 0}, "num_hippo_blocks=0 does not divide"),
        (
            {"num_hippo_blocks": 16},
            "blocks of 1 states.*use blocks of an even size, or conj_sym=False",
        ),
        ({"d_state": 0}, "does not divide d_state=0"),
        ({"dt_min": 0.2}, "dt_min=0.2 and dt_max=0.1 are not a range"),
        ({"c_init": "ones"}, "c_init"),
        ({"activation": "glu"}, "activation"),
        ({"discretization": "euler"}, "discretization"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)


def test_odd_blocks_are_fine_without_conjugate_symmetry() -> None:
    mixer = make_mixer(num_hippo_blocks=16, conj_sym=False)
    assert torch.isfinite(mixer(torch.randn(1, 9, 6))).all()
