"""Where the elements of a NumPy array lie, asked for so often that it has to be quick.

`__array_interface__` takes more than a microsecond. The address is also the first field of the array object, behind
what all objects of CPython begin with (the public struct PyArrayObject_fields), where it is read in a tenth of that.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from sardonyx.runtime.native.fast_call import ARRAY_DATA

Array = np.ndarray[Any, Any]

_word = ctypes.c_int64.from_address


def _by_interface(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _by_field(array: Array) -> int:
    return _word(id(array) + ARRAY_DATA).value


def _is_field() -> bool:
    """Whether the address is where CPython and NumPy say."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # its objects begin with more
        return False
    sample = np.zeros((4, 5), np.int16)
    return all(_by_field(array) == _by_interface(array) for array in (sample, sample[2:], sample[:, 1:]))


# The address of an array's first element; the caller keeps the array.
address_of = _by_field if _is_field() else _by_interface
