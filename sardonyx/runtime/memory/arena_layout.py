"""Where buffers lie in one arena: buffers that live at the same time never overlap.

The largest buffer is placed first, each into the smallest gap that holds it among the buffers whose lifetimes meet
its own ("greedy by size", Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.light_dataclass import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `nbytes` that is written at step `first` and read for the last time at step `last`."""

    buffer: int
    first: int
    last: int
    nbytes: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Byte offset of every buffer, and the size of the arena that holds them all."""

    offsets: Mapping[int, int]
    nbytes: int


def lay_out(lifetimes: Sequence[Lifetime]) -> ArenaLayout:
    """Place every buffer; offsets are multiples of `ALIGNMENT`."""
    placed: list[tuple[int, Lifetime]] = []
    for lifetime in sorted(lifetimes, key=lambda item: (-item.nbytes, item.first, item.buffer)):
        neighbours = sorted((offset, other.nbytes) for offset, other in placed if lifetime.meets(other))
        placed.append((_best_gap(neighbours, lifetime.nbytes), lifetime))
    total = max((offset + lifetime.nbytes for offset, lifetime in placed), default=0)
    return ArenaLayout({lifetime.buffer: offset for offset, lifetime in placed}, _aligned(total))


def _best_gap(neighbours: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The offset of the smallest gap between neighbours (sorted by offset) that holds `nbytes`."""
    best, best_room = -1, 0
    end = 0
    for offset, size in neighbours:
        room = offset - end
        if room >= nbytes and (best < 0 or room < best_room):
            best, best_room = end, room
        end = max(end, _aligned(offset + size))
    return end if best < 0 else best


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
