"""Models that see: one graph from pictures to classes, boxes, maps or states, or from pictures and texts to both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sardonyx.models.export.graphs import Arrays, Graph, Input, Sizes, right_padded
from sardonyx.models.export.kinds.outputs import kept
from sardonyx.models.export.kinds.text import takes

_BATCH, _TEXTS, _LENGTH = "batch_size", "text_batch_size", "sequence_length"
# A model may fix these; then the written graph has the numbers.
_HEIGHT, _WIDTH = "?height", "?width"
# Where a config says nothing.
_SIDES = 64, 96


def graphs(model: Any, task: str) -> list[Graph]:
    """`model.onnx`: pixel_values -> the outputs of the task."""
    channels, height, width = picture(model.config)

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return kept(task, model(**tensors))

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        return {"pixel_values": pictures(sizes[_BATCH], channels, sizes, random)}

    sizes = [
        {_BATCH: 2, "height": height, "width": width},
        {_BATCH: 3, "height": height + height // 2, "width": width},
        {_BATCH: 1, "height": height, "width": width + width // 2},
    ]
    return [Graph("model.onnx", model, call, (_pixels(_BATCH, channels),), values, sizes)]


def with_texts(model: Any, task: str) -> list[Graph]:
    """`model.onnx` of pictures and texts, which may be of different numbers; a mask where texts are masked."""
    channels, height, width = picture(model.config.vision_config)
    names = ["input_ids", "attention_mask"]
    if model.config.model_type.startswith("siglip"):  # its tokenizers pad to one length and give no mask
        names.remove("attention_mask")

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return kept(task, model(**tensors))

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        texts = sizes[_TEXTS], sizes[_LENGTH]
        return {
            "input_ids": random.integers(0, model.config.text_config.vocab_size, texts),
            "attention_mask": right_padded(*texts, sizes["padding"]),
            "pixel_values": pictures(sizes["image_batch_size"], channels, sizes, random),
        }

    shape = {"height": height, "width": width}
    sizes = [
        {_TEXTS: 2, _LENGTH: 5, "image_batch_size": 3, "padding": 2, **shape},
        {_TEXTS: 3, _LENGTH: 9, "image_batch_size": 1, "padding": 4, **shape},
        {_TEXTS: 1, _LENGTH: 4, "image_batch_size": 2, "padding": 0, **shape},
    ]
    inputs = [_pixels("image_batch_size", channels), *(Input(name, (_TEXTS, _LENGTH)) for name in names)]
    return [Graph("model.onnx", model, call, tuple(inputs), values, sizes)]


def sees(model: Any) -> bool:
    """Whether a model takes pictures."""
    return takes(model, "pixel_values")


def picture(config: Any) -> tuple[int, int, int]:
    """Channels, height and width of the pictures that a config is for; 3 of 64 x 96 where it does not say."""
    height, width = sides(getattr(config, "image_size", None) or _SIDES)
    return int(getattr(config, "num_channels", None) or 3), height, width


def sides(size: Any) -> tuple[int, int]:
    """Height and width of a config's size of pictures: one number, or two."""
    if isinstance(size, Iterable):
        height, width = size
        return int(height), int(width)
    return int(size), int(size)


def pictures(batch: int, channels: int, sizes: Sizes, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((batch, channels, sizes["height"], sizes["width"]), np.float32)


def _pixels(batch: str, channels: int) -> Input:
    return Input("pixel_values", (batch, channels, _HEIGHT, _WIDTH))
