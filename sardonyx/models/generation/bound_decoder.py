"""A decoder that writes its caches in place: a token allocates nothing, copies nothing and binds nothing anew."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.session import InferenceSession
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.models.generation import model_facts
from sardonyx.models.generation.bound_cache import BoundCache
from sardonyx.models.generation.bound_step import SingleStep, Step
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.decoder import CHUNK, Decoder
from sardonyx.models.generation.signature import GREEDY_TOKENS, IDS, MASK, PAST_LENGTH, POSITIONS, Signature

# Caches that are kept for later calls, and their bytes; a larger one is made anew, which takes little of such a call.
KEPT = 4
KEPT_BYTES = 128 << 20


def counts_by_mask(session: InferenceSession, signature: Signature) -> bool:
    """Whether the mask tells a model how many tokens a row has, as GroupQueryAttention takes it: without padding."""
    growing = [state for state in signature.states if state.axis is not None]
    if not growing or signature.has(PAST_LENGTH) or not signature.has(MASK):
        return False
    shared = session._session().in_place
    return all((state.given, state.made) in shared for state in growing)


class BoundDecoder(Decoder):
    """Steps over buffers that are bound as caches and as what is made of them.

    The model says how much is filled either by an input of its own (`sardonyx.caches_in_place`), or by its mask, as
    GroupQueryAttention does it: there each row counts its own tokens from the first position on, without padding.
    """

    def __init__(self, session: InferenceSession, signature: Signature, config: object) -> None:
        super().__init__(session, signature, config)
        self._head_size = model_facts.head_size(config)
        self._counts_by_mask = not signature.has(PAST_LENGTH)
        self.form = "one buffer" if self._counts_by_mask else "in place"
        logits = next(one for one in session.get_outputs() if one.name == signature.logits)
        self._logits_dtype = np.dtype({"tensor(float16)": np.float16}.get(logits.type, np.float32))
        self._last_only = logits.shape[1] == 1
        limits = session._session().length_limits.get(MASK, ()) if self._counts_by_mask else ()
        self._limits = None if limits is None else list(limits)
        self._kept: list[BoundCache] = []
        self._keeping = threading.Lock()
        if self.vocabulary is None:
            raise errors.InvalidArgument(
                "Neither the model nor its configuration says how many tokens the vocabulary has (vocab_size)"
            )

    @staticmethod
    def serves(session: InferenceSession, signature: Signature) -> bool:
        """Whether a session is of one of the two kinds."""
        has_growing = any(state.axis is not None for state in signature.states)
        return has_growing and (signature.has(PAST_LENGTH) or counts_by_mask(session, signature))

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> BoundCache:
        self._require_rows(rows * spread)
        wanted = self._capacity(capacity)
        kept = self._kept_one(rows * spread, wanted)
        if kept is not None:
            kept.renew(rows)
            return kept
        return BoundCache(self._signature.states, self._head_size, rows, wanted, self.positions, spread)

    def keep(self, cache: Cache) -> None:
        assert isinstance(cache, BoundCache)
        with self._keeping:
            self._kept.append(cache)
            while len(self._kept) > KEPT or sum(one.nbytes for one in self._kept) > KEPT_BYTES:
                del self._kept[0]

    def _kept_one(self, rows: int, capacity: int) -> BoundCache | None:
        """A cache for so many rows with room for so many positions, which nobody uses any more."""
        with self._keeping:
            for place, one in enumerate(self._kept):
                if one.most_rows == rows and one.capacity >= capacity:
                    return self._kept.pop(place)
        return None

    def read(
        self, ids: Any, cache: Cache, attention_mask: Array | None = None, others: Mapping[str, Any] | None = None
    ) -> Array:
        assert isinstance(cache, BoundCache)
        ids = np.asarray(ids)
        if self._limits and ids.ndim == 2:
            kind = bisect_left(self._limits, cache.length + ids.shape[1])
            if cache.length and kind != cache.kind:
                ids, attention_mask = _whole(cache, ids, attention_mask)
                cache.crop(0)
            cache.reserve(cache.length + ids.shape[1])
            cache.be_of(kind)
        return super().read(ids, cache, attention_mask, others)

    def step(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """As of `Decoder`. Where a longer text has other tables of rotary embeddings, what was read is read again."""
        assert isinstance(cache, BoundCache)
        ids = np.asarray(ids)
        if self._limits and ids.ndim == 2:
            kind = max(cache.kind, bisect_left(self._limits, cache.length + ids.shape[1]))
            if cache.length and kind != cache.kind:
                return self.read(ids, cache, attention_mask, others)
            cache.be_of(kind)
        return super().step(ids, cache, attention_mask, position_ids, others)

    def _follow(self, tokens: Sequence[int], cache: Cache) -> SingleStep | None:
        assert isinstance(cache, BoundCache)
        step, begin = cache.single, cache.length
        if step is None or begin >= cache.capacity or self._limits is None:
            return None
        if self._limits and bisect_left(self._limits, begin + 1) != cache.kind:
            return None
        ids, positions, hidden = step.ids, step.positions, cache.hidden
        for row, token in enumerate(tokens):
            ids[row] = token
            if positions is not None:
                positions[row] = begin - hidden[row]
        if step.past is not None:
            step.past[0] = begin
        cache.put_one(tokens)
        if step.mask is not None:
            _show(step, cache)
        step.run(self.session)
        cache.length = begin + 1
        if cache.turned:
            cache.take_turns()
        return step

    def _chunk(self, rows: int) -> int:
        return CHUNK if self._last_only else super()._chunk(rows)

    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        assert isinstance(cache, BoundCache)
        if self._limits is None:
            cache.unbind()  # the mask has another width
        new = cache.table[:, cache.length : cache.length + ids.shape[1]]
        if self._counts_by_mask and not new.all():
            logits = self._row_by_row(cache, ids, positions, new != 0, others)
        else:
            coming = cache.coming if self._counts_by_mask else None
            logits = self._bound_run(cache, ids, positions, coming, others, None)
        cache.take_turns()
        return logits

    def _row_by_row(
        self, cache: BoundCache, ids: Array, positions: Array, is_token: Array, others: Mapping[str, Any]
    ) -> Array:
        """Read each row's tokens alone, without its padding."""
        logits = np.zeros((len(ids), 1, self.vocabulary or 0), self._logits_dtype)
        for row, kept in enumerate(is_token):
            if not kept.any():
                for place in cache.turned:
                    cache.next(place)[row] = cache.now(place)[row]
            else:
                alone = {
                    name: value[row : row + 1] if np.shape(value)[:1] == (len(ids),) else value
                    for name, value in others.items()
                }
                part = (ids[row : row + 1, kept], positions[row : row + 1, kept], cache.coming[row : row + 1])
                logits[row] = self._bound_run(cache, *part, alone, row)[0, -1:]
        return logits

    def _bound_run(
        self,
        cache: BoundCache,
        ids: Array,
        positions: Array,
        coming: Array | None,
        others: Mapping[str, Any],
        row: int | None,
    ) -> Array:
        step = cache.steps.get((cache.rows, ids.shape[1], cache.turn, row))
        if step is None or _are_others(step.others, others):
            step = self._bind(cache, ids, others, row)
            cache.hold(step, ids.shape[1], row)
        step.ids[...] = ids
        if step.positions is not None:
            step.positions[...] = positions
        if step.past is not None:
            step.past[...] = cache.length
        if step.mask is not None:
            if coming is None or step.counts is None:
                step.mask[...] = cache.table if row is None else cache.table[row]
            else:
                step.mask[...] = np.arange(step.mask.shape[1]) < coming[:, None]
                step.counts[:] = coming.tolist()
        for name, value in others.items():
            step.others[name][...] = value
        self.session.run_with_iobinding(step.binding)
        return step.logits

    def _width(self, cache: BoundCache, count: int) -> int:
        """The columns of the mask for `count` more tokens: the buffer's, up to where the model would differ."""
        if self._limits is None:
            return cache.length + count
        return min([cache.capacity, *self._limits[cache.kind : cache.kind + 1]])

    def _bind(self, cache: BoundCache, ids: Array, others: Mapping[str, Any], row: int | None) -> Step:
        signature = self._signature
        rows, count = ids.shape
        binding = self.session.io_binding()

        def given(name: str, array: Array) -> Array:
            binding.bind_cpu_input(name, array)
            return array

        def made(name: str, array: Array) -> None:
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

        def dtype(name: str) -> np.dtype[Any]:
            return signature.dtypes[name]

        for place, state in enumerate(signature.states):
            binding.bind_ortvalue_input(state.given, cache.value(place, row))
            binding.bind_ortvalue_output(state.made, cache.value(place, row, next=True))
        logits = np.empty((rows, 1 if self._last_only else count, self.vocabulary or 0), self._logits_dtype)
        made(signature.logits, logits)
        greedy = np.empty(logits.shape[:2], np.int64) if signature.greedy else None
        if greedy is not None:
            made(GREEDY_TOKENS, greedy)
        known = {signature.logits, GREEDY_TOKENS, *(state.made for state in signature.states)}
        for output in self.session.get_outputs():
            if output.name not in known:
                binding.bind_output(output.name, "cpu")
        mask = None
        if signature.has(MASK):
            if self._counts_by_mask or dtype(MASK) != cache.table.dtype:
                mask = given(MASK, np.zeros((rows, self._width(cache, count)), dtype(MASK)))
            else:
                given(MASK, cache.table)
        has_positions, has_past = signature.has(POSITIONS), signature.has(PAST_LENGTH)
        return Step(
            binding,
            given(IDS, np.zeros((rows, count), dtype(IDS))),
            given(POSITIONS, np.zeros((rows, count), dtype(POSITIONS))) if has_positions else None,
            mask,
            [0] * rows if self._counts_by_mask else None,
            given(PAST_LENGTH, np.zeros((), np.int64)) if has_past else None,
            {name: given(name, np.array(value, dtype(name), order="C")) for name, value in others.items()},
            logits,
            greedy,
        )


def _are_others(bound: Mapping[str, Array], given: Mapping[str, Any]) -> bool:
    """Whether other further inputs are given than those that a step is bound to."""
    return bound.keys() != given.keys() or any(bound[name].shape != np.shape(value) for name, value in given.items())


def _show(step: SingleStep, cache: BoundCache) -> None:
    """Let the mask of a step hold the token that comes."""
    mask, counts = step.mask, step.counts
    assert mask is not None
    if counts is None:
        mask[...] = cache.table
        return
    for row, count in enumerate(counts):
        wanted = cache.length + 1 - cache.hidden[row]
        if count != wanted - 1:  # it is of another moment
            mask[row] = np.arange(mask.shape[1]) < wanted
        else:
            mask[row, count] = 1
        counts[row] = wanted


def _whole(cache: Cache, ids: Array, mask: Array | None) -> tuple[Array, Array]:
    """What a cache holds together with tokens that go on from it, and the mask of both."""
    new = np.ones_like(ids) if mask is None else np.asarray(mask)
    whole = new if new.shape[1] > ids.shape[1] else np.concatenate([cache.mask, new], axis=1)
    return np.concatenate([cache.tokens, ids], axis=1), whole
