"""One model for all lengths: what it says of a start depends neither on the length nor on the way to compute it."""

import pytest
import torch
from common import CAUSAL_NAMES, NAMES, QUADRATIC, Case, directions, lengthened

LINEAR_NAMES = [
    name for name in NAMES if not name.startswith(QUADRATIC) or "local" in name or "chunk" in name or "mamba" in name
]
LENGTHS = (1, 2, 3, 63, 1000, 1025)


@pytest.mark.parametrize("name", NAMES)
def test_every_length_has_finite_states_and_gradients(name):
    for bidirectional in directions(name):
        case = Case(name, "AutoModel", "values", bidirectional)
        model = case.model(**lengthened(case, max(LENGTHS)))
        values = case.inputs(batch=1, length=max(LENGTHS))["input_values"]
        for length in LENGTHS:
            model.zero_grad()
            states = model(input_values=values[:, :length]).last_hidden_state
            assert states.shape == (1, length, 16) and states.isfinite().all()
            states.square().mean().backward()
            assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", CAUSAL_NAMES)
def test_a_causal_model_says_the_same_of_a_start_at_every_length(name):
    case = Case(name, "AutoModel", "values", False)
    model = case.model(**lengthened(case, max(LENGTHS)))
    values = case.inputs(batch=1, length=max(LENGTHS))["input_values"]
    with torch.no_grad():
        whole = model(input_values=values).last_hidden_state
        for length in LENGTHS[:-1]:
            got = model(input_values=values[:, :length]).last_hidden_state
            torch.testing.assert_close(got, whole[:, :length], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", LINEAR_NAMES)
def test_length_65536(name):
    case = Case(name, "AutoModel", "values", directions(name)[-1])
    model = case.model(**lengthened(case, 65_536))
    values = case.inputs(batch=1, length=65_536)["input_values"]
    with torch.no_grad():
        states = model(input_values=values).last_hidden_state
        assert states.shape == (1, 65_536, 16) and states.isfinite().all()
        if not case.bidirectional:
            start = model(input_values=values[:, :1000]).last_hidden_state
            torch.testing.assert_close(states[:, :1000], start, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_double_precision_agrees_with_single(name):
    for bidirectional in directions(name):
        case = Case(name, "AutoModel", "values", bidirectional)
        model, values = case.model(), case.inputs(length=40)["input_values"]
        single = model(input_values=values).last_hidden_state
        double = model.double()(input_values=values.double()).last_hidden_state
        assert double.dtype == torch.float64
        torch.testing.assert_close(double.float(), single, atol=1e-4, rtol=1e-4)
