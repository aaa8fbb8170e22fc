"""The Trainer of both stages: parameter groups, item counts, flat evaluation memory, a stop at non-finite numbers."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PrinterCallback, Trainer, TrainerCallback

from neverscratch.modeling import parameter_groups

from .objectives import Objective


class NonFiniteError(ValueError):
    """Training met a loss or a gradient that is NaN or infinite."""


def _fft_flops(input_shape, dims, *args, out_shape=None, **kwargs) -> int:
    # A real transform of length n takes about 2.5 n log2(n) operations (half of the 5 n log2(n) of a complex one).
    points = max(math.prod(input_shape), math.prod(out_shape or input_shape))
    length = max(input_shape[dims[0]], (out_shape or input_shape)[dims[0]])
    return int(2.5 * points * math.log2(max(length, 2)))


def _attention_flops(query_shape, key_shape, value_shape, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(query_shape, key_shape, value_shape)


def _attention_backward_flops(grad_shape, query_shape, key_shape, value_shape, *args, out_shape=None, **kwargs) -> int:
    return sdpa_backward_flop_count(grad_shape, query_shape, key_shape, value_shape)


def count_flops(model: nn.Module, batch: dict[str, Tensor]) -> int:
    """Floating-point operations of one forward and backward pass on this batch: matrix products, attention and FFTs.

    Element-wise operations are not counted. The model, its gradients and the random state are left as they were.
    """
    aten = torch.ops.aten
    # torch counts its attention kernels for GPUs, but not the one for CPUs.
    mapping = {
        aten._fft_r2c: _fft_flops,
        aten._fft_c2r: _fft_flops,
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }
    with torch.random.fork_rng(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        copy.deepcopy(model)(**batch).loss.backward()
    return counter.get_total_flops()


def optimizer_groups(
    model: nn.Module, learning_rate: float, weight_decay: float, ssm_learning_rate: float | None
) -> list[dict[str, Any]]:
    """Optimiser groups chosen by parameter name: decayed, not decayed, and state-space parameters.

    The last get min(learning_rate, ssm_learning_rate) and no decay (Gu et al. 2022, arXiv 2111.00396).

    Returns:
        Groups for a torch optimiser, with `group` (its name) and `names` (its parameters) beside the options.
    """
    ssm_rate = learning_rate if ssm_learning_rate is None else min(learning_rate, ssm_learning_rate)
    options = {
        "decay": {"lr": learning_rate, "weight_decay": weight_decay},
        "no_decay": {"lr": learning_rate, "weight_decay": 0.0},
        "ssm": {"lr": ssm_rate, "weight_decay": 0.0},
    }
    parameters = dict(model.named_parameters())
    return [
        {"params": [parameters[name] for name in names], "names": names, "group": group, **options[group]}
        for group, names in parameter_groups(model).items()
        if names
    ]


# Written into a checkpoint when everything else is; without it the checkpoint was broken off.
WHOLE = "whole"


class _MarkWhole(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()


class _Progress(TrainerCallback):
    def __init__(self, report: Callable[[int], None]) -> None:
        self.report = report

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0 or state.global_step == state.max_steps:
            self.report(state.global_step)


class StageTrainer(Trainer):
    """A Trainer for one stage.

    Args:
        objective: Collates the batches and scores the evaluation.
        class_metrics: For classification: (logits, labels) of a whole split -> metrics.
        ssm_learning_rate: Rate of the state-space parameters; None = the global one.
        progress: Called with the number of finished steps, every ten steps.
    """

    optimizer: torch.optim.Optimizer | None
    data_collator: Objective

    def __init__(
        self,
        *,
        objective: Objective,
        class_metrics: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None,
        ssm_learning_rate: float | None = None,
        progress: Callable[[int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        self.objective, self.class_metrics, self.ssm_learning_rate = objective, class_metrics, ssm_learning_rate
        self._flops: dict[tuple, int] = {}
        callbacks = [objective, _MarkWhole(), *([_Progress(progress)] if progress else [])]
        super().__init__(data_collator=objective, callbacks=callbacks, compute_metrics=self._metrics, **kwargs)
        # Whatever the head says of the Trainer's own count: ours is that of the objective.
        self.model_accepts_loss_kwargs = True
        # The log goes to a file; the study shows one progress line for all runs.
        self.remove_callback(PrinterCallback)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            model = self.model if model is None else model
            model = self.accelerator.unwrap_model(model)
            groups = optimizer_groups(model, self.args.learning_rate, self.args.weight_decay, self.ssm_learning_rate)
            for group in groups:
                del group["names"], group["group"]
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optimizer_class(groups, **options)
        return self.optimizer

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, num_items
        # The Trainer counts labels that are not -100, which for real values is neither the mask nor a safe mark.
        total = torch.stack([self.objective.num_items(batch) for batch in batches]).sum().to(device)
        if self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return batches, total

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            broken = [name for name, parameter in model.named_parameters() if not torch.isfinite(parameter).all()]
            where = f"; first parameter that is not finite: {broken[0]}" if broken else " with finite parameters"
            raise NonFiniteError(
                f"Step {self.state.global_step + 1}: the training loss is {loss.item()}{where}. "
                "Lower the learning rate, or look at the data."
            )
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        # The Trainer takes this norm in every step anyway; looking at it here costs nothing.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if not math.isfinite(grad_norm):
            broken = [n for n, p in model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
            raise NonFiniteError(
                f"Step {self.state.global_step + 1}: the gradient of {(broken or ['the model'])[0]} is not finite; "
                "lower the learning rate or set max_grad_norm."
            )
        return grad_norm

    def floating_point_ops(self, inputs: dict[str, Any]) -> float:
        # Counted once for every shape, so that a resumed stage ends with the sum of an undisturbed one.
        shapes = tuple((name, tuple(value.shape)) for name, value in sorted(inputs.items()))
        if shapes not in self._flops:
            batch = self._prepare_inputs(inputs)
            self._flops[shapes] = count_flops(self.accelerator.unwrap_model(self.model), batch)
        return self._flops[shapes]

    def get_eval_dataloader(self, eval_dataset=None):
        return self._with_fixed_masks(super().get_eval_dataloader, eval_dataset)

    def get_test_dataloader(self, test_dataset):
        return self._with_fixed_masks(super().get_test_dataloader, test_dataset)

    def _with_fixed_masks(self, make: Callable, dataset: Any) -> Any:
        training, self.data_collator = self.data_collator, self.objective.for_evaluation()
        try:
            return make(dataset)
        finally:
            self.data_collator = training

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        if self.class_metrics is not None:
            keys = [*(ignore_keys or []), "hidden_states", "attentions"]
            return super().prediction_step(model, inputs, prediction_loss_only, keys)
        # Keep a few sums per example, never (examples, length, symbols): memory stays flat as the split grows.
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs)
        sums = self.objective.example_sums(outputs, inputs)
        return outputs.loss.detach(), sums, sums.new_zeros(len(sums))

    def _metrics(self, prediction: Any) -> dict[str, float]:
        if self.class_metrics is not None:
            return self.class_metrics(prediction.predictions, prediction.label_ids)
        return {name: float(value) for name, value in self.objective.metrics(prediction.predictions).items()}
