"""Buffers that a decoder's runs read and write as its caches."""

from __future__ import annotations

import numpy as np

from sardonyx.models.generation.bound_step import SingleStep, Step
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.signature import State


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
        # Steps by number of rows, number of tokens, turn and the row they are of (None: all).
        self.steps: dict[tuple[int, int, int, int | None], Step] = {}
        self._singles: dict[tuple[int, int], SingleStep] = {}
        self.single: SingleStep | None = None  # of the rows and the turn that there are
        self.hidden = self._hidden.data

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

    def _unbind(self) -> None:
        """Forget what was bound: buffers are about to be others."""
        self.steps.clear()
        self._singles.clear()
        self.single = None

    def _grow(self, capacity: int) -> None:
        self._unbind()
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
        self._choose_single()
