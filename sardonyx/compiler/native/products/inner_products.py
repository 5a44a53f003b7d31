"""Which inner product multiplies two matrices: by their types, the precision asked for, and the time it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import Problem, bf16_product, suits_parts
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

_FLOAT32 = np.dtype(np.float32)
_PRODUCTS_OF: dict[np.dtype[Any], str] = {
    _FLOAT32: "f32",
    np.dtype(np.float64): "f64",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
}
# Rows of pairs that fill so small a part of a tile that vectors take less time.
_FEW_ROWS_OF_TILES = 3
# Rows that take no longer in float32 than in tiles by a matrix that is rounded first, by how it lies.
_FEW_BY_ROWS, _FEW_BY_COLUMNS = 4, 1


def product_of(dtype: np.dtype[np.generic], target: Target | None = None, precision: str = "float32") -> str | None:
    """The inner product for matrices of a dtype; None where there is none.

    With the precision "bfloat16", float32 matrices are rounded to bfloat16 where the target multiplies those faster.
    """
    if precision == "bfloat16" and dtype == _FLOAT32 and target is not None:
        faster = bf16_product(target)
        if faster is not None:
            return faster
    return _PRODUCTS_OF.get(dtype)


def allows_parts(binder: Binder) -> bool:
    """Whether products of float32 may be in tiles of AMX, three parts for each number."""
    return binder.target.has_amx and binder.settings.float32_tiles


def by_constant(binder: Binder, product: str, m: int, n: int, k: int) -> str:
    """The inner product for m x k by a constant k x n: in tiles of parts where float32 takes less time so."""
    in_parts = product == "f32" and allows_parts(binder) and suits_parts(binder.target, m, n, k)
    return "f32 tiles" if in_parts else product


def takes_pairs(target: Target, problem: Problem) -> bool:
    """Whether so few rows of pairs are multiplied by vectors, in the panels that tiles take: they would fill a small
    part of a tile, and vectors read weights from memory faster."""
    kind = PRODUCTS[problem.product]
    is_few = problem.product == "bf16 tiles" and problem.m <= _FEW_ROWS_OF_TILES and target.has_bf16_dot
    return is_few and problem.a == "words" and problem.b == "packed" and problem.k % kind.elements(kind.unit) == 0


def worth_rounding(product: str, a: Tensor, b: Tensor, result: Tensor) -> str:
    """The product, or float32 where so few rows meet each matrix of an input that rounding it takes longer."""
    if not PRODUCTS[product].in_tiles or {a.dtype, b.dtype} != {_FLOAT32}:
        return product
    rows = math.prod(result.shape[:-1]) // math.prod(b.shape[:-2])
    return "f32" if rows <= (_FEW_BY_COLUMNS if b.strides[-2] == 1 else _FEW_BY_ROWS) else product


def products_reason(operands: Sequence[Fact | None]) -> str | None:
    """Why there is no inner product of operands of these types; None where there is one."""
    for fact in operands:
        if fact is None or fact.dtype is None:
            return "the type of an operand is not known before the run"
        if product_of(numpy_dtype(fact.dtype)) is None:
            return f"no kernel for products of {numpy_dtype(fact.dtype)}"
    return None
