"""Plans of many sizes from an earlier process: the rows that `sized_plans` wrote, found by the shapes of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.stored.size_table import SizeTable, Words
from sardonyx.runtime.dtype_names import dtype_called
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.native.native_segment import PlanKey
from sardonyx.runtime.native_plan import STEP_WORDS

Array = np.ndarray[Any, Any]

# The description of a plan as a plan that is stored by itself has it, its four tables one behind the other, and the
# outputs that are known before the run.
Row = tuple[Mapping[str, Any], Words, dict[int, Array]]

_WORD = 8


class RestoredSizes:
    """The tables that these bytes begin with."""

    def __init__(self, content: Mapping[str, Any], tables: Bytes) -> None:
        self._labels = content["labels"]
        self._tables: dict[tuple[int, tuple[int, ...]], list[tuple[Mapping[str, Any], SizeTable]]] = {}
        place = 0
        for structure in content["structures"]:
            described = structure["table"]
            table = SizeTable(described, tables[place : place + described["bytes"]])
            place += described["bytes"]
            given = structure["segment"], tuple(structure["ranks"])
            self._tables.setdefault(given, []).append((structure, table))

    def __len__(self) -> int:
        return sum(table.rows for found in self._tables.values() for _, table in found)

    def find(self, key: PlanKey) -> Row | None:
        """The plan for such inputs; None where there is none."""
        if key.contents:
            return None
        shape = list(itertools.chain.from_iterable(key.shapes))
        for structure, table in self._tables.get((key.segment, tuple(map(len, key.shapes))), ()):
            number = table.find(shape)
            if number is not None:
                return self._taken_apart(structure, table.row(number), len(shape))
        return None

    def _taken_apart(self, structure: Mapping[str, Any], row: Words, first: int) -> Row:
        """A row behind the shapes of inputs: those of outputs, what is said of the plan, the labels of its steps, known
        outputs, and its tables."""
        outputs, known = structure["outputs"], structure["known"]
        kept = [-(-nbytes // _WORD) for _, _, _, nbytes in known]
        steps = structure["tables"][2] // STEP_WORDS
        sizes = [first, sum(rank for _, rank in outputs), 3, steps, sum(kept)]
        _, dims, said, labels, contents, tables = np.split(row, np.cumsum(sizes).tolist())
        arena_bytes, scratch_bytes, nanoseconds = said.tolist()
        rest = iter(dims.tolist())
        content = {
            "tables": structure["tables"],
            "outputs": [[name, tuple(itertools.islice(rest, rank))] for name, rank in outputs],
            "arena_bytes": arena_bytes,
            "scratch_bytes": scratch_bytes,
            "nanoseconds": nanoseconds if structure["estimated"] else None,
            "base_count": structure["base_count"],
            "labels": [self._labels[number] for number in labels.tolist()],
            "flush_denormals": structure["flush_denormals"],
            "faults": structure["faults"],
            "writers": structure["writers"],
        }
        arrays: dict[int, Array] = {}
        start = 0
        for (place, name, shape, nbytes), words in zip(known, kept, strict=True):
            data = contents[start : start + words].view(np.uint8)[:nbytes]
            array = arrays[place] = data.view(dtype_called(name)).reshape(shape)
            array.flags.writeable = False
            start += words
        return content, tables, arrays
