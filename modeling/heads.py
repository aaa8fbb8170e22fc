"""Every head and its loss, written once for all families: a fair comparison needs the same head and loss.

A family's head names its own base beside the one here, as `modeling_common.py` shows.

Legend: B batch, L length, H hidden, C channels.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import MaskedLMOutput, ModelOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .blocks import SequencePooling
from .configuration_common import LongSequenceConfig, check_problem_type
from .modeling_common import LongSequencePreTrainedModel, clean_mask, positions_read

# What `pipeline(model=folder, trust_remote_code=True)` reads from config.json.
CUSTOM_PIPELINES = {
    "sequence-classification": {
        "impl": "pipeline_sequence.SequenceClassificationPipeline",
        "pt": ["AutoModelForSequenceClassification"],
    }
}


@dataclass
class CausalOutput(ModelOutput):
    """Output of `LongSequenceForCausalLM`, with the cache to generate on from.

    Args:
        loss: Scalar, if `labels` were given.
        logits: Scores of the vocabulary (B, L, vocabulary).
        cache: The states to go on from, if `use_cache` or `cache` was given.
        hidden_states: Tuple of (B, L, H), if asked for.
        attentions: Tuple of (B, heads, L, L), if asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ReconstructionOutput(ModelOutput):
    """Output of `LongSequenceForReconstruction`.

    Args:
        loss: Scalar, if `labels` were given.
        logits: Reconstructed values (B, L, C), or scores of the levels (B, L, levels).
        cache: The states to go on from, if `use_cache` or `cache` was given.
        hidden_states: Tuple of (B, L, H), if asked for.
        attentions: Tuple of (B, heads, L, L), if asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def scale_loss(total: Tensor, count: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Divide a sum by the items of the whole optimiser step if the Trainer gave them, else by those of this batch."""
    if num_items_in_batch is None:
        return total / count.clamp(min=1)
    if isinstance(num_items_in_batch, Tensor):
        return total / num_items_in_batch.to(total.device).clamp(min=1)
    return total / max(num_items_in_batch, 1)


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits (..., classes), in float32, at labels (...), summed over those that are not -100.

    Raises:
        ValueError: If the labels do not fit. On an accelerator their values are not looked at.
    """
    is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != logits.shape[:-1] or not is_integer:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}, but must be whole numbers of shape "
            f"{tuple(logits.shape[:-1])}, one class for each row of the logits."
        )
    labels = labels.long()
    try:
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=-100, reduction="sum")
    except IndexError as error:
        kept = labels[labels != -100]
        raise ValueError(
            f"labels reach from {int(kept.min())} to {int(kept.max())}, but there are {logits.shape[-1]} classes: "
            "labels start at 0 and end below that; -100 is not counted."
        ) from error


def token_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Cross-entropy in float32 over the labels that are not -100."""
    labels = labels.to(logits.device)
    total = summed_cross_entropy(logits, labels)
    return scale_loss(total, (labels != -100).sum(), num_items_in_batch)


def classification_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Loss in float32, averaged over the labels; without `problem_type` it follows from their number and type.

    Args:
        logits: (B, num_labels).
        labels: (B,) integer, or (B, num_labels) from 0 to 1 for several labels; -100 is not counted. For regression any
            number, (B, num_labels), also (B,) for one. A single label may have a last dimension of one, too.
        num_items_in_batch: Labels (entries of `labels`) of the whole optimiser step; None counts those of this batch.

    Raises:
        ValueError: If the labels do not fit, or there is no such `problem_type`.
    """
    logits, labels = logits.float(), labels.to(logits.device)
    if problem_type is None:
        if logits.shape[-1] == 1:
            problem_type = "regression"
        else:
            problem_type = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    check_problem_type(problem_type)
    if problem_type == "single_label_classification":
        labels = labels.squeeze(-1) if labels.dim() == 2 else labels
        total = summed_cross_entropy(logits, labels)
        return scale_loss(total, (labels != -100).sum(), num_items_in_batch)
    if labels.dim() == 1 and logits.shape[-1] == 1:
        labels = labels[:, None]
    if labels.shape != logits.shape:
        raise ValueError(
            f"{problem_type} takes one label per output, {tuple(logits.shape)}, but got labels {tuple(labels.shape)}."
        )
    labels = labels.float()
    if problem_type == "regression":
        total = F.mse_loss(logits, labels, reduction="sum")
        return scale_loss(total, logits.new_tensor(labels.numel()), num_items_in_batch)
    counted = labels != -100
    labels = labels.masked_fill(~counted, 0.0)
    # On an accelerator, and in a graph, values are not looked at.
    can_look = labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_look and not bool(((labels >= 0) & (labels <= 1)).all()):
        raise ValueError(
            f"labels of {problem_type} reach from {labels.min():g} to {labels.max():g}, but must be from 0 to 1; -100 "
            "is not counted."
        )
    total = (F.binary_cross_entropy_with_logits(logits, labels, reduction="none") * counted).sum()
    return scale_loss(total, counted.sum(), num_items_in_batch)


def unread_length(past: int | None, length: int, attention_mask: Tensor | None) -> int:
    """How many of `length` given positions, the last ones, are new to a cache that has read `past`, None if not known.

    Raises:
        ValueError: If that cannot be told, or there are none.
    """
    if past == 0 or (attention_mask is not None and attention_mask.shape[1] > length):
        return length
    if past is None or past >= length:
        held = "an unknown number of positions, as in a compiled model" if past is None else f"{past} positions"
        raise ValueError(
            f"generate got {length} positions and a cache that has read {held}; give the whole sequence, of which the "
            "cache has read the start, or only what is new and the attention_mask of all positions."
        )
    return length - past


class TokenHead(LongSequencePreTrainedModel):
    """What the heads over the vocabulary share: a backbone, and a linear layer that may be tied to the embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.input.weight"}

    def __init__(self, config: LongSequenceConfig) -> None:
        super().__init__(config)
        self.require_input("vocab_size", "ForReconstruction")
        self.model = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings


class LongSequenceForMaskedLM(TokenHead):
    """Predicts the tokens hidden behind `mask_token_id`. The loss of a batch where no label counts is 0."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Score the vocabulary at each position.

        Args:
            labels: (B, L) long; -100, and anything in a padded position, is not counted.
            num_items_in_batch: Labels counted in the whole optimiser step; None counts those of this batch.
        """
        self.refuse_cache(kwargs, "fills in a sequence that is there as a whole")
        outputs = self.model(input_ids, attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            if attention_mask is not None:
                labels = labels.masked_fill(attention_mask == 0, -100)
            loss = token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LongSequenceForCausalLM(TokenHead, GenerationMixin):
    """Predicts the next token; the labels are shifted here."""

    def __init__(self, config: LongSequenceConfig) -> None:
        if config.bidirectional:
            raise ValueError(
                f"{type(self).__name__} needs bidirectional=False: a bidirectional model sees the token to predict."
            )
        super().__init__(config)
        # `generate` asks for a cache unless told otherwise.
        self.generation_config.use_cache = self.model.no_step_reason is None

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in transformers, which would read the whole prompt again on top of a given cache of states.

        To go on from a cache give `generate` the whole sequence, of which the cache has read a part, or only what is
        new and the `attention_mask` of all of it.
        """
        if is_first_iteration and cache is not None:
            length = (input_ids if inputs_embeds is None else inputs_embeds).shape[1]
            if all(cache.is_linear):
                next_sequence_length = unread_length(positions_read(cache), length, attention_mask)
            elif next_sequence_length is not None:
                next_sequence_length = unread_length(length - next_sequence_length, length, attention_mask)
        return super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            cache=cache,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalOutput:
        """Score the vocabulary for the position after each one.

        Args:
            labels: (B, L) long, the input itself; -100, and anything in a padded position, is not counted.
            num_items_in_batch: Labels counted in the whole optimiser step; None counts those of this batch.
            logits_to_keep: Score only so many positions, from the end, or those of a tensor of indices; 0 scores all.
        """
        if isinstance(logits_to_keep, int) and logits_to_keep < 0:
            raise ValueError(
                f"logits_to_keep={logits_to_keep} is no number of positions; give how many to score from the end, 0 "
                "for all, or a tensor of indices."
            )
        scores_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if labels is not None and not scores_all:
            raise ValueError("labels need the scores of all positions; leave logits_to_keep at 0, or labels out.")
        outputs = self.model(input_ids, attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs)
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, positions])
        loss = None
        if labels is not None:
            if attention_mask is not None:
                # With a cache the mask covers the past, too.
                kept = attention_mask[:, -labels.shape[1] :] != 0
            labels = labels[:, 1:]
            if attention_mask is not None:
                # The position before the first token is a pad, which has no past to predict from.
                labels = labels.masked_fill(~(kept[:, 1:] & kept[:, :-1]), -100)
            loss = token_loss(logits[:, :-1], labels, num_items_in_batch)
        return CausalOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LongSequenceForReconstruction(LongSequencePreTrainedModel):
    """Predicts hidden values, or without `bool_masked_pos` the next value: any real number is a legal value.

    The loss of a batch where nothing is hidden is 0: under gradient accumulation a small one may have nothing to add.
    """

    # The Trainer would count labels that are not -100, which of real values says nothing. One that counts positions
    # itself may give `num_items_in_batch` all the same.
    accepts_loss_kwargs = False

    def __init__(self, config: LongSequenceConfig) -> None:
        super().__init__(config)
        self.require_input("num_channels", "ForMaskedLM or ForCausalLM")
        self.model = self.model_class(config)
        is_levels = config.reconstruction_loss == "cross_entropy"
        self.decoder = nn.Linear(config.hidden_size, config.num_levels if is_levels else config.num_channels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        bool_masked_pos: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> ReconstructionOutput:
        """Reconstruct each position.

        Args:
            input_values: (B, L, C) float; the values at masked positions are not read.
            bool_masked_pos: (B, L), True where the value is hidden and the loss is taken. None predicts the next value
                instead, which needs `bidirectional=False`.
            labels: Clean values (B, L, C), or levels (B, L) long under `reconstruction_loss="cross_entropy"`.
            num_items_in_batch: Positions counted in the whole optimiser step; None counts those of this batch.
        """
        if kwargs.get("input_ids") is not None:
            raise ValueError(
                f"{type(self).__name__} got input_ids, but reconstructs real values; give input_values, or use "
                "ForMaskedLM or ForCausalLM of a model with vocab_size."
            )
        outputs = self.model(
            None, attention_mask, input_values, bool_masked_pos, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.decoder(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.reconstruction_loss(logits, labels, attention_mask, bool_masked_pos, num_items_in_batch)
        return ReconstructionOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def reconstruction_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None,
        bool_masked_pos: Tensor | None,
        num_items_in_batch: Tensor | int | None,
    ) -> Tensor:
        """Sum over the counted positions of the loss, averaged over channels, divided by their number."""
        # With a cache the mask covers the past, too.
        kept = None if attention_mask is None else attention_mask[:, -logits.shape[1] :] != 0
        if bool_masked_pos is not None:
            counted = bool_masked_pos.bool() if kept is None else bool_masked_pos.bool() & kept
        elif self.config.bidirectional:
            raise ValueError(
                f"{type(self).__name__} is bidirectional and would see the values to predict: "
                "give bool_masked_pos, or build the model with bidirectional=False to predict the next value."
            )
        else:
            logits, labels = logits[:, :-1], labels[:, 1:]
            counted = labels.new_ones(labels.shape[:2], dtype=torch.bool)
            counted = counted if kept is None else kept[:, 1:] & kept[:, :-1]
        logits, labels = logits.float(), labels.to(logits.device)
        is_levels = self.config.reconstruction_loss == "cross_entropy"
        if labels.shape != (logits.shape[:-1] if is_levels else logits.shape):
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}, but the reconstruction has {tuple(logits.shape)}; give the "
                "clean values, one for each channel, or one level for each position."
            )
        if is_levels:
            labels = labels.masked_fill(~counted, -100)
            total = summed_cross_entropy(logits, labels)
        else:
            # A NaN in a padded position has to vanish before the difference is taken.
            labels = labels.float().masked_fill(~counted[..., None], 0.0)
            difference = F.l1_loss if self.config.reconstruction_loss == "l1" else F.mse_loss
            total = (difference(logits, labels, reduction="none").mean(-1) * counted).sum()
        return scale_loss(total, counted.sum(), num_items_in_batch)


class LongSequenceForSequenceClassification(LongSequencePreTrainedModel):
    """Classifies a sequence, or a pair of sequences (B, 2, L), or predicts numbers about it."""

    def __init__(self, config: LongSequenceConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.model_class(config)
        self.pooling = SequencePooling(config)
        size = config.hidden_size
        if config.is_pair:
            self.classifier: nn.Module = nn.Sequential(
                nn.Linear(4 * size, size), nn.GELU(), nn.Linear(size, config.num_labels)
            )
        else:
            self.classifier = nn.Linear(size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score the labels.

        Args:
            input_ids, attention_mask, input_values, inputs_embeds: As for the model; (B, 2, L, ...) if `is_pair`.
            labels: (B,) long for one label per example, (B, num_labels) for several, float for regression, in the units
                that `label_mean` and `label_std` of the config are of.
            num_items_in_batch: Labels counted in the whole optimiser step; None counts those of this batch.
        """
        self.refuse_cache(kwargs, "pools over the whole sequence")
        if self.config.is_pair:
            inputs = (input_ids, attention_mask, input_values, inputs_embeds)
            input_ids, attention_mask, input_values, inputs_embeds = (self.fold_pairs(x) for x in inputs)
        outputs = self.model(
            input_ids, attention_mask, input_values, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )
        pooled = self.pooling(outputs.last_hidden_state, clean_mask(attention_mask))
        if self.config.is_pair:
            first, second = pooled[0::2], pooled[1::2]
            pooled = torch.cat([first, second, first * second, first - second], dim=-1)
        logits = self.classifier(pooled)
        mean, std = self.config.label_mean, self.config.label_std
        is_scaled = (mean, std) != (0.0, 1.0)
        loss = None
        if labels is not None:
            scaled = (labels - mean) / std if is_scaled else labels
            loss = classification_loss(logits, scaled, self.config.problem_type, num_items_in_batch)
        if is_scaled:
            # In float32: a mean far from 0 would cost half precision the digits that matter.
            logits = logits.float() * std + mean
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, **kwargs: Any) -> None:
        """Save as always, with the code of the classification pipeline beside that of the model."""
        code = Path(__file__).with_name("pipeline_sequence.py")
        # The code is not there for a model loaded from a checkpoint whose pipeline was never used.
        self.config.custom_pipelines = CUSTOM_PIPELINES if code.is_file() else {}
        if code.is_file() and is_main_process:
            os.makedirs(save_directory, exist_ok=True)
            shutil.copyfile(code, Path(save_directory) / code.name)
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    @staticmethod
    def fold_pairs(x: Tensor | None) -> Tensor | None:
        """(B, 2, ...) to (2B, ...)."""
        if x is None:
            return None
        if x.dim() < 3 or x.shape[1] != 2:
            raise ValueError(f"is_pair=True takes inputs of shape (batch, 2, length, ...), but got {tuple(x.shape)}.")
        return x.flatten(0, 1)
