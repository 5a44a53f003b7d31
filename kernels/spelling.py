"""Specifications of kernels as text, and back: what the list of kernels is written in.

A specification is made of numbers, strings, tuples, dtypes and dataclasses. Which objects are one and the same is kept,
as expressions are told apart by identity. What comes back prints as what was written, so that it has the same key.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np

from sardonyx.runtime.dtype_names import dtype_called

_PACKAGE = "sardonyx."


class SpellingError(ValueError):
    """A value that is not of these kinds, or a text that this version of the package does not understand."""


def spelled(emit: Any, spec: Any) -> dict[str, Any]:
    """A kernel as a value for JSON: the function that writes its text, the objects of its specification, each after
    those that it is made of, and the specification itself."""
    objects: list[Any] = []
    value = _Speller(objects).value(spec)
    return {"emit": _named(emit), "objects": objects, "spec": value}


def read(text: dict[str, Any]) -> tuple[Any, Any]:
    """The function and the specification of a kernel; SpellingError where one of them is not there any more."""
    try:
        made: list[Any] = []
        for name, fields in text["objects"]:
            made.append(_found(name)(**{field: _value(one, made) for field, one in fields.items()}))
        return _found(text["emit"]), _value(text["spec"], made)
    except (AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise SpellingError(f"{text.get('emit')}: {error}") from error


class _Speller:
    def __init__(self, objects: list[Any]) -> None:
        self._objects = objects
        self._numbers: dict[int, int] = {}

    def value(self, one: Any) -> Any:
        if one is None or type(one) in (bool, int, str):
            return one
        if type(one) is float:
            return {"float": one.hex()}
        if type(one) is tuple:
            return [self.value(part) for part in one]
        if isinstance(one, np.dtype):
            return {"dtype": one.name}
        if not dataclasses.is_dataclass(one) or isinstance(one, type):
            raise SpellingError(f"a {type(one).__name__} cannot be spelled: {one!r}")
        if id(one) not in self._numbers:
            fields = {
                field.name: self.value(getattr(one, field.name)) for field in dataclasses.fields(one) if field.init
            }
            self._objects.append([_named(type(one)), fields])
            self._numbers[id(one)] = len(self._objects) - 1
        return {"object": self._numbers[id(one)]}


def _given(one: Any) -> list[str]:
    """The fields that an object is made with, but for those that have their defaults."""
    return [
        field.name
        for field in dataclasses.fields(one)
        if field.init
        and (field.default is dataclasses.MISSING or not _is_default(getattr(one, field.name), field.default))
    ]


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and repr(value) == repr(default)


def _value(text: Any, made: list[Any]) -> Any:
    if isinstance(text, list):
        return tuple(_value(one, made) for one in text)
    if not isinstance(text, dict):
        return text
    ((kind, content),) = text.items()
    if kind == "float":
        return float.fromhex(content)
    return dtype_called(content) if kind == "dtype" else made[content]


def _named(one: Any) -> str:
    module = one.__module__
    if not module.startswith(_PACKAGE) or "." in one.__qualname__:
        raise SpellingError(f"{module}.{one.__qualname__} is not a name of a module of this package")
    return f"{module.removeprefix(_PACKAGE)}:{one.__qualname__}"


def _found(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(_PACKAGE + module), attribute)
