"""What the rules of several `com.microsoft` operators share: the domain, dimensions of facts, working precision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import type_name
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.ops.framework.check import invalid_type
from sardonyx.ops.framework.facts import Dim, Dims, Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

Array = np.ndarray[Any, Any]

DOMAIN = "com.microsoft"


def wide(array: Array) -> Array:
    """The array in the precision in which its operator computes: float32 for narrower floats, else itself."""
    return array.astype(working_dtype(array.dtype), copy=False)


def divided(x: Array, count: int, name: str) -> Array:
    """The last axis as `count` parts, (…, count, size), of an array without elements, too; ValueError where they do not
    come out even.
    """
    if count < 1 or x.ndim == 0 or x.shape[-1] % count:
        raise ValueError(f"the last dimension of '{name}' of shape {x.shape} does not divide into {count} parts")
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def like(fact: Fact | None, shape: Iterable[Dim] | None) -> Fact:
    """A fact of the same type with another shape."""
    return Fact(None if fact is None else fact.type, None if shape is None else tuple(shape))


def same(fact: Fact | None) -> Fact:
    """A fact of the same type and shape, its contents unknown."""
    return like(fact, None if fact is None else fact.shape)


def dim(fact: Fact | None, axis: int) -> Dim:
    """One dimension of a value; unknown where the shape is, or where it has no such axis."""
    if fact is None or fact.shape is None or not -len(fact.shape) <= axis < len(fact.shape):
        return unknown_dim()
    return fact.shape[axis]


def expect_rank(fact: Fact | None, ranks: Sequence[int], name: str) -> None:
    """ValueError where the rank of input `name` is known and not one of `ranks`."""
    if fact is not None and fact.rank is not None and fact.rank not in ranks:
        allowed = " or ".join(str(rank) for rank in ranks)
        raise ValueError(f"input '{name}' is expected to have {allowed} dimensions, got {fact.rank}")


def expect_shape(name: str, given: Dims | None, wanted: Dims) -> None:
    """ValueError where a shape certainly is another one than is wanted."""
    if given is None:
        return
    differ = any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for one, other in zip(given, wanted, strict=False)
    )
    if differ or len(given) != len(wanted):
        words = ", ".join(str(dim) if isinstance(dim, int) else "?" for dim in wanted)
        raise ValueError(f"input '{name}' is expected to have the shape ({words}), got {tuple(given)}")


def expect_type(node: ir.Node, index: int, fact: Fact | None, allowed: Collection[ir.DataType]) -> None:
    """`errors.InvalidGraph` where the element type of an input is known and not one of those `allowed`."""
    if fact is not None and fact.type is not None and fact.dtype not in allowed:
        raise invalid_type(node, index, type_name(fact.type))


class SameAsFirst(Operator):
    """An operator on the host whose first output has the type and shape of its first input."""

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0])]
