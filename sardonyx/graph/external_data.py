"""Weights in files beside the model: mapped, never read at load, and confined to the model's folder."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from sardonyx import errors
from sardonyx.runtime.forks import cached_property
from sardonyx.runtime.memory.mapped_pages import map_file

Buffer = bytes | bytearray | memoryview | mmap.mmap

_KEYS = frozenset({"location", "offset", "length", "checksum"})
_PREPACKED = "prepacked"  # keys that begin so describe weights packed for a provider of onnxruntime
_LARGEST = 2**63 - 1


class ExternalData:
    """The files that a model may refer to: those in `folder`, and `buffers` that stand for files of that name.

    Files outside the folder, also by way of a symbolic link, are refused. Where the model file is a link itself, links
    may lead into the folder of the file that it stands for as well, as in the cache of the Hugging Face hub.
    """

    def __init__(
        self,
        folder: Path,
        buffers: Mapping[str, Buffer] | None = None,
        from_bytes: bool = False,
        model: Path | None = None,
    ) -> None:
        """`model` is the model's file, where it has one."""
        self.folder = folder
        self.from_bytes = from_bytes
        self._model = model
        self._buffers = {name: memoryview(buffer).cast("B") for name, buffer in (buffers or {}).items()}
        self._mapped: dict[str, memoryview] = {}
        self.paths: list[str] = []  # of the files that were read, and of links that led to them

    @cached_property
    def _allowed(self) -> list[str]:
        """The folders; OSError where the working directory counts and is gone."""
        folders = [os.path.realpath(self.folder)]
        if self._model is not None and (beside := os.path.dirname(os.path.realpath(self._model))) not in folders:
            folders.append(beside)
        return folders

    @property
    def mapped(self) -> Collection[memoryview]:
        """The files that were mapped."""
        return self._mapped.values()

    def view(self, tensor: onnx.TensorProto, size: int) -> memoryview:
        """The `size` bytes that an external tensor stands for; `errors.Fail` where they are not there."""
        entries = external_entries(tensor)
        location = entries["location"]
        offset = _number(entries.get("offset", "0"), "offset", tensor.name)
        length = _number(entries.get("length", "0"), "length", tensor.name, least=0)
        if length and length != size:
            raise errors.Fail(
                f"TensorProto: {tensor.name} external data size mismatch. "
                f"Computed size: {size}, external_data.length: {length}"
            )
        data = self._data(location, tensor.name)
        if offset + size > len(data):
            raise errors.Fail(
                f"External initializer: {tensor.name} offset: {offset} size to read: {size} given file_length: "
                f"{len(data)} are out of bounds or can not be read in full."
            )
        return data[offset : offset + size]

    def _data(self, location: str, name: str) -> memoryview:
        for known in (self._buffers, self._mapped):
            if location in known:
                return known[location]
        try:
            path = self._checked(location, name)
            if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: a pipe would block
                raise errors.Fail(f"Random-access reads require a regular file: {path} (initializer {name})")
            data = map_file(path)
        except (OSError, ValueError) as error:
            raise errors.Fail(f"External data of initializer {name} cannot be read: {error}") from error
        self._mapped[location] = data
        self.paths.append(path)
        link = os.path.normpath(os.path.join(self._allowed[0], location))
        if link != path:
            self.paths.append(link)
        return data

    def _checked(self, location: str, name: str) -> str:
        """The file of a location, inside the allowed folders."""
        problem = f"External data path validation failed for initializer: {name}. Error: "
        if os.path.isabs(location) or location.startswith(("/", "\\\\")):
            raise errors.Fail(f'{problem}Absolute path not allowed for external data location: "{location}"')
        if "\0" in location:
            raise errors.Fail(f'{problem}External data path does not exist: "{location!r}"')
        resolved = os.path.realpath(os.path.join(self._allowed[0], location))
        if not any(os.path.commonpath([folder, resolved]) == folder for folder in self._allowed):
            origin = "External data path for model loaded from bytes escapes working directory. "
            raise errors.Fail(
                f"{problem}{origin if self.from_bytes else ''}External data path escapes model directory. "
                f'External data path: "{location}" resolved path: "{resolved}" allowed directory: "{self._allowed[-1]}"'
            )
        if not os.path.exists(resolved):
            raise errors.Fail(f'{problem}External data path does not exist: "{os.path.join(self.folder, location)}"')
        return resolved


def external_entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """The keys and values that say where a tensor's data lie; `errors.Fail` where they say nothing sensible."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        key = _text(entry.key)
        if key in entries and key in _KEYS:
            raise errors.Fail(f"TensorProto external data has duplicate '{key}' entries (initializer {tensor.name})")
        entries[key] = _text(entry.value)
    location = entries.get("location")
    if location is None:
        raise errors.Fail(f"model format error! Missing 'location' of external data (initializer {tensor.name})")
    if not location:
        raise errors.Fail(f"model format error! External data location cannot be empty (initializer {tensor.name})")
    for key in entries:
        if key not in _KEYS and not key.startswith(_PREPACKED):
            raise errors.Fail(f"model format error! Unknown key '{key}' of external data (initializer {tensor.name})")
    offset = _number(entries.get("offset", "0"), "offset", tensor.name)
    if offset < 0:
        raise errors.Fail(f"External initializer: {tensor.name} offset: {offset} is out of bounds")
    _number(entries.get("length", "0"), "length", tensor.name, least=0)
    return entries


def leave_out_prepacked(tensor: onnx.TensorProto) -> None:
    """Take off a tensor what tells of weights packed for onnxruntime: onnx-ir would warn of keys it does not know."""
    kept = [entry for entry in tensor.external_data if not _text(entry.key).startswith(_PREPACKED)]
    if len(kept) < len(tensor.external_data):
        tensor.ClearField("external_data")
        tensor.external_data.extend(kept)


def _text(value: str | bytes) -> str:
    """A string of the file, which protobuf gives as bytes where it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _number(text: str, key: str, name: str, least: int = -_LARGEST) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or not least <= int(text) <= _LARGEST:
        raise errors.Fail(f'Failed to parse value: "{text[:40]}" as the {key} of external data (initializer {name})')
    return int(text)
