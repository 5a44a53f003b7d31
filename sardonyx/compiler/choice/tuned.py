"""The numbers by which work is cut: those that `sardonyx tune-kernels` measured on this machine, else defaults.

A group of them is a frozen dataclass whose fields are numbers, or pairs of numbers, with defaults. None of them
changes results: they decide how large blocks and chunks are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.machine_file import Section, machine_key, read_sections

SECTION = "tuning"

Numbers = TypeVar("Numbers")

_in_use: dict[str, Any] = {}


def tuned(name: str, kind: type[Numbers]) -> Numbers:
    """The group called `name`, of the class `kind`: read once in a process."""
    found = _in_use.get(name)
    if found is None:
        found = _in_use[name] = with_stored(kind(), stored_numbers().get(name))
    return found


@contextlib.contextmanager
def using(name: str, numbers: Any) -> Iterator[None]:
    """Bind with these numbers inside the block: for those who measure which are best. Not for several threads."""
    before = _in_use.get(name)
    _in_use[name] = numbers
    try:
        yield
    finally:
        if before is None:
            del _in_use[name]
        else:
            _in_use[name] = before


@functools.cache
def stored_numbers() -> Section:
    """What the machine's file holds of all groups, read once in a process."""
    return read_sections(machine_key(host_target().key)).get(SECTION, {})


def with_stored(numbers: Numbers, stored: Any) -> Numbers:
    """The group with the numbers of a file; those that are missing there, or unlike the defaults, stay as they are."""
    if not isinstance(stored, Mapping):
        return numbers
    changes: dict[str, Any] = {}
    for field in fields(numbers):  # type: ignore[arg-type]
        default = getattr(numbers, field.name)
        found = stored.get(field.name)
        if isinstance(default, tuple):
            several = found if isinstance(found, list) and len(found) == len(default) else [None] * len(default)
            if all(_is_like(one, other) for one, other in zip(several, default, strict=True)):
                changes[field.name] = tuple(several)
        elif _is_like(found, default):
            changes[field.name] = type(default)(found)
    return replace(numbers, **changes)  # type: ignore[type-var]


def _is_like(found: Any, default: float) -> bool:
    """Whether a number may stand in for a default: positive (0 where that is), whole where that is, of no wild size."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    if not 0 <= found <= 1024 * max(1.0, default):  # nor what is no number
        return False
    return (found > 0 or default == 0) and (not isinstance(default, int) or found == int(found))
