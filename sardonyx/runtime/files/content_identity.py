"""What tells the contents of one array from those of another, without a look at them where that can be avoided.

Two arrays of equal identity have equal contents, layouts and types. The identity of what lies in a file is the file's
state and the place in it; of a part of bytes, which never change, these and the place; of everything else a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from sardonyx.runtime.memory.mapped_pages import FileContents, FileMap, release_pages, root_of

Array = np.ndarray[Any, Any]


# How an array looks: its dtype, shape and strides.
_Look = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]]


class InFile(NamedTuple):
    """The identity of what lies in a file of this state, from this byte on."""

    state: tuple[int, ...]
    place: int
    look: _Look


class OfDigest(NamedTuple):
    """The identity of contents with this SHA-256."""

    digest: bytes
    look: _Look


class _Same:
    """Equal to another one that holds the very same object, which lives as long as this does."""

    __slots__ = ("_held",)

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._held is self._held

    def __hash__(self) -> int:
        return id(self._held)


def content_identity(array: Array) -> Hashable:
    """The identity of an array of numbers; equal ones hold what they compare alive."""
    look = array.dtype, array.shape, array.strides
    root = root_of(array)
    if isinstance(root, (FileMap, FileContents)) and root.state is not None:
        return InFile(tuple(root.state), _address(array) - _address(np.frombuffer(root, np.uint8)), look)
    if type(root) is bytes and len(root) > array.nbytes:
        return "bytes", _Same(root), _address(array) - _address(np.frombuffer(root, np.uint8)), look
    return OfDigest(digest(array), look)


def digest(array: Array) -> bytes:
    """A digest of the elements in order; the process keeps no pages of a mapped file for it."""
    found = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
    release_pages(array)
    return found


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
