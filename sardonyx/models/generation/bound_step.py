"""Steps whose inputs and outputs are bound once, and run for token after token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from sardonyx.api.running.io_binding import IOBinding
from sardonyx.api.session import InferenceSession
from sardonyx.models.generation import selection

Array = np.ndarray[Any, Any]

# How often a text that goes on looks whether somebody has written to the model's files; other runs do each time.
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Step:
    """What a step of so many tokens is bound to.

    `mask` is None where it is the cache's own table. `counts` says how many ones each row of a mask begins with that is
    nothing else but such a count. `greedy` are the likeliest tokens, where the model gives them.
    """

    binding: IOBinding
    ids: Array
    positions: Array | None
    mask: Array | None
    counts: list[int] | None
    past: Array | None
    others: Mapping[str, Array]
    logits: Array
    greedy: Array | None


class SingleStep:
    """A step of one token for each row, none of them padding.

    All memory has to come anew behind a run that has read all weights, code of NumPy's and Python's, too: so inputs are
    written element by element through flat views, and the same run again is native code at once.
    """

    def __init__(self, step: Step) -> None:
        last = step.logits[:, -1]
        self.binding = step.binding
        # Gives None where it did nothing, as for a run that is another one than the last.
        self._again: Callable[[], bool | None] = step.binding._iobinding.again
        self.ids = step.ids.reshape(-1).data
        self.positions = None if step.positions is None else step.positions.reshape(-1).data
        self.past = None if step.past is None else step.past.reshape(1).data
        self.mask, self.counts = step.mask, step.counts
        self.last, self.is_half = last, last.dtype != np.float32
        self.words = last.shape[1]
        flat = last.reshape(-1)
        self.values: Any = flat if self.is_half else flat.data  # views of Python's know no float16
        self.greedy = None if step.greedy is None else step.greedy.reshape(-1).data
        self._looks = 0.0  # when files are to be looked at again

    def run(self, session: InferenceSession) -> None:
        """Run the step on what its inputs hold."""
        now = monotonic()
        if now > self._looks or not self._again():
            session.run_with_iobinding(self.binding)  # which looks at them
            self._looks = now + LOOK_SECONDS

    def likeliest(self) -> list[int]:
        """The likeliest token of each row, the first of equal ones; `errors.Fail` for NaN."""
        if self.greedy is None:
            best: list[int] = selection.best(self.logits).tolist()
            return best
        found: list[int] = self.greedy.tolist()
        values, place, words = self.values, 0, self.words
        for token in found:
            value = values[place + token]
            if value != value:  # the model takes NaN for the largest
                raise selection.no_number()
            place += words
        return found

    @property
    def logits(self) -> Array:
        """Those of the last token (rows, vocabulary), float32; a view where they are that."""
        return self.last.astype(np.float32) if self.is_half else self.last
