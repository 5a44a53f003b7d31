"""What a decoder keeps from token to token: from flat inputs to what transformers takes, and back.

What a model keeps is read off the cache that a short run of it leaves: keys and values that grow, and states of
convolutions and of state-space layers, whose shapes stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sardonyx import errors
from sardonyx.models.export import cache_layers
from sardonyx.models.export.graphs import Arrays, Input, Sizes

PAST, PRESENT = "past_key_values", "present"


@dataclass(frozen=True)
class Entry:
    """A tensor of a layer's cache: its name before and behind the run, and its dimensions without the batch."""

    layer: int
    part: str  # keys, values, conv or recurrent
    past: str
    present: str
    dims: tuple[int | None, ...]  # None is the length


@dataclass(frozen=True)
class Plan:
    """The cache of one decoder."""

    entries: tuple[Entry, ...]
    layers: int

    @property
    def is_growing(self) -> bool:
        """Whether any of it is as long as the past."""
        return any(None in entry.dims for entry in self.entries)

    def inputs(self, batch: str, length: str) -> list[Input]:
        return [
            Input(entry.past, (batch, *(length if dim is None else dim for dim in entry.dims)))
            for entry in self.entries
        ]

    def values(self, sizes: Sizes, random: np.random.Generator, length: str = "past_sequence_length") -> Arrays:
        """Random content; states are zero where nothing came before."""
        made = {}
        for entry in self.entries:
            shape = (sizes["batch_size"], *(sizes[length] if dim is None else dim for dim in entry.dims))
            numbers = random.standard_normal(shape, np.float32)
            made[entry.past] = numbers if sizes[length] else np.zeros_like(numbers)
        return made

    def build(self, tensors: Mapping[str, Any]) -> Any:
        cache = empty()
        given: dict[int, dict[str, Any]] = {}
        for entry in self.entries:
            given.setdefault(entry.layer, {})[entry.part] = tensors[entry.past]
        for layer in range(self.layers):
            parts = given[layer]
            cache.layers.append((cache_layers.growing if "keys" in parts else cache_layers.states)(**parts))
        return cache

    def flat(self, cache: Any) -> dict[str, Any]:
        return {entry.present: _part(cache.layers[entry.layer], entry.part) for entry in self.entries}


def _part(layer: Any, part: str) -> Any:
    if part in ("keys", "values"):
        return getattr(layer, part)
    return (layer.conv_states if part == "conv" else layer.recurrent_states)[0]


def plan(model: Any) -> Plan:
    """The cache that a decoder fills; NotImplemented for one of a class that is not known."""
    from transformers.cache_utils import DynamicCache

    with torch.no_grad():
        found = model(input_ids=torch.ones((1, 3), dtype=torch.int64), use_cache=True)
    cache = of(found)
    if not isinstance(cache, DynamicCache):
        raise errors.NotImplemented(
            f"{type(model).__name__} keeps a {type(cache).__name__} from token to token, which is not exported; "
            "expected a DynamicCache"
        )
    return plan_of(cache)


def argument(model: Any) -> str:
    """What a model calls the cache that it takes: newer versions of transformers call it `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def of(found: Any) -> Any:
    """The cache among a model's outputs, under either name; None where there is none."""
    return found.get("cache") if found.get("cache") is not None else found.get("past_key_values")


def plan_of(cache: Any, kind: str = "") -> Plan:
    """That of a filled cache; `kind` stands before key and value, such as ``decoder.``"""
    entries = []
    for index, layer in enumerate(cache.layers):
        if cache_layers.has_states(layer):
            for part, name in (("conv", "conv"), ("recurrent", "ssm")):
                state = _part(layer, part)
                if state is not None:
                    dims = tuple(int(size) for size in state.shape[1:])
                    entries.append(Entry(index, part, f"past_{name}.{index}", f"{PRESENT}_{name}.{index}", dims))
            continue
        for part, name in (("keys", f"{kind}key"), ("values", f"{kind}value")):
            _, heads, _, size = _part(layer, part).shape
            shape = (int(heads), None, int(size))
            entries.append(Entry(index, part, f"{PAST}.{index}.{name}", f"{PRESENT}.{index}.{name}", shape))
    return Plan(tuple(entries), len(cache.layers))


def by_layer(own: Sequence[Input], cross: Sequence[Input]) -> list[Input]:
    """Inputs of two plans in the usual order: key and value of a layer's own cache, then of the encoder's output."""
    mixed: list[Input] = []
    for first in range(0, len(own), 2):
        mixed += [*own[first : first + 2], *cross[first : first + 2]]
    return mixed


def empty() -> Any:
    """A cache that takes what comes first as it is."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    cache.layer_class_to_replicate = cache_layers.growing_class()
    return cache
