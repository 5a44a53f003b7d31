"""What a decoder keeps from token to token: from flat inputs to what transformers takes, and back.

What a model keeps is read off the cache that a short run of it leaves: keys and values that grow, and states of
convolutions and of state-space layers, whose shapes stay.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sardonyx import errors
from sardonyx.models.export.graphs import Arrays, Input, Sizes

PAST, PRESENT = "past_key_values", "present"
ARGUMENT = "past_key_values"


@dataclass(frozen=True)
class Entry:
    """A tensor of a layer's cache: its name before and behind the run, and its dimensions without the batch."""

    layer: int
    attribute: str
    past: str
    present: str
    dims: tuple[int | None, ...]  # None is the length


@dataclass(frozen=True)
class Plan:
    """The cache of one decoder."""

    entries: tuple[Entry, ...]
    layers: int

    def inputs(self, batch: str, length: str) -> list[Input]:
        return [
            Input(entry.past, (batch, *(length if dim is None else dim for dim in entry.dims)))
            for entry in self.entries
        ]

    def values(self, sizes: Sizes, random: np.random.Generator, length: str = "past_sequence_length") -> Arrays:
        """Random content."""
        made = {}
        for entry in self.entries:
            shape = (sizes["batch_size"], *(sizes[length] if dim is None else dim for dim in entry.dims))
            made[entry.past] = random.standard_normal(shape, np.float32)
        return made

    def build(self, tensors: Mapping[str, Any]) -> Any:
        cache = empty()
        given: dict[int, dict[str, Any]] = {}
        for entry in self.entries:
            given.setdefault(entry.layer, {})[entry.attribute] = tensors[entry.past]
        for layer in range(self.layers):
            made = _layer_class()()
            made.fill(**given[layer])
            cache.layers.append(made)
        return cache

    def flat(self, cache: Any) -> dict[str, Any]:
        return {entry.present: getattr(cache.layers[entry.layer], entry.attribute) for entry in self.entries}


def plan(model: Any) -> Plan:
    """The cache that a decoder fills; NotImplemented for one of a class that is not known."""
    from transformers.cache_utils import DynamicCache

    with torch.no_grad():
        found = model(input_ids=torch.ones((1, 3), dtype=torch.int64), use_cache=True)
    cache = getattr(found, ARGUMENT, None)
    if not isinstance(cache, DynamicCache):
        raise errors.NotImplemented(
            f"{type(model).__name__} keeps a {type(cache).__name__} from token to token, which is not exported; "
            "expected a DynamicCache"
        )
    return plan_of(cache)


def plan_of(cache: Any, part: str = "") -> Plan:
    """That of a filled cache; `part` stands before key and value, such as ``decoder.``"""
    entries = []
    for index, layer in enumerate(cache.layers):
        for attribute, kind in (("keys", f"{part}key"), ("values", f"{part}value")):
            _, heads, _, size = getattr(layer, attribute).shape
            dims = (int(heads), None, int(size))
            entries.append(Entry(index, attribute, f"{PAST}.{index}.{kind}", f"{PRESENT}.{index}.{kind}", dims))
    return Plan(tuple(entries), len(cache.layers))


def by_layer(own: Sequence[Input], cross: Sequence[Input]) -> list[Input]:
    """Inputs of two plans in the usual order: key and value of a layer's own cache, then of the encoder's output."""
    mixed: list[Input] = []
    for first in range(0, len(own), 2):
        mixed += [*own[first : first + 2], *cross[first : first + 2]]
    return mixed


def empty() -> Any:
    """A cache that takes what comes first as it is, where transformers' own appends it to an empty tensor."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    cache.layer_class_to_replicate = _layer_class()
    return cache


@functools.cache
def _layer_class() -> Any:
    """A layer that keeps all of its past: that of a window, too, whose masks hide what has left it."""
    from transformers.cache_utils import DynamicLayer

    class Growing(DynamicLayer):  # type: ignore[misc]
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if self.is_initialized:
                return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[no-any-return]
            self.fill(key_states, value_states)
            return key_states, value_states

        def fill(self, keys: Any, values: Any) -> None:
            self.dtype, self.device = keys.dtype, keys.device
            self.keys, self.values = keys, values
            self.is_initialized = True

    return Growing
