"""The file format of LoRA adapters: a flatbuffer with the identifier ``TORT``, as onnxruntime writes and reads it.

The schema, as the bytes of onnxruntime's files show it: the root table holds the format version, the adapter's and
the model's version (int32 each) and a vector of parameters; a parameter holds its name, its dimensions (int64), the
ONNX number of its element type (int32) and its bytes. The wire format is that of flatbuffers' "internals" page:
little endian; a table begins with the distance back to its vtable, which lists where each field lies; strings and
vectors begin with their length; references are forward distances.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.api.values import element_types
from sardonyx.light_dataclass import dataclass

Array = np.ndarray[Any, Any]

IDENTIFIER = b"TORT"
FORMAT_VERSION = 1
_INVALID = "The buffer does not appear to be a valid lora parameter format"
_DATA_ALIGNMENT = 64


@dataclass(frozen=True)
class Adapter:
    """The contents of an adapter file."""

    format_version: int
    adapter_version: int
    model_version: int
    parameters: Mapping[str, Array]


def write(adapter: Adapter) -> bytes:
    """The bytes of a file with `adapter`, whose parameters are sorted by name; RuntimeError for one of strings."""
    out = _Writer()
    out.bytes += struct.pack("<I4s", 0, IDENTIFIER)
    root = out.table(
        [("i", adapter.format_version), ("i", adapter.adapter_version), ("i", adapter.model_version), ("R", 0)]
    )
    out.reference(0, root.position)
    names = sorted(adapter.parameters)
    out.align(4)
    out.reference(root.fields[3], len(out.bytes))
    vector = len(out.bytes)
    out.bytes += struct.pack("<I", len(names)) + bytes(4 * len(names))
    for index, name in enumerate(names):
        array = adapter.parameters[name]
        kind = _plain(element_types.by_dtype(array.dtype), name)
        table = out.table([("R", 0), ("R", 0), ("i", kind.number), ("R", 0)])
        out.reference(vector + 4 + 4 * index, table.position)
        out.reference(table.fields[0], out.vector(name.encode(), len(name.encode()), 4, terminated=True))
        dims = struct.pack(f"<{array.ndim}q", *array.shape)
        out.reference(table.fields[1], out.vector(dims, array.ndim, 8))
        data = (element_types.pack(array, kind) if kind.bits < 8 else np.ascontiguousarray(array)).tobytes()
        out.reference(table.fields[3], out.vector(data, len(data), _DATA_ALIGNMENT))
    out.align(8)
    return bytes(out.bytes)


def read(data: memoryview) -> Adapter:
    """The adapter in `data`, its parameters over the memory of `data`; RuntimeError for anything malformed."""
    try:
        if bytes(data[4:8]) != IDENTIFIER:
            raise ValueError("identifier")
        source = _Reader(data)
        root = source.target(0)
        numbers = [source.number(root, field) for field in range(3)]
        parameters = dict(source.parameter(table) for table in source.references(root, 3))
    except (struct.error, ValueError, IndexError, UnicodeDecodeError, RuntimeError) as error:
        raise RuntimeError(f"{_INVALID}: {error}") from error
    if numbers[0] != FORMAT_VERSION:
        raise RuntimeError(f"{_INVALID}: format version {numbers[0]}, only version {FORMAT_VERSION} can be read")
    return Adapter(numbers[0], numbers[1], numbers[2], parameters)


def _plain(kind: element_types.ElementType, name: str) -> element_types.ElementType:
    """The element type of a parameter, which has numbers of a fixed size; RuntimeError for strings."""
    if kind.dtype.hasobject:
        raise RuntimeError(f"parameter '{name[:80]}' of an adapter holds strings: only numbers can be in its file")
    return kind


@dataclass(frozen=True)
class _Table:
    position: int
    fields: list[int]


class _Writer:
    """Appends parents before children, so that every reference points forward."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def align(self, size: int, ahead: int = 0) -> None:
        """Pad so that what comes `ahead` bytes later lies at a multiple of `size`."""
        self.bytes += bytes(-(len(self.bytes) + ahead) % size)

    def table(self, fields: list[tuple[str, int]]) -> _Table:
        """A table of 4-byte fields: numbers (``i``) or references to be set (``R``); its vtable comes before it."""
        self.align(4)
        vtable = len(self.bytes)
        offsets = [4 + 4 * index for index in range(len(fields))]
        self.bytes += struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), 4 + 4 * len(fields), *offsets)
        self.align(4)
        position = len(self.bytes)
        self.bytes += struct.pack("<i", position - vtable)
        for _, value in fields:
            self.bytes += struct.pack("<i", value)
        return _Table(position, [position + offset for offset in offsets])

    def vector(self, data: bytes, count: int, alignment: int, *, terminated: bool = False) -> int:
        """A vector whose first element is aligned; the position of its length."""
        self.align(max(alignment, 4), ahead=4)
        position = len(self.bytes)
        self.bytes += struct.pack("<I", count) + data + (b"\0" if terminated else b"")
        return position

    def reference(self, field: int, target: int) -> None:
        struct.pack_into("<I", self.bytes, field, target - field)


class _Reader:
    """Reads tables with every position checked against the buffer.

    No two of a file's vectors lie over each other, so that no small file takes long: many references to a large one.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._left = len(data)  # bytes of vectors that have not been read

    def target(self, field: int) -> int:
        (distance,) = struct.unpack_from("<I", self.data, field)
        position = field + int(distance)
        if distance == 0 or position + 4 > len(self.data):
            raise ValueError(f"a reference at byte {field} leaves the file")
        return position

    def field(self, table: int, index: int) -> int | None:
        """The position of a table's field, or None where the table leaves it at its default."""
        (back,) = struct.unpack_from("<i", self.data, table)
        vtable = table - int(back)
        if vtable < 0:
            raise ValueError(f"the table at byte {table} leaves the file")
        (size,) = struct.unpack_from("<H", self.data, vtable)
        if 4 + 2 * index + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + 4 + 2 * index)
        return table + int(offset) if offset else None

    def number(self, table: int, index: int) -> int:
        field = self.field(table, index)
        return 0 if field is None else int(struct.unpack_from("<i", self.data, field)[0])

    def vector(self, table: int, index: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector lie and how many there are."""
        field = self.field(table, index)
        if field is None:
            return 0, 0
        position = self.target(field)
        (count,) = struct.unpack_from("<I", self.data, position)
        if position + 4 + count * size > len(self.data):
            raise ValueError(f"a vector at byte {position} leaves the file")
        self._left -= count * size
        if self._left < 0:
            raise ValueError(f"a vector at byte {position} lies over others")
        return position + 4, int(count)

    def references(self, table: int, index: int) -> list[int]:
        start, count = self.vector(table, index, 4)
        return [self.target(start + 4 * item) for item in range(count)]

    def parameter(self, table: int) -> tuple[str, Array]:
        start, count = self.vector(table, 0, 1)
        name = bytes(self.data[start : start + count]).decode()
        start, count = self.vector(table, 1, 8)
        shape = struct.unpack_from(f"<{count}q", self.data, start)
        kind = _plain(element_types.by_number(self.number(table, 2)), name)
        start, size = self.vector(table, 3, 1)
        elements = int(np.prod(shape, dtype=np.int64))
        if any(dim < 0 for dim in shape) or size != element_types.packed_size(kind, elements):
            raise ValueError(f"parameter '{name[:80]}' of shape {list(shape[:16])} does not fit its {size} bytes")
        content = np.frombuffer(self.data[start : start + size], np.uint8)
        if kind.bits < 8:
            return name, element_types.unpack(content, kind, shape)
        return name, content.view(kind.dtype).reshape(shape)
