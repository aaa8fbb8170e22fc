"""The official settings of "Never Train from Scratch" (arXiv 2310.02980) have their sizes in our configurations.

Settings are those of configs/experiment/lra/{s4,transformer}-lra-*.yaml of https://github.com/IdoAmos/not-from-scratch,
models for fine-tuning: encoder, blocks, classifier. ListOps has 19 symbols (with the mask) and 10 classes, Text 135
characters (those that occur 15 times in the training split) and 2 classes, Image one grey channel and 10 classes,
Pathfinder one grey channel and 2 classes. What differs from our container is counted in `Setting`:

- A model of values has one learned vector here that marks masked positions. There it is a further input channel of the
  pretrained model, which the fine-tuned one no longer has.
- The Image Transformer is read out by an MLP there (decoder `sequence_nonelinear`), and by one matrix here.
- Their positional table is fixed, as ours is, and has no parameters.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from neverscratch.modeling import FAMILIES


@dataclass(frozen=True)
class Setting:
    """One configuration and its published size.

    Args:
        total: Parameters in millions, as printed.
        digits: Digits after the point in `total`.
        hidden_head: Whether the official classifier has a hidden layer, which ours has not.
    """

    family: str
    total: float
    digits: int
    classes: int
    fields: dict[str, Any] = field(hash=False)
    hidden_head: bool = False

    def config(self) -> Any:
        return FAMILIES[self.family](num_labels=self.classes, **self.fields)

    @property
    def only_here(self) -> int:
        """Parameters that our model has and the official one has not: the vector that marks masked values."""
        return self.fields["hidden_size"] if "num_channels" in self.fields else 0

    @property
    def only_there(self) -> int:
        """Parameters that the official model has and ours has not: the hidden layer of an MLP head."""
        size = self.fields["hidden_size"]
        return size * size + size if self.hidden_head else 0


def s4(layers: int, hidden: int, copies: int, norm: str, pre_norm: bool, **fields: Any) -> dict[str, Any]:
    """Bidirectional S4, 64 real states, LegS, GLU output."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "d_state": 64, "n_ssm": copies, "bidirectional": True}
    return sizes | {"norm_type": norm, "pre_norm": pre_norm} | fields


def transformer(layers: int, hidden: int, heads: int, expand: int, **fields: Any) -> dict[str, Any]:
    """Pre-norm encoder with biases and a sinusoidal table of positions."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return sizes | {"intermediate_size": expand * hidden, "position_embedding_type": "sinusoidal"} | fields


SETTINGS = {
    "s4-listops": Setting("s4", 0.60, 2, 10, s4(8, 128, 128, "batch", False, vocab_size=19)),
    "s4-text": Setting("s4", 1.32, 2, 2, s4(6, 256, 256, "batch", True, vocab_size=135)),
    "s4-image": Setting("s4", 3.57, 2, 10, s4(6, 512, 2, "layer", False, num_channels=1)),
    "s4-pathfinder": Setting("s4", 1.29, 2, 2, s4(6, 256, 256, "batch", True, num_channels=1, pooling="last")),
    "transformer-listops": Setting("transformer", 18.93, 2, 10, transformer(6, 512, 8, 4, vocab_size=19)),
    "transformer-image": Setting("transformer", 0.105, 3, 10, transformer(3, 64, 4, 2, num_channels=1), True),
    "transformer-pathfinder": Setting("transformer", 0.40, 2, 2, transformer(4, 128, 8, 1, num_channels=1)),
}


def formula(setting: Setting) -> int:
    """Parameters of our model, counted by hand."""
    fields = setting.fields
    size = fields["hidden_size"]
    if setting.family == "s4":
        states = fields["d_state"]
        # dt; A, B and one column of P for each copy; C for each direction; D; GLU; norm.
        ssm = size + 3 * fields["n_ssm"] * states + 2 * size * states + size
        layer = ssm + (2 * size * size + 2 * size) + 2 * size
    else:
        inner = fields["intermediate_size"]
        # Four projections, feed-forward, two norms.
        layer = 4 * (size * size + size) + (size * inner + inner) + (inner * size + size) + 4 * size
    embeddings = fields["vocab_size"] * size if "vocab_size" in fields else 2 * size + setting.only_here
    final_norm = 2 * size if fields.get("pre_norm", True) else 0
    return embeddings + fields["num_hidden_layers"] * layer + final_norm + size * setting.classes + setting.classes


@pytest.mark.parametrize("name", SETTINGS)
def test_formula_gives_the_published_size(name):
    setting = SETTINGS[name]
    official = formula(setting) - setting.only_here + setting.only_there
    assert round(official / 1e6, setting.digits) == setting.total


@pytest.mark.parametrize("name", SETTINGS)
def test_model_has_the_parameters_of_the_formula(name):
    setting = SETTINGS[name]
    # Nothing is allocated: what counts is the shapes.
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(setting.config())
    assert sum(parameter.numel() for parameter in model.parameters()) == formula(setting)
