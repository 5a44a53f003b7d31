"""A decoder that writes its caches in place: a token allocates nothing, copies nothing and binds nothing anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.running.io_binding import IOBinding
from sardonyx.api.session import InferenceSession
from sardonyx.models.generation import model_facts
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.decoder import CHUNK, Decoder
from sardonyx.models.generation.signature import IDS, MASK, PAST_LENGTH, POSITIONS, Signature, State


@dataclass(frozen=True)
class _Step:
    """What a step of so many tokens is bound to; `mask` is None where it is the cache's own table."""

    binding: IOBinding
    ids: Array
    positions: Array | None
    mask: Array | None
    past: Array | None
    others: Mapping[str, Array]
    logits: Array
    last: Array  # the logits of the last token, a view if they are float32


@dataclass(frozen=True)
class _Single:
    """A step of one token for each row, none of them padding, with views that are written element by element."""

    binding: IOBinding
    ids: memoryview
    positions: memoryview | None
    past: memoryview | None
    mask: Array | None
    last: Array


class BoundCache(Cache):
    """One buffer for each cache, as long as the capacity, and two for each state of fixed size, which take turns."""

    def __init__(
        self, states: tuple[State, ...], head_size: int | None, rows: int, capacity: int, limit: int | None, spread: int
    ) -> None:
        super().__init__(rows, capacity, limit, spread)
        self._states = states
        shapes = [state.sized(self.most_rows, capacity, head_size) for state in states]
        self.buffers = [np.zeros(shape, state.dtype) for state, shape in zip(states, shapes, strict=True)]
        self.turned = {
            place: np.zeros_like(self.buffers[place]) for place, state in enumerate(states) if state.axis is None
        }
        self.turn = 0
        # Bindings by number of tokens, turn and the row they are of (None: all).
        self.steps: dict[tuple[int, int, int | None], _Step] = {}
        self.single: _Single | None = None
        self.hidden = self._hidden.data

    @property
    def can_crop(self) -> bool:
        return not self.turned

    @property
    def table(self) -> Array:
        """The mask of all positions that there is room for: (rows, capacity), 0 where nothing is."""
        return self._mask[: self.rows]

    def now(self, place: int) -> Array:
        """The buffer that holds a cache."""
        return self.turned[place] if self.turn and place in self.turned else self.buffers[place]

    def next(self, place: int) -> Array:
        """The buffer that the next step writes a cache to."""
        return self.buffers[place] if self.turn or place not in self.turned else self.turned[place]

    def unbind(self) -> None:
        """Forget what was bound: buffers or rows are about to be others."""
        self.steps.clear()
        self.single = None

    def _grow(self, capacity: int) -> None:
        self.unbind()
        for place, (state, buffer) in enumerate(zip(self._states, self.buffers, strict=True)):
            if state.axis is not None:
                added = [(0, 0)] * buffer.ndim
                added[state.axis] = (0, capacity - buffer.shape[state.axis])
                self.buffers[place] = np.pad(buffer, added)

    def _crop(self, length: int) -> None:
        if not length:
            self._clear()

    def _move(self, places: Array, sources: Array, first: int) -> None:
        # Rows whose padding is left out hold their tokens further in front.
        begin = max(0, first - int(self._hidden[: self.rows].max()))
        for place, state in enumerate(self._states):
            buffer = self.now(place)
            if state.axis is not None:
                held = (slice(None),) * (state.axis - 1) + (slice(begin, self.length),)
                buffer = buffer[(slice(None), *held)]
            buffer[places] = buffer[sources]

    def _fan_out(self, sources: Array) -> None:
        self.unbind()
        for place, state in enumerate(self._states):
            buffer = self.now(place)
            if state.axis is not None:
                buffer = buffer[(slice(None),) * state.axis + (slice(self.length),)]
            for row in range(len(sources) - 1, 0, -1):  # from behind: what is read is not written yet
                if sources[row] != row:
                    buffer[row] = buffer[sources[row]]

    def _clear(self) -> None:
        self.turn = 0
        for place in self.turned:
            self.buffers[place][:] = 0


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
        if self.vocabulary is None:
            raise errors.InvalidArgument(
                "Neither the model nor its configuration says how many tokens the vocabulary has (vocab_size)"
            )

    @staticmethod
    def serves(session: InferenceSession, signature: Signature) -> bool:
        """Whether a session is of one of the two kinds."""
        growing = [state for state in signature.states if state.axis is not None]
        if not growing:
            return False
        if signature.has(PAST_LENGTH):
            return True
        shared = session._session().in_place
        return signature.has(MASK) and all((state.given, state.made) in shared for state in growing)

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> BoundCache:
        self._require_rows(rows * spread)
        states = self._signature.states
        return BoundCache(states, self._head_size, rows, self._capacity(capacity), self.positions, spread)

    def follow(self, tokens: Sequence[int], cache: Cache) -> Array:
        assert isinstance(cache, BoundCache)
        step, begin = cache.single, cache.length
        if step is None or begin >= cache.capacity:
            return super().follow(tokens, cache)
        ids, positions, hidden = step.ids, step.positions, cache.hidden
        for row, token in enumerate(tokens):
            ids[row, 0] = token
            if positions is not None:
                positions[row, 0] = begin - hidden[row]
        if step.past is not None:
            step.past[()] = begin
        cache.put_one(tokens)
        if step.mask is not None:
            step.mask[...] = cache.table
        self.session.run_with_iobinding(step.binding)
        cache.advance_one()
        return step.last

    def _chunk(self, rows: int) -> int:
        return CHUNK if self._last_only else super()._chunk(rows)

    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        assert isinstance(cache, BoundCache)
        if self._counts_by_mask:
            new = cache.table[:, cache.length : cache.length + ids.shape[1]]
            if not new.all():
                return self._row_by_row(cache, ids, positions, new != 0, others)
            return self._bound_run(cache, ids, positions, cache.coming, others, None)
        return self._bound_run(cache, ids, positions, None, others, None)

    def _row_by_row(
        self, cache: BoundCache, ids: Array, positions: Array, is_token: Array, others: Mapping[str, Any]
    ) -> Array:
        """Read each row's tokens alone, without its padding."""
        if cache.turned:
            raise errors.InvalidArgument("A model with states of fixed size takes no padding: give prompts one by one")
        logits = np.zeros((len(ids), 1, self.vocabulary or 0), self._logits_dtype)
        for row, kept in enumerate(is_token):
            if kept.any():
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
        key = ids.shape[1], cache.turn, row
        step = cache.steps.get(key)
        if step is None or any(step.others[name].shape != np.shape(value) for name, value in others.items()):
            step = self._bind(cache, ids, others, row)
            # Those for one token stay; of the others, as prompts have them, only the last.
            for other in [one for one in cache.steps if one[0] > 1]:
                del cache.steps[other]
            cache.steps[key] = step
            if key == (1, 0, None):
                cache.single = self._single(cache, step)
        step.ids[...] = ids
        if step.positions is not None:
            step.positions[...] = positions
        if step.past is not None:
            step.past[...] = cache.length
        if step.mask is not None:
            if coming is None:
                step.mask[...] = cache.table if row is None else cache.table[row]
            else:
                step.mask[...] = np.arange(cache.capacity) < coming[:, None]
        for name, value in others.items():
            step.others[name][...] = value
        self.session.run_with_iobinding(step.binding)
        if cache.turned:
            cache.turn = 1 - cache.turn
        return step.logits

    def _single(self, cache: BoundCache, step: _Step) -> _Single | None:
        """The step for tokens that follow each other; None where one takes more than to write its tokens down."""
        if self._counts_by_mask or cache.turned or step.others or step.last.dtype != np.float32:
            return None
        ids, positions, past = (None if one is None else one.data for one in (step.ids, step.positions, step.past))
        assert ids is not None
        return _Single(step.binding, ids, positions, past, step.mask, step.last)

    def _bind(self, cache: BoundCache, ids: Array, others: Mapping[str, Any], row: int | None) -> _Step:
        signature = self._signature
        rows, count = ids.shape
        chosen = slice(rows) if row is None else slice(row, row + 1)
        binding = self.session.io_binding()

        def given(name: str, array: Array) -> Array:
            binding.bind_cpu_input(name, array)
            return array

        def made(name: str, array: Array) -> None:
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

        def dtype(name: str) -> np.dtype[Any]:
            return signature.dtypes[name]

        for place, state in enumerate(signature.states):
            given(state.given, cache.now(place)[chosen])
            made(state.made, cache.next(place)[chosen])
        logits = np.empty((rows, 1 if self._last_only else count, self.vocabulary or 0), self._logits_dtype)
        made(signature.logits, logits)
        for output in self.session.get_outputs():
            if output.name != signature.logits and output.name not in {state.made for state in signature.states}:
                binding.bind_output(output.name, "cpu")
        mask = None
        if signature.has(MASK):
            if self._counts_by_mask or dtype(MASK) != cache.table.dtype:
                mask = given(MASK, np.zeros((rows, cache.capacity), dtype(MASK)))
            else:
                given(MASK, cache.table)
        has_positions, has_past = signature.has(POSITIONS), signature.has(PAST_LENGTH)
        return _Step(
            binding,
            given(IDS, np.zeros((rows, count), dtype(IDS))),
            given(POSITIONS, np.zeros((rows, count), dtype(POSITIONS))) if has_positions else None,
            mask,
            given(PAST_LENGTH, np.zeros((), np.int64)) if has_past else None,
            {name: given(name, np.array(value, dtype(name), order="C")) for name, value in others.items()},
            logits,
            logits[:, -1],
        )
