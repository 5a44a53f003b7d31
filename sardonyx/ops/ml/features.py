"""Features prepared for models: LabelEncoder, Normalizer, Scaler, FeatureVectorizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.expr import Expr, Input, absolute, reduce, sqrt, where
from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.scores import DOMAIN, float_list, labels_of
from sardonyx.ops.ml.trees import row_count
from sardonyx.runtime.forks import cached_property


class _Values(dict[Any, Any]):
    """The values of keys, `default` for all others."""

    default: Any

    def __missing__(self, key: Any) -> Any:
        return self.default


class Table:
    """What keys become, of equal ones as the first says; other elements become the default.

    A key that is NaN stands for every NaN.
    """

    def __init__(self, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any) -> None:
        """`dtype` is that of the result, Python objects for texts."""
        pairs = list(zip(keys, values, strict=True))
        self._values = _Values((key, value) for key, value in reversed(pairs) if key == key)
        self._values.default = default
        self._dtype = np.dtype(dtype)
        self._nan = next((value for key, value in pairs if key != key), default)

    def look_up(self, data: Array) -> Array:
        """The values of all elements, in the data's shape."""
        look = self._values.__getitem__ if data.dtype.kind != "f" else self._number
        if data.size == 1:
            result: Array = np.empty(data.shape, self._dtype)
            result.fill(look(data.item()))
            return result
        return np.fromiter(map(look, data.ravel().tolist()), self._dtype, data.size).reshape(data.shape)

    def _number(self, key: float) -> Any:
        return self._values[key] if key == key else self._nan


def per_feature(
    run: Callable[..., Sequence[Value]],
    root: Expr,
    constants: Sequence[Array] = (),
    check: Callable[[Sequence[int]], None] = lambda shape: None,
    *,
    reduces: bool = False,
) -> Kernel:
    """The native kernel of an expression over the input and behind it constants; see `kernels.classic.features`."""
    parameters = {"root": root, "constants": constants, "check": check, "reduces": reduces}
    return Template("per_feature", parameters, run)


@operator("LabelEncoder", domain=DOMAIN)
class IndexedLabelEncoder(Operator):
    """The first form: strings to their places in `classes_strings`, or places to strings."""

    host_reason = "strings are Python objects"
    classes_strings: tuple[str, ...] = ()
    default_int64: int = -1
    default_string: str = "_Unused"

    @cached_property
    def _places(self) -> Table:
        return Table(self.classes_strings, range(len(self.classes_strings)), self.default_int64, np.int64)

    @cached_property
    def _texts(self) -> Table:
        return Table(range(len(self.classes_strings)), self.classes_strings, self.default_string, object)

    def run(self, data: Array) -> Sequence[Value]:
        return ((self._places if data.dtype == object else self._texts).look_up(data),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0] or UNKNOWN
        kind = ir.DataType.INT64 if data.dtype == ir.DataType.STRING else ir.DataType.STRING
        return [tensor(kind, data.shape)]


@operator("LabelEncoder", domain=DOMAIN, since=2)
class LabelEncoder(Operator):
    """Keys to values by two lists of equal length, the first of equal keys wins; others become the default.

    Before version 4 a key that is NaN matches nothing.
    """

    host_reason = "one look-up for each element"
    keys_strings: tuple[str, ...] | None = None
    keys_int64s: tuple[int, ...] | None = None
    keys_floats: tuple[float, ...] | None = None
    keys_tensor: ir.TensorProtocol | None = None
    values_strings: tuple[str, ...] | None = None
    values_int64s: tuple[int, ...] | None = None
    values_floats: tuple[float, ...] | None = None
    values_tensor: ir.TensorProtocol | None = None
    default_string: str = "_Unused"
    default_int64: int = -1
    default_float: float = -0.0
    default_tensor: ir.TensorProtocol | None = None

    def _keys(self) -> Array:
        if self.keys_tensor is not None:
            return _texts(self.keys_tensor)
        if self.keys_floats is not None:
            return float_list(self.keys_floats)
        return labels_of(self.keys_int64s, self.keys_strings)

    def _values(self) -> tuple[Array, Any]:
        """The values and the default."""
        if self.values_tensor is not None:
            values = _texts(self.values_tensor)
            if self.default_tensor is not None:
                return values, _texts(self.default_tensor)[0]
            return values, self.default_string if values.dtype == object else -1 if values.dtype.kind == "i" else -0.0
        if self.values_floats is not None:
            return float_list(self.values_floats), self.default_float
        if self.values_strings is not None:
            return labels_of(None, self.values_strings), self.default_string
        return labels_of(self.values_int64s, None), self.default_int64

    @cached_property
    def _table(self) -> Table:
        """ValueError where there are not as many keys as values."""
        keys, (values, default) = self._keys(), self._values()
        if len(keys) != len(values):
            raise ValueError(f"there are {len(keys)} keys for {len(values)} values")
        used = keys == keys if self.version < 4 else np.ones(len(keys), bool)
        return Table(keys[used].tolist(), values[used].tolist(), default, values.dtype)

    def run(self, data: Array) -> Sequence[Value]:
        return (self._table.look_up(data),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        keys, (values, default) = self._keys(), self._values()
        if object in (keys.dtype, values.dtype) or inputs[0] is None or inputs[0].kind == "O":
            return Host(self.run, "strings are Python objects")
        if len(keys) != len(values) or not len(keys):
            return Host(self.run, "its attributes contradict each other")
        if keys.dtype.kind != inputs[0].kind:
            return Host(self.run, "the keys are of another kind than the input")
        used = np.ones(len(keys), bool) if self.version >= 4 else keys == keys
        if not used.any():
            return Host(self.run, "no element has a value")
        distinct, first = np.unique(keys[used], return_index=True)
        parameters = {
            "keys": distinct.astype(np.float64 if keys.dtype.kind == "f" else np.int64),
            "values": values[used][first],
            "others": np.array(default, values.dtype),
        }
        return Template("look_up", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        kind = ir.DataType.INT64
        if self.values_tensor is not None:
            kind = self.values_tensor.dtype
        elif self.values_floats is not None:
            kind = ir.DataType.FLOAT
        elif self.values_strings is not None:
            kind = ir.DataType.STRING
        return [tensor(kind, (inputs[0] or UNKNOWN).shape)]


def _texts(values: ir.TensorProtocol) -> Array:
    """A tensor attribute as a vector, strings decoded."""
    array = np.asarray(values.numpy()).reshape(-1)
    if array.dtype.kind not in "OSU":
        return array
    return labels_of(None, [item.decode() if isinstance(item, bytes) else str(item) for item in array.tolist()])


class _ToFloat(Operator):
    """An operator that keeps the shape and gives float32 for every input type."""

    host_reason = "a few passes in NumPy"

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (inputs[0] or UNKNOWN).shape)]


@operator("Normalizer", domain=DOMAIN)
class Normalizer(_ToFloat):
    """Rows divided by their maximum, sum of magnitudes or Euclidean length; rows for which that is 0 stay."""

    norm: str = "MAX"

    def run(self, data: Array) -> Sequence[Value]:
        if data.ndim not in (1, 2):
            raise ValueError(f"the input must have 1 or 2 dimensions, not {data.ndim}")
        if self.norm not in ("MAX", "L1", "L2"):
            raise ValueError(f"norm '{self.norm}' is none of MAX, L1, L2")
        rows = data.astype(np.float32)
        if not rows.size:
            return (rows,)
        if self.norm == "MAX":
            size = rows.max(axis=-1, keepdims=True)
        elif self.norm == "L1":
            size = np.abs(rows).sum(axis=-1, keepdims=True)
        else:
            size = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True))
        return (rows / np.where(size == 0, np.float32(1), size),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if inputs[0] is None or self.norm not in ("MAX", "L1", "L2"):
            return Host(self.run, "its attributes contradict each other")
        x = Input(inputs[0], 0).cast(np.float32)
        if self.norm == "MAX":
            size = reduce("maximum", x)
        elif self.norm == "L1":
            size = reduce("sum", absolute(x))
        else:
            size = sqrt(reduce("sum", x * x))
        root = x / where(size.equals(0.0), 1.0, size)

        def check(shape: Sequence[int]) -> None:
            if len(shape) not in (1, 2):
                raise ValueError(f"the input must have 1 or 2 dimensions, not {len(shape)}")

        return per_feature(self.run, root, (), check, reduces=True)


@operator("Scaler", domain=DOMAIN)
class Scaler(_ToFloat):
    """(x - offset) * scale, for each feature or for all; in single precision."""

    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def _check(self, shape: Sequence[int]) -> None:
        """ValueError where offset and scale do not fit an input of this shape."""
        features = shape[-1] if shape else 1
        offset, scale = float_list(self.offset), float_list(self.scale)
        if offset.size != scale.size or scale.size not in (1, features):
            raise ValueError(
                f"offset and scale must have 1 or {features} entries each, the features', not {offset.size} "
                f"and {scale.size}"
            )

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if inputs[0] is None:
            return Host(self.run, "the type of the input is not known before the run")
        single = np.dtype(np.float32)
        root = (Input(inputs[0], 0).cast(single) - Input(single, 1)) * Input(single, 2)
        return per_feature(self.run, root, (float_list(self.offset), float_list(self.scale)), self._check)

    def run(self, data: Array) -> Sequence[Value]:
        self._check(data.shape)
        offset, scale = float_list(self.offset), float_list(self.scale)
        return ((data.astype(np.float32) - offset) * scale,)


@operator("FeatureVectorizer", domain=DOMAIN)
class FeatureVectorizer(Operator):
    """Each input's rows, cut or filled with 0 to its entry of `inputdimensions`, side by side as float32.

    A vector is one row, and dimensions after the first are one row's features.
    """

    host_reason = "one copy for each input in NumPy"
    inputdimensions: tuple[int, ...]

    def run(self, *inputs: Array) -> Sequence[Value]:
        if len(inputs) != len(self.inputdimensions):
            raise ValueError(f"inputdimensions has {len(self.inputdimensions)} entries for {len(inputs)} inputs")
        if any(data.ndim == 0 for data in inputs):
            raise ValueError("every input must have at least 1 dimension")
        batches = [1 if data.ndim == 1 else len(data) for data in inputs]
        if len(set(batches)) > 1:
            raise ValueError(f"every input must have the same number of rows, not {batches}")
        result = np.zeros((batches[0], sum(self.inputdimensions)), np.float32)
        start = 0
        for data, width in zip(inputs, self.inputdimensions, strict=True):
            rows = data.reshape(batches[0], math.prod(data.shape[1:] if data.ndim > 1 else data.shape))[:, :width]
            result[:, start : start + rows.shape[1]] = rows
            start += width
        return (result,)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if len(inputs) != len(self.inputdimensions) or None in inputs or min(self.inputdimensions, default=-1) < 0:
            return Host(self.run, "its attributes contradict each other")
        return Template("features_side_by_side", {"widths": self.inputdimensions}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (row_count(inputs[0]), sum(self.inputdimensions)))]
