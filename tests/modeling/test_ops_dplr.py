"""DPLR state space models: discretisation, kernels and recurrences against the dense complex system."""

import pytest
import torch
from torch import Tensor

from neverscratch.modeling.ops_dplr import (
    _dense,
    _traced_kernel,
    discretize_dplr,
    dplr_kernel,
    dplr_kernel_reference,
    dplr_scan,
    dplr_scan_reference,
    dplr_step,
    dplr_system,
)
from neverscratch.modeling.ops_hippo import dplr_start, hippo_fout, hippo_legs, hippo_legs_normal, hippo_legt
from neverscratch.modeling.ops_ssm import diagonal_kernel

HIPPO = {"legs": hippo_legs, "legt": hippo_legt, "fout": hippo_fout}
STARTS = ["legs", "legt", "fout", "legs+fout"]
LENGTHS = [1, 2, 3, 63, 64, 100, 1000, 1025]


def make(start: str = "legs", hidden: int = 6, d_state: int = 8, directions: int = 2, **changes) -> list[Tensor]:
    """Float64 arguments dt, A_real, A_imag, P, B, C of a start; C is exact in float32."""
    A, B, P = dplr_start(start, d_state, changes.pop("copies", hidden), **changes)
    generator = torch.Generator().manual_seed(0)
    C = torch.randn(directions, hidden, d_state // 2, 2, generator=generator).double()
    dt = torch.logspace(-4, -1, hidden, dtype=torch.float64)
    return [dt, A[..., 0].clone(), A[..., 1].clone(), P, B, C]


def make_random(rank: int = 1, hidden: int = 6, copies: int = 3, pairs: int = 4, directions: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).double()

    A_real, A_imag = -normal(copies, pairs).abs(), 5 * normal(copies, pairs)
    P, B, C = normal(rank, copies, pairs, 2), normal(copies, pairs, 2), normal(directions, hidden, pairs, 2)
    return [torch.logspace(-3, 0, hidden, dtype=torch.float64), A_real, A_imag, P, B, C]


def differentiable(arguments: list[Tensor]) -> list[Tensor]:
    return [argument.clone().requires_grad_() for argument in arguments]


def gradients(outputs: list[Tensor], arguments: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
    return torch.autograd.grad(outputs, arguments, weights)


def errors(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[float]:
    """Relative 2-norm errors."""
    return [((x - y).norm() / y.norm()).item() for x, y in zip(actual, expected, strict=True)]


def worst(actual: Tensor, expected: Tensor) -> float:
    """Largest error along the last dimension, relative to the largest value there."""
    return ((actual - expected).abs().amax(-1) / expected.abs().amax(-1)).max().item()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_discretisation_is_that_of_the_dense_system(rank: int) -> None:
    dt, A_real, A_imag, P, B, _ = make_random(rank)
    D, U, V, bbar = discretize_dplr(dt, A_real, A_imag, P, B)
    Abar = _dense(D, U, V).transpose(1, 2)
    # In real coordinates the continuous system is 2 x 2 blocks less P P^T, with P^* x = 2 Re sum conj(P) x.
    for h in range(len(dt)):
        copy = h % len(B)
        A = torch.block_diag(
            *(torch.stack([torch.stack([r, -i]), torch.stack([i, r])]) for r, i in zip(A_real[copy], A_imag[copy]))
        )
        p = P[:, copy].flatten(1)
        A = A - 2 * p.T @ p
        identity = torch.eye(A.shape[0], dtype=A.dtype)
        inverse = torch.linalg.inv(identity - dt[h] / 2 * A)
        torch.testing.assert_close(Abar[h], inverse @ (identity + dt[h] / 2 * A), atol=1e-13, rtol=1e-13)
        torch.testing.assert_close(bbar[h], dt[h] * inverse @ B[copy].flatten(), atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("start", [*STARTS, "random"])
def test_kernel_equals_recurrence(start: str, length: int) -> None:
    arguments = differentiable(make_random(2) if start == "random" else make(start, copies=2))
    kernel, expected = dplr_kernel(*arguments, length), dplr_kernel_reference(*arguments, length)
    assert kernel.shape == (2, 6, length) and kernel.dtype == torch.float64
    # The scale is that of some more lags: the first value alone can cancel.
    scale = dplr_kernel_reference(*arguments, max(length, 20)).abs().amax(-1, keepdim=True)
    assert ((kernel - expected).abs() / scale).max() < 1e-12
    # Measured up to 2e-13; a gradient that is exactly zero has no relative error.
    actual, expected = gradients([kernel], arguments), gradients([expected], arguments)
    for x, y in zip(actual, expected, strict=True):
        assert (x - y).norm() <= 1e-11 * y.norm() + 1e-16


def test_kernel_derivative_is_numerically_right() -> None:
    arguments = differentiable(make_random(2, hidden=2, copies=1, pairs=1))
    for length in (1, 2, 5, 40):
        assert torch.autograd.gradcheck(lambda *args, n=length: dplr_kernel(*args, n), arguments)


@pytest.mark.parametrize("start", ["legs", "legt", "fout"])
def test_kernel_of_the_dense_hippo_matrix(start: str) -> None:
    d_state, length = 16, 200
    A, B = HIPPO[start](d_state)
    dt, A_real, A_imag, P, B_modes, _ = make(start, hidden=3, d_state=d_state, real_floor=0.0, b_clip=None)
    # K_l = B^T Abar^l bbar needs no eigenvectors: in the modes C is conj(V* B).
    C = B_modes[None] * torch.tensor([1.0, -1.0])
    kernel = dplr_kernel(dt, A_real, A_imag, P, B_modes, C, length)[0]
    identity = torch.eye(d_state, dtype=torch.float64)
    for h in range(3):
        inverse = torch.linalg.inv(identity - dt[h] / 2 * A)
        Abar, state = inverse @ (identity + dt[h] / 2 * A), dt[h] * inverse @ B
        expected = []
        for _ in range(length):
            expected.append(B @ state)
            state = Abar @ state
        assert worst(kernel[h], torch.stack(expected)) < 1e-11


@pytest.mark.parametrize("length", [1024, 65536])
@pytest.mark.parametrize("start", STARTS)
def test_float32_error(start: str, length: int) -> None:
    """The bound is 5e-6; measured 3e-7 to 7e-7, and 1.8e-6 for the gradient of dt of LegT at 65,536."""
    exact = differentiable(make(start, hidden=4, d_state=64, directions=1))
    single = [*exact[:-1], exact[-1].detach().float().requires_grad_()]
    expected, kernel = dplr_kernel(*exact, length), dplr_kernel(*single, length)
    assert kernel.dtype == torch.float32
    assert worst(kernel, expected) < 5e-6
    assert max(errors(gradients([kernel], single), gradients([expected], exact))) < 5e-6


@pytest.mark.parametrize("start", STARTS)
def test_float64_at_the_longest_length(start: str) -> None:
    """Against single rows of matrix powers, since a loop of 65,536 steps takes long."""
    arguments = make(start, hidden=4, d_state=64, directions=1)
    kernel = dplr_kernel(*arguments, 65536)[0]
    D, U, V, bbar, C = dplr_system(*arguments)
    for lag in (0, 1, 4095, 40000, 65535):
        expected = torch.einsum("hn,hnm,hm->h", bbar, torch.linalg.matrix_power(_dense(D, U, V), lag), C[:, 0])
        assert ((kernel[:, lag] - expected).abs() / kernel.abs().amax(-1)).max() < 1e-10


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("d_state", [4, 64])
def test_powers_cannot_grow(start: str, d_state: int) -> None:
    dt, *rest, _ = make(start, hidden=8, d_state=d_state)
    for steps in (dt, 100 * dt):
        D, U, V, _ = discretize_dplr(steps, *rest)
        assert torch.linalg.matrix_norm(_dense(D, U, V), 2).max() <= 1 + 1e-6


def test_an_extreme_step_stays_finite() -> None:
    for dt in (1e-8, 1e4):
        arguments = differentiable(make("legs+fout", d_state=64))
        kernel = dplr_kernel(torch.full_like(arguments[0], dt), *arguments[1:], 1000)
        assert torch.isfinite(kernel).all()
        assert all(torch.isfinite(grad).all() for grad in gradients([kernel], arguments[1:]))


def test_undamped_states() -> None:
    """Exact zeros on the real axis, as in FouT without a floor: nothing divides by them."""
    arguments = differentiable(make("fout", real_floor=0.0))
    assert (arguments[1] == 0).all()
    kernel, expected = dplr_kernel(*arguments, 1000), dplr_kernel_reference(*arguments, 1000)
    assert worst(kernel, expected) < 1e-12
    actual, expected = gradients([kernel], arguments), gradients([expected], arguments)
    assert max(errors(actual, expected)) < 1e-11


def test_fourier_start_has_a_dead_state() -> None:
    arguments = make("fout", directions=1)
    changed = [*arguments[:-1], arguments[-1].clone()]
    changed[-1][:, :, 0, 1] += 1.0
    assert torch.equal(dplr_kernel(*arguments, 50), dplr_kernel(*changed, 50))
    changed[-1][:, :, 0, 0] += 1.0
    assert not torch.equal(dplr_kernel(*arguments, 50), dplr_kernel(*changed, 50))


def test_rank_zero_of_a_mixture_is_rank_one() -> None:
    mixed = make("legs+legt", d_state=16, hidden=4)
    alone = make("legs", d_state=16, hidden=4)
    even = torch.arange(0, 4, 2)
    mixed_kernel = dplr_kernel(*mixed[:5], alone[5], 100)[:, even]
    assert worst(mixed_kernel, dplr_kernel(*alone, 100)[:, even]) < 1e-13


@pytest.mark.parametrize(("d_state", "bound"), [(64, 2e-2), (256, 1e-3)])
def test_diagonal_legs_converges_to_s4(d_state: int, bound: float) -> None:
    """S4D-LegS with half of V* B responds to a smooth input like S4, though their kernels differ."""
    length = 1000
    A, B, P = hippo_legs_normal(d_state)
    dt = torch.tensor([1.0 / length], dtype=torch.float64)
    # y = B^T x of LegS: C = conj(V* B) in the modes.
    C = (B * torch.tensor([1.0, -1.0]))[None, None] / d_state
    full = dplr_kernel(dt, A[None, :, 0], A[None, :, 1], P[None, None], B[None], C, length)[0, 0]
    diagonal = diagonal_kernel(dt, A[None, :, 0], A[None, :, 1], B[None] / 2, C, length, "bilinear")[0, 0]
    time = torch.arange(length, dtype=torch.float64) / length
    u = torch.sin(2 * torch.pi * time).square()

    def response(kernel: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(kernel, 2 * length) * torch.fft.rfft(u, 2 * length))[:length]

    assert errors((response(diagonal),), (response(full),))[0] < bound
    assert errors((diagonal,), (full,))[0] > 0.5


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("length", [1, 5, 16, 17, 63, 128, 300, 5000])
def test_scan_equals_recurrence(rank: int, length: int) -> None:
    """Values, the final state, and gradients of everything, the initial state included."""
    arguments = differentiable(make_random(rank, directions=1))
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(2, length, 6, generator=generator).double().requires_grad_()
    start = torch.randn(2, 6, 8, generator=generator).double().requires_grad_()
    outputs = dplr_scan(dplr_system(*arguments), u, start)
    expected = dplr_scan_reference(*arguments, u, start)
    assert max(errors(outputs, expected)) < 1e-11
    inputs = [*arguments, u, start]
    assert max(errors(gradients(list(outputs), inputs), gradients(list(expected), inputs))) < 1e-10
    with torch.no_grad():
        single = dplr_scan(dplr_system(*arguments), u.float(), start.float())
    assert single[0].dtype == single[1].dtype == torch.float32
    assert max(errors(single, expected)) < 2e-6


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-11)])
def test_scan_equals_convolution_for_any_chunks(start: str, dtype: torch.dtype, tolerance: float) -> None:
    arguments = make(start, hidden=4, d_state=64, directions=1)
    system = dplr_system(*arguments)
    length = 1025
    u = torch.randn(1, length, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    kernel = dplr_kernel(*arguments, length)[0]
    spectra = torch.fft.rfft(u.double().mT, 2 * length) * torch.fft.rfft(kernel, 2 * length)
    expected = torch.fft.irfft(spectra, 2 * length)[..., :length].mT
    for split in ([length], [1] * 40 + [985], [700, 16, 17, 128, 164], [300, 1, 724]):
        state, outputs = None, []
        for chunk in u.split(split, dim=1):
            y, state = dplr_scan(system, chunk, state)
            outputs.append(y)
        assert errors((torch.cat(outputs, dim=1),), (expected,))[0] < tolerance


def test_step_by_step_over_a_long_sequence() -> None:
    """A rounded rotation would be off by 1e-3 after so many steps of an almost undamped state."""
    arguments = make("fout", hidden=4, d_state=16, directions=1)
    system = dplr_system(*arguments)
    u = torch.randn(1, 8000, 4, generator=torch.Generator().manual_seed(0))
    expected, end = dplr_scan(system, u.double())
    state, outputs = torch.zeros(1, 4, 16), []
    for step in u.double().unbind(1):
        y, new = dplr_step(system, step, state.double())
        state = new.float()
        outputs.append(y)
    assert max(errors((torch.stack(outputs, 1), state.double()), (expected, end))) < 2e-6


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 1025])
def test_graph_form_is_the_same_kernel(length: int) -> None:
    arguments = differentiable(make("legs+legt", d_state=16))
    traced, kernel = _traced_kernel(dplr_system(*arguments), length, torch.float64), dplr_kernel(*arguments, length)
    assert worst(traced, kernel) < 1e-12
    assert max(errors(gradients([traced], arguments), gradients([kernel], arguments))) < 1e-10


def test_graph_form_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="length=1048577 is more than 1048576"):
        _traced_kernel(dplr_system(*make()), 2**20 + 1, torch.float64)


def test_autocast_changes_nothing() -> None:
    arguments = make(d_state=64)
    arguments[-1] = arguments[-1].float()
    u = torch.randn(2, 40, 6)
    expected = dplr_kernel(*arguments, 300), dplr_scan(dplr_system(*arguments), u)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = dplr_kernel(*arguments, 300), dplr_scan(dplr_system(*arguments), u)[0]
        traced = _traced_kernel(dplr_system(*arguments), 300, torch.float32)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])
    assert worst(traced, expected[0]) < 1e-6
