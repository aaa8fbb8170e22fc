"""Discretisation and kernels of diagonal SSMs against their definitions."""

import math

import pytest
import torch
from torch import Tensor

from neverscratch.modeling.ops_hippo import s4d_legs, s4d_lin
from neverscratch.modeling.ops_ssm import (
    diagonal_kernel,
    diagonal_kernel_reference,
    discretize,
    full_precision_matmul,
    power_kernel,
    power_kernel_reference,
    power_sums,
)

RULES = ("zoh", "bilinear")
STARTS = {"lin": s4d_lin, "legs": s4d_legs}


def make(
    hidden: int = 6, d_state: int = 8, copies: int | None = None, directions: int = 2, start: str = "lin"
) -> list[Tensor]:
    """Float64 arguments dt, A_real, A_imag, B, C; float32 holds B and C exactly."""
    generator = torch.Generator().manual_seed(0)
    copies, pairs = copies or hidden, d_state // 2
    A = STARTS[start](d_state).expand(copies, pairs, 2)
    B = torch.randn(copies, pairs, 2, generator=generator).double()
    C = torch.randn(directions, hidden, pairs, 2, generator=generator).double()
    dt = torch.logspace(-4, -1, hidden, dtype=torch.float64)
    return [dt, A[..., 0].clone(), A[..., 1].clone(), B, C]


def direct_sum(dt: Tensor, A_real: Tensor, A_imag: Tensor, B: Tensor, C: Tensor, length: int, rule: str) -> Tensor:
    """The sum of the definition over a grid of all powers, complex128."""
    copy = torch.arange(C.shape[1]) % A_real.shape[0]
    log_z, gain = discretize(torch.stack([A_real, A_imag], dim=-1)[copy], dt, rule)
    weight = torch.view_as_complex(C) * torch.view_as_complex(gain) * torch.view_as_complex(B)[copy]
    powers = torch.exp(torch.view_as_complex(log_z)[..., None] * torch.arange(length))
    return 2 * torch.einsum("rhn,hnl->rhl", weight, powers).real


def worst(actual: Tensor, expected: Tensor, dims: tuple[int, ...] = (-1,)) -> float:
    """Largest error, relative to the largest value among `dims`."""
    return ((actual - expected).abs().amax(dims) / expected.abs().amax(dims)).max().item()


def gradients(kernel: Tensor, arguments: list[Tensor], seed: int = 1) -> tuple[Tensor, ...]:
    weights = torch.randn(kernel.shape, generator=torch.Generator().manual_seed(seed)).to(kernel.dtype)
    return torch.autograd.grad(kernel, arguments, weights, materialize_grads=True)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 100, 1000, 1025])
def test_kernel_equals_recurrence(rule: str, start: str, length: int) -> None:
    arguments = [argument.requires_grad_() for argument in make(start=start)]
    kernel = diagonal_kernel(*arguments, length, rule)
    reference = diagonal_kernel_reference(*arguments, length, rule)
    assert kernel.shape == reference.shape == (2, 6, length)
    assert worst(kernel, reference) < 1e-10
    expected_gradients = gradients(reference, arguments)
    for actual, expected in zip(gradients(kernel, arguments), expected_gradients, strict=True):
        assert worst(actual, expected, tuple(range(actual.dim()))) < 1e-10
    single = [*arguments[:4], arguments[4].detach().float().requires_grad_()]
    kernel = diagonal_kernel(*single, length, rule)
    assert kernel.dtype == torch.float32
    assert worst(kernel.double(), reference) < 5e-6
    for actual, expected in zip(gradients(kernel, single), expected_gradients, strict=True):
        assert worst(actual.double(), expected, tuple(range(actual.dim()))) < 5e-6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("length", [16384, 65536])
def test_long_kernels_keep_their_digits(rule: str, start: str, length: int) -> None:
    arguments = [argument.requires_grad_() for argument in make(hidden=4, d_state=16, start=start)]
    single = [*arguments[:4], arguments[4].detach().float().requires_grad_()]
    reference = direct_sum(*arguments, length, rule)
    kernel = diagonal_kernel(*arguments, length, rule)
    assert worst(kernel, reference) < 1e-10
    expected_gradients = gradients(reference, arguments)
    for actual, expected in zip(gradients(kernel, arguments), expected_gradients, strict=True):
        assert worst(actual, expected, tuple(range(1, actual.dim())) or (0,)) < 1e-10
    kernel = diagonal_kernel(*single, length, rule)
    assert worst(kernel.double(), reference) < 5e-6
    for actual, expected in zip(gradients(kernel, single), expected_gradients, strict=True):
        assert worst(actual.double(), expected, tuple(range(1, actual.dim())) or (0,)) < 5e-6


def test_recurrence_at_the_longest_length() -> None:
    arguments = make(hidden=2, d_state=4)
    kernel = diagonal_kernel(*arguments, 65536)
    assert worst(kernel, diagonal_kernel_reference(*arguments, 65536)) < 1e-10


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 1e-4])
def test_undamped_states(rule: str, decay: float) -> None:
    arguments = make(hidden=4, d_state=16)
    arguments[1] = torch.full_like(arguments[1], -decay)
    # A state that neither decays nor turns: its kernel is constant.
    arguments[2][:, 0] = 0.0 if decay == 0.0 else math.pi
    arguments = [argument.requires_grad_() for argument in arguments]
    single = [*arguments[:4], arguments[4].detach().float().requires_grad_()]
    reference = direct_sum(*arguments, 16384, rule)
    kernel = diagonal_kernel(*single, 16384, rule)
    assert worst(kernel.double(), reference) < 5e-6
    for actual, expected in zip(gradients(kernel, single), gradients(reference, arguments), strict=True):
        assert worst(actual.double(), expected, tuple(range(actual.dim()))) < 5e-6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("copies", [1, 3, 6])
@pytest.mark.parametrize("directions", [1, 2])
def test_gradcheck(rule: str, copies: int, directions: int) -> None:
    arguments = [argument.requires_grad_() for argument in make(6, 4, copies, directions)]
    arguments[0] = torch.logspace(-2, 0, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *a: diagonal_kernel(*a, 7, rule), arguments, fast_mode=True)


@pytest.mark.parametrize("rule", RULES)
def test_copies_are_shared_by_features_modulo(rule: str) -> None:
    dt, A_real, A_imag, B, C = make(hidden=6, copies=2)
    A_real = A_real * torch.tensor([[1.0], [3.0]])
    kernel = diagonal_kernel(dt, A_real, A_imag, B, C, 9, rule)
    spread = diagonal_kernel(dt, A_real.repeat(3, 1), A_imag.repeat(3, 1), B.repeat(3, 1, 1), C, 9, rule)
    assert torch.equal(kernel, spread)
    assert worst(kernel, diagonal_kernel_reference(dt, A_real, A_imag, B, C, 9, rule)) < 1e-10


@pytest.mark.parametrize("rule", RULES)
def test_gradcheck_around_zero(rule: str) -> None:
    values = [0.0, 1e-9, 1e-5, 9.9e-3, 1.01e-2, 0.3, 1.0]
    A = torch.tensor([[[-value, value], [-value, 0.0], [0.0, value]] for value in values], dtype=torch.float64)
    dt = torch.ones(len(values), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, d: discretize(a, d, rule), (A.requires_grad_(), dt))


def test_zoh_gain_against_its_series() -> None:
    modulus = torch.logspace(-12, 0, 40, dtype=torch.float64)
    for angle in (math.pi / 2, 2.0, 3.0, math.pi):
        A = torch.polar(modulus, torch.full_like(modulus, angle))
        _, gain = discretize(torch.view_as_real(A)[:, None], torch.ones(40, dtype=torch.float64), "zoh")
        series = sum(A**k / float(math.factorial(k + 1)) for k in range(25))
        assert ((torch.view_as_complex(gain)[:, 0] - series).abs() / series.abs()).max() < 1e-14
    _, gain = discretize(torch.zeros(1, 1, 2, dtype=torch.float64), torch.full((1,), 0.25, dtype=torch.float64), "zoh")
    assert gain.tolist() == [[[0.25, 0.0]]]


def test_bilinear_keeps_the_decay_of_slow_states() -> None:
    # In float32 a complex logarithm would leave three digits of it.
    A = torch.tensor([[[-0.5, 31 * math.pi]]])
    dt = torch.tensor([1e-4])
    log_z, _ = discretize(A, dt, "bilinear")
    exact, _ = discretize(A.double(), dt.double(), "bilinear")
    assert log_z.dtype == torch.float32
    assert ((log_z - exact) / exact).abs().max() < 5e-7
    undamped, _ = discretize(A * torch.tensor([0.0, 1.0]), dt, "bilinear")
    assert undamped[..., 0].item() == 0.0


def test_rules_agree_for_small_steps() -> None:
    A = s4d_lin(8)[None]
    errors = []
    for dt in (1e-3, 1e-4):
        step = torch.full((1,), dt, dtype=torch.float64)
        pairs = zip(discretize(A, step, "zoh"), discretize(A, step, "bilinear"), strict=True)
        errors.append(max(((zoh - bilinear) / dt).abs().max().item() for zoh, bilinear in pairs))
    assert errors[1] < errors[0] / 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_and_half_parameters(dtype: torch.dtype) -> None:
    arguments = make(hidden=4)
    low = [argument.to(dtype).requires_grad_() for argument in arguments]
    expected = diagonal_kernel_reference(*(argument.detach().double() for argument in low), 100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kernel = diagonal_kernel(*low, 100)
        grads = gradients(kernel, low)
    assert kernel.dtype == torch.float32
    assert worst(kernel.double(), expected) < 5e-6
    assert all(grad.dtype == dtype for grad in grads)
    outside = gradients(diagonal_kernel(*low, 100), low)
    assert all(torch.equal(grad, other) for grad, other in zip(grads, outside, strict=True))


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="the switch came with torch 2.9")
def test_reduced_matmul_precision_does_not_reach_the_kernel() -> None:
    arguments = make(hidden=4, d_state=64)
    arguments[4] = arguments[4].float()
    expected = diagonal_kernel_reference(*arguments, 1000)
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert not full_precision_matmul(torch.device("cpu"))
        kernel = diagonal_kernel(*arguments, 1000)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert full_precision_matmul(torch.device("cpu"))
    assert worst(kernel.double(), expected) < 5e-6


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="discretization='euler' is unknown; use one of zoh, bilinear"):
        diagonal_kernel(*make(), 8, "euler")


def powers_case(shared: bool, is_real: bool, hidden: int = 6, states: int = 5, rows: int = 3) -> tuple[Tensor, Tensor]:
    """log z and W in double precision; one state neither decays nor turns, one hardly does."""
    generator = torch.Generator().manual_seed(0)
    groups = 1 if shared else hidden
    decay = -torch.logspace(-5, -1, states, dtype=torch.float64).repeat(groups, 1)
    decay[:, 0] = 0.0
    weight = torch.randn(rows, hidden, states, generator=generator, dtype=torch.float64)
    if is_real:
        return decay, weight
    angle = 3 * torch.randn(groups, states, generator=generator, dtype=torch.float64)
    angle[:, 0] = 0.0
    weight = torch.complex(weight, torch.randn(rows, hidden, states, generator=generator, dtype=torch.float64))
    return torch.complex(decay, angle), weight


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 1000, 1025])
def test_power_kernels_of_all_kinds(shared: bool, is_real: bool, length: int) -> None:
    arguments = [x.requires_grad_() for x in powers_case(shared, is_real)]
    reference = power_kernel_reference(*arguments, length)
    expected_gradients = gradients(reference, arguments)
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 5e-6)):
        kernel = power_kernel(*arguments, length, dtype)
        assert kernel.dtype == dtype and kernel.shape == reference.shape == (3, 6, length)
        assert worst(kernel.double(), reference) < bound
        for actual, expected in zip(gradients(kernel, arguments), expected_gradients, strict=True):
            # At length 1 no power depends on z.
            assert (actual - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("is_real", [True, False])
def test_power_kernels_at_the_longest_length(shared: bool, is_real: bool) -> None:
    arguments = [x.requires_grad_() for x in powers_case(shared, is_real)]
    log_z, weight = arguments
    reference = torch.einsum(
        "rhn,hnl->rhl", weight, torch.exp(log_z[..., None] * torch.arange(65536)).expand(6, -1, -1)
    )
    kernel = power_kernel(*arguments, 65536)
    assert worst(kernel.double(), reference.real) < 5e-6
    expected_gradients = gradients(reference.real, arguments)
    for actual, expected in zip(gradients(kernel, arguments), expected_gradients, strict=True):
        assert worst(actual, expected, tuple(range(actual.dim()))) < 5e-6


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("is_real", [True, False])
def test_power_sums_are_the_adjoint(shared: bool, is_real: bool) -> None:
    log_z, weight = powers_case(shared, is_real)
    x = torch.randn(3, 6, 100, dtype=torch.float64)
    sums = power_sums(log_z, x)
    assert sums.shape == weight.shape and sums.dtype == weight.dtype
    left = (power_kernel(log_z, weight, 100, torch.float64) * x).sum()
    right = (weight * sums).sum().real
    assert abs(left - right) < 1e-10 * abs(left)
    assert torch.autograd.gradcheck(power_sums, (log_z.requires_grad_(), x[..., :7].clone().requires_grad_()))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("slowest", [0.0, 1e-5, 0.05])
def test_dead_states_are_left_out_within_rounding(shared: bool, slowest: float) -> None:
    length, states = 20_000, 24
    generator = torch.Generator().manual_seed(0)
    decay = torch.logspace(-4, 0, states, dtype=torch.float64)[torch.randperm(states, generator=generator)]
    decay = (decay + slowest).expand(1 if shared else 3, -1).clone()
    decay[:, 5] = slowest
    log_z = torch.complex(-decay, torch.rand(decay.shape, generator=generator, dtype=torch.float64) * 3)
    weight = torch.randn(2, 3, states, generator=generator, dtype=torch.complex128)
    grad = torch.randn(2, 3, length, generator=generator, dtype=torch.float64)
    found = []
    for function, dtype in ((power_kernel, torch.float32), (power_kernel_reference, torch.float64)):
        inputs = [log_z.clone().requires_grad_(), weight.clone().requires_grad_()]
        kernel = power_kernel(*inputs, length, dtype) if function is power_kernel else function(*inputs, length)
        found.append([kernel.detach().double(), *torch.autograd.grad(kernel, inputs, grad.to(kernel.dtype))])
    for fast, plain in zip(*found, strict=True):
        assert worst(fast, plain) < 5e-6


def test_not_a_number_goes_through() -> None:
    for groups in (1, 3):
        log_z = torch.full((groups, 4), complex(float("nan"), 0), dtype=torch.complex128)
        assert power_kernel(log_z, torch.ones(1, 3, 4, dtype=torch.complex128), 3000).isnan().all()


def test_tiny_powers_vanish_without_harm() -> None:
    # A state that dies within a block, beside one that lives: nothing overflows, and no gradient is NaN.
    log_z = torch.tensor([[-200.0, -1e-3]], dtype=torch.float64, requires_grad=True)
    weight = torch.ones(1, 1, 2, dtype=torch.float64, requires_grad=True)
    kernel = power_kernel(log_z, weight, 5000)
    assert worst(kernel.double(), power_kernel_reference(log_z, weight, 5000)) < 1e-6
    assert all(torch.isfinite(gradient).all() for gradient in gradients(kernel, [log_z, weight]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("copies", [2, 6])
def test_steps_per_state_and_real_states(rule: str, is_real: bool, copies: int) -> None:
    dt, A_real, A_imag, B, C = make(copies=copies)
    dt = torch.logspace(-4, -1, 24, dtype=torch.float64).view(6, 4)
    A_real = A_real * torch.arange(1, 5)
    arguments = [dt, A_real, B[..., 0], C[..., 0]] if is_real else [dt, A_real, A_imag, B, C]
    arguments = [argument.clone().requires_grad_() for argument in arguments]

    def run(function, length):
        imag = [None] if is_real else [arguments[2]]
        return function(*arguments[:2], *imag, *arguments[-2:], length, rule, 1 if is_real else 2)

    for length in (1, 2, 3, 63, 1000):
        kernel, reference = run(diagonal_kernel, length), run(diagonal_kernel_reference, length)
        assert worst(kernel, reference) < 1e-10
        expected_gradients = gradients(reference, arguments)
        for actual, expected in zip(gradients(kernel, arguments), expected_gradients, strict=True):
            assert worst(actual, expected, tuple(range(actual.dim()))) < 1e-10


def test_bilinear_rule_with_negative_and_zero_z() -> None:
    # dt A = -2 makes z = 0, and below that z is negative: the kernel alternates.
    A = -torch.tensor([[1.0, 1.999999, 2.0, 2.000001, 3.0, 50.0]], dtype=torch.float64)
    arguments = [torch.ones(1, dtype=torch.float64), A, torch.ones(1, 6).double(), torch.ones(1, 1, 6).double()]
    arguments = [argument.requires_grad_() for argument in arguments]
    dt, A, B, C = arguments
    kernel = diagonal_kernel(dt, A, None, B, C, 9, "bilinear", 1)
    z = (1 + dt * A / 2) / (1 - dt * A / 2)
    steps = torch.arange(9)
    expected = (z[..., None] ** steps * (dt / (1 - dt * A / 2))[..., None]).sum(1)
    assert (kernel[0] - expected).abs().max() < 1e-12
    for actual, wanted in zip(gradients(kernel[0], [dt, A]), gradients(expected, [dt, A]), strict=True):
        assert (actual - wanted).abs().max() < 1e-9 * wanted.abs().max()


def test_real_states_are_exponential_moving_averages() -> None:
    # y_t = sum_n C_n e_t, e_t = q_n e_{t-1} + (1 - q_n) u_t is zero-order hold with A = -rate and B = rate.
    rates, dt = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64), torch.tensor([0.05], dtype=torch.float64)
    C = torch.tensor([[[0.5, -1.0, 2.0]]], dtype=torch.float64)
    kernel = diagonal_kernel(dt, -rates, None, rates, C, 40, factor=1)[0, 0]
    q = torch.exp(-rates[0] * 0.05)
    averages, impulse = torch.zeros(3, dtype=torch.float64), 1.0
    for value in kernel:
        averages = q * averages + (1 - q) * impulse
        assert abs(value - (C[0, 0] * averages).sum()) < 1e-14
        impulse = 0.0
