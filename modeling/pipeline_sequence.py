"""Classify raw series or images with a checkpoint, through `transformers.pipeline`.

classify = pipeline("sequence-classification", model=folder, trust_remote_code=True)
classify([series_a, series_b])  # [{"label": ..., "score": ...}, {"label": ..., "score": ...}]
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, BatchFeature, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

TASK = "sequence-classification"


class SequenceClassificationPipeline(Pipeline):
    """Label and score of raw examples, in input order, with the feature extractor saved beside the model.

    Args of a call:
        inputs: One example, or several: arrays, tensors, nested lists, PIL images, a generator or a torch data set. See
            the feature extractor's `split` for how one is told from several.
        top_k: How many labels to return: 1 (default) gives one dict an example, a larger number or None (all) a list of
            dicts, best first.
        truncation: Whether to cut what is longer than the model takes; refused by default.
        batch_size: How many examples go through the model together; 1 by default. Padding does not change results.

    Returns:
        `{"label": str, "score": float}` for each example; the score is the probability, for regression the value.
        One example gives its result, several give a list of results, a generator or data set an iterator.
    """

    _load_tokenizer: Any = False
    _load_feature_extractor: Any = True
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_processor: Any = False
    feature_extractor: Any

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (types.GeneratorType, Dataset)):
            return super().__call__(inputs, *args, **kwargs)
        items, several = self.feature_extractor.split(inputs)
        if several and not items:
            return []
        results = super().__call__(items, *args, **kwargs)
        return results if several else results[0]

    def _sanitize_parameters(self, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess = {name: parameters.pop(name) for name in ("truncation",) if name in parameters}
        postprocess = {name: parameters.pop(name) for name in ("top_k",) if name in parameters}
        if parameters:
            raise ValueError(
                f"{TASK} takes no option {', '.join(sorted(parameters))}; "
                f"its options are top_k, truncation and batch_size."
            )
        top_k = postprocess.get("top_k", 1)
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"top_k={top_k!r} is not possible; use a whole number from 1 up, or None for all labels.")
        return preprocess, {}, postprocess

    def preprocess(self, input_: Any, truncation: bool = False) -> BatchFeature:
        features = self.feature_extractor(input_, truncation=truncation, return_tensors="pt", batched=False)
        # Casts real values only; ids and masks stay whole numbers.
        return features.to(dtype=self.dtype) if self.dtype is not None else features

    def _forward(self, input_tensors: Any) -> dict[str, torch.Tensor]:
        return {"logits": self.model(**input_tensors).logits}

    def postprocess(self, model_outputs: Any, top_k: int | None = 1) -> Any:
        config: Any = self.model.config
        logits = model_outputs["logits"][0].float()
        if config.problem_type == "regression":
            scores = logits
        elif config.problem_type == "multi_label_classification":
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)
        # Stable, so that equal scores come in label order.
        order = scores.argsort(descending=True, stable=True).tolist()
        results = [{"label": config.id2label[index], "score": scores[index].item()} for index in order[:top_k]]
        return results[0] if top_k == 1 else results


def register_pipeline() -> None:
    """Make `pipeline("sequence-classification")` known to transformers; doing it twice is harmless."""
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, SequenceClassificationPipeline, pt_model=AutoModelForSequenceClassification
        )


__all__ = ["TASK", "SequenceClassificationPipeline", "register_pipeline"]
