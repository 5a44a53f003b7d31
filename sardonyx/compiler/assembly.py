"""The last part of binding: from steps to the tables of a native plan. The arena is laid out, barriers are found."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sardonyx.compiler.bound_step import Array, BoundStep, Buffer
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.native_plan import NativePlan, StepFlag

_BARRIER, _CALLER = int(StepFlag.BARRIER), int(StepFlag.CALLER)

# Kinds of buffers that steps only read and that lie nowhere in the arena.
_GIVEN = ("constant", "input")


def assemble(
    steps: Sequence[BoundStep],
    inputs: int,
    outputs: int,
    *,
    scratch_bytes: int,
    owners: Sequence[Array],
    flush_denormals: bool,
    reuses_memory: bool = True,
) -> NativePlan:
    """The plan of these steps, for so many inputs and outputs; `owners` and what steps read live as long as it does."""
    offsets, arena_bytes = lay_out(steps, reuses_memory)
    fixups: list[int] = []  # those of the arena, and then of what the caller gives
    externals: list[int] = []
    constant_words: list[int] = []
    addresses: list[int] = []
    table: list[int] = []
    read: dict[Buffer, None] = {}  # constants
    first = 0
    for step, barrier in zip(steps, find_barriers(steps, offsets), strict=True):
        form, buffers = step.form, step.buffers
        flags = (_BARRIER if barrier else 0) | (_CALLER if form.alone else 0)
        table += (form.function.address, first, form.chunks, form.claim, flags, 0, 0, 0)
        for word, ref, offset in form.places:
            buffer = buffers[ref]
            if buffer.home is not None:
                buffer, start = buffer.settled()
                offset += start
            kind = buffer.kind
            if kind == "arena":
                fixups += (first + word, 0, offset + offsets.get(buffer, 0))
            elif kind == "constant":
                constant_words.append(first + word)
                addresses.append(buffer.address + offset)
                read[buffer] = None
            else:
                externals += (first + word, (1 if kind == "input" else 1 + inputs) + buffer.index, offset)
        first += len(form.words) // 8
    words = np.frombuffer(bytearray(b"".join([step.form.words for step in steps])), np.int64)
    words[constant_words] = addresses
    return NativePlan(
        words=words,
        fixups=np.array(fixups + externals, np.int64).reshape(-1, 3),
        steps=np.array(table, np.int64).reshape(-1, 8),
        arena_bytes=arena_bytes,
        scratch_bytes=scratch_bytes,
        base_count=1 + inputs + outputs,
        labels=tuple([step.label for step in steps]),
        owners=_all_of(owners, read),
        nanoseconds=round(sum([step.form.nanoseconds for step in steps])),
        flush_denormals=flush_denormals,
    )


def _all_of(owners: Sequence[Array], read: Iterable[Buffer]) -> tuple[Array, ...]:
    """The owners and the contents of buffers, each once."""
    found = {id(array): array for array in owners}
    found |= {id(buffer.array): buffer.array for buffer in read if buffer.array is not None}
    return tuple(found.values())


def lay_out(
    steps: Sequence[BoundStep], reuses_memory: bool = True, in_place: bool = True
) -> tuple[dict[Buffer, int], int]:
    """Byte offsets of the buffers in the arena, by first and last use: best fit, freed space joined.

    Unless `reuses_memory`, every buffer has bytes of its own. With `in_place`, what a step makes lies where the step
    has read for the last time, if it can: that is in the caches, and half as many lines come and go.
    """
    last: dict[Buffer, int] = {}
    begins: list[list[Buffer]] = [[] for _ in steps]
    ends: list[list[Buffer]] = [[] for _ in steps]
    for index, step in enumerate(steps):
        buffers, form, new = step.buffers, step.form, begins[index]
        for ref in (*form.read_refs, *form.written_refs):
            buffer = buffers[ref]
            if buffer.home is not None:
                buffer, _ = buffer.settled()
            if buffer.kind == "arena":
                if buffer not in last:
                    new.append(buffer)
                last[buffer] = index
    for buffer, index in last.items():
        ends[index].append(buffer)
    arena = _Arena()
    for step, new, old in zip(steps, begins, ends, strict=True):
        if reuses_memory and in_place and step.form.replaced_refs:
            _replace(step, new, old, arena)
        for buffer in sorted(new, key=_negative_size) if len(new) > 1 else new:
            arena.place(buffer)
        for buffer in old if reuses_memory else ():
            arena.free(buffer)
    return arena.offsets, arena.total


def _replace(step: BoundStep, new: list[Buffer], old: list[Buffer], arena: _Arena) -> None:
    """Let the result of a step, if it is among the `new` buffers, take the memory of one of the `old`."""
    buffers, form = step.buffers, step.form
    result = buffers[form.written_refs[0]]
    read = [buffers[ref].settled()[0] for ref in form.read_refs]
    for ref in form.replaced_refs:
        replaced = buffers[ref]
        if result in new and replaced in old and read.count(replaced) == 1:
            arena.offsets[result] = arena.offsets[replaced]
            new.remove(result)
            old.remove(replaced)


def _negative_size(buffer: Buffer) -> int:
    return -_size(buffer)


def _size(buffer: Buffer) -> int:
    return -(-max(1, buffer.nbytes) // ALIGNMENT) * ALIGNMENT


class _Arena:
    """Places buffers one after the other; gaps that touch are joined."""

    def __init__(self) -> None:
        self.offsets: dict[Buffer, int] = {}
        self.total = 0
        self._gaps: list[tuple[int, int]] = []  # (offset, end), by offset

    def place(self, buffer: Buffer) -> None:
        """Into the smallest gap that holds it; else at the end, from where a gap touches it."""
        size, gaps = _size(buffer), self._gaps
        best, room = -1, 0
        for index, (start, end) in enumerate(gaps):
            if end - start >= size and (best < 0 or end - start < room):
                best, room = index, end - start
        if best >= 0:
            start, end = gaps.pop(best)
            if room > size:
                gaps.insert(best, (start + size, end))
        elif gaps and gaps[-1][1] == self.total:
            start, _ = gaps.pop()
            self.total = start + size
        else:
            start = self.total
            self.total += size
        self.offsets[buffer] = start

    def free(self, buffer: Buffer) -> None:
        start = self.offsets[buffer]
        end, gaps = start + _size(buffer), self._gaps
        for index, gap in enumerate(gaps):
            if gap[0] == end:
                end = gap[1]
                gaps.pop(index)
                break
        for index, gap in enumerate(gaps):
            if gap[1] == start:
                start = gap[0]
                gaps.pop(index)
                break
        insort(gaps, (start, end))


# A range of memory that a step touched: its space, start and end, the buffer that lies there, whether the caller did it
# alone, and its group.
_Touch = tuple[int, int, int, Buffer, int, int]


def find_barriers(
    steps: Sequence[BoundStep], offsets: Mapping[Buffer, int], alone: Sequence[int] | None = None
) -> list[bool]:
    """Before which steps the thread pool must meet: where a step touches what another thread may still be writing or
    reading.

    Steps that the caller does alone are done in order, so they need no meeting among themselves; `alone` says which, if
    the steps do not. Those of one group touch different places of what they write; what one of them only reads may be
    made by another, and another buffer may have had the memory. Inputs and constants are only read, so nobody waits for
    them.
    """
    ranges: dict[Buffer, tuple[int, int, int, Buffer]] = {}

    def touches(refs: Sequence[int], step: BoundStep, alone: int) -> list[_Touch]:
        buffers, group = step.buffers, step.group
        own = [buffers[ref] for ref in step.form.written_refs] if group else ()
        found: list[_Touch] = []
        for ref in refs:
            buffer = buffers[ref]
            if buffer.kind not in _GIVEN:
                place = ranges.get(buffer)
                if place is None:
                    place = ranges[buffer] = _range(buffer, offsets)
                if place[0] >= 0:
                    found.append((*place, alone, group if buffer in own else 0))
        return found

    result: list[bool] = []
    read: list[_Touch] = []
    written: list[_Touch] = []
    for step, own in zip(steps, [step.form.alone for step in steps] if alone is None else alone, strict=True):
        reads, writes = touches(step.form.read_refs, step, own), touches(step.form.written_refs, step, own)
        clash = _meet(written, reads) or _meet(written, writes) or _meet(read, writes)
        result.append(clash)
        if clash:
            read, written = reads, writes
        else:
            read += reads
            written += writes
    return result


def _range(buffer: Buffer, offsets: Mapping[Buffer, int]) -> tuple[int, int, int, Buffer]:
    """The space in which a buffer lies, 0 for the arena and more for an output, its start and its end, and what it is a
    part of; -1: nowhere."""
    root, start = buffer.settled()
    if root.kind == "arena":
        start += offsets[root]
        return 0, start, start + max(1, buffer.nbytes), root
    return (1 + root.index, start, start + max(1, buffer.nbytes), root) if root.kind == "output" else (-1, 0, 0, root)


def _meet(before: Sequence[_Touch], now: Sequence[_Touch]) -> bool:
    """Whether a step touches what another thread may have touched before it."""
    for space, start, end, buffer, alone, group in now:
        for other, begin, stop, neighbour, was_alone, other_group in before:
            is_shared = other == space and begin < end and start < stop
            is_apart = group and group == other_group and buffer is neighbour
            if is_shared and not ((alone and was_alone) or is_apart):
                return True
    return False
