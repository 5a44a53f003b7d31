"""Buffers that a decoder's runs read and write as its caches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.api.values.ort_value import OrtValue
from sardonyx.models.generation.bound_step import SingleStep, Step
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.signature import State
from sardonyx.runtime.memory import memory


class BoundCache(Cache):
    """One buffer for each cache, as long as the capacity, and two for each state of fixed size, which take turns."""

    def __init__(
        self, states: tuple[State, ...], head_size: int | None, rows: int, capacity: int, limit: int | None, spread: int
    ) -> None:
        super().__init__(rows, capacity, limit, spread)
        self._states = states
        self.buffers: list[Array] = [np.empty(0)] * len(states)
        # Buffers that are alike lie in one block, so that rows of all of them are copied at once: pairs of a block
        # (buffers, rows, …) and the axis of positions in it.
        self._blocks: list[tuple[Array, int]] = []
        alike = self._alike(head_size)
        nbytes = sum(len(places) * math.prod(shape) * dtype.itemsize for (shape, dtype, _), places in alike.items())
        memory.require(nbytes, f"caches for {self.most_rows} rows of {capacity} positions")
        for (shape, dtype, axis), places in alike.items():
            block = np.zeros((len(places), *shape), dtype)
            for place, buffer in zip(places, block, strict=True):
                self.buffers[place] = buffer
            if axis is not None:
                self._blocks.append((block, axis + 1))
        self.turned = {
            place: np.zeros_like(self.buffers[place]) for place, state in enumerate(states) if state.axis is None
        }
        self.turn = 0
        self.kind = 0  # how many of the model's limits of lengths the caches were made beyond
        # Steps by number of rows, number of tokens, turn and the row they are of (None: all).
        self.steps: dict[tuple[int, int, int, int | None], Step] = {}
        # Buffers as values, by place, whether it is the first of two, number of rows and row.
        self._values: dict[tuple[int, bool, int, int | None], OrtValue] = {}
        self._singles: dict[tuple[int, int], SingleStep] = {}
        self.single: SingleStep | None = None  # of the rows and the turn that there are
        self.hidden = self._hidden.data

    def _alike(self, head_size: int | None) -> dict[Any, list[int]]:
        """The places of states by shape, type and axis."""
        found: dict[Any, list[int]] = {}
        for place, state in enumerate(self._states):
            shape = state.sized(self.most_rows, self.capacity, head_size)
            found.setdefault((shape, state.dtype, state.axis), []).append(place)
        return found

    @property
    def can_crop(self) -> bool:
        return not self.turned

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum(one.nbytes for one in (*self.buffers, *self.turned.values()))

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

    def value(self, place: int, row: int | None, *, next: bool = False) -> OrtValue:
        """`now` as a value to bind, or `next`: of all rows, or of one."""
        buffer = self.next(place) if next else self.now(place)
        key = place, buffer is self.buffers[place], self.rows, row
        found = self._values.get(key)
        if found is None:
            chosen = slice(self.rows) if row is None else slice(row, row + 1)
            found = self._values[key] = OrtValue.ortvalue_from_numpy(buffer[chosen])
        return found

    def take_turns(self) -> None:
        """What the last step wrote is what the next one reads."""
        if self.turned:
            self.turn = 1 - self.turn
            self._choose_single()

    def hold(self, step: Step, count: int, row: int | None) -> None:
        """Keep a step of `count` tokens; those of one token stay, of the others, as of prompts, the last alone."""
        key = self.rows, count, self.turn, row
        if count > 1:
            for other in [one for one in self.steps if one[1] > 1]:
                del self.steps[other]
        self.steps[key] = step
        if count == 1 and row is None:
            place = self.rows, self.turn
            self._singles.pop(place, None)
            if not step.others:
                self._singles[place] = SingleStep(step)
            self._choose_single()

    def fan_out(self, count: int) -> None:
        super().fan_out(count)
        self._choose_single()

    def _choose_single(self) -> None:
        self.single = self._singles.get((self.rows, self.turn))

    def be_of(self, kind: int) -> None:
        """Be made beyond so many limits of lengths, which the steps that there are may not be for."""
        if kind != self.kind:
            self.kind = kind
            self.unbind()

    def unbind(self) -> None:
        """Forget what was bound: buffers are about to be others."""
        self.steps.clear()
        self._values.clear()
        self._singles.clear()
        self.single = None

    def _grow(self, capacity: int) -> None:
        self.unbind()
        self._blocks.clear()  # one by one, as all at once would be there twice
        for place, (state, buffer) in enumerate(zip(self._states, self.buffers, strict=True)):
            if state.axis is not None:
                added = [(0, 0)] * buffer.ndim
                added[state.axis] = (0, max(capacity, state.fewest) - buffer.shape[state.axis])
                self.buffers[place] = np.pad(buffer, added)
                self._blocks.append((self.buffers[place][None], state.axis + 1))

    def _crop(self, length: int) -> None:
        if not length:
            self._clear()

    def _move(self, places: list[int], sources: list[int], first: int) -> None:
        # Rows whose padding is left out hold their tokens further in front.
        begin = max(0, first - int(self._hidden[: self.rows].max()))
        held = [block[(slice(None),) * axis + (slice(begin, self.length),)] for block, axis in self._blocks]
        held += [self.now(place)[None] for place in self.turned]
        is_apart = set(places).isdisjoint(sources)
        for block in held:
            if is_apart:
                for place, source in zip(places, sources, strict=True):
                    block[:, place] = block[:, source]
            else:
                block[:, places] = block[:, sources]

    def _fan_out(self, sources: Array) -> None:
        for place, state in enumerate(self._states):
            buffer = self.now(place)
            if state.axis is not None:
                buffer = buffer[(slice(None),) * state.axis + (slice(self.length),)]
            for row in range(len(sources) - 1, 0, -1):  # from behind: what is read is not written yet
                if sources[row] != row:
                    buffer[row] = buffer[sources[row]]

    def _clear(self) -> None:
        self.turn = 0
        self.be_of(0)
        for place in self.turned:
            self.buffers[place][:] = 0
        self._choose_single()
