"""Diagonal systems run from a state, by chunks and by steps, against the loop."""

import pytest
import torch
from torch import Tensor

from neverscratch.modeling.ops_recurrence import (
    diagonal_recurrence,
    diagonal_recurrence_reference,
    diagonal_step,
    diagonal_step_constants,
)

KINDS = pytest.mark.parametrize("shared", [True, False])
REAL = pytest.mark.parametrize("is_real", [True, False])
BATCH, HIDDEN, STATES = 2, 5, 4


def make(shared: bool, is_real: bool, length: int) -> list[Tensor]:
    """u, log z, W and an initial state in float64; one state never decays."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    groups = 1 if shared else HIDDEN
    decay = -torch.logspace(-4, -1, STATES, dtype=torch.float64).repeat(groups, 1)
    decay[:, 0] = 0.0
    if is_real:
        return [normal(BATCH, length, HIDDEN), decay, normal(HIDDEN, STATES), normal(BATCH, HIDDEN, STATES)]
    log_z = torch.complex(decay, 3 * normal(groups, STATES))
    weight = torch.complex(normal(HIDDEN, STATES), normal(HIDDEN, STATES))
    return [normal(BATCH, length, HIDDEN), log_z, weight, normal(BATCH, HIDDEN, STATES, 2)]


def worst(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def gradients(outputs: tuple[Tensor, Tensor], arguments: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    total = sum((x.double() * torch.randn(x.shape, generator=generator).double()).sum() for x in outputs)
    return torch.autograd.grad(total, arguments)


@KINDS
@REAL
@pytest.mark.parametrize("length", [1, 2, 3, 63, 1000, 1025])
def test_chunk_equals_loop(shared: bool, is_real: bool, length: int) -> None:
    arguments = [x.requires_grad_() for x in make(shared, is_real, length)]
    expected = diagonal_recurrence_reference(*arguments)
    expected_gradients = gradients(expected, arguments)
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 5e-6)):
        given = [arguments[0].to(dtype), *arguments[1:3], arguments[3].to(dtype)]
        result = diagonal_recurrence(*given)
        for actual, wanted in zip(result, expected, strict=True):
            assert actual.dtype == dtype and actual.shape == wanted.shape
            assert worst(actual, wanted) < bound
        for actual, wanted in zip(gradients(result, arguments), expected_gradients, strict=True):
            assert worst(actual, wanted) < bound


@KINDS
@REAL
def test_a_start_from_zeros_needs_no_state(shared: bool, is_real: bool) -> None:
    u, log_z, weight, state = make(shared, is_real, 20)
    for actual, wanted in zip(
        diagonal_recurrence(u, log_z, weight), diagonal_recurrence(u, log_z, weight, 0 * state), strict=True
    ):
        assert torch.allclose(actual, wanted, atol=1e-14)


@KINDS
@REAL
@pytest.mark.parametrize("splits", [[1] * 50, [7, 1, 42], [50]])
def test_steps_and_chunks_equal_the_loop(shared: bool, is_real: bool, splits: list[int]) -> None:
    u, log_z, weight, start = make(shared, is_real, 50)
    expected, end = diagonal_recurrence_reference(u, log_z, weight, start)
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        constants = diagonal_step_constants(log_z, weight, dtype)
        state, outputs = start.to(dtype), []
        for chunk in u.to(dtype).split(splits, dim=1):
            if chunk.shape[1] == 1:
                y, state = diagonal_step(chunk[:, 0], state, constants)
                y = y[:, None]
            else:
                y, state = diagonal_recurrence(chunk, log_z, weight, state)
            outputs.append(y)
        assert worst(torch.cat(outputs, dim=1), expected) < bound
        assert worst(state, end) < bound


def test_first_step_from_nothing() -> None:
    u, log_z, weight, state = make(False, False, 1)
    constants = diagonal_step_constants(log_z, weight, torch.float64)
    for actual, wanted in zip(
        diagonal_step(u[:, 0], None, constants), diagonal_step(u[:, 0], 0 * state, constants), strict=True
    ):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("decay", [0.0, 2e-3])
def test_many_float32_steps_do_not_drift(decay: float) -> None:
    # With z rounded to float32 the phase of the undamped states would be off by 6e-4 after 20,000 steps.
    _, log_z, weight, state = make(False, False, 1)
    log_z = torch.complex(torch.full_like(log_z.real, -decay), log_z.imag / (1 if decay == 0.0 else 10))
    with torch.no_grad():
        constants = diagonal_step_constants(log_z, weight, torch.float32)
    assert constants.is_increment == (decay > 0.0)
    steps = 20000 if decay == 0.0 else 1000
    nothing, now = torch.zeros(BATCH, HIDDEN), state.float()
    for _ in range(steps):
        _, now = diagonal_step(nothing, now, constants)
    exact = torch.view_as_complex(state) * torch.exp(steps * log_z)
    assert worst(now, torch.view_as_real(exact)) < 2e-5


@REAL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_a_step(is_real: bool, dtype: torch.dtype) -> None:
    arguments = [x.requires_grad_() for x in make(False, is_real, 1)]
    u, log_z, weight, start = arguments
    constants = diagonal_step_constants(log_z, weight, dtype)
    result = diagonal_step(u[:, 0].to(dtype), start.to(dtype), constants)
    expected_gradients = gradients(diagonal_recurrence_reference(*arguments), arguments)
    for actual, wanted in zip(gradients((result[0][:, None], result[1]), arguments), expected_gradients, strict=True):
        assert worst(actual, wanted) < (1e-6 if dtype == torch.float32 else 1e-13)


@KINDS
@REAL
def test_gradcheck(shared: bool, is_real: bool) -> None:
    arguments = [x.requires_grad_() for x in make(shared, is_real, 5)]
    assert torch.autograd.gradcheck(diagonal_recurrence, arguments, fast_mode=True)


def test_long_chunks_keep_their_digits() -> None:
    arguments = make(False, False, 65536)
    u, log_z, weight, start = arguments
    one = diagonal_recurrence(u.float(), log_z, weight, start.float())
    exact = diagonal_recurrence(*arguments)
    for actual, wanted in zip(one, exact, strict=True):
        assert worst(actual, wanted) < 5e-6
    # Float32 states handed on a hundred times.
    state, outputs = start.float(), []
    for chunk in u.float().split(700, dim=1):
        y, state = diagonal_recurrence(chunk, log_z, weight, state)
        outputs.append(y)
    assert worst(torch.cat(outputs, dim=1), exact[0]) < 5e-6
