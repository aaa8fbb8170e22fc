"""Raw series, images and audio -> model input, saved with the checkpoint as `preprocessor_config.json`.

With `num_levels`, whole numbers 0 .. num_levels - 1 (grey levels) become token ids, after the three special ids.
Without it, real values are normalised by the training set's statistics. Images are read row by row.
"""

from __future__ import annotations

import wave
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import BatchFeature, FeatureExtractionMixin
from transformers.utils import logging

logger = logging.get_logger(__name__)

# PAD, MASK and UNK come before the levels.
NUM_SPECIAL_IDS = 3


class LongSequenceFeatureExtractor(FeatureExtractionMixin):
    """Turns raw examples into batches for the models here.

    Args:
        modality: "values" for series, (length,) or (length, channels); "image" for (height, width[, channels]); "audio"
            for (length,) of 16-bit whole numbers, which become -1 to 1, or of real values in that range, or the path of
            a WAV file.
        num_levels: Number of grey levels, for `input_ids`; None for real values, for `input_values`.
        num_channels: Channels of an example; 1 when `num_levels` is set.
        mean: Mean of each channel over the training set, or None for no normalisation.
        std: Standard deviation of each channel over the training set, > 0; set together with `mean`.
        max_length: Longest sequence taken, in steps (pixels for images), or None for no limit.
        sampling_rate: Of audio, in Hz; None if it is not known.
        image_shape: (height, width) every image must have, or None for any.
        pad_token_id: Id of padding.
        mask_token_id: Id that hides a level in self-pretraining.
        unk_token_id: Reserved.
    """

    model_input_names = ["input_ids", "input_values", "attention_mask"]
    # Read by transformers' pipelines when they batch.
    padding_side = "right"

    def __init__(
        self,
        modality: Literal["values", "image", "audio"] = "values",
        num_levels: int | None = None,
        num_channels: int = 1,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        max_length: int | None = None,
        sampling_rate: int | None = None,
        image_shape: list[int] | None = None,
        pad_token_id: int = 0,
        mask_token_id: int = 1,
        unk_token_id: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if modality not in ("values", "image", "audio"):
            raise ValueError(f"modality={modality!r} is unknown; use 'values', 'image' or 'audio'.")
        if modality == "audio" and (num_channels != 1 or num_levels is not None):
            raise ValueError("modality='audio' has one channel of real values; leave num_channels and num_levels out.")
        if sampling_rate is not None and modality != "audio":
            raise ValueError(f"sampling_rate={sampling_rate} has no meaning for modality={modality!r}; leave it out.")
        if num_levels is not None and num_levels < 2:
            raise ValueError(f"num_levels={num_levels} is too small; use at least 2, or None for real values.")
        if num_channels < 1:
            raise ValueError(f"num_channels={num_channels} is too small; use at least 1.")
        if num_levels is not None and num_channels != 1:
            raise ValueError(
                f"num_levels={num_levels} needs num_channels=1, as one level is one token, but num_channels is "
                f"{num_channels}; use num_levels=None for several channels."
            )
        if (mean is None) != (std is None):
            raise ValueError("Only one of mean and std was given; give both, or neither for no normalisation.")
        if num_levels is not None and mean is not None:
            raise ValueError("mean and std were given with num_levels, but levels are not normalised; leave one out.")
        if mean is not None and std is not None:
            for name, numbers in (("mean", mean), ("std", std)):
                if len(numbers) != num_channels:
                    raise ValueError(f"{name} has {len(numbers)} entries; give one a channel, {num_channels} in all.")
            if not all(np.isfinite(mean)) or not all(np.isfinite(std)) or min(std) <= 0:
                raise ValueError(f"mean={mean} and std={std} must be finite, and std above 0.")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length={max_length} is too small; use at least 1, or None for no limit.")
        if sorted((pad_token_id, mask_token_id, unk_token_id)) != list(range(NUM_SPECIAL_IDS)):
            raise ValueError(
                f"pad_token_id={pad_token_id}, mask_token_id={mask_token_id}, unk_token_id={unk_token_id} must be "
                f"0, 1 and 2 in some order, as the levels start at {NUM_SPECIAL_IDS}."
            )
        self.modality = modality
        self.num_levels = num_levels
        self.num_channels = num_channels
        self.mean = None if mean is None else [float(number) for number in mean]
        self.std = None if std is None else [float(number) for number in std]
        self.max_length = max_length
        self.sampling_rate = sampling_rate
        self.image_shape = None if image_shape is None else [int(size) for size in image_shape]
        self.pad_token_id = pad_token_id
        self.mask_token_id = mask_token_id
        self.unk_token_id = unk_token_id

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids, special ids included; None for real values."""
        return None if self.num_levels is None else self.num_levels + NUM_SPECIAL_IDS

    @property
    def padding_value(self) -> float | int:
        """What stands in padded positions."""
        return 0.0 if self.num_levels is None else self.pad_token_id

    @property
    def main_input_name(self) -> str:
        """The model's input: "input_ids" or "input_values"."""
        return "input_values" if self.num_levels is None else "input_ids"

    @classmethod
    def fit(
        cls,
        train_examples: Iterable[Any],
        *,
        modality: Literal["values", "image", "audio"] | None = None,
        num_levels: int | None = None,
        num_channels: int = 1,
        max_length: int | None = None,
        normalize: bool = True,
        sampling_rate: int | None = None,
        scale: Iterable[tuple[float, float]] | None = None,
    ) -> LongSequenceFeatureExtractor:
        """Make a feature extractor from training examples, and from nothing else.

        Mean and standard deviation are taken over all steps of all examples, channel by channel, in float64. A channel
        that never changes gets the deviation 1. Images of one common size fix `image_shape`.

        Args:
            train_examples: Raw training examples, one after the other. Only one is held at a time: give something that
                can be gone through twice, such as a list or a data set's column.
            modality: As in the constructor; None to tell from the first example, where an array of two dimensions is an
                image unless the second counts the channels.
            num_levels: As in the constructor; levels need no statistics.
            num_channels: As in the constructor.
            max_length: As in the constructor.
            normalize: Whether to normalise real values.
            sampling_rate: As in the constructor.
            scale: (mean, deviation) of each channel to normalise by, in place of those of the training examples.
        """
        examples = train_examples if isinstance(train_examples, Sequence) else list(train_examples)
        first = next(iter(examples), None)
        if first is None:
            raise ValueError("There are no training examples to fit to; give at least one.")
        if modality is None:
            modality = _guess_modality(first, num_channels)
        extractor = cls(
            modality=modality,
            num_levels=num_levels,
            num_channels=num_channels,
            max_length=max_length,
            sampling_rate=sampling_rate,
        )
        if scale is not None and num_levels is None:
            extractor.mean, extractor.std = (
                [float(number) for number in numbers] for numbers in zip(*scale, strict=True)
            )
            normalize = False
        fits_statistics = num_levels is None and normalize
        shapes, steps, total = set(), 0, np.zeros(num_channels)
        for index, example in enumerate(examples):
            array = extractor._check(example, index)
            shapes.add(array.shape[:2])
            if fits_statistics:
                sequence = extractor._raster(array)
                steps += len(sequence)
                total += sequence.sum(0, dtype=np.float64)
        if modality == "image" and len(shapes) == 1:
            extractor.image_shape = [int(size) for size in shapes.pop()]
        if fits_statistics:
            mean, squares = total / steps, np.zeros(num_channels)
            # Two passes: the deviation from the mean, not E[x^2] - E[x]^2, which loses digits.
            for index, example in enumerate(examples):
                sequence = extractor._raster(extractor._check(example, index))
                squares += np.square(sequence.astype(np.float64) - mean).sum(0)
            std = np.sqrt(squares / steps)
            # Rounding leaves a constant channel a deviation just above 0.
            std[std <= 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0
            extractor.mean, extractor.std = mean.tolist(), std.tolist()
        return extractor

    def split(self, examples: Any, batched: bool | None = None) -> tuple[list[Any], bool]:
        """Tell one example from several.

        Args:
            examples: One example, or several. An array counts as several if it has one dimension more than an example,
                and, for one channel, if it is (examples, length) with length above 1. A list of numbers is one series,
                a list of arrays is several examples, and nested lists count as the array they make.
            batched: True or False to settle it by hand.

        Returns:
            The examples as a list, and whether several were given.
        """
        if batched is not None:
            return (list(examples), True) if batched else ([examples], False)
        if _is_pil_image(examples) or (self.modality == "audio" and isinstance(examples, (str, Path, Mapping))):
            return [examples], False
        if isinstance(examples, (list, tuple)):
            if not examples:
                return [], True
            if any(_is_pil_image(item) or isinstance(item, (str, Path, Mapping)) for item in examples):
                return list(examples), True
            if any(getattr(item, "ndim", 0) > 0 for item in examples):
                return list(examples), True
        elif not hasattr(examples, "__array__"):
            several = isinstance(examples, Iterable) and not isinstance(examples, (str, bytes, Mapping))
            return (list(examples), True) if several else ([examples], False)
        try:
            array = _to_array(examples)
        except (ValueError, TypeError):
            # Ragged: series of unequal lengths.
            return list(examples), True
        least = 2 if self.modality == "image" else 1
        if array.ndim <= least:
            several = False
        elif array.ndim == least + 1:
            several = self.num_channels == 1 and array.shape[-1] != 1
        else:
            several = True
        return (list(array), True) if several else ([array], False)

    def __call__(
        self,
        examples: Any,
        padding: bool | Literal["longest", "max_length"] = True,
        truncation: bool = False,
        return_tensors: Literal["pt", "np"] | None = "pt",
        batched: bool | None = None,
    ) -> BatchFeature:
        """Turn one raw example or several into a batch.

        Args:
            examples: Arrays, tensors, nested lists or PIL images; see `split` for how one is told from several.
            padding: True or "longest" pads at the end to the longest of the batch, "max_length" to `max_length`; False
                leaves lengths as they are, which with `return_tensors` asks for equal lengths.
            truncation: Whether to cut what is longer than `max_length`, with a warning; by default it is refused.
            return_tensors: "pt", "np", or None for a list of arrays.
            batched: True if several examples are given, False if one; None to find out.

        Returns:
            `input_ids` (batch, length) int64 or `input_values` (batch, length, channels) float32, and `attention_mask`
            (batch, length) int64, 1 = keep. A single example is a batch of one.

        Raises:
            ValueError: For a wrong shape, a level out of range, missing or infinite values, or too long a sequence.
        """
        items, _ = self.split(examples, batched)
        if not items:
            raise ValueError("There are no examples; give at least one.")
        sequences = [self._raster(self._check(item, index)) for index, item in enumerate(items)]
        sequences = [self._encode(sequence) for sequence in self._limit(sequences, truncation)]
        lengths = [len(sequence) for sequence in sequences]

        if padding is False:
            if return_tensors is not None and len(set(lengths)) > 1:
                raise ValueError(
                    f"The sequences have lengths {min(lengths)} to {max(lengths)} and cannot make one tensor without "
                    f"padding; use padding=True, or return_tensors=None."
                )
            target = None
        elif padding in (True, "longest"):
            target = max(lengths)
        elif padding == "max_length":
            if self.max_length is None:
                raise ValueError("padding='max_length' needs max_length, which is None; set it or use padding=True.")
            target = self.max_length
        else:
            raise ValueError(f"padding={padding!r} is unknown; use True, 'longest', 'max_length' or False.")

        inputs, masks = [], []
        for sequence in sequences:
            length = len(sequence) if target is None else target
            padded = np.full((length, *sequence.shape[1:]), self.padding_value, dtype=sequence.dtype)
            padded[: len(sequence)] = sequence
            inputs.append(padded)
            masks.append((np.arange(length) < len(sequence)).astype(np.int64))
        data: dict[str, Any] = {self.main_input_name: inputs, "attention_mask": masks}
        if return_tensors is not None:
            data = {name: np.stack(arrays) for name, arrays in data.items()}
        return BatchFeature(data, tensor_type=return_tensors)

    def decode(self, ids: Any) -> np.ndarray:
        """Return the levels behind token ids, int64, of the same shape; -1 where a special id (pad, mask) stands."""
        if self.num_levels is None:
            raise ValueError("decode needs token ids, but this feature extractor makes real values; use denormalize.")
        ids = _to_array(ids)
        if ids.size and (ids.min() < 0 or ids.max() >= self.num_levels + NUM_SPECIAL_IDS):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"Id {wrong} is out of range; ids go from 0 to {self.num_levels + NUM_SPECIAL_IDS - 1}.")
        return np.where(ids < NUM_SPECIAL_IDS, -1, ids - NUM_SPECIAL_IDS).astype(np.int64)

    def denormalize(self, values: Any) -> np.ndarray:
        """Return model values (..., channels) in the units of the raw data, float32."""
        if self.num_levels is not None:
            raise ValueError("denormalize needs real values, but this feature extractor makes token ids; use decode.")
        values = _to_array(values).astype(np.float64)
        if values.ndim == 0 or values.shape[-1] != self.num_channels:
            raise ValueError(f"Values have shape {values.shape}; expected (..., {self.num_channels}), channels last.")
        if self.mean is not None and self.std is not None:
            values = values * np.asarray(self.std) + np.asarray(self.mean)
        return values.astype(np.float32)

    def _check(self, example: Any, index: int) -> np.ndarray:
        """Return one example as (length, channels) or (height, width, channels), refusing what cannot be used."""
        where = f"Example {index}"
        if self.modality == "audio":
            example = self._audio(example, where)
        if _is_pil_image(example):
            example = _open_pil_image(example, self.num_channels)
        try:
            array = _to_array(example)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where} is no array of numbers ({error}); give numbers in {self._shapes()}.") from None
        least = 2 if self.modality == "image" else 1
        if array.ndim == least:
            array = array[..., None]
        if array.ndim != least + 1 or array.shape[-1] != self.num_channels:
            raise ValueError(f"{where} has shape {np.shape(example)}; expected {self._shapes()}.")
        if array.size == 0:
            raise ValueError(f"{where} is empty, shape {np.shape(example)}; give at least one step.")
        if self.image_shape is not None and list(array.shape[:2]) != self.image_shape:
            raise ValueError(
                f"{where} is {array.shape[0]} x {array.shape[1]}, but this model reads images of "
                f"{self.image_shape[0]} x {self.image_shape[1]}; resize it first."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            position = tuple(int(place[0]) for place in np.nonzero(~np.isfinite(array)))
            raise ValueError(
                f"{where} holds {array[position]} at position {position}; missing and infinite values are not "
                f"supported, fill them in first."
            )
        if self.num_levels is not None:
            wrong = (array < 0) | (array >= self.num_levels)
            if array.dtype.kind == "f":
                wrong |= array != np.floor(array)
            if wrong.any():
                raise ValueError(
                    f"{where} holds the grey level {array[wrong][0]}; levels are whole numbers from 0 to "
                    f"{self.num_levels - 1}."
                )
        return array

    def _audio(self, example: Any, where: str) -> Any:
        """Samples between -1 and 1 of an array, a mapping with "array" and "sampling_rate", or a WAV file."""
        rate = None
        if isinstance(example, (str, Path)):
            example, rate = _read_wav(Path(example))
        elif isinstance(example, Mapping):
            example, rate = example.get("array", example.get("raw")), example.get("sampling_rate")
        if rate is not None and self.sampling_rate is not None and rate != self.sampling_rate:
            raise ValueError(f"{where} has {rate} Hz, but this model hears {self.sampling_rate} Hz; resample it first.")
        array = np.asarray(example)
        return array.astype(np.float32) / 2**15 if array.dtype == np.int16 else example

    def _shapes(self) -> str:
        axes = "height, width" if self.modality == "image" else "length"
        short = f"({axes}) or " if self.modality == "image" else f"({axes},) or "
        return f"{short if self.num_channels == 1 else ''}({axes}, {self.num_channels})"

    def _raster(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, self.num_channels)  # row by row

    def _limit(self, sequences: list[np.ndarray], truncation: bool) -> Iterator[np.ndarray]:
        limit = self.max_length
        too_long = [] if limit is None else [i for i, sequence in enumerate(sequences) if len(sequence) > limit]
        if not too_long:
            return iter(sequences)
        longest = max(len(sequences[i]) for i in too_long)
        if not truncation:
            raise ValueError(
                f"Example {too_long[0]} has {len(sequences[too_long[0]])} steps, but max_length is {limit} "
                f"({len(too_long)} of {len(sequences)} are longer, up to {longest}); shorten them, or use "
                f"truncation=True to cut off the end."
            )
        logger.warning(
            f"{len(too_long)} of {len(sequences)} sequences are longer than max_length={limit} (up to {longest}) and "
            f"lose their end; use truncation=False to refuse them."
        )
        return (sequence[:limit] for sequence in sequences)

    def _encode(self, sequence: np.ndarray) -> np.ndarray:
        if self.num_levels is not None:
            return sequence[:, 0].astype(np.int64) + NUM_SPECIAL_IDS
        values = sequence.astype(np.float64)
        if self.mean is not None and self.std is not None:
            values = (values - np.asarray(self.mean)) / np.asarray(self.std)
        if np.abs(values).max() > np.finfo(np.float32).max:
            raise ValueError(f"The value {np.abs(values).max():g} does not fit in float32; scale the data down first.")
        return values.astype(np.float32)


def _guess_modality(example: Any, num_channels: int) -> Literal["values", "image"]:
    if _is_pil_image(example):
        return "image"
    shape = np.shape(example)
    return "image" if len(shape) > 2 or (len(shape) == 2 and shape[1] != num_channels) else "values"


def _read_wav(path: Path) -> tuple[np.ndarray, int]:
    """Samples (L,) int16 and sampling rate of a WAV file with one channel of 16 bits, which needs no library."""
    try:
        with wave.open(str(path)) as file:
            rate, data = file.getframerate(), file.readframes(file.getnframes())
            if file.getnchannels() != 1 or file.getsampwidth() != 2:
                raise ValueError(
                    f"{path} has {file.getnchannels()} channel(s) of {8 * file.getsampwidth()} bits; give one of 16."
                )
    except (OSError, EOFError, wave.Error) as error:
        raise ValueError(f"{path} cannot be read as a WAV file ({error}); give an existing one, or an array.") from None
    return np.frombuffer(data[: len(data) // 2 * 2], dtype="<i2"), rate


def _is_pil_image(item: Any) -> bool:
    return hasattr(item, "getbands") and hasattr(item, "convert")


def _open_pil_image(image: Any, num_channels: int) -> np.ndarray:
    # Palette indices are no grey levels, and an alpha band is no colour.
    if image.mode in ("1", "P") or len(image.getbands()) != num_channels:
        image = image.convert("L" if num_channels == 1 else "RGB")
    return np.asarray(image)


def _to_array(item: Any) -> np.ndarray:
    if isinstance(item, torch.Tensor):
        item = item.detach().cpu()
        item = (item.float() if item.dtype == torch.bfloat16 else item).numpy()
    array = np.asarray(item)
    if array.dtype.kind not in "biuf":
        # Objects may be a list of 0-d tensors or Decimals; text and complex numbers are no values.
        if array.dtype.kind != "O":
            raise ValueError(f"type {array.dtype}")
        array = array.astype(np.float64)
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


LongSequenceFeatureExtractor.register_for_auto_class()

__all__ = ["LongSequenceFeatureExtractor"]
