"""Cases for the suite over all families, their variants, heads, kinds of input and directions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from neverscratch.modeling import AUTO_CLASSES, FAMILIES

VOCAB, CHANNELS, LABELS = 12, 2, 3

# What most attention models of transformers call their sizes.
SMALL_BACKBONE = {"vocab_size": 8, "intermediate_size": 24, "max_position_embeddings": 1100, "initializer_range": 0.3}

# Fields that make the smallest model of each family; a new family adds its line here. A function gets `bidirectional`.
TINY: dict[str, Any] = {
    "transformer": {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64},
    "s4": {"d_state": 8},
    "s4d": {"d_state": 8},
    "dss": {"d_state": 8, "kernel_length": 64},
    "dlr": {"d_state": 32},
    "s5": {"d_state": 16, "num_hippo_blocks": 2},
    "lru": {"d_state": 8},
    "mega": {"query_key_size": 8, "value_size": 24, "intermediate_size": 24, "d_state": 4},
    "mrconv": {"kernel_length": 64, "sub_kernel_size": 4},
    "sgconv": {"kernel_length": 64, "sub_kernel_size": 4},
    "hybrid": {
        "mixers": [
            {"type": "s4d", "d_state": 8},
            {"type": "attention", "num_attention_heads": 2, "intermediate_size": 24},
        ]
    },
    "wrapped": {"backbone_config": {"model_type": "gpt_neox", "num_attention_heads": 2} | SMALL_BACKBONE},
}


# Positions without a table have no longest sequence: back to the default from TINY.
NO_TABLE = {"max_position_embeddings": 4096}
ROPE = {"position_embedding_type": "rope"} | NO_TABLE

# Name -> family, fields beside those of TINY, and the directions to test: "both", "causal" or "bidirectional".
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "transformer-none": ("transformer", {"position_embedding_type": "none"} | NO_TABLE, "both"),
    "transformer-learned": ("transformer", {"position_embedding_type": "learned"}, "both"),
    "transformer-rope": ("transformer", ROPE, "both"),
    "transformer-rope-interleaved": ("transformer", ROPE | {"rope_layout": "interleaved"}, "both"),
    "transformer-alibi": ("transformer", {"position_embedding_type": "alibi"} | NO_TABLE, "both"),
    "transformer-fire": ("transformer", {"position_embedding_type": "fire", "fire_width": 8} | NO_TABLE, "both"),
    "transformer-local": ("transformer", ROPE | {"attention_window": 4}, "bidirectional"),
    "transformer-local-causal": ("transformer", ROPE | {"attention_window": 4, "attention_neighbors": 2}, "causal"),
    "s4-mixed": ("s4", {"n_ssm": 4, "ssm_init": "legt+fout", "b_clip": None, "output_gate": "none"}, "both"),
    "s4-random": ("s4", {"ssm_init": "random", "rank": 2, "random_std": 0.5}, "both"),
    "s4d-bilinear": ("s4d", {"discretization": "bilinear", "n_ssm": 4, "ssm_init": "legs"}, "both"),
    "s4d-inv": ("s4d", {"ssm_init": "inv", "dt_per_state": True, "train_B": False, "output_gate": "none"}, "both"),
    "s4d-real": ("s4d", {"ssm_init": "real", "n_ssm": 2}, "both"),
    "s4d-random": ("s4d", {"ssm_init": "random"}, "both"),
    "dss-exp": ("dss", {"version": "exp", "kernel_length": None, "ssm_init": "lin", "separate_dt": True}, "both"),
    # Without the factor of the discretisation a kernel is 1 / dt times as large, and so is its rounding.
    "dss-exp-no-scale": (
        "dss",
        {"version": "exp_no_scale", "kernel_length": None, "output_gate": "glu", "dt_min": 0.01},
        "both",
    ),
    "dlr-random": ("dlr", {"ssm_init": "random"}, "both"),
    "s5-bilinear": ("s5", {"discretization": "bilinear", "clip_eigs": True, "activation": "half_glu2"}, "both"),
    "s5-all-states": ("s5", {"conj_sym": False, "c_init": "lecun_normal", "activation": "full_glu"}, "both"),
    "lru-ring": ("lru", {"r_min": 0.9, "r_max": 0.999, "max_phase": 0.314}, "both"),
    "mega-laplace": (
        "mega",
        {"attention_activation": "laplace", "position_bias": "simple", "max_position_embeddings": 64}
        | {"ema_truncation": 9},
        "both",
    ),
    "mega-chunk": ("mega", {"chunk_size": 4, "position_bias": "simple"}, "both"),
    "mega-chunk-laplace": ("mega", {"chunk_size": 4, "attention_activation": "laplace"}, "both"),
    "mrconv-dilated": ("mrconv", {"kernel_kind": "dilated", "output_gate": "none"}, "both"),
    "sgconv-decays": ("sgconv", {"decay_max": 4, "train_decay": True, "output_gate": "none"}, "both"),
    "hybrid-s5-mega": (
        "hybrid",
        {
            "mixers": [
                {"type": "s5", "d_state": 16, "num_hippo_blocks": 2},
                {"type": "mega", "query_key_size": 8, "value_size": 24, "intermediate_size": 24, "d_state": 4},
            ]
        },
        "both",
    ),
    "hybrid-convolutions": (
        "hybrid",
        {
            "mixers": [
                {"type": "s4", "d_state": 8},
                {"type": "sgconv", "kernel_length": 1025, "sub_kernel_size": 4, "output_gate": "none"},
            ]
        },
        "both",
    ),
    "hybrid-states": (
        "hybrid",
        {"mixers": [{"type": "s4d", "d_state": 8, "discretization": "bilinear"}, {"type": "lru", "d_state": 8}]},
        "both",
    ),
    "hybrid-rope": (
        "hybrid",
        {
            "mixers": [
                {
                    "type": "attention",
                    "num_attention_heads": 2,
                    "intermediate_size": 24,
                    "position_embedding_type": "rope",
                },
                {"type": "s5", "d_state": 8, "num_hippo_blocks": 1},
            ],
            "position_embedding_type": "sinusoidal",
            "max_position_embeddings": 64,
        },
        "both",
    ),
    "wrapped-bert": (
        "wrapped",
        {
            "backbone_config": {"model_type": "bert", "num_attention_heads": 2}
            | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            | SMALL_BACKBONE
        },
        "both",
    ),
    "wrapped-modernbert": (
        "wrapped",
        {
            "backbone_config": {"model_type": "modernbert", "num_attention_heads": 2, "local_attention": 8}
            | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
            | SMALL_BACKBONE
        },
        "bidirectional",
    ),
    "wrapped-mamba": (
        "wrapped",
        {"backbone_config": {"model_type": "mamba", "vocab_size": 8, "state_size": 4, "initializer_range": 0.3}},
        "causal",
    ),
}

# (check, family or variant) -> part of the sentence by which it refuses the check; else nothing is left out.
REFUSED: dict[tuple[str, str], str] = {
    ("step", "transformer"): "attention keeps the whole past",
    ("step", "transformer-none"): "attention keeps the whole past",
    ("step", "transformer-learned"): "attention keeps the whole past",
    ("step", "transformer-rope"): "attention keeps the whole past",
    ("step", "transformer-rope-interleaved"): "attention keeps the whole past",
    ("step", "transformer-alibi"): "attention keeps the whole past",
    ("step", "transformer-fire"): "attention keeps the whole past",
    ("step", "transformer-local"): "attention keeps the whole past",
    ("step", "transformer-local-causal"): "attention keeps the whole past",
    ("step", "hybrid"): "attention keeps the whole past",
    ("step", "hybrid-convolutions"): "its kernel is not that of a recurrence with a finite state",
    ("step", "hybrid-s5-mega"): "its attention reads earlier keys and values, which it does not keep",
    ("step", "hybrid-rope"): "attention keeps the whole past",
    ("step", "mrconv"): "its kernel is not that of a recurrence with a finite state",
    ("step", "mrconv-dilated"): "its kernel is not that of a recurrence with a finite state",
    ("step", "sgconv"): "its kernel is not that of a recurrence with a finite state",
    ("step", "sgconv-decays"): "its kernel is not that of a recurrence with a finite state",
    ("step", "mega"): "its attention reads earlier keys and values, which it does not keep",
    ("step", "mega-laplace"): "its attention reads earlier keys and values, which it does not keep",
    ("step", "mega-chunk"): "its attention reads earlier keys and values, which it does not keep",
    ("step", "mega-chunk-laplace"): "its attention reads earlier keys and values, which it does not keep",
    ("step-float64", "wrapped-mamba"): "the state of mamba is kept in float32 and the model is in float64",
    ("bidirectional", "wrapped-mamba"): "mamba looks only back and cannot look both ways",
    # transformers' plain scan is a Python loop over the positions.
    ("export", "wrapped-mamba"): "You marked length as dynamic but your code specialized it to be a constant",
    ("container", "wrapped"): "which has no effect, as the blocks are those of gpt_neox",
    ("container", "wrapped-bert"): "which has no effect, as the blocks are those of bert",
    ("container", "wrapped-modernbert"): "which has no effect, as the blocks are those of modernbert",
    ("container", "wrapped-mamba"): "which has no effect, as the blocks are those of mamba",
}


# Families with full attention: length 65,536 is left to their variants in blocks and chunks.
QUADRATIC = ("transformer", "mega", "wrapped", "hybrid")


@dataclass(frozen=True)
class Case:
    """One head of one family, or of a variant of it, on one kind of input, in one direction."""

    name: str
    auto: str
    kind: str
    bidirectional: bool

    def __str__(self) -> str:
        head = self.auto.removeprefix("AutoModel") or "Backbone"
        return f"{self.name}-{head}-{self.kind}-{'bidirectional' if self.bidirectional else 'causal'}"

    @property
    def family(self) -> str:
        return VARIANTS[self.name][0] if self.name in VARIANTS else self.name

    def config(self, **overrides: Any) -> Any:
        size = {"vocab_size": VOCAB} if self.kind == "tokens" else {"num_channels": CHANNELS}
        # A wide start, so that no effect under test is too small to be seen.
        fields = {"hidden_size": 16, "num_hidden_layers": 2, "initializer_range": 0.3, "num_labels": LABELS}
        tiny = TINY[self.family]
        fields |= {"bidirectional": self.bidirectional} | size | (tiny(self.bidirectional) if callable(tiny) else tiny)
        fields |= (VARIANTS[self.name][1] if self.name in VARIANTS else {}) | overrides
        return FAMILIES[self.family](**fields)

    def model(self, seed: int = 0, **overrides: Any) -> Any:
        torch.manual_seed(seed)
        return AUTO_CLASSES[self.auto].from_config(self.config(**overrides)).eval()

    @property
    def has_loss(self) -> bool:
        return self.auto != "AutoModel"

    @property
    def is_per_position(self) -> bool:
        return self.auto != "AutoModelForSequenceClassification"

    def inputs(self, batch: int = 3, length: int = 11, seed: int = 0) -> dict[str, Tensor]:
        """A batch without padding, with labels where the head takes them."""
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(3, VOCAB, (batch, length), generator=random)
        values = torch.randn(batch, length, CHANNELS, generator=random)
        inputs = {"input_ids": tokens} if self.kind == "tokens" else {"input_values": values}
        masked = torch.rand(batch, length, generator=random) < 0.3
        masked[:, 2] = True
        if self.auto == "AutoModelForMaskedLM":
            inputs["input_ids"] = tokens.masked_fill(masked, 1)
            inputs["labels"] = tokens.masked_fill(~masked, -100)
        elif self.auto == "AutoModelForCausalLM":
            inputs["labels"] = tokens
        elif self.auto == "AutoModelForPreTraining":
            inputs["labels"] = values
            if self.bidirectional:
                inputs["bool_masked_pos"] = masked
        elif self.auto == "AutoModelForSequenceClassification":
            inputs["labels"] = torch.randint(0, LABELS, (batch,), generator=random)
        return inputs


def all_cases() -> list[Case]:
    cases = []
    for family in FAMILIES:
        for kind in ("tokens", "values"):
            for bidirectional in (True, False):
                heads = ["AutoModel", "AutoModelForSequenceClassification"]
                if kind == "tokens":
                    heads += ["AutoModelForMaskedLM"] + ([] if bidirectional else ["AutoModelForCausalLM"])
                else:
                    heads += ["AutoModelForPreTraining"]
                cases += [Case(family, head, kind, bidirectional) for head in heads]
    for name in VARIANTS:
        cases += [Case(name, "AutoModelForPreTraining", "values", direction) for direction in directions(name)]
    return cases


def container(name: str, **options: Any) -> dict[str, Any]:
    """Options of the container; none if the table says that the config refuses them, which is asserted."""
    if ("container", name) not in REFUSED:
        return options
    with pytest.raises(StrictDataclassError, match=re.escape(REFUSED["container", name])):
        Case(name, "AutoModel", "values", directions(name)[0]).config(**options)
    return {}


def lengthened(case: Case, length: int) -> dict[str, int]:
    """The fields that limit the length of a model, if it has any, for sequences of `length`."""
    config = case.config()
    fields = ("max_position_embeddings", "kernel_length")
    switches = {field: config.ACTIVE_IF.get(field) for field in fields}
    active = [field for field, on in switches.items() if on is None or getattr(config, on[0]) in on[1]]
    return {field: length for field in active if getattr(config, field, None) is not None}


def directions(name: str) -> list[bool]:
    """Values of `bidirectional` in which a family or variant is tested."""
    allowed = VARIANTS[name][2] if name in VARIANTS else "both"
    return {"both": [True, False], "causal": [False], "bidirectional": [True]}[allowed]


NAMES = [*FAMILIES, *VARIANTS]
CAUSAL_NAMES = [name for name in NAMES if False in directions(name)]


CASES = all_cases()
LOSS_CASES = [case for case in CASES if case.has_loss]
POSITION_CASES = [case for case in CASES if case.is_per_position]


def result(outputs: Any) -> Tensor:
    """What a model is for: its logits, or the backbone's hidden states."""
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def pad(inputs: dict[str, Tensor], length: int, side: str) -> dict[str, Tensor]:
    """Pad to `length` with what must not matter: NaN values, wrong tokens, labels and masked positions."""
    padded = dict(inputs)
    name = "input_ids" if "input_ids" in inputs else "input_values"
    batch, given = inputs[name].shape[:2]
    garbage = {"input_ids": 7, "input_values": float("nan"), "bool_masked_pos": True, "labels": 5}
    for key, x in inputs.items():
        if x.dim() > 1:
            fill = float("nan") if x.is_floating_point() else garbage[key]
            extra = torch.full((batch, length - given, *x.shape[2:]), fill, dtype=x.dtype)
            if key == "bool_masked_pos":
                extra[:, ::2] = False
            padded[key] = torch.cat([x, extra] if side == "right" else [extra, x], dim=1)
    kept, off = torch.ones(batch, given, dtype=torch.long), torch.zeros(batch, length - given, dtype=torch.long)
    padded["attention_mask"] = torch.cat([kept, off] if side == "right" else [off, kept], dim=1)
    return padded


def gradients(model: Any, inputs: dict[str, Tensor], scale: float = 1.0, **kwargs: Any) -> dict[str, Tensor]:
    """Gradients of the loss, or for the backbone of a sum over the kept positions."""
    model.zero_grad()
    outputs = model(**inputs, **kwargs)
    if "loss" in outputs:
        loss = outputs.loss
    else:
        states = outputs.last_hidden_state
        mask = inputs.get("attention_mask", torch.ones(states.shape[:2]))
        loss = (states.sin() * mask[..., None]).sum()
    (loss * scale).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 0.0) -> None:
    """Compare tensors by name: bit for bit, or within `tolerance`, absolute and relative."""
    assert first.keys() == second.keys()
    for name, x in first.items():
        torch.testing.assert_close(
            x, second[name], atol=tolerance, rtol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )
