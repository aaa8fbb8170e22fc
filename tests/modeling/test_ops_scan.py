"""The scan of shared diagonal states against the loop of its definition."""

import math

import pytest
import torch
from torch import Tensor

from neverscratch.modeling.ops_scan import diagonal_scan, diagonal_scan_reference

# Moduli of the eigenvalues; the last is undamped.
RINGS = [(0.9, 0.999), (0.999, 0.9999), (1.0, 1.0)]
LENGTHS = [1, 2, 3, 31, 32, 33, 63, 1000, 1025]


def make(length: int, ring: tuple[float, float], batch: int = 2, states: int = 5) -> list[Tensor]:
    """v and the initial state, which float32 holds exactly, and log z, all float64."""
    generator = torch.Generator().manual_seed(length)
    low, high = ring
    radius, angle = torch.rand(2, states, generator=generator, dtype=torch.float64)
    modulus = torch.sqrt(radius * (high**2 - low**2) + low**2)
    log_z = torch.stack([modulus.log(), 2 * math.pi * angle], dim=-1)
    v = torch.randn(batch, length, states, 2, generator=generator)
    initial = torch.randn(batch, states, 2, generator=generator)
    return [v.double(), log_z, initial.double()]


def single(arguments: list[Tensor]) -> list[Tensor]:
    """The same in float32, but for log z."""
    v, log_z, initial = (argument.detach() for argument in arguments)
    return [v.float().requires_grad_(), log_z.requires_grad_(), initial.float().requires_grad_()]


def double(arguments: list[Tensor]) -> list[Tensor]:
    return [argument.detach().clone().requires_grad_() for argument in arguments]


def worst(actual: Tensor, expected: Tensor, dims: tuple[int, ...] = (0, 1)) -> float:
    """Largest error, relative to the largest value of each state."""
    dims = dims if actual.dim() > len(dims) else tuple(range(actual.dim()))
    return ((actual.double() - expected).abs().amax(dims) / expected.abs().amax(dims)).max().item()


def outcome(function, arguments: list[Tensor], reverse: bool, initial: bool = True) -> list[Tensor]:
    """States, final state, and the gradients of a random linear function of both."""
    used = arguments if initial else arguments[:2]
    states, final = function(*used, reverse=reverse)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in (states, final)]
    return [states, final, *torch.autograd.grad([states, final], used, weights)]


@pytest.mark.parametrize("initial", [True, False], ids=["initial", "zero"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_scan_equals_recurrence(length: int, ring: tuple[float, float], reverse: bool, initial: bool) -> None:
    arguments = make(length, ring)
    expected = outcome(diagonal_scan_reference, double(arguments), reverse, initial)
    for actual, truth in zip(outcome(diagonal_scan, double(arguments), reverse, initial), expected, strict=True):
        assert actual.shape == truth.shape and actual.dtype == torch.float64
        assert actual.equal(truth) or worst(actual, truth) < 1e-10
    states, final, *gradients = outcome(diagonal_scan, single(arguments), reverse, initial)
    assert states.dtype == final.dtype == torch.float32
    for actual, truth in zip((states, final, *gradients), expected, strict=True):
        assert actual.double().equal(truth) or worst(actual, truth, tuple(range(actual.dim()))) < 5e-6


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_long_scan_keeps_its_digits(ring: tuple[float, float], reverse: bool) -> None:
    # Gradients are held against those of the float64 scan, which shorter lengths hold against the loop.
    arguments = make(65536, ring, batch=1, states=3)
    with torch.no_grad():
        truth = diagonal_scan_reference(*arguments, reverse=reverse)[0]
    expected = outcome(diagonal_scan, double(arguments), reverse)
    assert worst(expected[0], truth) < 1e-10
    states, *rest = outcome(diagonal_scan, single(arguments), reverse)
    assert worst(states, truth) < 5e-6
    for actual, exact in zip(rest, expected[1:], strict=True):
        assert worst(actual, exact, tuple(range(actual.dim()))) < 5e-6


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_pieces_with_carried_state_equal_the_whole(reverse: bool) -> None:
    v, log_z, state = make(200, RINGS[1])
    whole, final = diagonal_scan(v, log_z, state, reverse)
    pieces = list(v.split([1, 64, 1, 1, 100, 33], dim=1))
    found = []
    for piece in reversed(pieces) if reverse else pieces:
        x, state = diagonal_scan(piece, log_z, state, reverse)
        found.append(x)
    assert torch.allclose(torch.cat(found[::-1] if reverse else found, dim=1), whole, atol=1e-12, rtol=1e-12)
    assert torch.allclose(state, final, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 12])
def test_gradcheck(length: int) -> None:
    arguments = double(make(length, RINGS[0], states=2))
    for reverse in (False, True):
        assert torch.autograd.gradcheck(lambda *a, reverse=reverse: diagonal_scan(*a, reverse=reverse), arguments)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_traced_form_is_the_same_at_all_lengths(reverse: bool) -> None:
    torch._dynamo.reset()
    # Values and gradients of one graph for all lengths; 65,536 shows its digits.
    traced = torch.compile(diagonal_scan, backend="eager", fullgraph=True, dynamic=True)
    for length, states in ((63, 5), (2, 5), (1025, 5), (65536, 3)):
        arguments = make(length, RINGS[2], states=states)
        expected = outcome(diagonal_scan, double(arguments), reverse)
        for actual, truth in zip(outcome(traced, double(arguments), reverse), expected, strict=True):
            assert worst(actual, truth) < 1e-10
        for actual, truth in zip(outcome(traced, single(arguments), reverse), expected, strict=True):
            assert worst(actual, truth, tuple(range(actual.dim()))) < 5e-6


def test_only_the_states_are_kept_for_the_backward() -> None:
    v, log_z, initial = single(make(1000, RINGS[0], states=8))
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        diagonal_scan(v, log_z, initial)
    assert sum(kept.values()) < 1.05 * v.untyped_storage().nbytes()


def test_half_precision_and_strided_input() -> None:
    v, log_z, _ = make(40, RINGS[0])
    states, final = diagonal_scan(v.bfloat16(), log_z)
    assert states.dtype == final.dtype == torch.float32
    assert torch.allclose(states, diagonal_scan(v.bfloat16().float(), log_z)[0])
    strided = v.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(diagonal_scan(strided, log_z)[0], diagonal_scan(v, log_z)[0])


def test_autocast_does_not_touch_the_scan() -> None:
    v, log_z, initial = (x.detach() for x in single(make(100, RINGS[1])))
    expected = diagonal_scan(v, log_z, initial)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(diagonal_scan(v, log_z, initial)[0], expected)
