"""One graph for all shapes: torch.compile without breaks, and torch.export with free batch and length."""

import re

import pytest
import torch
from common import NAMES, REFUSED, Case, directions, lengthened, pad, result

LONGEST = 600


def attempt(check, name, function):
    """Run `function`, or assert that it raises the sentence the table of refusals names."""
    if (check, name) in REFUSED:
        with pytest.raises(Exception, match=re.escape(REFUSED[check, name])):
            function()
        return None
    return function()


def case_of(name):
    return Case(name, "AutoModelForPreTraining", "values", directions(name)[-1])


@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph(name):
    torch._dynamo.reset()
    case = case_of(name)
    model, inputs = case.model(), case.inputs()
    inputs.pop("labels")
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    def check():
        for given in (inputs, pad(inputs, 16, "left")):
            # What stands at pads is nobody's: a packed batch, which a graph does not know, has zeros there.
            kept = given.get("attention_mask", torch.ones(3, 11)).bool()
            got, expected = result(compiled(**given))[kept], result(model(**given))[kept]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)

    attempt("compile", name, check)


@pytest.mark.parametrize("name", NAMES)
def test_exports_with_any_batch_and_length(name):
    case = case_of(name)
    model = case.model(**lengthened(case, LONGEST))

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_values, attention_mask):
            return self.model(input_values=input_values, attention_mask=attention_mask).logits

    def check():
        example = pad({"input_values": case.inputs(length=20)["input_values"]}, 24, "right")
        shape = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=LONGEST)}
        shapes = {"input_values": shape, "attention_mask": shape}
        exported = torch.export.export(Logits(), (), example, dynamic_shapes=shapes, strict=False).module()
        for batch, length in ((3, 24), (2, 47), (5, 600)):
            given = pad({"input_values": case.inputs(batch=batch, length=length - 2)["input_values"]}, length, "left")
            torch.testing.assert_close(exported(**given), result(model(**given)), atol=1e-4, rtol=1e-4, equal_nan=True)

    attempt("export", name, check)
