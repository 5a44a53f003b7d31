"""Named numbers for modules that every process imports: places in tables that native code reads.

The type checker sees members of `enum.IntEnum` and `enum.IntFlag`. The interpreter sees classes of plain numbers: the
standard library takes 0.2 ms for a class of ten members, and a session that begins from an engine loads some twenty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enum import IntEnum, IntFlag
else:
    IntEnum = IntFlag = object


class Numbers(IntEnum):
    """Members are numbers."""


class Bits(IntFlag):
    """Members are numbers of one bit each."""
