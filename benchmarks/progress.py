"""How far a long measurement is, and about how much of it is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

Row = TypeVar("Row")

SILENT_SECONDS = 20.0
# A part tells more about its own rest than the plan does, once so much of it is done.
_TELLING = 0.03


class Progress:
    """Tells on the error output where the measurement is; `planned` are the seconds that each part should take.

    What is left follows from the plan and from how much slower or faster than planned it has gone so far.
    """

    def __init__(self, planned: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self.planned, self.clock = dict(planned), clock
        self.began = self.told = clock()
        self.parts = list(planned)
        self.spent: dict[str, float] = {}  # seconds of the parts that are over
        self.name = ""
        self.part_began = self.began

    @property
    def minutes(self) -> float:
        """Since the start."""
        return (self.clock() - self.began) / 60

    def begin(self, name: str) -> None:
        """The next part begins, and the one before is over."""
        self.end()
        self.name, self.part_began = name, self.clock()
        number = self.parts.index(name) + 1
        left = self.left(0.0) / 60
        of = f"Part {number} of {len(self.parts)}, {name}"
        self._tell(f"{of}: {self.minutes:.1f} minutes so far, about {left:.0f} left")

    def end(self) -> None:
        """The part that has begun is over."""
        if self.name:
            self.spent[self.name] = self.clock() - self.part_began
            self.name = ""

    def over(self, rows: Iterable[Row], expected: int) -> Iterator[Row]:
        """The rows of the part, of which `expected` are to come, with a word from time to time."""
        for done, row in enumerate(rows, 1):
            yield row
            if self.clock() - self.told >= SILENT_SECONDS and self.name:
                left = self.left(min(1.0, done / max(expected, done))) / 60
                self._tell(
                    f"{self.name}: {done} of {max(expected, done)} rows, {self.minutes:.1f} minutes so far, "
                    f"about {left:.0f} left of all parts"
                )

    def left(self, share: float) -> float:
        """Seconds that are left, where the part that has begun is done by this share."""
        here, plan = self.clock() - self.part_began, self.planned[self.name]
        is_telling = share >= _TELLING
        planned = sum(self.planned[name] for name in self.spent) + (plan * share if is_telling else 0.0)
        taken = sum(self.spent.values()) + (here if is_telling else 0.0)
        pace = taken / planned if planned else 1.0
        whole = here / share if is_telling else plan * pace
        to_come = self.parts[self.parts.index(self.name) + 1 :]
        return max(0.0, whole - here) + pace * sum(self.planned[name] for name in to_come)

    def _tell(self, text: str) -> None:
        self.told = self.clock()
        print(text, file=sys.stderr, flush=True)
