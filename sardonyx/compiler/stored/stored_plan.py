"""Native plans that outlive their process: plans without addresses, and the way back.

Words of a plan that hold the address of a constant are known from its steps; they become a piece of memory and a place
in it. Kernels become numbers of entries in an image of their code. Pieces are ranges of bytes: those inside a mapped
file of the model stay there, the others are written one behind the other. Plans of several shapes share them, whether
they read the same memory or equal bytes. Those of many sizes are rows of tables beside them (`sized_plans`).
"""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import Array
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary
from sardonyx.compiler.llvm.linker import NotLinkableError, link
from sardonyx.compiler.llvm.runtime_functions import OF_EVERY_SESSION, function_key, runtime_functions
from sardonyx.compiler.native_steps import BoundNode, BoundSegment
from sardonyx.compiler.stored.constant_places import (
    LEAST_ADDRESS,
    NotStorableError,
    constant_places,
    dtype_name,
    places_in,
)
from sardonyx.compiler.stored.offered_constants import Place, section_of
from sardonyx.compiler.stored.size_table import Words
from sardonyx.compiler.stored.sized_plans import SizedPlans
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.memory.mapped_pages import MappedRange, mapped_ranges
from sardonyx.runtime.native.native_segment import PlanKey, ReadyPlan
from sardonyx.runtime.native_plan import NativePlan, StepColumn

_ALIGNMENT = 2 * ALIGNMENT


@dataclass(frozen=True)
class Piece:
    """Bytes that plans read: `nbytes` from `start` of the model's file called `file`, or of the constants (None)."""

    start: int
    nbytes: int
    file: str | None = None


@dataclass(frozen=True)
class StoredPlans:
    """Plans and arrays as JSON (`content`), and what they are made of, each as arrays that lie one behind the other.

    `made` says which constants lie where (`offered_constants`).
    """

    content: Mapping[str, Any]
    tables: Sequence[Bytes]
    constants: Sequence[Bytes]
    image: Sequence[Bytes]
    made: Sequence[Bytes]


def stored_plans(
    plans: Mapping[PlanKey, ReadyPlan],
    library: KernelLibrary,
    runtime: KernelLibrary,
    files: Sequence[str],
    arrays: Sequence[Array] = (),
    functions: Sequence[str] = OF_EVERY_SESSION,
    sized: SizedPlans | None = None,
    made: Mapping[str, Array] | None = None,
) -> StoredPlans:
    """Plans for `restored_plan`, those of many sizes, and arrays that a run needs besides. `files` are those of the
    model, by their paths.

    `library` has the kernels, `runtime` the `functions` that run them; where their code cannot be joined into an image,
    a later process finds the kernels by their keys alone. Of constants that were `made` for kernels, by their names,
    those that the plans read can be found again. NotStorableError where something in a plan has no meaning in
    another process.
    """
    places = [_places_of(plan) for plan in plans.values()]
    known = [array for plan in plans.values() for array in plan.known.values()]
    whole = [_whole(array) for array in (*known, *arrays)]
    mapped = mapped_ranges()
    own = [one for one in mapped if one.path in files]
    sized = sized or SizedPlans()
    _check_numbers(sized.suspects, mapped)
    spans = _Spans(sized, own)
    words = [_range(array, address, own) for found in places for _, array, address in found]
    words += spans.ranges
    ranges, numbers = _joined([*words, *(_range(array, _address(array), own) for array in whole if _has_bytes(array))])
    owners = [*whole, *(array for found in places for _, array, _ in found), *sized.owners]
    homes, pieces, constants = _pieces(ranges, owners)
    rest = iter(numbers)
    kernels: dict[int, int] = {}
    tables: list[Bytes] = []
    table_sizes: list[list[int]] = []
    for ready, found in zip(plans.values(), places, strict=True):
        table = [
            (word, homes[number], address - ranges[number].low)
            for (word, _, address), number in zip(found, itertools.islice(rest, len(found)), strict=True)
        ]
        parts = _tables(ready.plan, table, kernels)
        tables += [array.reshape(-1).view(np.uint8) for array in parts]
        table_sizes.append([array.size for array in parts])
    of_spans = list(itertools.islice(rest, len(spans.ranges)))
    for function in sized.functions():
        kernels.setdefault(function, len(kernels))
    lows = [ranges[number].low for number in of_spans]
    sizes_content, size_tables = sized.tables(kernels, spans.finder([homes[number] for number in of_spans], lows))
    described = iter([_array_content(array, rest, homes, ranges) for array in whole])
    contents = [
        _plan_content(key, ready, sizes, [[place, next(described)] for place in ready.known])
        for (key, ready), sizes in zip(plans.items(), table_sizes, strict=True)
    ]
    keys = [library.key_of(address) for address in kernels]
    if None in keys:
        raise NotStorableError("a step runs code that is no kernel of the cache")
    image_content, image = _image([key for key in keys if key is not None], library, runtime, functions)
    content = {
        "kernels": keys,
        "plans": contents,
        "sizes": sizes_content,
        "arrays": list(described),
        "pieces": [[piece.start, piece.nbytes, piece.file] for piece in pieces],
        "image": image_content,
    }
    found_again = section_of(_places_of_made(made or {}, ranges, homes))
    return StoredPlans(content, tables + size_tables, constants, image, found_again)


def _tables(plan: NativePlan, places: Sequence[tuple[int, int, int]], kernels: dict[int, int]) -> list[Array]:
    """The arrays of a plan without addresses: constants are these places, functions numbers of `kernels`."""
    words = plan.words.copy()
    words[[word for word, _, _ in places]] = 0
    steps = plan.steps.copy()
    for row in steps:
        row[StepColumn.FUNCTION] = kernels.setdefault(int(row[StepColumn.FUNCTION]), len(kernels))
    return [words, plan.fixups, steps, np.array(places, np.int64)]


def _places_of(ready: ReadyPlan) -> list[tuple[int, Array, int]]:
    """Where a plan holds addresses of constants; NotStorableError where other addresses may be in it."""
    if not isinstance(ready.source, BoundSegment | BoundNode):
        raise NotStorableError("a plan does not say what it was made of")
    bound = ready.source.bound
    places = constant_places(bound) if bound.constant_words is None else _places_of_words(ready)
    _check_rest(ready.plan, places)
    return places


def _places_of_words(ready: ReadyPlan) -> list[tuple[int, Array, int]]:
    """The same for a plan that was made without steps, whose own might have other constants: those in the memory that
    the plan keeps alive."""
    words, addresses, owners = places_in(ready.plan, ready.source)
    spans, _ = _joined([_range(array, _address(array), ()) for array in owners])
    memory = [np.asarray(_Memory(low, high, owners)) for low, high, _ in spans]
    found = np.searchsorted(np.array([span.low for span in spans], np.int64), addresses, side="right") - 1
    if any(place < 0 or address > spans[place].high for place, address in zip(found, addresses, strict=True)):
        raise NotStorableError("a constant lies in memory that the plan does not keep")
    return [
        (word, memory[place], address)
        for word, place, address in zip(words.tolist(), found.tolist(), addresses.tolist(), strict=True)
    ]


def _places_of_made(made: Mapping[str, Array], ranges: Sequence[_Range], homes: Sequence[int]) -> dict[str, Place]:
    """Where constants lie in the pieces that these ranges are; those that do not are left out."""
    found: dict[str, Place] = {}
    for name, array in made.items():
        low, high = np.lib.array_utils.byte_bounds(array)
        number = bisect_right(ranges, low, key=lambda one: one.low) - 1
        if number < 0 or high > ranges[number].high or ranges[number].file is not None or min(array.strides) < 0:
            continue
        with contextlib.suppress(NotStorableError):
            kind = dtype_name(array.dtype)
            found[name] = homes[number], low - ranges[number].low, kind, array.shape, array.strides
    return found


def _plan_content(key: PlanKey, ready: ReadyPlan, sizes: Sequence[int], known: Sequence[Any]) -> dict[str, Any]:
    """A plan but for its tables, which have these sizes, and the outputs that are `known` before the run."""
    plan = ready.plan
    return {
        "segment": key.segment,
        "shapes": key.shapes,
        "contents": [one.hex() for one in key.contents],
        "known": known,
        "tables": sizes,
        "labels": plan.labels,
        "arena_bytes": plan.arena_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "base_count": plan.base_count,
        "nanoseconds": plan.nanoseconds,
        "flush_denormals": plan.flush_denormals,
        "faults": len(ready.faults),
        "outputs": [[dtype_name(dtype), shape] for dtype, shape in ready.outputs],
        "writers": ready.writers(),
    }


def _image(
    keys: Sequence[str], library: KernelLibrary, runtime: KernelLibrary, names: Sequence[str]
) -> tuple[dict[str, Any] | None, list[Bytes]]:
    """The code of kernels, and of what runs them, in one image, and where each begins; nothing where that cannot be."""
    runtime_functions(runtime, names)  # so that all of them are there
    functions = [function_key(name) for name in names]
    homes = {**dict.fromkeys(keys, library), **dict.fromkeys(functions, runtime)}
    objects = {key: code for key, home in homes.items() if (code := home.object_code(key)) is not None}
    if len(objects) < len(homes):
        return None, []
    try:
        image = link(objects, KERNEL)
    except NotLinkableError:
        return None, []
    entries = {
        name: {key: image.entries[key] for key in found} for name, found in (("models", keys), ("runtime", functions))
    }
    return {"slots": image.slots, **entries}, [image.code]


def _check_rest(plan: NativePlan, places: Sequence[tuple[int, Array, int]]) -> None:
    """NotStorableError unless the words agree with the places, and no other word is an address."""
    words = plan.words
    rest = np.ones(len(words), bool)
    for word, _, address in places:
        if not 0 <= word < len(words) or words[word] != address:
            raise NotStorableError("the plan does not follow its steps")
        rest[word] = False
    rest[plan.fixups[:, 0]] = False
    _check_numbers(words[rest], mapped_ranges())


def _check_numbers(numbers: Words, mapped: Sequence[MappedRange]) -> None:
    """NotStorableError where one of the numbers lies in memory that is mapped."""
    for range_ in mapped:
        if not LEAST_ADDRESS <= range_.start < range_.end < 1 << 63:
            continue
        if ((numbers >= range_.start) & (numbers < range_.end)).any():
            raise NotStorableError("a kernel takes an address as a number")


def _whole(array: Array) -> Array:
    """An array without gaps."""
    return np.ascontiguousarray(array).reshape(array.shape)


def _has_bytes(array: Array) -> bool:
    return array.size > 0 and not array.dtype.hasobject


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _array_content(
    array: Array, numbers: Iterator[int], homes: Sequence[int], ranges: Sequence[_Range]
) -> dict[str, Any]:
    """What there is to know of an array: its strings, or the piece that has it, by the next of the numbers."""
    content: dict[str, Any] = {"dtype": dtype_name(array.dtype), "shape": array.shape}
    if array.dtype.hasobject:
        strings = array.ravel().tolist()
        if not all(isinstance(one, str) for one in strings):
            raise NotStorableError("a constant holds objects that are no strings")
        content["strings"] = strings
    elif array.size:
        number = next(numbers)
        content["place"] = [homes[number], _address(array) - ranges[number].low]
    return content


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


class _Spans:
    """The memory that addresses in plans of many sizes lie in: spans of arrays that do not overlap."""

    def __init__(self, sized: SizedPlans, files: Sequence[MappedRange]) -> None:
        """NotStorableError where an address lies in none of the arrays that the plans keep alive."""
        self._addresses = sized.addresses()
        joined, _ = _joined([_range(array, _address(array), files) for array in sized.owners])
        # One that begins where another one ends comes behind it, so that an address there is in the one that begins.
        lows, highs = (np.array([end[side] for end in joined], np.int64) for side in (0, 1))
        places = np.searchsorted(lows, self._addresses, side="right") - 1
        if self._addresses.size and (not lows.size or (places < 0).any() or (self._addresses > highs[places]).any()):
            raise NotStorableError("a constant lies in memory that the plan does not keep")
        used, self._span = np.unique(places, return_inverse=True)
        self.ranges = [joined[place] for place in used.tolist()]

    def finder(self, homes: Sequence[int], lows: Sequence[int]) -> Callable[[Words], tuple[Words, Words]]:
        """What gives for addresses the piece in which each lies, and the place there, if these are the pieces of the
        ranges, and where they begin."""
        pieces, begins = np.array(homes, np.int64)[self._span], np.array(lows, np.int64)[self._span]

        def find(addresses: Words) -> tuple[Words, Words]:
            known = np.searchsorted(self._addresses, addresses)
            return pieces[known], addresses - begins[known]

        return find


def _joined(given: Sequence[_Range]) -> tuple[list[_Range], list[int]]:
    """Those of one home that overlap as one, and in which of the results each of the given ones is."""
    joined: list[_Range] = []
    numbers: dict[_Range, int] = {}
    for one in sorted(set(given), key=lambda one: one[:2]):
        if joined and one.file == joined[-1].file and one.low < joined[-1].high:
            joined[-1] = joined[-1]._replace(high=max(one.high, joined[-1].high))
        else:
            joined.append(one)
        numbers[one] = len(joined) - 1
    return joined, [numbers[one] for one in given]


def _pieces(ranges: Sequence[_Range], owners: Sequence[Array]) -> tuple[list[int], list[Piece], list[Bytes]]:
    """What the ranges are in the model's files, and in the constants, which hold everything else: which piece each of
    the ranges is, the pieces, and the constants, which keep the owners of their memory. Ranges of equal bytes are one
    piece."""
    homes: list[int] = []
    pieces: list[Piece] = []
    constants: list[Bytes] = []
    alike: defaultdict[tuple[int, int], list[tuple[int, Bytes]]] = defaultdict(list)
    end = 0
    for low, high, file in ranges:
        if file is not None:
            homes.append(len(pieces))
            pieces.append(Piece(low - file.start + file.offset, high - low, file.path))
            continue
        memory: Bytes = np.asarray(_Memory(low, high, owners))
        seen = alike[high - low, _sum(memory)]
        known = next((number for number, other in seen if np.array_equal(memory, other)), None)
        if known is not None:
            homes.append(known)
            continue
        seen.append((len(pieces), memory))
        homes.append(len(pieces))
        pieces.append(Piece(end, high - low))
        constants.append(memory)
        room = -(high - low) % _ALIGNMENT
        if room:
            constants.append(np.zeros(room, np.uint8))
        end += high - low + room
    return homes, pieces, constants


def _sum(memory: Bytes) -> int:
    """What equal bytes have in common: their whole words, added."""
    return int(np.add.reduce(memory[: memory.size // 8 * 8].view(np.uint64))) if memory.size >= 8 else 0


@dataclass(frozen=True, eq=False)
class _Memory:
    """The bytes of a range. They are read when the plans, and copies that were made of arrays, may be gone."""

    low: int
    high: int
    owners: Sequence[Array]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.high - self.low,), "data": (self.low, True)}
