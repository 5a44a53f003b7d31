"""A model that generates from its own tokens: one graph for the prompt and for each token after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.models.export import caches
from sardonyx.models.export.graphs import Arrays, Graph, Input, Sizes, left_padded, positions
from sardonyx.models.export.kinds.text import takes, vocabulary

_BATCH, _NEW, _PAST = "batch_size", "sequence_length", "past_sequence_length"
_ALL = f"{_PAST} + {_NEW}"
# Traced, then tried: a prompt in a batch with padding, a token of one sequence, and a chunk behind a padded past.
_SIZES = (
    {_BATCH: 2, _NEW: 3, _PAST: 5, "padding": 2},
    {_BATCH: 3, _NEW: 7, _PAST: 0, "padding": 3},
    {_BATCH: 1, _NEW: 1, _PAST: 6, "padding": 0},
    {_BATCH: 4, _NEW: 2, _PAST: 9, "padding": 4},
)


def graphs(model: Any) -> list[Graph]:
    """`model.onnx`: input_ids, attention_mask, position_ids, past_key_values.N.key and value -> logits, present.N.…"""
    cache = caches.plan(model)
    inputs = [Input("input_ids", (_BATCH, _NEW)), Input("attention_mask", (_BATCH, _ALL if cache.is_growing else _NEW))]
    if takes(model, "position_ids"):
        inputs.append(Input("position_ids", (_BATCH, _NEW)))
    argument = caches.argument(model)
    given = [one.name for one in inputs]
    inputs += cache.inputs(_BATCH, _PAST)

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        past = cache.build(tensors)
        arguments = {name: tensors[name] for name in given}
        found = model(**arguments, **{argument: past}, use_cache=True)
        return {"logits": found.logits, **cache.flat(caches.of(found))}

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        length = sizes[_PAST] + sizes[_NEW]
        mask = left_padded(sizes[_BATCH], length, sizes["padding"])
        made = {
            "input_ids": random.integers(0, vocabulary(model), (sizes[_BATCH], sizes[_NEW])),
            "attention_mask": mask if cache.is_growing else mask[:, -sizes[_NEW] :],
            "position_ids": positions(mask, sizes[_NEW]),
        }
        return {**made, **cache.values(sizes, random)}

    return [Graph("model.onnx", model, call, tuple(inputs), values, _SIZES)]
