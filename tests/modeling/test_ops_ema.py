"""Damped moving averages: the kernel against the recurrence, and the logarithm of what is kept at its extremes."""

from decimal import Decimal, localcontext

import pytest
import torch

from neverscratch.modeling.ops_conv import long_conv_reference
from neverscratch.modeling.ops_ema import ema_kernel, ema_reference, log_retention


def parameters(directions=1, hidden=4, states=5, dtype=torch.float64, wide=False):
    """delta, alpha, beta, gamma (R, H, N); if `wide`, with averages over one step to some ten thousand steps."""
    random = torch.Generator().manual_seed(0)
    draw = [torch.randn(directions, hidden, states, dtype=torch.float64, generator=random) for _ in range(4)]
    if wide:
        # q from near 0 to 1 - 1e-5.
        draw[0] = torch.linspace(-6, 6, draw[0].numel(), dtype=torch.float64).view_as(draw[0])
        draw[1] = torch.linspace(-5.5, 6, draw[1].numel(), dtype=torch.float64).view_as(draw[1])
    return [x.to(dtype).requires_grad_() for x in draw]


def impulse_response(given, length):
    """Kernel (H, L) of one direction by the recurrence."""
    x = torch.zeros(1, length, given[0].shape[1], dtype=torch.float64)
    x[:, 0] = 1.0
    return ema_reference(x, *(parameter[0] for parameter in given))[0].T


def exact_log_retention(delta: str, alpha: str) -> float:
    with localcontext() as context:
        context.prec = 60
        p, keep = (1 / (1 + (-Decimal(x)).exp()) for x in (delta, alpha))
        return float((1 - p * keep).ln())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("delta", "alpha"), [("20", "20"), ("-20", "-20"), ("20", "-20"), ("40", "40"), ("0.9", "0.88"), ("0.8", "0.8")]
)
def test_log_retention_at_the_extremes(delta: str, alpha: str, dtype: torch.dtype) -> None:
    given = [torch.tensor(float(x), dtype=dtype, requires_grad=True) for x in (delta, alpha)]
    got = log_retention(*given)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    assert abs(got.item() / exact_log_retention(delta, alpha) - 1) < tolerance
    got.backward()
    # Below the smallest step of float32 a slope may vanish.
    assert all(x.grad.isfinite() and (x.grad < 0 if dtype == torch.float64 else x.grad <= 0) for x in given)


def test_log_retention_keeps_what_the_plain_form_loses() -> None:
    twenty = torch.tensor(20.0)
    assert torch.log(1 - twenty.sigmoid() * twenty.sigmoid()).isinf()
    assert abs(log_retention(twenty, twenty).item() + 19.3069) < 1e-4
    assert torch.log(1 - (-twenty).sigmoid() * (-twenty).sigmoid()) == 0
    assert abs(log_retention(-twenty, -twenty).item() / -4.2484e-18 - 1) < 1e-4


def test_log_retention_has_its_derivative() -> None:
    # On both sides of the border between the two forms, p sigmoid(alpha) = 1/2.
    delta = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    alpha = torch.linspace(4, -2, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_retention, (delta, alpha))


@pytest.mark.parametrize("length", [1, 2, 3, 63, 1000, 1025])
def test_kernel_equals_the_recurrence(length: int) -> None:
    given = parameters(wide=True)
    kernel, expected = ema_kernel(*given, length), impulse_response(given, length)
    assert kernel.shape == (1, 4, length) and kernel.dtype == torch.float64
    torch.testing.assert_close(kernel[0], expected, atol=1e-12, rtol=1e-10)
    weight = torch.randn(4, length, dtype=torch.float64)
    got = torch.autograd.grad((kernel[0] * weight).sum(), given)
    for gradient, reference in zip(got, torch.autograd.grad((expected * weight).sum(), given), strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("length", [1000, 65_536])
def test_float32_kernel_keeps_its_digits(length: int) -> None:
    """Relative error at most 5e-6 of each kernel and each gradient, against float64."""
    narrow = parameters(dtype=torch.float32, wide=True)
    wide = [x.detach().double().requires_grad_() for x in narrow]
    kernel, expected = ema_kernel(*narrow, length), ema_kernel(*wide, length)
    assert kernel.dtype == torch.float32
    error = (kernel - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert error.max() < 5e-6
    weight = torch.randn(4, length, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad((kernel * weight).sum(), narrow)
    for gradient, reference in zip(got, torch.autograd.grad((expected * weight.double()).sum(), wide), strict=True):
        assert (gradient - reference).norm() < 5e-6 * reference.norm()


def test_long_float64_kernel_equals_the_closed_form() -> None:
    given = [x.detach() for x in parameters(wide=True)]
    delta, alpha, beta, gamma = given
    kernel = ema_kernel(*given, 65_536)
    lag = torch.tensor([0, 1, 255, 256, 257, 4095, 40_000, 65_535], dtype=torch.float64)
    power = torch.exp(log_retention(delta, alpha)[..., None] * lag)
    expected = ((gamma * delta.sigmoid() * beta)[..., None] * power).sum(2) / 5**0.5
    torch.testing.assert_close(kernel[..., lag.long()], expected, atol=1e-14, rtol=1e-10)


@pytest.mark.parametrize("value", [20.0, -20.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_parameters_give_finite_kernels_and_gradients(value: float, dtype: torch.dtype) -> None:
    ones = torch.ones(1, 2, 3, dtype=dtype)
    given = [x.requires_grad_() for x in (value * ones, value * ones, ones.clone(), ones.clone())]
    kernel = ema_kernel(*given, 1025)
    p = torch.tensor(value, dtype=torch.float64).sigmoid().item()
    q = torch.tensor(exact_log_retention(str(value), str(value)), dtype=torch.float64).exp().item()
    expected = 3**0.5 * p * q ** torch.arange(1025, dtype=torch.float64)
    torch.testing.assert_close(kernel[0, 0].double(), expected, atol=1e-30, rtol=1e-6)
    kernel.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in given)


@pytest.mark.parametrize("truncation", [1, 7, 100])
def test_truncation_forgets_what_lies_further_back(truncation: int) -> None:
    given = parameters(directions=2)
    whole, cut = ema_kernel(*given, 50), ema_kernel(*given, 50, truncation)
    assert torch.equal(cut[..., :truncation], whole[..., :truncation])
    assert (cut[..., truncation:] == 0).all()


def test_reference_is_the_sum_of_its_definition() -> None:
    given = parameters()
    x = torch.randn(2, 20, 4, dtype=torch.float64)
    kernel = ema_kernel(*given, 20)[0]
    one_way = [parameter[0] for parameter in given]
    torch.testing.assert_close(ema_reference(x, *one_way), long_conv_reference(x, kernel))
    back = ema_reference(x, *one_way, reverse=True)
    torch.testing.assert_close(back, long_conv_reference(x.flip(1), kernel).flip(1))
