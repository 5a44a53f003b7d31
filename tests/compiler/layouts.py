"""Kernels bound to inputs that lie in memory in other orders than that of their axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, find_template
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.operator import Operator
from sardonyx.ops.framework.registry import operator_of as operator_of_node
from tests.compiler.steps import Memory, new_binder

Array = np.ndarray[Any, Any]


def operator_of(name: str, version: int, attributes: Mapping[str, Any], domain: str = "") -> Operator:
    """An operator with these attributes: numbers, texts, and tuples of numbers."""
    given = [_attribute(key, value) for key, value in attributes.items()]
    return operator_of_node(ir.Node(domain, name, inputs=[], attributes=given, version=version))


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, tuple):
        return ir.AttrInt64s(name, value) if isinstance(value[0], int) else ir.AttrFloat32s(name, value)
    return ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrFloat32(name, value)


def kernel_of(operator: Operator, arrays: Sequence[Array | None]) -> NativeKernel:
    """The native kernel of an operator for inputs like these."""
    lowered = operator.lower([None if array is None else array.dtype for array in arrays])
    assert isinstance(lowered, Template)
    found = find_template(lowered.name)
    assert found is not None
    return found(lowered.parameters)


def channels_last(rank: int) -> tuple[int, ...]:
    """The axes of a tensor [batch, channels, ...] in the order in which a channels-last one lies in memory."""
    return (0, *range(2, rank), 1)


def bound(
    kernel: NativeKernel,
    arrays: Sequence[Array | None],
    variant: str = "",
    *,
    last: bool = False,
    constants: Collection[int] = (),
) -> tuple[Binder, Memory, Tensor]:
    """A kernel bound to arrays, and its result; the first one lies channels-last if `last`.

    Inputs whose contents the kernel must know are constants, and those at the places `constants` are.
    """
    binder, memory = new_binder(variant), Memory()
    tensors: list[Tensor | None] = []
    for index, array in enumerate(arrays):
        if array is None:
            tensors.append(None)
        elif index in kernel.known_inputs or index in constants:
            tensors.append(binder.constant(array))
        else:
            order = channels_last(array.ndim) if last and index == 0 else tuple(range(array.ndim))
            tensor = binder.external(index, array.dtype, [array.shape[axis] for axis in order])
            memory.put(tensor, array.transpose(order))
            tensors.append(transposed(tensor, [order.index(axis) for axis in range(array.ndim)]))
    (result,) = kernel.bind(binder, *tensors)
    assert result is not None
    return binder, memory, result


def result_of(
    kernel: NativeKernel,
    arrays: Sequence[Array | None],
    variant: str = "",
    *,
    last: bool = False,
    constants: Collection[int] = (),
) -> Array:
    """What a kernel computes, chunk by chunk from the last one; AssertionError where it notes a fault."""
    binder, memory, result = bound(kernel, arrays, variant, last=last, constants=constants)
    faults = memory.run(binder, one_by_one=True)
    assert not faults, faults
    return memory.read(result).copy()


def is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor [batch, channels, ...] lies channels-last, without gaps."""
    return transposed(tensor, channels_last(len(tensor.shape))).is_contiguous
