"""Parts of compiled models that providers keep outside the model file, and where initializers are stored."""

from __future__ import annotations

from sardonyx.light_dataclass import dataclass


class OrtEpContextData:
    """Bytes that a provider hands to the caller's writer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """A copy of `length` bytes from `offset` on, or of all the rest; ValueError outside the data."""
        end = self.size if length is None else offset + length
        if not 0 <= offset <= end <= self.size:
            raise ValueError(f"bytes {offset} to {end} are outside the {self.size} bytes of the data")
        return self._data[offset:end]


class OrtEpContextDataBuffer:
    """Memory that the caller's reader allocates once and fills for a provider."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data: bytearray | None = None

    @property
    def max_size(self) -> int:
        return self._max_size

    @property
    def size(self) -> int:
        return 0 if self._data is None else len(self._data)

    @property
    def is_allocated(self) -> bool:
        return self._data is not None

    def allocate(self, size: int) -> None:
        """Allocate the final memory, once; RuntimeError a second time, ValueError for a bad size."""
        if self._data is not None:
            raise RuntimeError("the buffer is already allocated")
        if not 0 <= size <= self._max_size:
            raise ValueError(f"size {size} is not between 0 and the maximum of {self._max_size}")
        self._data = bytearray(size)

    def write(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes into the allocated memory; ValueError where they do not fit."""
        if self._data is None:
            raise RuntimeError("allocate the buffer before writing to it")
        content = memoryview(data).cast("B")
        if not 0 <= offset <= self.size - len(content):
            raise ValueError(f"{len(content)} bytes at {offset} do not fit the buffer of {self.size} bytes")
        self._data[offset : offset + len(content)] = content

    def content(self) -> bytes:
        """What has been written."""
        return bytes(self._data or b"")


@dataclass(frozen=True, eq=False, repr=False)
class OrtExternalInitializerInfo:
    """Where an initializer's bytes lie: a file beside the model, an offset and a size."""

    filepath: str
    file_offset: int
    byte_size: int
