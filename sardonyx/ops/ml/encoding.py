"""Features compared, replaced, picked and encoded: Binarizer, Imputer, ArrayFeatureExtractor, OneHotEncoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.expr import Input, constant, isnan, where
from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.gather_scatter import checked
from sardonyx.ops.ml.features import Table, per_feature
from sardonyx.ops.ml.scores import DOMAIN
from sardonyx.runtime.forks import cached_property


@operator("Binarizer", domain=DOMAIN)
class Binarizer(Operator):
    """1 where an element is above the threshold, else 0, in the input's type."""

    host_reason = "only floating-point numbers have a kernel"
    threshold: float = 0.0

    def run(self, data: Array) -> Sequence[Value]:
        return ((data > data.dtype.type(self.threshold)).astype(data.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if inputs[0] is None or inputs[0].kind != "f":
            return Host(self.run, self.host_reason)
        x = Input(inputs[0], 0)
        return per_feature(self.run, where(x > self.threshold, constant(1.0, inputs[0]), 0.0))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [inputs[0] or UNKNOWN]


@operator("Imputer", domain=DOMAIN)
class Imputer(Operator):
    """Elements equal to the replaced value (NaN equals NaN) become their feature's value, or the one for all."""

    host_reason = "its attributes contradict each other"
    imputed_value_floats: tuple[float, ...] = ()
    imputed_value_int64s: tuple[int, ...] = ()
    replaced_value_float: float = 0.0
    replaced_value_int64: int = 0

    def _values(self, dtype: np.dtype[Any]) -> tuple[Array, Any]:
        """The features' values and what they replace; ValueError where there are none of the input's kind."""
        values: Any = self.imputed_value_floats if dtype.kind == "f" else self.imputed_value_int64s
        replaced = self.replaced_value_float if dtype.kind == "f" else self.replaced_value_int64
        if not values:
            name = "imputed_value_floats" if dtype.kind == "f" else "imputed_value_int64s"
            raise ValueError(f"{name} must have an entry for an input of {dtype}")
        return np.array(values, dtype), dtype.type(replaced)

    def run(self, data: Array) -> Sequence[Value]:
        values, replaced = self._values(data.dtype)
        self._check(data.shape, len(values))
        found = np.isnan(data) if replaced != replaced else data == replaced
        return (np.where(found, values, data),)

    @staticmethod
    def _check(shape: Sequence[int], count: int) -> None:
        if not shape or count not in (1, shape[-1]):
            raise ValueError(f"there are {count} imputed values for an input of shape {list(shape)}")

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[0]
        if dtype is None or dtype.kind not in "fi":
            return Host(self.run, self.host_reason)
        try:
            values, replaced = self._values(dtype)
        except ValueError:
            return Host(self.run, self.host_reason)
        x = Input(dtype, 0)
        found = isnan(x) if replaced != replaced else x.equals(replaced.item())
        root = where(found, Input(dtype, 1), x)
        return per_feature(self.run, root, (values,), lambda shape: self._check(shape, len(values)))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [inputs[0] or UNKNOWN]


@operator("ArrayFeatureExtractor", domain=DOMAIN)
class ArrayFeatureExtractor(Operator):
    """The features that the indices name, along the last dimension; a vector of data is one row.

    Negative indices count from the last feature backwards.
    """

    host_reason = "strings are Python objects"

    def run(self, data: Array, indices: Array) -> Sequence[Value]:
        if data.ndim == 0:
            raise ValueError("the data must have at least 1 dimension")
        rows = data if data.ndim > 1 else data[None]
        places = checked(indices.reshape(-1), rows.shape[-1], rows.ndim - 1)
        return (rows.take(places, axis=-1),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if inputs[0] is None or inputs[0].kind == "O":
            return Host(self.run, self.host_reason)
        return Template("features_by_index", {}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices = inputs[0] or UNKNOWN, inputs[1] or UNKNOWN
        if data.shape is None or indices.shape is None:
            return [Fact(data.type, None)]
        count: Any = 1
        for dim in indices.shape:
            count = count * dim if isinstance(dim, int) and isinstance(count, int) else unknown_dim()
        if len(indices.shape) == 1:
            count = indices.shape[0]
        leading = data.shape[:-1] if len(data.shape) > 1 else (1,)
        return [Fact(data.type, (*leading, count))]


# Rows of so many categories are kept ready, to be copied.
_READY_ROWS = 256
NO_CATEGORY = "an element is of no category, and zeros is 0"


@operator("OneHotEncoder", domain=DOMAIN)
class OneHotEncoder(Operator):
    """For each element a row of 0 with 1 at its category; numbers are cut to integers.

    An element of no category gives a row of 0, or with `zeros` = 0 an error.
    """

    cats_int64s: tuple[int, ...] = ()
    cats_strings: tuple[str, ...] = ()
    zeros: int = 1

    @cached_property
    def _places(self) -> Table:
        """Of equal categories the last one counts, as in onnxruntime; what is none is behind them."""
        categories: tuple[Any, ...] = self.cats_strings or self.cats_int64s
        count = len(categories)
        return Table(categories[::-1], range(count)[::-1], count, np.int64)

    @cached_property
    def _rows(self) -> Array:
        """The rows of the categories, and behind them that of what is none."""
        count = len(self.cats_strings or self.cats_int64s)
        return np.eye(count + 1, count, dtype=np.float32)

    def run(self, data: Array) -> Sequence[Value]:
        places = self._places.look_up(data if data.dtype.kind in "Oi" else self._cut(data))
        count = len(self.cats_strings or self.cats_int64s)
        if not self.zeros and (places == count).any():
            raise ValueError(NO_CATEGORY)
        if count <= _READY_ROWS:
            return (self._rows.take(places, axis=0),)
        result = np.zeros((places.size, count + 1), np.float32)
        result[np.arange(places.size), places.reshape(-1)] = 1
        return (result[:, :count].reshape(*data.shape, count),)

    def _cut(self, data: Array) -> Array:
        """Floats as Python integers; what is none of them becomes None, which is no category."""
        inside = np.isfinite(data) & (abs(data.astype(np.float64)) < 2.0**63)
        cut: Array = np.where(inside, data, 0).astype(np.int64).astype(object)
        cut[~inside] = None
        return cut

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtype = inputs[0]
        if dtype is None or dtype.kind == "O":
            return Host(self.run, "strings are Python objects")
        if not self.cats_int64s:
            return Host(self.run, "its categories are strings")
        parameters = {"categories": np.array(self.cats_int64s, np.int64), "zeros": bool(self.zeros)}
        return Template("one_hot_rows", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shape = (inputs[0] or UNKNOWN).shape
        count = len(self.cats_strings or self.cats_int64s)
        return [tensor(ir.DataType.FLOAT, None if shape is None else (*shape, count))]
