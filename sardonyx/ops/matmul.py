"""Matrix products: MatMul, Gemm, MatMulInteger, QLinearMatMul, Einsum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact, broadcast
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Cost, Operator, Value, elements, operator
from sardonyx.ops.quantization import requantize


def product_shape(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape of a matrix product, as NumPy's matmul has it; ValueError where the inner dimensions differ."""
    if not a or not b:
        raise ValueError("a matrix product needs inputs of rank 1 at least")
    inner_a, inner_b = a[-1], b[-2] if len(b) > 1 else b[0]
    if isinstance(inner_a, int) and isinstance(inner_b, int) and inner_a != inner_b:
        raise ValueError(f"the inner dimensions of {tuple(a)} and {tuple(b)} differ: {inner_a} and {inner_b}")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return (*broadcast([tuple(a[:-2]), tuple(b[:-2])]), *rows, *columns)


def product_cost(a: Fact | None, outputs: Sequence[Fact], inner: int, moved: float | None) -> Cost:
    """Two operations for each multiply-add; `inner` is the place of the summed dimension in `a`."""
    count = elements(outputs[0])
    depth = None if a is None or not a.shape else a.shape[inner]
    return Cost(2.0 * count * depth if count is not None and isinstance(depth, int) else None, moved)


# Matrices of these dtypes have native kernels.
FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})


def product_template(
    name: str, parameters: dict[str, Any], dtypes: Sequence[np.dtype[Any] | None], run: Callable[..., Sequence[Value]]
) -> Kernel:
    """The kernel of a matrix product of floats; a step on the host for other dtypes."""
    if all(dtype is None or dtype.name in FLOATS for dtype in dtypes) and len(set(dtypes[:2])) == 1:
        return Template(name, parameters, run)
    return Host(run, f"no kernel for products of {', '.join(str(dtype) for dtype in dtypes[:2])}")


class Product(Operator):
    """A matrix product of the inputs number `first` and `second`."""

    first = 0
    second = 1

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs[self.first], inputs[self.second]
        assert a is not None
        assert b is not None
        shape = None if a.shape is None or b.shape is None else product_shape(a.shape, b.shape)
        return [Fact(self.result_type(inputs), shape)]

    def result_type(self, inputs: Sequence[Fact | None]) -> Any:
        assert inputs[0] is not None
        return inputs[0].type

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        return product_cost(inputs[self.first], outputs, -1, super().cost(inputs, outputs).bytes)


@operator("MatMul")
class MatMul(Product):
    """The matrix product with NumPy's broadcasting; integers wrap."""

    def run(self, a: Array, b: Array) -> Sequence[Value]:
        wide = working_dtype(a.dtype)
        product_shape(a.shape, b.shape)
        y = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
        return (np.asarray(y).astype(a.dtype, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return product_template("matmul", {}, inputs, self.run)


@operator("Gemm")
class Gemm(Operator):
    """alpha * A' * B' + beta * C, where A' and B' may be transposed and C broadcasts to the product."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815 - the attribute's name
    transB: int = 0  # noqa: N815 - the attribute's name

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        a, b = inputs[0], inputs[1]
        assert a is not None
        assert b is not None
        if a.shape is None or b.shape is None:
            return [Fact(a.type, None)]
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise ValueError(f"Gemm needs matrices, not shapes {a.shape} and {b.shape}")
        left = a.shape[::-1] if self.transA else a.shape
        right = b.shape[::-1] if self.transB else b.shape
        return [Fact(a.type, product_shape(left, right))]

    def run(self, a: Array, b: Array, c: Array | None = None) -> Sequence[Value]:
        if a.ndim != 2 or b.ndim != 2:
            raise ValueError(f"Gemm needs matrices, not shapes {a.shape} and {b.shape}")
        wide = working_dtype(a.dtype)
        left, right = a.astype(wide, copy=False), b.astype(wide, copy=False)
        y = np.matmul(left.T if self.transA else left, right.T if self.transB else right)
        if self.alpha != 1.0:
            y = (y * self.alpha).astype(wide)
        if c is not None and self.beta != 0.0:
            bias = c.astype(wide, copy=False)
            y = y + (bias if self.beta == 1.0 else (bias * self.beta).astype(wide))
            if y.ndim != 2 or y.shape[0] != (left.shape[1] if self.transA else left.shape[0]):
                raise ValueError(f"C of shape {c.shape} does not broadcast to the product")
        return (y.astype(a.dtype, copy=False),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"alpha": self.alpha, "beta": self.beta, "transA": self.transA, "transB": self.transB}
        return product_template("gemm", parameters, inputs, self.run)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        moved = super().cost(inputs, outputs).bytes
        return product_cost(inputs[0], outputs, -2 if self.transA else -1, moved)


def _centred(x: Array, zero_point: Array | None, per_row: bool) -> Array:
    """x - zero_point in float64, where sums of 8-bit products are exact; a vector belongs to rows or columns."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    return wide - _placed(zero_point.astype(np.float64), per_row)


def _placed(parameter: Array, per_row: bool) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter[:, None] if per_row and parameter.ndim == 1 else parameter


@operator("MatMulInteger")
class MatMulInteger(Product):
    """The product of 8-bit integers into int32; zero points per row of A and per column of B."""

    def result_type(self, inputs: Sequence[Fact | None]) -> Any:
        return ir.TensorType(ir.DataType.INT32)

    def run(
        self, a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
    ) -> Sequence[Value]:
        y = np.matmul(_centred(a, a_zero_point, True), _centred(b, b_zero_point, False))
        return (np.asarray(y).astype(np.int64).astype(np.int32),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("matmul_integer", {}, self.run)


@operator("QLinearMatMul")
class QLinearMatMul(Product):
    """The product of quantised matrices, scaled to the output's quantisation."""

    second = 3

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("matmul_quantized", {}, self.run)

    def result_type(self, inputs: Sequence[Fact | None]) -> Any:
        zero_point = inputs[7]
        assert zero_point is not None
        return zero_point.type

    def run(
        self,
        a: Array,
        a_scale: Array,
        a_zero_point: Array,
        b: Array,
        b_scale: Array,
        b_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
    ) -> Sequence[Value]:
        sums = np.matmul(_centred(a, a_zero_point, True), _centred(b, b_zero_point, False))
        left, right, out = (scale.astype(np.float32) for scale in (a_scale, b_scale, y_scale))
        scale = _placed(left, True) * _placed(right, False) / _placed(out, True)
        return (requantize(np.asarray(sums), scale, _placed(y_zero_point, True)),)


@operator("Einsum")
class Einsum(Operator):
    """Sums of products, as the equation says."""

    equation: str

    def _terms(self) -> tuple[list[str], str]:
        """The terms of the inputs and that of the output."""
        left, arrow, right = self.equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if arrow:
            return terms, right
        letters = left.replace(",", "").replace("...", "")
        once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
        return terms, ("..." if "..." in left else "") + once

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        terms, result = self._terms()
        first = inputs[0]
        assert first is not None
        if len(terms) != len(inputs):
            raise ValueError(f"the equation '{self.equation}' has {len(terms)} terms for {len(inputs)} inputs")
        found: dict[str, list[Dim]] = {}
        spread: list[tuple[Dim, ...]] = []
        for term, fact in zip(terms, inputs, strict=True):
            if fact is None or fact.shape is None:
                return [Fact(first.type, None)]
            before, dots, after = term.partition("...")
            rank = len(fact.shape)
            if len(before) + len(after) > rank or (not dots and len(before) != rank):
                raise ValueError(f"the term '{term}' does not fit an input of shape {fact.shape}")
            for letter, dim in zip(
                before + after, (*fact.shape[: len(before)], *fact.shape[rank - len(after) :]), strict=True
            ):
                found.setdefault(letter, []).append(dim)
            if dots:
                spread.append(tuple(fact.shape[len(before) : rank - len(after)]))
        dims = {letter: broadcast([(dim,) for dim in sizes])[0] for letter, sizes in found.items()}
        before, dots, after = result.partition("...")
        if any(letter not in dims for letter in before + after):
            raise ValueError(f"the output of '{self.equation}' has a letter that no input has")
        middle = broadcast(spread) if dots else ()
        return [Fact(first.type, (*(dims[c] for c in before), *middle, *(dims[c] for c in after)))]

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        terms, result = self._terms()
        return Template("einsum", {"terms": tuple(terms), "result": result}, self.run)

    def run(self, *inputs: Array) -> Sequence[Value]:
        wide = working_dtype(inputs[0].dtype)
        values = [value.astype(wide, copy=False) for value in inputs]
        terms, result = self._terms()
        as_product = pair_product(terms, result, values) if len(values) == 2 else None
        if as_product is None:
            as_product = np.asarray(np.einsum(f"{','.join(terms)}->{result}", *values, optimize="greedy"))
        y = np.ascontiguousarray(as_product).reshape(as_product.shape).astype(inputs[0].dtype, copy=False)
        return (y.copy() if any(np.may_share_memory(y, value) for value in inputs) else y,)


def pair_product(terms: Sequence[str], result: str, values: Sequence[Array]) -> Array | None:
    """A summation of two tensors as one batched matrix product; None where it is none.

    Letters in both inputs and the output are batch dimensions, letters in both inputs alone are summed, the others
    make rows and columns.
    """
    left, right = terms
    letters = left + right + result
    if "." in letters or any(len(set(term)) != len(term) for term in (left, right, result)):
        return None
    sizes = dict(zip(left, values[0].shape, strict=True))
    if any(sizes.setdefault(c, n) != n for c, n in zip(right, values[1].shape, strict=True)):
        return None
    batch = [c for c in left if c in right and c in result]
    summed = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if any(c not in result for c in rows + columns):
        return None

    def matrix(value: Array, term: str, outer: list[str], inner: list[str]) -> Array:
        order = [term.index(c) for c in (*batch, *outer, *inner)]
        shape = [sizes[c] for c in batch]
        ends = [math.prod(sizes[c] for c in outer), math.prod(sizes[c] for c in inner)]
        return value.transpose(order).reshape(*shape, *ends)

    y = matrix(values[0], left, rows, summed) @ matrix(values[1], right, summed, columns)
    letters_of_y = [*batch, *rows, *columns]
    y = y.reshape([sizes[c] for c in letters_of_y])
    return y.transpose([letters_of_y.index(c) for c in result])
