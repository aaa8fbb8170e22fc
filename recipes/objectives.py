"""The objectives: collators that know their head, their loss items and their metrics.

Each is also a `TrainerCallback`: masks are a function of (mask seed, epoch, example_id, position), and the epoch comes
from `state.global_step`, so that a resumed run sees the masks of an undisturbed one.

Legend: B batch, L length, C channels.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from .errors import unknown_name

PAD, MASK = 0, 1
IGNORE = -100


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def masked_positions(seed: int, epoch: int, example_ids: np.ndarray, lengths: np.ndarray, ratio: float) -> np.ndarray:
    """Independent Bernoulli masks, at least one position in each sequence.

    Args:
        seed: Mask seed, >= 0.
        epoch: Pass over the data, >= 0; each has fresh masks (arXiv 2310.02980, section 3.1). Evaluation uses 0.
        example_ids: (B,) int64.
        lengths: (B,) true lengths.
        ratio: Probability of a position to be masked.

    Returns:
        (B, max length) bool, False beyond each length.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    key = _mix(np.array([seed], dtype=np.uint64) * golden + np.uint64(epoch + 1))
    rows = _mix(key + (example_ids.astype(np.uint64) + np.uint64(1)) * golden)[:, None]  # (B, 1)
    columns = (np.arange(int(lengths.max()), dtype=np.uint64) + np.uint64(1))[None]  # (1, L)
    uniform = (_mix(rows + columns * golden) >> np.uint64(11)) * 2.0**-53  # (B, L) in [0, 1)
    uniform[np.arange(uniform.shape[1])[None] >= lengths[:, None]] = 2.0
    masked = uniform < ratio
    empty = ~masked.any(axis=1)
    masked[empty, uniform[empty].argmin(axis=1)] = True
    return masked


def pad(features: list[dict[str, Any]]) -> tuple[str, Tensor, Tensor | None]:
    """Stack the inputs of a batch, padded on the right: name, inputs, attention mask (None when nothing is padded).

    Pairs give (B, 2, L).
    """
    name = "input_ids" if "input_ids" in features[0] else "input_values"
    names = [name, *([f"{name}_pair"] if f"{name}_pair" in features[0] else [])]
    arrays = [np.asarray(feature[each]) for feature in features for each in names]
    lengths = [len(array) for array in arrays]
    longest = max(lengths)
    # Ids are kept in as few bytes as they need.
    dtype = np.int64 if name == "input_ids" else arrays[0].dtype
    inputs = np.full((len(arrays), longest, *arrays[0].shape[1:]), PAD, dtype=dtype)
    for row, array in enumerate(arrays):
        inputs[row, : len(array)] = array
    keep = (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64)
    if len(names) == 2:
        inputs, keep = (x.reshape(len(features), 2, *x.shape[1:]) for x in (inputs, keep))
    return name, torch.from_numpy(inputs), None if min(lengths) == longest else torch.from_numpy(keep)


class Objective(TrainerCallback):
    """What a stage optimises. Call it with a list of encoded examples to get a batch."""

    head: str
    """The Auto class that builds the model."""
    causal = False

    def __init__(self, seed: int = 0, mask_ratio: float | None = None) -> None:
        self.seed, self.mask_ratio, self.epoch = seed, mask_ratio, 0

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        batches = max(len(train_dataloader), 1)
        steps = -(-batches // args.gradient_accumulation_steps)
        self.epoch = state.global_step // steps

    def for_evaluation(self) -> "Objective":
        """A copy whose masks never change (epoch 0), so that validation losses of two epochs can be compared."""
        frozen = copy.copy(self)
        frozen.epoch = 0
        return frozen

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        name, inputs, attention_mask = pad(features)
        batch = {name: inputs}
        if attention_mask is not None:
            batch["attention_mask"] = attention_mask
        return self.targets(batch, name, features)

    def targets(self, batch: dict[str, Tensor], name: str, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Add the labels, and hide from the inputs what is to be predicted."""
        raise NotImplementedError

    def num_items(self, batch: dict[str, Tensor]) -> Tensor:
        """Number of labels or positions the loss is summed over."""
        raise NotImplementedError

    def example_sums(self, outputs: Any, batch: dict[str, Tensor]) -> Tensor:
        """(B, k) sums over the scored positions of each example: all that evaluation keeps of a batch."""
        raise NotImplementedError

    def metrics(self, sums: np.ndarray) -> dict[str, float]:
        """Metrics of a whole split from the (examples, k) sums."""
        raise NotImplementedError

    def _masked(self, batch: dict[str, Tensor], name: str, features: list[dict[str, Any]]) -> Tensor:
        ids = np.array([feature["example_id"] for feature in features], dtype=np.int64)
        if "attention_mask" in batch:
            lengths = batch["attention_mask"].sum(1).numpy()
        else:
            lengths = np.full(len(ids), batch[name].shape[1])
        assert self.mask_ratio is not None
        return torch.from_numpy(masked_positions(self.seed, self.epoch, ids, lengths, self.mask_ratio))


class Classification(Objective):
    """Supervised sequence classification."""

    head = "AutoModelForSequenceClassification"

    def targets(self, batch, name, features):
        labels = np.array([feature["labels"] for feature in features])
        return {**batch, "labels": torch.from_numpy(labels)}

    def num_items(self, batch):
        return torch.tensor(batch["labels"].numel())


class _Tokens(Objective):
    """Cross-entropy over symbols; positions with label -100 are not scored."""

    def shifted(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits, labels

    def num_items(self, batch):
        return (batch["labels"][:, int(self.causal) :] != IGNORE).sum()

    def example_sums(self, outputs, batch):
        logits, labels = self.shifted(outputs.logits.float(), batch["labels"])
        scored = labels != IGNORE
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
        hits = (logits.argmax(-1) == labels) & scored
        return torch.stack([scored.sum(1), loss.sum(1), hits.sum(1)], dim=1).double()

    def metrics(self, sums):
        count, loss, hits = sums.sum(0)
        name = "next_accuracy" if self.causal else "masked_accuracy"
        return {"loss": loss / count, name: hits / count}


class MaskedTokens(_Tokens):
    """Masked denoising of symbols: every masked id becomes MASK, and only masked positions are scored.

    Source: arXiv 2310.02980 section 3.1 (no 80/10/10 rule).
    """

    head = "AutoModelForMaskedLM"

    def targets(self, batch, name, features):
        masked = self._masked(batch, name, features)
        labels = torch.where(masked, batch[name], IGNORE)
        return {**batch, name: batch[name].masked_fill(masked, MASK), "labels": labels}


class NextToken(_Tokens):
    """Next-symbol prediction for causal models."""

    head = "AutoModelForCausalLM"
    causal = True

    def targets(self, batch, name, features):
        labels = batch[name].clone()
        if "attention_mask" in batch:
            labels[batch["attention_mask"] == 0] = IGNORE
        return {**batch, "labels": labels}

    def shifted(self, logits, labels):
        return logits[:, :-1], labels[:, 1:]


class _Values(Objective):
    """Reconstruction of real values; any real number is a legal value, and nothing is ignored for its size."""

    head = "AutoModelForPreTraining"

    def scored(self, outputs: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Predictions (B, L, C), targets (B, L, C) and the scored positions (B, L)."""
        raise NotImplementedError

    def example_sums(self, outputs, batch):
        predicted, target, scored = self.scored(outputs, batch)
        weight = scored.unsqueeze(-1).double()
        # Padding may hold anything, NaN included: it is replaced, not multiplied by zero.
        target = target.double().masked_fill(weight == 0, 0.0)
        error = (predicted.double() - target) * weight
        sums = [weight.expand_as(target), error.abs(), error.square(), target, target.square()]
        return torch.stack([s.sum((1, 2)) for s in sums], dim=1)

    def metrics(self, sums):
        count, absolute, squared, total, total_squared = sums.sum(0)
        variance = total_squared - total**2 / count
        name = "next" if self.causal else "masked"
        # R2 has no meaning on constant targets; 0 says "no better than the mean".
        r2 = 1 - squared / variance if variance > 0 else 0.0
        return {f"{name}_mae": absolute / count, f"{name}_mse": squared / count, f"{name}_r2": r2}


class MaskedValues(_Values):
    """Masked denoising of real series, one mask for all channels (arXiv 2310.02980, section 3.1)."""

    def targets(self, batch, name, features):
        return {**batch, "bool_masked_pos": self._masked(batch, name, features), "labels": batch[name]}

    def num_items(self, batch):
        return batch["bool_masked_pos"].sum()

    def scored(self, outputs, batch):
        return outputs.logits, batch["labels"], batch["bool_masked_pos"]


class NextValue(_Values):
    """Next-value prediction for causal models."""

    causal = True

    def targets(self, batch, name, features):
        return {**batch, "labels": batch[name]}

    def _keep(self, batch: dict[str, Tensor]) -> Tensor:
        if "attention_mask" in batch:
            return batch["attention_mask"][:, 1:].bool()
        return torch.ones_like(batch["labels"][:, 1:, 0], dtype=torch.bool)

    def num_items(self, batch):
        return self._keep(batch).sum()

    def scored(self, outputs, batch):
        return outputs.logits[:, :-1], batch["labels"][:, 1:], self._keep(batch)


_OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "masked_tokens": MaskedTokens,
    "next_token": NextToken,
    "masked_values": MaskedValues,
    "next_value": NextValue,
}


def make_objective(name: str, seed: int, mask_ratio: float | None = None) -> Objective:
    """The objective by its recipe name."""
    if name not in _OBJECTIVES:
        raise ValueError(unknown_name("objective", name, _OBJECTIVES))
    return _OBJECTIVES[name](seed, mask_ratio)
