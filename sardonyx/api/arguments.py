"""Checks of arguments by the rules of onnxruntime's own binding, which callers and their tests rely on."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def wrong_argument(where: str, expected: str, value: Any) -> TypeError:
    """The error for a value of the wrong type."""
    return TypeError(
        f"{where}: incompatible function arguments: expected {expected}, got {value!r} of type {type(value).__name__}"
    )


def as_int(where: str, value: Any) -> int:
    """A 32-bit number: whatever Python takes for an index, and NumPy's booleans; no float and no text."""
    if isinstance(value, np.bool_):
        return int(value)
    if not isinstance(value, str | float):
        try:
            number = operator.index(value)
        except TypeError:
            raise wrong_argument(where, "an int", value) from None
        if -(2**31) <= number < 2**31:
            return number
    raise wrong_argument(where, "an int of 32 bits", value)


def as_bool(where: str, value: Any) -> bool:
    """True or False: whatever has a truth value of its own as a number does; no text and no container."""
    if value is None or hasattr(type(value), "__bool__"):
        return bool(value)
    raise wrong_argument(where, "a bool", value)


def as_text(where: str, value: Any) -> str:
    """A text; bytes are read as UTF-8."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return value
    raise wrong_argument(where, "a str", value)
