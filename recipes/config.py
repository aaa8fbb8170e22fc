"""Recipes: one strict YAML per task, read into pydantic models and refused with one sentence when something is off.

A recipe names the task, the self-pretraining objective, the two stages (`pretrain` and `finetune`, both in the words of
`transformers.TrainingArguments`) and the models that are compared under that one budget.
"""

import dataclasses
import functools
import hashlib
import math
import re
import typing
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from neverscratch.tasks import check_task, list_tasks, load_task, resolve_task_name, task_entry

from .errors import unknown_name

OBJECTIVES = ("masked_tokens", "next_token", "masked_values", "next_value")
ARMS = {
    "scratch": "F steps of supervised training from random weights",
    "spt": "P steps of self-pretraining on the training inputs, then F supervised steps",
    "scratch-matched": "P + F supervised steps from random weights, so that extra training is not sold as a gain",
}
# What the study decides itself: a recipe that set one of these would break resuming, seeds or the shared budget.
RESERVED_ARGUMENTS = {
    "resume_from_checkpoint", "prediction_loss_only",
    "ignore_data_skip", "eval_strategy", "logging_strategy", "dataloader_drop_last", "average_tokens_across_devices",
    "output_dir", "seed", "data_seed", "remove_unused_columns", "report_to", "push_to_hub", "do_train", "do_eval",
    "do_predict", "num_train_epochs", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
    "label_names", "disable_tqdm", "use_cpu", "logging_nan_inf_filter", "dataloader_persistent_workers",
}  # fmt: skip
# What makes the comparison one of equal means; no model may have its own.
BUDGET = {"max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"}
# Fields of a configuration that follow from the data.
TASK_FIELDS = {
    "vocab_size", "num_channels", "num_labels", "id2label", "label2id", "problem_type", "is_pair",
    "pad_token_id", "mask_token_id", "unk_token_id",
}  # fmt: skip
# Fields of a model that may be "auto": as long as the longest sequence of the task.
LENGTH_FIELDS = {"max_position_embeddings", "kernel_length"}
# The recipe that a task without one of its own is compared by: kind of input -> recipe.
GENERIC = {"tokens": "digits", "values": "gunpoint"}
_NOT_NEGATIVE = {"weight_decay", "max_grad_norm", "warmup_steps"}
SEED_PURPOSES = ("init", "order", "mask", "split")


def derive_seed(seed: int, purpose: str) -> int:
    """An independent 31-bit seed for each purpose, so that a change of one (say the masks) moves no other."""
    if purpose not in SEED_PURPOSES:
        raise ValueError(unknown_name("seed purpose", purpose, SEED_PURPOSES))
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:4], "big") & 0x7FFFFFFF


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@functools.cache
def _argument_types() -> dict[str, TypeAdapter]:
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    names = {f.name for f in dataclasses.fields(TrainingArguments) if f.init} - RESERVED_ARGUMENTS
    return {name: TypeAdapter(hints[name]) for name in names}


class Stage(_Strict):
    """One stage: any `TrainingArguments` field, plus the learning rate of the state-space parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)
    max_steps: int = Field(gt=0, strict=True, description="optimiser steps")
    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    # State-space parameters: at most this rate, and no weight decay (arXiv 2111.00396). None: the global rate.
    ssm_learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    per_device_train_batch_size: int = Field(default=32, gt=0, description="examples")

    @model_validator(mode="after")
    def _known_arguments(self) -> "Stage":
        types = _argument_types()
        for name, value in (self.model_extra or {}).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}={value} is not finite; use a number.")
            if name in _NOT_NEGATIVE and isinstance(value, int | float) and value < 0:
                raise ValueError(f"{name}={value} is negative; use 0 or more.")
            if name not in types:
                own = set(type(self).model_fields)
                if name in RESERVED_ARGUMENTS:
                    raise ValueError(f"{name!r} is decided by the study and cannot be set in a stage; remove it.")
                raise ValueError(unknown_name("training argument", name, own | set(types)))
            try:
                checked = types[name].validate_python(value)
            except ValidationError as error:
                raise ValueError(f"{name}={value!r} is not allowed: {error.errors()[0]['msg']}.") from None
            assert self.model_extra is not None
            self.model_extra[name] = checked
        return self

    def arguments(self) -> dict[str, Any]:
        """The fields as keyword arguments of `TrainingArguments` (without `ssm_learning_rate`)."""
        return {k: v for k, v in self.model_dump().items() if k != "ssm_learning_rate"}


class ModelEntry(_Strict):
    """One model of a recipe; `overrides` is what it does differently from the shared stages, and `source` says why."""

    family: str
    config: dict[str, Any]
    overrides: dict[Literal["pretrain", "finetune"], dict[str, Any]] = {}
    source: str


class Recipe(_Strict):
    """A task, its objective, the two stages and the models. See `recipes/conf/*.yaml`."""

    task: str
    task_options: dict[str, Any] = {}
    train_size: int | None = Field(default=None, gt=0, strict=True, description="training examples; None = all")
    objective: Literal["masked_tokens", "next_token", "masked_values", "next_value"]
    mask_ratio: float | None = Field(default=None, gt=0, lt=1)
    select: Literal["last", "best"] = "last"
    num_threads: int = Field(default=1, gt=0)
    source: str
    pretrain: Stage
    finetune: Stage
    models: dict[str, ModelEntry]
    default_models: list[str] | None = Field(default=None, min_length=1, description="compared unless told otherwise")
    # Set by hand, so that `source` is not read as if it spoke of these values too: "key=value (recipe: value)".
    changes: list[str] = []

    @field_validator("models", mode="before")
    @classmethod
    def _family_defaults_to_the_name(cls, models: Any) -> Any:
        if not isinstance(models, dict) or not models:
            raise ValueError("models must name at least one model, such as {s4d: {config: {...}, source: ...}}.")
        for name in models:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(name)) or name in ("stages", "figures", "all"):
                raise ValueError(
                    f"model name {name!r} cannot name a folder of results; use letters, digits, '-', '_' and '.', "
                    "and not stages, figures or all."
                )
        return {name: {"family": name, **entry} if isinstance(entry, dict) else entry for name, entry in models.items()}

    @model_validator(mode="after")
    def _task_exists(self) -> "Recipe":
        for option in {"train_size", "split_seed"} & self.task_options.keys():
            raise ValueError(f"task_options.{option}: the subset is drawn by the run's seed; set train_size instead.")
        if "name" in self.task_options:
            raise ValueError("task_options.name: a task has no such option; set task instead.")
        check_task(self.task, **self.task_options)
        return self

    @model_validator(mode="after")
    def _objective_fits(self) -> "Recipe":
        masked = self.objective.startswith("masked")
        if masked and self.mask_ratio is None:
            raise ValueError(f"objective {self.objective} needs mask_ratio, a number between 0 and 1, such as 0.5.")
        if not masked and self.mask_ratio is not None:
            raise ValueError(f"objective {self.objective} predicts the next step and takes no mask_ratio; remove it.")
        for name, entry in self.models.items():
            check_model_config(entry, f"models.{name}", self.objective)
            bidirectional = entry.config.get("bidirectional", True)
            if not masked and bidirectional:
                raise ValueError(
                    f"objective {self.objective} would let the bidirectional model {name!r} see its target; "
                    f"set models.{name}.config.bidirectional=false or choose a masked objective."
                )
            for stage, changes in entry.overrides.items():
                for budget in BUDGET & changes.keys():
                    raise ValueError(
                        f"models.{name}.overrides.{stage}: {budget} is part of the budget that all models share; "
                        f"set {stage}.{budget} for all of them instead."
                    )
                self.stage(stage, name)
        return self

    @model_validator(mode="after")
    def _default_models_exist(self) -> "Recipe":
        for name in self.default_models or ():
            if name not in self.models:
                raise ValueError(f"default_models: {unknown_name('model', name, self.models)}")
        return self

    def stage(self, stage: Literal["pretrain", "finetune"], model: str) -> Stage:
        """The stage as this model runs it: the shared one with the model's own overrides."""
        shared = getattr(self, stage).model_dump()
        return Stage(**{**shared, **self.models[model].overrides.get(stage, {})})


def resolve_lengths(config: Any, length: int) -> Any:
    """A model's config with `length` in place of "auto", also in the configs inside it."""
    if isinstance(config, dict):
        return {
            key: length if key in LENGTH_FIELDS and value == "auto" else resolve_lengths(value, length)
            for key, value in config.items()
        }
    return [resolve_lengths(entry, length) for entry in config] if isinstance(config, list) else config


def check_model_config(entry: ModelEntry, where: str, objective: str) -> None:
    """Refuse an unknown family, an unknown config field (which transformers would accept silently) or a bad value."""
    from huggingface_hub.errors import StrictDataclassError

    from neverscratch.modeling import FAMILIES
    from neverscratch.modeling.configuration_common import unknown_fields

    if entry.family not in FAMILIES:
        raise ValueError(unknown_name("model family", entry.family, FAMILIES))
    config_class = FAMILIES[entry.family]
    for name in TASK_FIELDS & entry.config.keys():
        raise ValueError(f"{where}.config.{name} is decided by the task and cannot be set; remove it.")
    for name in unknown_fields(config_class, entry.config):
        raise ValueError(f"{where}.config: {unknown_name('field', name, _own_fields(config_class))}")
    # The task sets the real numbers later; any will do to check the other fields.
    inputs = {"vocab_size": 20} if objective.endswith(("token", "tokens")) else {"num_channels": 1}
    try:
        config_class(**{**inputs, **resolve_lengths(entry.config, 1024)})
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise ValueError(f"{where}.config: {' '.join(str(error.__cause__ or error).split())}") from None


def _own_fields(config_class: type) -> list[str]:
    """What a family's configuration adds to transformers' base class: the names worth listing."""
    from transformers import PreTrainedConfig

    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return [field.name for field in dataclasses.fields(config_class) if field.name not in inherited]


def available_recipes() -> dict[str, Path]:
    """Names of the packaged recipes and where they lie."""
    folder = Path(str(resources.files("neverscratch.recipes"))) / "conf"
    return {path.stem: path for path in sorted(folder.rglob("*.yaml"))}


def load_recipe(name: str, settings: typing.Sequence[str] = ()) -> Recipe:
    """Read a recipe by task name or by the path of a YAML file, with `a.b=value` settings on top.

    Raises:
        ValueError: unknown name or key, or a value of a wrong type; the message names the nearest right key.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            known = ", ".join(available_recipes())
            raise ValueError(f"There is no recipe file {name}; give a path that exists or one of {known}.")
        raw = _read_yaml(path)
    else:
        recipes = available_recipes()
        # `list tasks` shows full names, such as ucr:GunPoint for gunpoint.
        full = {resolve_task_name(recipe): recipe for recipe in recipes}
        if name in recipes or name in full:
            raw = _read_yaml(recipes[full.get(name, name)])
        else:
            raw = _generic_recipe(name, settings)
        path = Path(f"{name}.yaml")
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ValueError(f"{path.name} must hold a mapping with task, objective, pretrain, finetune and models.")
    before = _flat({key: value for key, value in raw.items() if key != "task_options"})
    for setting in settings:
        apply_setting(raw, setting)
    after = _flat({key: value for key, value in raw.items() if key != "task_options"})
    changes = [
        f"{key}={value} (recipe: {before.get(key, 'not set')})"
        for key, value in after.items()
        if key not in before or before[key] != value
    ]
    return parse_recipe({**raw, "changes": [*raw.get("changes", ()), *changes]}, path.name)


def _flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; give a recipe in YAML.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}.") from None


def _generic_recipe(task: str, settings: typing.Sequence[str]) -> dict[str, Any]:
    """A recipe for a task that has none of its own: that of a small task with the same kind of input."""
    names = list(dict.fromkeys([*available_recipes(), *list_tasks()]))
    try:
        resolve_task_name(task)
    except ValueError:
        raise ValueError(unknown_name("task or recipe", task, names)) from None
    scratch: dict[str, Any] = {}
    for setting in settings:
        if setting.startswith("task_options."):
            apply_setting(scratch, setting)
    options = scratch.get("task_options", {})
    check_task(task, **options)
    entry = task_entry(task)
    if entry.modality == "file":
        # Only the data say what they are.
        spec = load_task(task, **options).spec
        kind = "values" if spec.unit is None and spec.num_levels is None else "tokens"
    else:
        kind = "tokens" if entry.modality in ("text", "tokens") or options.get("levels") else "values"
    raw = _read_yaml(available_recipes()[GENERIC[kind]])
    raw["source"] = (
        "Setting of arXiv 2310.02980 (self-pretrain on the task's own training inputs by masked reconstruction, then "
        "fine-tune all weights with a new head) on any data. Differences: small models, a budget in steps, nothing "
        "tuned, and a third arm that spends the steps of both stages on labels. Sizes, steps and rates are those of "
        f"the recipe {GENERIC[kind]}; they were not chosen for these data."
    )
    return {**raw, "task": task, "train_size": None}


def parse_recipe(raw: dict[str, Any], where: str) -> Recipe:
    try:
        return Recipe(**raw)
    except ValidationError as error:
        raise ValueError(f"{where}: {_first_problem(error)}") from None


def apply_setting(raw: dict[str, Any], setting: str) -> None:
    """Put one `a.b=value` into a raw recipe. The value is read as YAML; `1e-3` is a number here."""
    dotted, equals, text = setting.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        example = "finetune.learning_rate=1.0e-3"
        raise ValueError(f"--set {setting!r} is not of the form key.subkey=value, such as {example}.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f"--set {setting!r}: {text!r} is not valid YAML.") from None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    node: Any = raw
    for depth, key in enumerate(keys[:-1]):
        fields = {0: Recipe.model_fields, 2: ModelEntry.model_fields}.get(depth, {})
        stages = {"pretrain", "finetune"} if depth == 3 and keys[2] == "overrides" else set()
        known = set(node) | set(fields) | stages
        if key not in known or (depth == 1 and keys[0] == "models" and key not in node):
            raise ValueError(f"--set {setting}: {unknown_name('key', key, known)}")
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise ValueError(f"--set {setting}: {'.'.join(keys[: depth + 1])} is a single value and has no parts.")
    if len(keys) == 1 and keys[0] not in Recipe.model_fields:
        raise ValueError(f"--set {setting}: {unknown_name('key', keys[0], Recipe.model_fields)}")
    node[keys[-1]] = value


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        owner = ModelEntry if problem["loc"][0] == "models" else Recipe
        parent = where[: where.rfind(".") + 1]
        return unknown_name("key", where, [parent + field for field in owner.model_fields])
    if problem["type"] == "missing":
        return f"{where} is missing; add it."
    if not where:
        return message
    given = problem["input"]
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool | type(None)) else ""
    return f"{where}: {message}{'' if message.endswith('.') else '.'}{shown}"
