import pytest
import torch

from neverscratch.modeling import ops_feed_forward
from neverscratch.modeling.ops_feed_forward import gelu_feed_forward, gelu_feed_forward_reference


def arguments(tokens, dtype):
    torch.manual_seed(0)
    shapes = ((tokens, 3, 8), (20, 8), (20,), (8, 20), (8,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("tokens", [700, 1024, 1333])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_pieces_equal_the_plain_form_in_values_and_gradients(tokens, dtype, tolerance):
    given = arguments(tokens, dtype)
    results = []
    for function in (gelu_feed_forward, gelu_feed_forward_reference):
        y = function(*given)
        # A strided gradient, as attention and dropout may hand one back.
        gradients = torch.autograd.grad((y.transpose(0, 1).sin() * 3).sum(), given)
        results.append((y, *gradients))
    for fast, plain in zip(*results):
        assert (fast - plain).norm() <= tolerance * plain.norm()


def test_few_tokens_half_precision_and_inference_take_the_plain_form(monkeypatch):
    def fail(*args):
        raise AssertionError

    monkeypatch.setattr(ops_feed_forward._FeedForward, "apply", fail)
    gelu_feed_forward(*arguments(100, torch.float32))
    gelu_feed_forward(*arguments(1000, torch.bfloat16))
    with torch.no_grad():
        gelu_feed_forward(*arguments(1000, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gelu_feed_forward(*arguments(1000, torch.float32))
    with pytest.raises(AssertionError):
        gelu_feed_forward(*arguments(1000, torch.float32))
