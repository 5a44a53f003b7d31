"""Models that read tokens: one graph from tokens and their mask to classes, spans or states."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.models.export.graphs import Arrays, Graph, Input, Sizes, right_padded
from sardonyx.models.export.kinds.outputs import kept

_BATCH, _CHOICES, _LENGTH = "batch_size", "num_choices", "sequence_length"
# Traced, then tried.
_SIZES = (
    {_BATCH: 2, _CHOICES: 2, _LENGTH: 6, "padding": 2},
    {_BATCH: 3, _CHOICES: 4, _LENGTH: 11, "padding": 5},
    {_BATCH: 1, _CHOICES: 3, _LENGTH: 4, "padding": 0},
)


def graphs(model: Any, task: str) -> list[Graph]:
    """`model.onnx`: input_ids, attention_mask and token_type_ids where the model has types of tokens."""
    dims = (_BATCH, _CHOICES, _LENGTH) if task == "multiple-choice" else (_BATCH, _LENGTH)
    names = ["input_ids", "attention_mask"]
    if takes(model, "token_type_ids") and getattr(model.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    fixed = {"use_cache": False} if takes(model, "use_cache") else {}

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return kept(task, model(**tensors, **fixed))

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        shape = tuple(sizes[dim] for dim in dims)
        return {
            "input_ids": random.integers(0, vocabulary(model), shape),
            "attention_mask": right_padded(int(np.prod(shape[:-1])), shape[-1], sizes["padding"]).reshape(shape),
            "token_type_ids": random.integers(0, getattr(model.config, "type_vocab_size", 0) or 1, shape),
        }

    return [Graph("model.onnx", model, call, tuple(Input(name, dims) for name in names), values, _SIZES)]


def takes(model: Any, argument: str) -> bool:
    """Whether a model's `forward` names an argument."""
    return argument in inspect.signature(model.forward).parameters


def vocabulary(model: Any) -> int:
    """How many tokens a model knows."""
    return int(model.get_input_embeddings().weight.shape[0])
