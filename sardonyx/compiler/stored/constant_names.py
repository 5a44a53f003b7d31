"""Names by which several processes know the constants that are made for kernels: equal names mean equal contents.

A name is a digest of the key of a constant: the identity of the contents that it was made of, the target of the
kernels, and what was made of them. Keys hold numbers, texts and the like; one with anything else in it has no name.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from sardonyx.runtime.files.content_identity import InFile, OfDigest
from sardonyx.runtime.files.digest import sha256

# Sections of an engine by the state of the file that they lie in: what each is called, and its first byte in the file.
Homes = Mapping[tuple[int, ...], tuple[str, int]]


class _NamelessError(Exception):
    """A key means nothing in another process."""


def constant_name(key: Hashable, homes: Homes | None = None) -> str | None:
    """The name of a constant; None where it has none.

    Contents in files are known by the states of these. Where there are `homes`, they are known by their places in
    these sections alone, and other contents have no name.
    """
    parts: list[str] = []
    try:
        _write(key, homes, parts)
    except _NamelessError:
        return None
    return sha256(" ".join(parts).encode()).hexdigest()


def _write(value: Any, homes: Homes | None, parts: list[str]) -> None:
    """Add a text for a value of a key, from which the value could be read again."""
    kind = type(value)
    if homes is not None and kind is OfDigest:
        raise _NamelessError
    if homes is not None and kind is InFile:
        home = homes.get(value.state)
        if home is None:
            raise _NamelessError
        name, first = home
        value = name, value.place - first, value.look
    if value is None or kind in _PLAIN:
        parts.append(f"{kind.__name__} {value!r}")
    elif isinstance(value, np.dtype) and value.names is None:
        parts.append(f"dtype {value.name} {value.str}")
    elif isinstance(value, np.generic):
        parts.append(f"{value.dtype.name} {value.tobytes().hex()}")
    elif isinstance(value, enum.Enum):
        parts.append(f"{_called(kind)} {value.name}")
    elif isinstance(value, tuple):
        _write_all(kind, value, homes, parts)
    elif dataclasses.is_dataclass(value):
        _write_all(kind, [getattr(value, field.name) for field in dataclasses.fields(value)], homes, parts)
    else:
        raise _NamelessError


_PLAIN = (bool, int, float, str, bytes)


def _write_all(kind: type, values: Any, homes: Homes | None, parts: list[str]) -> None:
    parts.append(f"{_called(kind)} {len(values)}")
    for value in values:
        _write(value, homes, parts)


def _called(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
