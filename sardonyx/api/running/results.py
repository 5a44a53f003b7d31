"""What a run gives back: arrays that belong to the caller alone.

A result is copied only where somebody else still holds its memory. Who does is told by the reference counts: of an
array that nobody else has, the executor's list is the only owner. That covers inputs, constants, other results and
arrays that an operator keeps for itself, without a list of them all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.api.values.element_types import is_float8
from sardonyx.api.values.sparse_tensor import CoreSparseTensor, SparseCooView
from sardonyx.runtime.memory.memory import require
from sardonyx.runtime.memory.result_pool import PooledMemory
from sardonyx.runtime.sparse_value import SparseValue

Array = np.ndarray[Any, Any]


def detach(values: list[Any]) -> list[Any]:
    """Make every tensor in `values` a new, contiguous, writable array; in place, and returned.

    errors.Fail where a copy does not fit into memory.
    """
    for index in range(len(values)):
        value = values[index]
        if type(value) is not np.ndarray:
            if not _is_own_maps(value):
                values[index] = _copied(value)
        elif not _is_exclusive(value):
            require(value.nbytes, "a result")
            values[index] = value.copy()
    return values


def _is_exclusive(array: Array) -> bool:
    """Whether `array`, held by one list and one variable, is contiguous, writable and not shared with anyone."""
    if not (array.flags.c_contiguous and array.flags.writeable) or sys.getrefcount(array) > _REFERENCES_TO_ARRAY:
        return False
    if array.flags.owndata:
        return True
    root = array.base
    return (
        isinstance(root, np.ndarray)
        and (root.flags.owndata or isinstance(root.base, PooledMemory))
        and root.nbytes <= 2 * array.nbytes + 128  # else a small result would keep a large buffer alive
        and sys.getrefcount(root) <= _REFERENCES_TO_BASE
    )


def _is_own_maps(value: Any) -> bool:
    """Whether `value`, held by one list and one variable, is a sequence of maps that nobody else has.

    Operators make such a sequence with its maps, and hand it on as a whole.
    """
    return _is_maps(value) and sys.getrefcount(value) <= _REFERENCES_TO_ARRAY


def _is_maps(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict


def _copied(value: Any) -> Any:
    """A copy of a sequence or map with its tensors; arrays of the base class for NumPy's scalars and subclasses, and
    what callers know for a sparse tensor of the model."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.array(value)
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return {key: value[key] if np.isscalar(value[key]) else _copied(value[key]) for key in value}
    if isinstance(value, SparseValue):
        return CoreSparseTensor(value.shape, value.values.copy(), SparseCooView(value.places.copy()))
    return value


def to_python(value: Any) -> Any:
    """A result as `run` returns it: float8 tensors as their bytes, as onnxruntime gives them."""
    if isinstance(value, np.ndarray):
        return value.view(np.uint8) if is_float8(value.dtype) else value
    if isinstance(value, list) and not _is_maps(value):
        return [to_python(item) for item in value]
    return value


def _references(values: Sequence[Any], *, base: bool) -> int:
    """The count that `_is_exclusive` sees for an array that only `values` holds, or for the base of one."""
    for index in range(len(values)):
        value = values[index]
        return _count_base(value) if base else _count(value)
    raise AssertionError


def _count(array: Array) -> int:
    return sys.getrefcount(array)


def _count_base(array: Array) -> int:
    root = array.base
    return sys.getrefcount(root)


# Interpreters differ in what they count, so both numbers are measured on the same path.
_REFERENCES_TO_ARRAY = _references([np.empty(1)], base=False)
_REFERENCES_TO_BASE = _references([np.empty(2).reshape(1, 2)], base=True)
