"""Plans of many sizes, as rows of numbers: what `size_table` keeps in few columns.

Plans of one structure have as many words and steps; their rows begin with the shapes of their inputs, by which they are
found (`restored_sizes`). While they are collected, rows hold addresses of this process; what these mean is found for
all of them together.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array
from sardonyx.compiler.stored.constant_places import LEAST_ADDRESS, Places, dtype_name, places_in
from sardonyx.compiler.stored.size_table import Words, packed
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.native.native_segment import PlanKey, ReadyPlan
from sardonyx.runtime.native_plan import STEP_WORDS, StepColumn

_WORD = 8
# Of outputs that are known before a run, so many bytes lie in a row.
_MOST_KNOWN = 4096
# Structures that are kept; bytes of all rows, and of the constants that they point to, beyond which none is taken.
_MOST_STRUCTURES = 1024
_MOST_ROW_BYTES = 512 << 20
_MOST_CONSTANT_BYTES = 2 << 30


@dataclass(eq=False)
class _Rows:
    """The rows of one structure, and which of their columns hold functions and addresses."""

    structure: Mapping[str, Any]
    rows: list[Words]
    functions: slice
    addresses: slice

    def columns(self, which: slice) -> Words:
        """All numbers in such columns."""
        return np.concatenate([row[which] for row in self.rows])


class _Extent:
    """Memory that arrays lie in, of which several may overlap: ranges that do not, in order."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self.nbytes = 0

    def add(self, low: int, high: int) -> None:
        first = bisect_left(self._highs, low)  # the first range that does not end before it
        end = bisect_right(self._lows, high)
        if first < end:
            low, high = min(low, self._lows[first]), max(high, self._highs[end - 1])
            self.nbytes -= sum(self._highs[first:end]) - sum(self._lows[first:end])
        self._lows[first:end], self._highs[first:end] = [low], [high]
        self.nbytes += high - low


class SizedPlans:
    """Collects plans for `stored_plans`."""

    most_constant_bytes = _MOST_CONSTANT_BYTES

    def __init__(self) -> None:
        self._found: dict[str, _Rows] = {}  # by the structure, as JSON
        self._labels: dict[str, int] = {}
        self._keys: set[PlanKey] = set()
        self._owners: dict[tuple[int, int], Array] = {}  # by where they begin and end
        self._suspects: set[int] = set()
        self._row_bytes = 0
        self._extent = _Extent()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: PlanKey) -> bool:
        return key in self._keys

    @property
    def constant_bytes(self) -> int:
        """Bytes of the memory in which addresses of the rows lie."""
        return self._extent.nbytes

    @property
    def keys(self) -> Collection[PlanKey]:
        """What there are plans for."""
        return self._keys

    @property
    def owners(self) -> Sequence[Array]:
        """Arrays in which all addresses of the rows lie."""
        return list(self._owners.values())

    @property
    def suspects(self) -> Words:
        """Words that are no addresses of constants, but large enough to be addresses of something."""
        return np.array(sorted(self._suspects), np.int64)

    def add(self, key: PlanKey, ready: ReadyPlan) -> bool:
        """Take the plan for `key`, and whether that was possible: not where contents decide, where an output that is
        known before the run is large, or where all is full. NotStorableError where the plan contradicts itself."""
        if key in self._keys:
            return True
        if key.contents or self._row_bytes > _MOST_ROW_BYTES or self.constant_bytes > self.most_constant_bytes:
            return False
        known = [(place, np.ascontiguousarray(array)) for place, array in sorted(ready.known.items())]
        if any(array.dtype.hasobject or array.nbytes > _MOST_KNOWN for _, array in known):
            return False
        plan, places = ready.plan, places_in(ready.plan, ready.source)
        structure = {
            "segment": key.segment,
            "ranks": list(map(len, key.shapes)),
            "outputs": [[dtype_name(dtype), len(shape)] for dtype, shape in ready.outputs],
            "known": [[place, dtype_name(array.dtype), array.shape, array.nbytes] for place, array in known],
            "tables": [plan.words.size, plan.fixups.size, plan.steps.size, 3 * len(places.words)],
            "base_count": plan.base_count,
            "estimated": plan.nanoseconds is not None,
            "flush_denormals": plan.flush_denormals,
            "faults": len(ready.faults),
            "writers": ready.writers(),
        }
        text = json.dumps(structure)
        if text not in self._found and len(self._found) >= _MOST_STRUCTURES:
            return False
        row = self._row(key, ready, known, places)
        found = self._found.get(text)
        if found is None:
            # Addresses are in the last column of their table, functions in that of steps, the table before.
            first, end = row.size - 3 * len(places.words), row.size
            functions = slice(first - plan.steps.size + int(StepColumn.FUNCTION), first, STEP_WORDS)
            found = self._found[text] = _Rows(structure, [], functions, slice(first + 2, end, 3))
        found.rows.append(row)
        self._row_bytes += row.nbytes
        self._keep_owners(places)
        self._keys.add(key)
        return True

    def _row(self, key: PlanKey, ready: ReadyPlan, known: Sequence[tuple[int, Array]], places: Places) -> Words:
        plan = ready.plan
        numbers = [
            *(size for shape in key.shapes for size in shape),
            *(size for _, shape in ready.outputs for size in shape),
            *(plan.arena_bytes, plan.scratch_bytes, plan.nanoseconds or 0),
            *(self._labels.setdefault(label, len(self._labels)) for label in plan.labels),
        ]
        words = plan.words.copy()
        rest = np.ones(words.size, bool)
        rest[places.words] = rest[plan.fixups[:, 0]] = False
        self._suspects.update(words[rest & (words >= LEAST_ADDRESS)].tolist())
        words[places.words] = 0
        table = np.zeros((len(places.words), 3), np.int64)
        table[:, 0], table[:, 2] = places.words, places.addresses
        bytes_known = b"".join(array.tobytes() + bytes(-array.nbytes % _WORD) for _, array in known)
        parts = [np.array(numbers, np.int64), np.frombuffer(bytes_known, np.int64), words]
        return np.concatenate([*parts, *(one.reshape(-1) for one in (plan.fixups, plan.steps, table))])

    def _keep_owners(self, places: Places) -> None:
        """Keep those of the owners that an address lies in."""
        addresses = np.sort(places.addresses)
        for array in places.owners:
            low, high = np.lib.array_utils.byte_bounds(array)
            if (low, high) in self._owners:
                continue
            place = int(np.searchsorted(addresses, low))
            if place < addresses.size and addresses[place] <= high:
                self._owners[low, high] = array
                self._extent.add(low, high)

    def addresses(self) -> Words:
        """All addresses in the rows, each once."""
        return np.unique(np.concatenate([one.columns(one.addresses) for one in self._found.values()] or [_NONE]))

    def functions(self) -> list[int]:
        """The addresses of the kernels in the rows, each once."""
        found = [one.columns(one.functions) for one in self._found.values()]
        return [int(one) for one in np.unique(np.concatenate(found or [_NONE]))]

    def tables(
        self, kernels: Mapping[int, int], pieces: Callable[[Words], tuple[Words, Words]]
    ) -> tuple[dict[str, Any], list[Bytes]]:
        """What there is to say of the tables, and the tables. `kernels` gives the numbers of functions, `pieces` those
        of the pieces in which addresses lie, and the places there."""
        known = np.array(sorted(kernels), np.int64)
        numbers = np.array([kernels[one] for one in known.tolist()], np.int64)
        content: list[dict[str, Any]] = []
        data: list[Bytes] = []
        for one in self._found.values():
            rows = np.array(one.rows)
            rows[:, one.functions] = numbers[np.searchsorted(known, rows[:, one.functions])]
            before = slice(one.addresses.start - 1, None, 3)
            rows[:, before], rows[:, one.addresses] = pieces(rows[:, one.addresses])
            table = packed(rows, sum(one.structure["ranks"]))
            content.append({**one.structure, "table": table.content})
            data.append(table.data)
        return {"labels": list(self._labels), "structures": content}, data


_NONE = np.zeros(0, np.int64)
