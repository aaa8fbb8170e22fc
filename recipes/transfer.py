"""What goes from a self-pretrained model to the classifier: here, everything but the head."""

from pathlib import Path

from transformers import AutoModel, PreTrainedModel


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
