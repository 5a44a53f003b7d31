"""Native plans that outlive their process: a plan without addresses, and the way back.

Words of a plan that hold the address of a constant are known from its steps; they become a piece of memory and a place
in it. Kernels become the keys by which the cache has their code. Pieces are ranges of bytes: those inside a mapped file
of the model stay there, the others are written one behind the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import Array, Bound
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.runtime.arena_layout import ALIGNMENT
from sardonyx.runtime.engine_file import Bytes
from sardonyx.runtime.mapped_pages import MappedRange, mapped_ranges
from sardonyx.runtime.native_plan import NativePlan, StepColumn
from sardonyx.runtime.native_segment import ReadyPlan

_ALIGNMENT = 2 * ALIGNMENT
# Numbers below it are sizes, even where a program is mapped there.
_LEAST_ADDRESS = 1 << 32


class NotStorableError(Exception):
    """Why a plan cannot be kept for another process."""


@dataclass(frozen=True)
class Piece:
    """Bytes that a plan reads: `nbytes` from `start` of the model's file called `file`, or of the constants (None)."""

    start: int
    nbytes: int
    file: str | None = None


@dataclass(frozen=True)
class StoredPlan:
    """A plan as JSON (`content`), its tables and its constants, each made of arrays one behind the other."""

    content: Mapping[str, Any]
    tables: Sequence[Bytes]
    constants: Sequence[Bytes]


def stored_plan(ready: ReadyPlan, library: KernelLibrary, files: Sequence[str]) -> StoredPlan:
    """A plan for `restored_plan`. `files` are those of the model, by absolute paths.

    NotStorableError where something in it has no meaning in another process.
    """
    plan = ready.plan
    if ready.known or not isinstance(ready.source, BoundSegment):
        raise NotStorableError("some outputs are known before the run")
    places = constant_places(ready.source.bound)
    _check_rest(plan, places)
    own = [one for one in mapped_ranges() if one.path in files]
    ranges, numbers = _joined([_range(array, address, own) for _, array, address in places])
    pieces, constants = _pieces(ranges)
    table = []
    for (word, _, address), number in zip(places, numbers, strict=True):
        table += [word, number, address - ranges[number].low]
    words = plan.words.copy()
    words[[word for word, _, _ in places]] = 0
    kernels: dict[int, int] = {}
    steps = plan.steps.copy()
    for row in steps:
        row[StepColumn.FUNCTION] = kernels.setdefault(int(row[StepColumn.FUNCTION]), len(kernels))
    keys = [library.key_of(address) for address in kernels]
    if None in keys:
        raise NotStorableError("a step runs code that is no kernel of the cache")
    tables = [words, plan.fixups, steps, np.array(table, np.int64)]
    content = {
        "kernels": keys,
        "labels": plan.labels,
        "arena_bytes": plan.arena_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "base_count": plan.base_count,
        "nanoseconds": plan.nanoseconds,
        "flush_denormals": plan.flush_denormals,
        "faults": len(ready.faults),
        "tables": [array.size for array in tables],
        "outputs": [[_dtype_name(dtype), shape] for dtype, shape in ready.outputs],
        "pieces": [[piece.start, piece.nbytes, piece.file] for piece in pieces],
    }
    return StoredPlan(content, [array.reshape(-1).view(np.uint8) for array in tables], constants)


def constant_places(bound: Bound) -> list[tuple[int, Array, int]]:
    """Where the words of a bound plan hold addresses of constants: the word, the constant, the address."""
    found: list[tuple[int, Array, int]] = []
    steps = list(bound.steps)
    first = 0
    for step in map(steps.__getitem__, bound.order):
        for word, ref, offset in step.form.places:
            buffer, start = step.buffers[ref].settled()
            if buffer.kind == "constant":
                assert buffer.array is not None
                found.append((first + word, buffer.array, buffer.address + start + offset))
        first += len(step.form.words) // 8
    return found


def _check_rest(plan: NativePlan, places: Sequence[tuple[int, Array, int]]) -> None:
    """NotStorableError unless the words agree with the places, and no other word is an address."""
    words = plan.words
    rest = np.ones(len(words), bool)
    for word, _, address in places:
        if not 0 <= word < len(words) or words[word] != address:
            raise NotStorableError("the plan does not follow its steps")
        rest[word] = False
    rest[plan.fixups[:, 0]] = False
    for range_ in mapped_ranges():
        if not _LEAST_ADDRESS <= range_.start < range_.end < 1 << 63:
            continue
        if (rest & (words >= range_.start) & (words < range_.end)).any():
            raise NotStorableError("a kernel takes an address as a number")


class _Range(NamedTuple):
    """A range of memory, and the mapped file of the model in which it lies."""

    low: int
    high: int
    file: MappedRange | None


def _range(array: Array, address: int, files: Sequence[MappedRange]) -> _Range:
    """The memory of an array, and an address in it or at its end."""
    low, high = np.lib.array_utils.byte_bounds(array)
    low, high = min(low, address), max(high, address)
    return _Range(low, high, next((file for file in files if file.start <= low and high <= file.end), None))


def _joined(given: Sequence[_Range]) -> tuple[list[_Range], list[int]]:
    """Those of one home that touch as one, and in which of the results each of the given ones is."""
    joined: list[_Range] = []
    numbers: dict[_Range, int] = {}
    for one in sorted(set(given), key=lambda one: one[:2]):
        if joined and one.file == joined[-1].file and one.low <= joined[-1].high:
            joined[-1] = joined[-1]._replace(high=max(one.high, joined[-1].high))
        else:
            joined.append(one)
        numbers[one] = len(joined) - 1
    return joined, [numbers[one] for one in given]


def _pieces(ranges: Sequence[_Range]) -> tuple[list[Piece], list[Bytes]]:
    """What the ranges are in the model's files, and in the constants, which hold everything else."""
    pieces: list[Piece] = []
    constants: list[Bytes] = []
    end = 0
    for low, high, file in ranges:
        if file is not None:
            pieces.append(Piece(low - file.start + file.offset, high - low, file.path))
            continue
        pieces.append(Piece(end, high - low))
        constants.append(_memory(low, high))
        room = -(high - low) % _ALIGNMENT
        if room:
            constants.append(np.zeros(room, np.uint8))
        end += high - low + room
    return pieces, constants


def _memory(low: int, high: int) -> Bytes:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


def _dtype_name(dtype: np.dtype[Any]) -> str:
    try:
        if np.dtype(dtype.name) == dtype:
            return dtype.name
    except TypeError:
        pass
    raise NotStorableError(f"an output has the type {dtype}")
