"""What is looked up for each element by itself: its value, or its category as a row of zeros and a one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.classic.look_up import LookUpSpec, emit_look_up
from sardonyx.compiler.llvm.kernels.classic.one_hot import OneHotSpec, emit_one_hot
from sardonyx.compiler.native.classic.keyed_table import KeyedTable, float_keys, keyed_table
from sardonyx.compiler.native.classic.scores import F32
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.compiler.native.movement.view import reshaped_strides
from sardonyx.ops.ml.encoding import NO_CATEGORY

# Elements that are looked up in a chunk.
_CHUNK = 1024


def _in_line(binder: Binder, data: Tensor) -> tuple[Tensor, int]:
    """The elements, at least one, and how far apart they lie; a copy of them where that varies."""
    strides = reshaped_strides(data.shape, data.strides, (data.size,))
    return (contiguous(binder, data), 1) if strides is None else (data, strides[0])


@template("look_up")
class LookUp(NativeKernel):
    """Each element's value. Parameters: `keys` (distinct, int64 or float64), `values`, and the one of all `others`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._table: KeyedTable | None = None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        (data,) = inputs
        assert data is not None
        get = self.parameters
        if self._table is None:
            keys: Array = get["keys"]
            keys = float_keys(keys) if keys.dtype.kind == "f" else keys
            self._table = keyed_table(keys, get["values"], get["others"])
        table, result = self._table, binder.new(get["values"].dtype, data.shape)
        if not data.size:
            return [result]
        data, step = _in_line(binder, data)
        binder.step(
            emit_look_up,
            LookUpSpec(data.dtype.name, result.dtype.itemsize, table.dense),
            [data, result, data.size, _CHUNK, step, binder.constant(table.values), *table.words(binder)],
            reads=(data,),
            writes=(result,),
            chunks=-(-data.size // _CHUNK),
            detail=f"{data.size} elements in {len(get['keys'])} keys",
        )
        return [result]


@template("one_hot_rows")
class OneHotRows(NativeKernel):
    """For each element a row of 0, with 1 at its category. Parameters: `categories` (int64, the last of equal ones
    counts), and `zeros`: an element of no category is no error."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        categories: Array = parameters["categories"]
        distinct, from_end = np.unique(categories[::-1], return_index=True)
        self._table = keyed_table(distinct, len(categories) - 1 - from_end, np.array(-1))

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        (data,) = inputs
        assert data is not None
        width, strict = len(self.parameters["categories"]), not self.parameters["zeros"]
        result = binder.new(F32, (*data.shape, width))
        if not data.size:
            return [result]
        data, step = _in_line(binder, data)
        per_chunk = max(1, min(_CHUNK, CHUNK_BYTES // (width * F32.itemsize)))
        fault = binder.fault(lambda place: ValueError(NO_CATEGORY)) if strict else 0
        values, table = binder.constant(self._table.values), self._table.words(binder)
        binder.step(
            emit_one_hot,
            OneHotSpec(data.dtype.name, strict, self._table.dense),
            [data, result, data.size, per_chunk, step, width, fault, values, *table],
            reads=(data,),
            writes=(result,),
            chunks=-(-data.size // per_chunk),
            detail=f"{data.size} elements of {width} categories",
        )
        return [result]
