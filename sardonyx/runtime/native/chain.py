"""Several native plans in one call: a small program that runs them one after the other, with branches and loops.

The program goes over *places*: a table of addresses, those of the caller's inputs and outputs first, then those of
values between the plans, and last the one of the notes. What a plan reads and writes is copied from places into the
table of its external addresses before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.light_enum import Numbers
from sardonyx.runtime.native_plan import LONG_NS, NativePlan

Words = np.ndarray[Any, np.dtype[np.int64]]


class Do(Numbers):
    """What an instruction does with its operands; "at" a place is the memory that its address leads to."""

    RUN = 0  # a plan: addresses of its header and of a list of places, how many, address of its external addresses
    UNLESS = 1  # go to an instruction unless the byte at a place is set
    UNTIL = 2  # go to an instruction (the third operand) unless the number at a place is below the one at another
    GO = 3  # go to an instruction
    COPY = 4  # to a place, from a place, so many bytes
    SET = 5  # the number at a place
    COUNT = 6  # add one to the number at a place
    SWAP = 7  # two places
    ITEM = 8  # a place becomes another one, moved on by the number at a third times so many bytes
    SHIFT = 9  # a place becomes another one, moved on by so many bytes
    DECLINE = 10  # set the first word at a place, and end


INSTRUCTION_WORDS = 5
# In front of the instructions: the executor's address, and how many instructions there are.
HEADER_WORDS = 2

Instruction = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Chain:
    """A program and its plans, as `FastCall` takes it in the place of a single plan.

    `addresses` are those of all places that stay; `base_count` counts as that of a plan does, `owners` live as long.
    `run_address` is the code that takes the program as the executor takes a plan. `held_bytes` are those of the values
    between the plans.
    """

    plans: tuple[NativePlan, ...]
    instructions: Sequence[Instruction]
    addresses: tuple[int, ...]
    executor: int
    run_address: int
    owners: tuple[Any, ...]
    held_bytes: int = 0
    words: Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = [[*one, *(0 for _ in range(INSTRUCTION_WORDS - len(one)))] for one in self.instructions]
        words = np.array([self.executor, len(rows), *(word for row in rows for word in row)], np.int64)
        object.__setattr__(self, "words", words)

    @property
    def is_long(self) -> bool:
        """Whether it may take long enough to be ended before it is done; so it is where there are rounds."""
        known = [plan.nanoseconds for plan in self.plans if plan.nanoseconds is not None]
        if len(known) < len(self.plans) or sum(known) >= LONG_NS:
            return True
        return any(one[0] == Do.UNTIL for one in self.instructions)

    @property
    def base_count(self) -> int:
        return 1 + len(self.addresses)

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def width(self) -> int:
        return max((plan.width for plan in self.plans), default=1)
