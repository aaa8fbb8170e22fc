"""S4: configuration, mixer, and what is particular to the family among the models."""

import pytest
import torch
from torch.nn import functional as F
from transformers import DynamicCache

from neverscratch.modeling.configuration_s4 import S4Config
from neverscratch.modeling.modeling_s4 import S4ForMaskedLM, S4Mixer, S4Model
from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_dplr import dplr_kernel_reference
from neverscratch.modeling.ops_hippo import dplr_start

STARTS = ["legs", "legt", "fout", "legs+fout", "legt+fout", "random"]


def make_config(**changes) -> S4Config:
    return S4Config(**{"vocab_size": 11, "hidden_size": 8, "d_state": 4, "num_hidden_layers": 2, **changes})


def make_mixer(**changes) -> S4Mixer:
    torch.manual_seed(0)
    model = S4Model(make_config(num_hidden_layers=1, **changes))
    return model.layers[0].mixer


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("ssm_init", STARTS)
def test_mixer_equals_its_definition(bidirectional: bool, ssm_init: str) -> None:
    mixer = make_mixer(bidirectional=bidirectional, ssm_init=ssm_init, n_ssm=4, d_state=8)
    u = torch.randn(2, 33, 8)
    kernels = dplr_kernel_reference(*mixer.system(), 33)
    assert kernels.shape == (2 if bidirectional else 1, 8, 33)
    y = long_conv_reference(u.double(), *kernels, *([] if bidirectional else [None]), mixer.D.double())
    expected = F.glu(F.linear(F.gelu(y), mixer.output_linear.weight.double(), mixer.output_linear.bias.double()))
    torch.testing.assert_close(mixer(u).double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("ssm_init", STARTS[:-1])
def test_start_values(ssm_init: str) -> None:
    mixer = make_mixer(hidden_size=512, n_ssm=4, ssm_init=ssm_init, d_state=64)
    A, B, P = dplr_start(ssm_init, 64, 4)
    for parameter, value in (
        (mixer.log_A_real.exp(), -A[..., 0]),
        (mixer.A_imag, A[..., 1]),
        (mixer.B, B),
        (mixer.P, P),
    ):
        assert torch.allclose(parameter.double(), value, rtol=1e-6)
    assert mixer.B.abs().max() <= 2.0
    dt = mixer.log_dt.exp()
    assert 1e-3 <= dt.min() < 2e-3 and 5e-2 < dt.max() <= 1e-1
    assert abs(mixer.C.square().sum(-1).mean().item() - 1) < 0.05
    assert abs(mixer.D.std().item() - 1) < 0.1


def test_without_clip_the_start_is_hippo() -> None:
    mixer = make_mixer(d_state=64, b_clip=None, n_ssm=1)
    assert torch.allclose(mixer.B[0].double(), dplr_start("legs", 64, 1, b_clip=None)[1][0], rtol=1e-6)
    assert mixer.B.max() > 2


def test_real_floor() -> None:
    mixer = make_mixer(ssm_init="fout", real_floor=0.01)
    assert torch.allclose(mixer.log_A_real.exp(), torch.full_like(mixer.log_A_real, 0.01))


def test_random_start() -> None:
    mixer = make_mixer(ssm_init="random", hidden_size=256, d_state=64, rank=2, random_std=0.2)
    assert mixer.P.shape == (2, 256, 32, 2)
    for name in ("log_dt", "log_A_real", "A_imag", "P", "B", "C"):
        parameter = getattr(mixer, name)
        assert abs(parameter.mean()) < 0.06 and abs(parameter.std() - 0.2) < 0.03, name
    assert abs(mixer.D.std() - 1) < 0.2


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("ssm_init", "rank"), [("legs", 1), ("legt", 2), ("legs+fout", 1), ("legt+fout", 2)])
def test_parameter_count(bidirectional: bool, ssm_init: str, rank: int) -> None:
    """H (dt) + copies N (2 + r) + directions H N + H (D) + 2 H^2 + 2 H (gated output)."""
    hidden, state, copies = 8, 4, 4
    mixer = make_mixer(n_ssm=copies, ssm_init=ssm_init, bidirectional=bidirectional)
    expected = hidden + copies * state * (2 + rank) + (1 + bidirectional) * hidden * state + hidden
    expected += 2 * hidden**2 + 2 * hidden
    assert sum(parameter.numel() for parameter in mixer.parameters()) == expected


def test_size_of_the_published_pathfinder_layer() -> None:
    model = S4Model(make_config(hidden_size=256, d_state=64, n_ssm=256, num_hidden_layers=1, norm_type="batch"))
    assert sum(parameter.numel() for parameter in model.layers.parameters()) == 214528


def test_every_parameter_gets_a_gradient() -> None:
    for ssm_init in STARTS:
        mixer = make_mixer(ssm_init=ssm_init, n_ssm=4)
        mixer(torch.randn(2, 17, 8)).square().sum().backward()
        assert all((parameter.grad != 0).any() for parameter in mixer.parameters())
        names = {name for name, _ in mixer.named_parameters()}
        assert set(mixer.ssm_parameters) <= names


def test_a_kernel_does_not_depend_on_its_length() -> None:
    mixer = make_mixer(d_state=64, ssm_init="legt", n_ssm=2)
    long = mixer.kernel(3000)
    for length in (1, 63, 1025):
        assert (mixer.kernel(length) - long[..., :length]).abs().max() < 2e-6 * long.abs().max()


@pytest.mark.parametrize("ssm_init", STARTS)
def test_streaming_a_long_input(ssm_init: str) -> None:
    config = make_config(bidirectional=False, ssm_init=ssm_init, d_state=32, n_ssm=4)
    torch.manual_seed(0)
    model = S4Model(config).eval()
    ids = torch.randint(3, 11, (2, 1025))
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
        cache, outputs = DynamicCache(config=config), []
        for chunk in ids.split([700, 1, 1, 20, 3, 300], dim=1):
            outputs.append(model(input_ids=chunk, cache=cache).last_hidden_state)
    assert cache.layers[0].recurrent_states[0].shape == (2, 8, 32)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-4, rtol=1e-4)


def test_bfloat16() -> None:
    mixer = make_mixer(d_state=64)
    u = torch.randn(2, 300, 8)
    expected = mixer(u)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (mixer(u) - expected).abs().max() < 0.03 * expected.abs().max()
    y = mixer.bfloat16()(u.bfloat16())
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in mixer.parameters())


def test_the_range_of_steps_is_used() -> None:
    mixer = make_mixer(hidden_size=256, dt_min=1e-4, dt_max=1e-4 + 1e-6)
    assert torch.allclose(mixer.log_dt.exp(), torch.tensor(1e-4), rtol=2e-2)


def test_save_and_load_is_exact(tmp_path) -> None:
    torch.manual_seed(0)
    model = S4ForMaskedLM(make_config(ssm_init="legt+fout", b_clip=None)).eval()
    ids = torch.randint(3, 11, (2, 21))
    model.save_pretrained(tmp_path)
    loaded = S4ForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model(input_ids=ids).logits, loaded(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_state": 63}, "d_state=63 is not a positive even number.*use an even number such as 64"),
        ({"n_ssm": 3}, "n_ssm=3 does not divide hidden_size=8.*use a divisor"),
        ({"dt_min": 0.0}, "dt_min=0.0 and dt_max=0.1 are not a range"),
        ({"dt_min": 0.2}, "dt_min=0.2 and dt_max=0.1 are not a range.*use 0 < dt_min <= dt_max"),
        ({"ssm_init": "lin"}, "ssm_init='lin' is not a start; use random, or one of legs, legt, fout"),
        ({"ssm_init": "legs+legs"}, "is not a start.*different ones"),
        ({"ssm_init": "legs+random"}, "is not a start"),
        ({"ssm_init": "legs+fout", "n_ssm": 1}, "needs at least 2 copies.*there are 1; raise n_ssm"),
        ({"ssm_init": "legt", "rank": 1}, "rank=1, but ssm_init='legt' is of rank 2; leave rank out"),
        ({"rank": 2}, "rank=2, but ssm_init='legs' is of rank 1"),
        ({"ssm_init": "random", "rank": 0}, "rank=0 is not a positive number.*s4d"),
        ({"ssm_init": "random", "random_std": 0.0}, "random_std=0.0, which must be in"),
        ({"ssm_init": "random", "dt_min": 1e-4}, 'dt_min=0.0001 has no effect with ssm_init="random"'),
        ({"ssm_init": "random", "b_clip": None}, 'b_clip=None has no effect with ssm_init="random"'),
        ({"random_std": 0.2}, "random_std=0.2, which has no effect with ssm_init='legs'"),
        ({"real_floor": 1e-3}, 'real_floor=0.001 has no effect with ssm_init="legs"'),
        ({"ssm_init": "fout", "real_floor": 0.0}, "real_floor=0.0 has no logarithm.*such as 1e-4"),
        ({"b_clip": 0.0}, "b_clip=0.0 would leave no input.*such as 2.0"),
    ],
)
def test_config_messages(changes: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_config(**changes)
