"""Models that hear: one graph from samples or frames of sound to classes, letters or states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.export.graphs import Arrays, Graph, Input, Sizes
from sardonyx.models.export.kinds.outputs import kept
from sardonyx.models.export.kinds.text import takes

_BATCH, _LENGTH = "batch_size", "sequence_length"
# Samples, of a length that every stack of convolutions leaves something of.
_SIZES = ({_BATCH: 2, _LENGTH: 1600}, {_BATCH: 3, _LENGTH: 2345}, {_BATCH: 1, _LENGTH: 4000})
_FRAMES = ({_BATCH: 2}, {_BATCH: 3}, {_BATCH: 1})


def graphs(model: Any, task: str) -> list[Graph]:
    """`model.onnx`: input_values of any number of samples, or input_features of the number of frames that the model
    takes."""
    sound, sizes = _input(model)

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return kept(task, model(**tensors))

    def values(chosen: Sizes, random: np.random.Generator) -> Arrays:
        return {sound.name: random.standard_normal(sound.shape(chosen), np.float32)}

    return [Graph("model.onnx", model, call, (sound,), values, sizes)]


def hears(model: Any) -> bool:
    """Whether a model takes sound."""
    return takes(model, "input_values") or takes(model, "input_features")


def frames(config: Any, encoder: Any) -> tuple[int, int]:
    """Bands and frames of an encoder that is made as Whisper's is."""
    return config.num_mel_bins, config.max_source_positions * encoder.conv1.stride[0] * encoder.conv2.stride[0]


def _input(model: Any) -> tuple[Input, tuple[Sizes, ...]]:
    config = model.config
    if takes(model, "input_features") and hasattr(config, "max_source_positions"):
        return Input("input_features", (_BATCH, *frames(config, model.get_encoder()))), _FRAMES
    if takes(model, "input_values") and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return Input("input_values", (_BATCH, config.max_length, config.num_mel_bins)), _FRAMES
    if takes(model, "input_values"):
        return Input("input_values", (_BATCH, _LENGTH)), _SIZES
    raise errors.NotImplemented(f"{type(model).__name__} takes frames of sound; its config does not say how many")
