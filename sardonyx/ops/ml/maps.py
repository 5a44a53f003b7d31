"""Maps of ai.onnx.ml: CastMap, CategoryMapper, DictVectorizer, ZipMap. A map is a dict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import MapType
from sardonyx.kernel.integers import to_integers
from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.features import Table
from sardonyx.runtime.forks import cached_property
from sardonyx.runtime.memory import memory

_BYTES_PER_PLACE = 16  # of the row of a sparse map

DOMAIN = "ai.onnx.ml"
_ELEMENTS: dict[str, tuple[ir.DataType, Any]] = {
    "TO_FLOAT": (ir.DataType.FLOAT, np.float32),
    "TO_INT64": (ir.DataType.INT64, np.int64),
    "TO_STRING": (ir.DataType.STRING, object),
}
_NOTHING = "0.f"  # between the texts of a sparse map
# Up to so many keys a dict display puts them all in at once.
_DISPLAYED = 15


@operator("CastMap", domain=DOMAIN)
class CastMap(Operator):
    """The values of a map as one row, in the order of the keys; a sparse map leaves zeros between them.

    What the standard leaves open is as in onnxruntime: keys beyond a sparse row are left out, texts of numbers are C's.
    """

    host_reason = "a map is a Python dict"
    cast_to: str = "TO_FLOAT"
    map_form: str = "DENSE"
    max_map: int = 1

    def _kind(self) -> tuple[ir.DataType, Any]:
        if self.cast_to not in _ELEMENTS:
            raise ValueError(f"cast_to '{self.cast_to}' is none of {', '.join(_ELEMENTS)}")
        return _ELEMENTS[self.cast_to]

    def run(self, items: Value) -> Sequence[Value]:
        _, dtype = self._kind()
        if self.map_form == "SPARSE":
            if any(key < 0 for key in items):
                raise ValueError(f"a sparse map has no place for the key {min(items)}")
            memory.require(max(0, self.max_map) * _BYTES_PER_PLACE, "the row of a sparse map")
            row = [_NOTHING if dtype is object else 0] * self.max_map
            for key, value in items.items():
                if key < self.max_map:
                    row[key] = self._cast(value)
        else:
            row = [self._cast(items[key]) for key in sorted(items)]
        result = np.empty((1, len(row)), dtype)
        result[0, :] = row
        return (result,)

    def _cast(self, value: Any) -> Any:
        if self.cast_to == "TO_STRING":
            return value if isinstance(value, str) else f"{value:f}"
        number = np.array(float(value), np.float32 if isinstance(value, np.float32) else np.float64)
        return number if self.cast_to == "TO_FLOAT" else to_integers(number, np.dtype(np.int64))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(self._kind()[0], (1, self.max_map if self.map_form == "SPARSE" else unknown_dim()))]


@operator("CategoryMapper", domain=DOMAIN)
class CategoryMapper(Operator):
    """Strings to integers or back, by two lists of equal length; unknown ones become the default."""

    host_reason = "strings are Python objects"
    cats_int64s: tuple[int, ...]
    cats_strings: tuple[str, ...]
    default_int64: int = -1
    default_string: str = "_Unused"

    def run(self, data: Array) -> Sequence[Value]:
        if len(self.cats_int64s) != len(self.cats_strings):
            raise ValueError("cats_int64s and cats_strings must have equal length")
        return ((self._numbers if data.dtype == object else self._texts).look_up(data),)

    @cached_property
    def _numbers(self) -> Table:
        return Table(self.cats_strings[::-1], self.cats_int64s[::-1], self.default_int64, np.int64)

    @cached_property
    def _texts(self) -> Table:
        return Table(self.cats_int64s[::-1], self.cats_strings[::-1], self.default_string, object)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        kind = ir.DataType.INT64 if data.dtype == ir.DataType.STRING else ir.DataType.STRING
        return [tensor(kind, data.shape)]


@operator("DictVectorizer", domain=DOMAIN)
class DictVectorizer(Operator):
    """The values of a map in the order of a vocabulary, zeros where a key is missing."""

    host_reason = "a map is a Python dict"
    int64_vocabulary: tuple[int, ...] = ()
    string_vocabulary: tuple[str, ...] = ()

    def run(self, items: Value) -> Sequence[Value]:
        keys: tuple[Any, ...] = self.string_vocabulary or self.int64_vocabulary
        sample = next(iter(items.values()), 0.0)
        empty: Any = "" if isinstance(sample, str) else 0
        row = [items.get(key, empty) for key in keys]
        if isinstance(sample, str):
            dtype: Any = object
        else:
            dtype = sample.dtype if isinstance(sample, np.generic) else np.int64 if type(sample) is int else np.float32
        result = np.empty((1, len(keys)), dtype)
        result[0, :] = row
        return (result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        items = inputs[0] or UNKNOWN
        count = len(self.string_vocabulary or self.int64_vocabulary)
        return [Fact(items.type.value if isinstance(items.type, MapType) else None, (1, count))]


@operator("ZipMap", domain=DOMAIN)
class ZipMap(Operator):
    """For each row of scores a map from the class labels to them."""

    host_reason = "a map is a Python dict"
    classlabels_int64s: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()

    def run(self, scores: Array) -> Sequence[Value]:
        labels: tuple[Any, ...] = self.classlabels_strings or self.classlabels_int64s
        rows = scores[None, :] if scores.ndim == 1 else scores
        if rows.ndim != 2 or rows.shape[1] != len(labels):
            raise ValueError(f"ZipMap has {len(labels)} labels for scores of shape {list(scores.shape)}")
        if 0 < len(labels) <= _DISPLAYED:
            return (_displays(len(labels))(labels, rows.T.tolist()),)
        return ([dict(zip(labels, row)) for row in rows.tolist()],)  # noqa: B905 (a keyword for each row takes time)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        key = ir.DataType.STRING if self.classlabels_strings else ir.DataType.INT64
        kind: Any = MapType(key, ir.TensorType(ir.DataType.FLOAT))
        return [Fact(ir.SequenceType(kind), None)]


@functools.cache
def _displays(count: int) -> Callable[[Sequence[Any], Sequence[Sequence[Any]]], list[Any]]:
    """A function that makes a map of so many labels for each row of values, given column by column.

    Its dict displays take less time than other ways to make dicts: half for four labels.
    """
    keys, values = ([f"{name}{place}" for place in range(count)] for name in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    made = f"[{{{pairs}}} for {', '.join(values)}, in zip(*columns)]"
    space: dict[str, Any] = {}
    exec(f"def displays(labels, columns):\n {', '.join(keys)}, = labels\n return {made}", space)
    return space["displays"]  # type: ignore[no-any-return]
