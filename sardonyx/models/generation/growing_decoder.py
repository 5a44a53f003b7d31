"""A decoder whose run makes each cache anew, longer by the tokens of the step: any export with caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.api.session import InferenceSession
from sardonyx.models.generation import model_facts
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.signature import IDS, MASK, POSITIONS, USE_CACHE, Signature, State


class GrowingCache(Cache):
    """Arrays that the last run made; they are as long as what they hold."""

    def __init__(
        self, states: tuple[State, ...], head_size: int | None, rows: int, capacity: int, limit: int | None, spread: int
    ) -> None:
        super().__init__(rows, capacity, limit, spread)
        self._states = states
        self._head_size = head_size
        self.arrays: list[Array] = []
        self._clear()

    @property
    def can_crop(self) -> bool:
        return all(state.axis is not None for state in self._states)

    def _grow(self, capacity: int) -> None:
        """Nothing to do: runs make what they need."""

    def _crop(self, length: int) -> None:
        if not length:
            self._clear()
            return
        self.arrays = [
            np.ascontiguousarray(np.take(array, range(length), axis=state.axis))
            for state, array in zip(self._states, self.arrays, strict=True)
        ]

    def _move(self, places: list[int], sources: list[int], first: int) -> None:
        for state, array in zip(self._states, self.arrays, strict=True):
            if state.axis is None:
                array[places] = array[sources]
            else:
                behind = (slice(None),) * (state.axis - 1) + (slice(first, None),)
                array[(places, *behind)] = array[(sources, *behind)]

    def _fan_out(self, sources: Array) -> None:
        self.arrays = [array[sources] for array in self.arrays]

    def _clear(self) -> None:
        self.arrays = [np.zeros(state.sized(self.rows, 0, self._head_size), state.dtype) for state in self._states]


class GrowingDecoder(Decoder):
    """Caches go in and come out longer."""

    form = "growing"

    def __init__(self, session: InferenceSession, signature: Signature, config: object) -> None:
        super().__init__(session, signature, config)
        self._head_size = model_facts.head_size(config)
        # All of them, as a run for some takes longer.
        self._outputs = [signature.logits, *(state.made for state in signature.states), *signature.more]

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> GrowingCache:
        self._require_rows(rows * spread)
        states = self._signature.states
        return GrowingCache(states, self._head_size, rows, self._capacity(capacity), self.positions, spread)

    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        assert isinstance(cache, GrowingCache)
        signature = self._signature
        feeds: dict[str, Any] = {IDS: self._as_input(IDS, ids), **others}
        if signature.has(MASK):
            mask = cache.coming_mask(ids.shape[1])
            feeds.setdefault(MASK, self._as_input(MASK, mask[:, -ids.shape[1] :] if signature.masks_new else mask))
        if signature.has(POSITIONS):
            feeds[POSITIONS] = self._as_input(POSITIONS, positions)
        if signature.has(USE_CACHE):
            feeds[USE_CACHE] = np.array([cache.length > 0])
        for state, array in zip(signature.states, cache.arrays, strict=True):
            feeds[state.given] = array
        logits, *arrays = self.session.run(self._outputs, feeds)
        cache.arrays = arrays[: len(signature.states)]
        result: Array = logits
        return result

    def _as_input(self, name: str, values: Array) -> Array:
        return np.ascontiguousarray(values, self._signature.dtypes[name])
