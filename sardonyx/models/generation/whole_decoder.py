"""A decoder without caches: each step runs the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.signature import IDS, MASK, POSITIONS


class TokenCache(Cache):
    """Tokens and nothing else."""

    can_crop = True

    def _grow(self, capacity: int) -> None:
        """Nothing to do, as below: tokens are all there is."""

    def _crop(self, length: int) -> None: ...

    def _move(self, places: list[int], sources: list[int], first: int) -> None: ...

    def _fan_out(self, sources: Array) -> None: ...

    def _clear(self) -> None: ...


class WholeDecoder(Decoder):
    """All tokens go in at each step."""

    form = "whole sequence"

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> TokenCache:
        return TokenCache(rows, self._capacity(capacity), self.positions, spread)

    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        signature = self._signature
        count = ids.shape[1]
        mask = cache.coming_mask(count)
        earlier = np.where(cache.mask == 0, 1, np.cumsum(cache.mask, axis=1) - 1)
        values = {
            IDS: np.concatenate([cache.tokens, ids], axis=1),
            MASK: mask,
            POSITIONS: np.concatenate([earlier, positions], axis=1),
        }
        feeds = {
            name: np.ascontiguousarray(value, signature.dtypes[name])
            for name, value in values.items()
            if signature.has(name)
        }
        logits: Array = self.session.run([signature.logits, *signature.more], {**feeds, **others})[0]
        return logits
