"""Pooling over windows and over whole maps: maximum, mean and Lp norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel, Template
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.gather_scatter import checked
from sardonyx.ops.row_kernels import Contents, Shapes, given, is_computable, not_computable, rows_template, shortened
from sardonyx.ops.windows import WindowAttributes, Windows
from sardonyx.runtime.memory import memory


class Pool(Operator):
    """Attributes, shape rule and cost that the pools share."""

    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] | None = None
    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    # Whether the channels are the last axis instead of the second.
    has_channels_last: ClassVar[bool] = False

    def attributes(self) -> WindowAttributes:
        return WindowAttributes.of(
            self.kernel_shape, self.strides, self.dilations, self.pads, self.auto_pad, self.ceil_mode
        )

    def windows(self, x: Array) -> Windows:
        """The windows of a run, with the taps that read something."""
        return self.all_windows(x).trimmed()

    def all_windows(self, x: Array) -> Windows:
        """The windows as the attributes state them."""
        if x.ndim < 3:
            raise ValueError(f"a pool needs an input of rank 3 at least (N, C, ...), not {x.shape}")
        return self.attributes().windows(x.shape[2:], weighs=False)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        shape = None if x.shape is None else (*x.shape[:2], *self.attributes().infer(x.shape[2:]))
        if self.wanted_outputs > 1:
            return [Fact(x.type, shape), tensor(ir.DataType.INT64, shape)]
        return [Fact(x.type, shape)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        count = elements(outputs[0])
        flops = None if count is None else count * math.prod(self.kernel_shape)
        return Cost(flops, super().cost(inputs, outputs).bytes)

    def template(self, kind: str, element: Expr, result: Callable[..., Expr], counts: str = "") -> Template:
        """The native pool: `element` of each ``Input(0)``, combined as a `Reduce` of this kind.

        `result` makes the output of the total in the working dtype, of the number of elements if `counts` says which
        ("inside" or with the "padding"), and of the node's further inputs.
        """
        parameters = {
            "attributes": self.attributes(),
            "kind": kind,
            "element": element,
            "result": result,
            "counts": counts,
            "channels_last": self.has_channels_last,
        }
        return Template("pool", parameters, self.run)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


@operator("MaxPool")
class MaxPool(Pool):
    """The largest element of each window and, if wanted, its place in the whole flattened input."""

    storage_order: int = 0

    def run(self, x: Array) -> Sequence[Value]:
        windows = self.windows(x)
        wide = x.astype(working_dtype(x.dtype), copy=False)
        padded = windows.pad(wide, _lowest(wide.dtype))
        shape = (*x.shape[:2], *windows.output)
        if not self.has_output(1):
            best = np.full(shape, _lowest(wide.dtype), wide.dtype)
            for tap in windows.taps():
                np.maximum(best, windows.read(padded, tap), out=best)
            return (best.astype(x.dtype, copy=False),)
        best, place = _with_places(windows, padded, shape, self.storage_order)
        return best.astype(x.dtype, copy=False), place

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        if self.has_output(1):
            parameters = {"attributes": self.attributes(), "storage_order": self.storage_order}
            return Template("located_pool", parameters, self.run)
        element = Input(x, 0).cast(working_dtype(x))
        return self.template("maximum", element, lambda total, count: total.cast(x))


def _with_places(windows: Windows, padded: Array, shape: tuple[int, ...], storage_order: int) -> tuple[Array, Array]:
    """Maxima, and their places: row order over the tensor, or column order inside each map for `storage_order` 1."""
    order = "F" if storage_order else "C"
    numbers = np.arange(math.prod(windows.size), dtype=np.int64).reshape(windows.size, order=order)  # type: ignore[call-overload]
    numbers = windows.pad(numbers, -1)
    best = np.full(shape, _lowest(padded.dtype), padded.dtype)
    place = np.full(shape, -1, np.int64)
    for tap in windows.taps():
        value, number = windows.read(padded, tap), windows.read(numbers, tap)
        better = (number >= 0) & ((value > best) | (place < 0) | (np.isnan(value) & ~np.isnan(best)))
        np.copyto(best, value, where=better)
        np.copyto(place, number, where=better)
    maps = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape[0], shape[1], *(1,) * len(windows.size))
    return best, place + maps * math.prod(windows.size)


@operator("AveragePool")
class AveragePool(Pool):
    """The mean of each window; padding counts only with `count_include_pad`."""

    count_include_pad: int = 0

    def run(self, x: Array) -> Sequence[Value]:
        windows = self.windows(x)
        wide = x.astype(working_dtype(x.dtype), copy=False)
        padded = windows.pad(wide, 0)
        total = np.zeros((*x.shape[:2], *windows.output), wide.dtype)
        for tap in windows.taps():
            total += windows.read(padded, tap)
        counts = self.all_windows(x).counts(bool(self.count_include_pad))
        total /= functools.reduce(np.multiply.outer, counts).astype(wide.dtype)
        return (total.astype(x.dtype, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not _is_real(x):
            return Host(self.run, f"no kernel adds up windows of {x}")
        element = Input(x, 0).cast(working_dtype(x))
        counts = "padding" if self.count_include_pad else "inside"
        return self.template("sum", element, lambda total, count: (total / count).cast(x), counts)


@operator("LpPool")
class LpPool(Pool):
    """The Lp norm of each window."""

    p: int = 2

    def run(self, x: Array) -> Sequence[Value]:
        windows = self.windows(x)
        powers = np.abs(x.astype(working_dtype(x.dtype), copy=False)) ** self.p
        padded = windows.pad(powers, 0)
        total = np.zeros((*x.shape[:2], *windows.output), powers.dtype)
        for tap in windows.taps():
            total += windows.read(padded, tap)
        return ((total ** (1.0 / self.p)).astype(x.dtype, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not _is_real(x):
            return Host(self.run, f"no kernel adds up windows of {x}")
        element = _magnitude_power(Input(x, 0).cast(working_dtype(x)), self.p)
        return self.template("sum", element, lambda total, count: _root(total, self.p).cast(x))


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Whether elements are real numbers that can be computed with."""
    return is_computable(dtype) and dtype.kind not in "biu"


def _magnitude_power(x: Expr, p: int) -> Expr:
    """abs(x) ** p."""
    if p == 2:
        return x * x
    return k.absolute(x) if p == 1 else k.power(k.absolute(x), p)


def _root(total: Expr, p: int) -> Expr:
    """The p-th root of what is not negative."""
    if p == 2:
        return k.sqrt(total)
    return total if p == 1 else k.power(total, 1.0 / p)


@operator("MaxUnpool")
class MaxUnpool(Operator):
    """Elements put where MaxPool found them, by their places in the flattened result; zeros elsewhere."""

    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    host_reason = "strings are Python objects"

    def unpooled(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that the attributes lead to from that of the input."""
        count = len(self.kernel_shape)
        if len(shape) != count + 2:
            raise ValueError(f"the input {tuple(shape)} has no {count} spatial dimensions, as kernel_shape says")
        attributes = WindowAttributes.of(self.kernel_shape, self.strides, None, self.pads, "NOTSET")
        sizes = (
            (size - 1) * stride - before - behind + kernel
            for size, stride, kernel, before, behind in zip(
                shape[2:],
                attributes.strides,
                attributes.kernel,
                attributes.pads[:count],
                attributes.pads[count:],
                strict=True,
            )
        )
        return (*shape[:2], *sizes)

    def run(self, x: Array, indices: Array, output_shape: Array | None = None) -> Sequence[Value]:
        shape = self.unpooled(x.shape)
        memory.require(math.prod(shape) * x.itemsize, "the result of MaxUnpool")
        flat = np.zeros(math.prod(shape), x.dtype)
        flat[checked(indices.reshape(-1), flat.size, 0)] = x.reshape(-1)
        y = flat.reshape(shape)
        if output_shape is None:
            return (y,)
        # Zeros behind the result fill a larger shape, as in onnx.reference and the backend suite.
        whole = np.zeros(output_shape.tolist(), x.dtype)
        whole[tuple(map(slice, shape))] = y
        return (whole,)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if any(dtype == np.dtype(object) for dtype in inputs):
            return Host(self.run, self.host_reason)
        return Template("max_unpool", {"shape": self.unpooled}, self.run)


class GlobalPool(Operator):
    """One element for each map: the spatial dimensions become ones."""

    def of_row(self, x: Expr) -> Expr:
        """What becomes of the elements of a map."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        result = self.of_row(Input(x, 0).cast(working_dtype(x))).cast(x)
        return rows_template(inputs, [result], self._arranged, self.run)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        axes = tuple(range(2, len(shape)))
        return Arrangement((shape,), axes, (shortened(shape, axes),))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        assert x is not None
        if x.shape is None:
            return [Fact(x.type, None)]
        return [Fact(x.type, (*x.shape[:2], *(1 for _ in x.shape[2:])))]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x = inputs[0]
        return Cost(None if x is None else elements(x), super().cost(inputs, outputs).bytes)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
class GlobalAveragePool(GlobalPool):
    """The mean of each map."""

    def of_row(self, x: Expr) -> Expr:
        return k.mean(x)

    def run(self, x: Array) -> Sequence[Value]:
        wide = x.astype(working_dtype(x.dtype), copy=False)
        return (wide.mean(axis=_spatial(x), keepdims=True).astype(x.dtype, copy=False),)


@operator("GlobalMaxPool")
class GlobalMaxPool(GlobalPool):
    """The largest element of each map."""

    def of_row(self, x: Expr) -> Expr:
        return k.reduce("maximum", x)

    def run(self, x: Array) -> Sequence[Value]:
        wide = x.astype(working_dtype(x.dtype), copy=False)
        return (wide.max(axis=_spatial(x), keepdims=True).astype(x.dtype, copy=False),)


@operator("GlobalLpPool")
class GlobalLpPool(GlobalPool):
    """The Lp norm of each map."""

    p: int = 2

    def of_row(self, x: Expr) -> Expr:
        return _root(k.reduce("sum", _magnitude_power(x, self.p)), self.p)

    def run(self, x: Array) -> Sequence[Value]:
        powers = np.abs(x.astype(working_dtype(x.dtype), copy=False)) ** self.p
        return ((powers.sum(axis=_spatial(x), keepdims=True) ** (1.0 / self.p)).astype(x.dtype, copy=False),)
