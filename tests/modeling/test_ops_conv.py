"""Long convolutions against the sums that define them."""

import pytest
import torch
from torch import Tensor

from neverscratch.modeling import ops_conv
from neverscratch.modeling.ops_conv import (
    fast_fft_length,
    fft_conv,
    long_conv,
    long_conv_reference,
    toeplitz_conv,
    traced_conv,
)

METHODS = (fft_conv, toeplitz_conv, long_conv, traced_conv)


def make(
    batch: int, length: int, hidden: int, two_sided: bool, skip: bool, dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    return [
        draw(batch, length, hidden),
        draw(hidden, length),
        draw(hidden, length) if two_sided else None,
        draw(hidden) if skip else None,
    ]


def gradients(y: Tensor, arguments: list[Tensor | None]) -> tuple[Tensor, ...]:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    inputs = [argument for argument in arguments if argument is not None]
    return torch.autograd.grad(y, inputs, weights, allow_unused=True, materialize_grads=True)


def worst(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 100])
def test_equals_the_sums(method, two_sided: bool, skip: bool, length: int) -> None:
    arguments = make(2, length, 5, two_sided, skip)
    y, reference = method(*arguments), long_conv_reference(*arguments)
    assert y.shape == reference.shape
    assert worst(y, reference) < 1e-10
    expected_gradients = gradients(reference, arguments)
    for actual, expected in zip(gradients(y, arguments), expected_gradients, strict=True):
        assert worst(actual, expected) < 1e-10
    single = [None if argument is None else argument.detach().float().requires_grad_() for argument in arguments]
    y = method(*single)
    assert y.dtype == torch.float32
    assert worst(y.double(), reference) < 5e-6
    for actual, expected in zip(gradients(y, single), expected_gradients, strict=True):
        assert worst(actual.double(), expected) < 5e-6


@pytest.mark.parametrize("length", [1000, 1025])
def test_long_and_prime_lengths(length: int) -> None:
    arguments = make(1, length, 2, two_sided=True, skip=True)
    y, reference = fft_conv(*arguments), long_conv_reference(*arguments)
    assert worst(y, reference) < 1e-10
    for actual, expected in zip(gradients(y, arguments), gradients(reference, arguments), strict=True):
        assert worst(actual, expected) < 1e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_gradcheck(method, length: int) -> None:
    assert torch.autograd.gradcheck(method, make(2, length, 3, two_sided=True, skip=True), fast_mode=True)


def test_blocks_of_features_change_nothing(monkeypatch) -> None:
    arguments = make(2, 50, 7, two_sided=True, skip=True)
    whole = fft_conv(*arguments)
    whole_gradients = gradients(whole, arguments)
    # Three features at a time, so that the last block is short.
    monkeypatch.setattr(ops_conv, "_CPU_BLOCK_ELEMENTS", 3 * 2 * fast_fft_length(99))
    blocked = fft_conv(*arguments)
    assert worst(blocked, whole) < 1e-14
    for actual, expected in zip(gradients(blocked, arguments), whole_gradients, strict=True):
        assert worst(actual, expected) < 1e-14


@pytest.mark.parametrize("method", METHODS)
def test_lag_zero_counts_once(method) -> None:
    length = 9
    u = torch.zeros(1, length, 1, dtype=torch.float64)
    u[0, 4] = 1.0
    forward = torch.arange(1.0, length + 1, dtype=torch.float64)[None]
    backward = 100 * forward
    # Lag 0 carries the first causal value only; the first anti-causal value stands one step before the impulse.
    y = method(u, forward, backward)[0, :, 0]
    expected = torch.tensor([400.0, 300.0, 200.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    assert torch.allclose(y, expected, atol=1e-10)
    y = method(u, forward, backward, torch.tensor([0.5], dtype=torch.float64))[0, :, 0]
    assert torch.allclose(y[4], torch.tensor(1.5, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
def test_causal_ignores_the_future(method) -> None:
    u, kernel, _, _ = make(2, 20, 3, two_sided=False, skip=False)
    changed = u.detach().clone()
    changed[:, 12:] = 1e3
    assert torch.allclose(method(u, kernel)[:, :12], method(changed, kernel)[:, :12], atol=1e-9)
    assert torch.equal(toeplitz_conv(u, kernel)[:, :12], toeplitz_conv(changed, kernel)[:, :12])


@pytest.mark.parametrize("method", METHODS)
def test_longer_kernels_are_cut(method) -> None:
    u, kernel, backward, _ = make(2, 20, 3, two_sided=True, skip=False)
    longer = [torch.cat([half, torch.full_like(half, 7.0)], dim=1) for half in (kernel, backward)]
    assert torch.equal(method(u, *longer), method(u, kernel, backward))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(method, dtype: torch.dtype) -> None:
    u, kernel, backward, skip = make(2, 65, 4, True, True, torch.float32)
    half = u.detach().to(dtype).requires_grad_()
    y = method(half, kernel, backward, skip)
    assert y.dtype == dtype
    assert torch.equal(y, method(half.float(), kernel, backward, skip).to(dtype))
    y.float().sum().backward()
    assert half.grad.dtype == dtype and kernel.grad.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = method(u, kernel, backward, skip)
    assert torch.equal(inside, method(u, kernel, backward, skip))


def test_no_gradient_keeps_no_spectra() -> None:
    arguments = make(2, 200, 3, two_sided=True, skip=True)
    with torch.no_grad():
        y = fft_conv(*arguments)
    assert y.grad_fn is None
    assert worst(y, long_conv_reference(*arguments)) < 1e-10


def test_fast_lengths() -> None:
    def is_fast(n: int) -> bool:
        for prime in (2, 3, 5):
            while n % prime == 0:
                n //= prime
        return n == 1

    for minimum in range(1, 700):
        assert fast_fft_length(minimum) == next(n for n in range(max(2, minimum), 2000) if n % 2 == 0 and is_fast(n))
    assert fast_fft_length(131071) == 131072
