"""What goes from a self-pretrained model to the classifier: here, everything but the head."""

import json
import math
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, PreTrainedModel

from neverscratch.modeling import FAMILIES
from neverscratch.tasks import load_task, task_entry

# What turns raw examples into inputs: a feature extractor, or a tokenizer for texts and symbols.
_PROCESSORS = ("preprocessor_config.json", "tokenizer.json")
_READS = {"image": "images", "values": "series of values", "audio": "sound", "text": "texts or symbols"}


def read_checkpoint_json(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint.

    Raises:
        ValueError: It is missing, or holds something else.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no {path.name}; give the folder of a whole checkpoint.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is empty, cut off or no JSON object; copy it again, or give another checkpoint.")
    return content


def check_checkpoint(folder: Path) -> None:
    """Refuse a folder that is not a whole checkpoint; of the weights only headers and lengths are read.

    Raises:
        ValueError: A file is missing or broken.
    """
    read_checkpoint_json(folder / "config.json")
    processors = [path for name in _PROCESSORS if (path := folder / name).is_file()]
    if not processors:
        raise ValueError(f"{folder} holds no {' and no '.join(_PROCESSORS)}; give the folder of a whole checkpoint.")
    read_checkpoint_json(processors[0])
    if (folder / "run.json").is_file():
        record = read_checkpoint_json(folder / "run.json")
        if not isinstance(record.get("stages"), list) or not isinstance(record.get("seeds"), dict):
            raise ValueError(
                f"{folder / 'run.json'} does not say which stages and seeds made these weights; copy the checkpoint "
                "again, or remove that file to use the weights without their history."
            )
    index = folder / "model.safetensors.index.json"
    shards = read_checkpoint_json(index).get("weight_map", {}).values() if index.is_file() else ["model.safetensors"]
    for path in sorted({folder / shard for shard in shards}):
        if not path.is_file():
            raise ValueError(f"{folder} holds no {path.name}; give the folder of a whole checkpoint.")
        try:
            with safe_open(path, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path} is not a whole file of weights ({error}); copy it again, or give another checkpoint."
            ) from None


def check_reads(folder: Path, task: str, options: dict[str, Any]) -> None:
    """Refuse a checkpoint whose processor reads another kind of input than a task has.

    Raises:
        ValueError: With both kinds. Only of one's own data are the examples looked at.
    """
    entry = task_entry(task)
    found = load_task(task, **options).spec if entry.modality == "file" else entry
    holds = "text" if found.modality == "tokens" else found.modality
    extractor = folder / _PROCESSORS[0]
    content = read_checkpoint_json(extractor) if extractor.is_file() else {"modality": "text"}
    reads, shape = str(content.get("modality")), content.get("image_shape")
    theirs, ours = _READS.get(reads, f"inputs of kind {reads}"), _READS[holds]
    if reads == holds == "image" and isinstance(shape, list) and isinstance(found.length, int):
        if math.prod(shape[:2]) != found.length:
            theirs, ours = f"images of {' x '.join(map(str, shape[:2]))}", f"images of {found.length} pixels"
    if theirs != ours:
        raise ValueError(
            f"{folder} reads {theirs}, but {task} holds {ours}; give a checkpoint that was pretrained on such data."
        )


def checkpoint_family(checkpoint: str) -> str:
    """Name of the family that a checkpoint, a folder or a Hub id, is of.

    Raises:
        ValueError: Its configuration cannot be used.
    """
    if Path(checkpoint).is_dir():
        kind = read_checkpoint_json(Path(checkpoint) / "config.json").get("model_type")
        if kind not in {config.model_type for config in FAMILIES.values()}:
            raise ValueError(f"{checkpoint} holds a model of type {kind!r}; give a checkpoint of this package.")
    try:
        kind = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False).model_type
    except StrictDataclassError as error:
        raise ValueError(f"config.json of {checkpoint}: {error.__cause__ or error}") from None
    return kind.removeprefix("neverscratch_")


def transfer_backbone(model: PreTrainedModel, checkpoint: str | Path) -> None:
    """Copy every backbone tensor of a checkpoint into `model`, in place; the head keeps its fresh start.

    Args:
        model: A model with a head; its backbone is `model.model`.
        checkpoint: Folder or Hub id that `AutoModel.from_pretrained` reads.

    Raises:
        ValueError: the two backbones differ in a name or a shape.
    """
    backbone = model.base_model
    source = AutoModel.from_pretrained(checkpoint, dtype=backbone.dtype, trust_remote_code=False)
    if source.config.model_type != model.config.model_type:
        raise ValueError(
            f"{checkpoint} holds a {source.config.model_type}, but the classifier is a {model.config.model_type}; "
            "choose the model that the checkpoint was trained with."
        )
    theirs, ours = source.state_dict(), backbone.state_dict()
    odd = sorted(theirs.keys() ^ ours.keys()) + [
        f"{name} {tuple(theirs[name].shape)} against {tuple(ours[name].shape)}"
        for name in sorted(theirs.keys() & ours.keys())
        if theirs[name].shape != ours[name].shape
    ]
    if odd:
        raise ValueError(
            f"{checkpoint} does not fit this model: {len(odd)} tensors differ, first {odd[0]}; "
            "use the configuration that the checkpoint was trained with."
        )
    backbone.load_state_dict(theirs)
