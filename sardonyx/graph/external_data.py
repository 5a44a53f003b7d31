"""Weights in files beside the model: mapped, never read at load, and confined to the model's folder."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx

from sardonyx import errors
from sardonyx.graph.other_files import kind_of
from sardonyx.runtime.files.model_folder import ModelFolder, is_stored, open_found
from sardonyx.runtime.files.opening import IrregularError
from sardonyx.runtime.memory.mapped_pages import map_open_file, release_pages

Buffer = bytes | bytearray | memoryview | mmap.mmap

_KEYS = frozenset({"location", "offset", "length", "checksum"})
_PREPACKED = "prepacked"  # keys that begin so describe weights packed for a provider of onnxruntime
_LARGEST = 2**63 - 1
_HASHED_AT_ONCE = 4 << 20
_SHORT = " The file may have been cut off: get the model and its data again, from one place."


class ExternalData:
    """The files that a model may refer to: those in `folder`, and `buffers` that stand for files of that name.

    Files outside the folder, also by way of a symbolic link, are refused unless they are in `others`, which the caller
    allows. Where the model file is a link itself, links
    may lead to what is stored with it, as in the cache of the Hugging Face hub (`ModelFolder`). A file that has another
    name as well, by a hard link, is refused: nobody can tell whether the other one lies in the folder.
    """

    def __init__(
        self,
        folder: str,
        buffers: Mapping[str, Buffer] | None = None,
        from_bytes: bool = False,
        model: str | None = None,
        hard_links: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        """`model` is the model's file, where it has one; with `hard_links` files may have other names as well."""
        self._hard_links = hard_links
        self.folder = folder
        self.from_bytes = from_bytes
        self._place = ModelFolder(folder, model, others)
        self._buffers = {name: memoryview(buffer).cast("B") for name, buffer in (buffers or {}).items()}
        self._mapped: dict[str, memoryview] = {}
        self._checksums: dict[str, dict[str, str]] = {}  # by location, and of which tensor
        self.paths: list[str] = []  # of the files that were read, and of links that led to them

    @property
    def mapped(self) -> Collection[memoryview]:
        """The files that were mapped."""
        return self._mapped.values()

    def expect(self, tensor: onnx.TensorProto) -> None:
        """Note the checksum that a tensor has of its file, which is compared once the file is read: in ONNX the SHA-1
        digest of all of it. `errors.Fail` where its entries say nothing sensible."""
        entries = external_entries(tensor)
        if checksum := entries.get("checksum"):
            self._checksums.setdefault(entries["location"], {})[checksum] = tensor.name

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
                f"{len(data)} are out of bounds or can not be read in full.{kind_of(data) or _SHORT}"
            )
        return data[offset : offset + size]

    def _data(self, location: str, name: str) -> memoryview:
        for known in (self._buffers, self._mapped):
            if location in known:
                self._check_digest(location, known[location])
                return known[location]
        try:
            found = self._checked(location, name)
            with open_found(found) as file:
                if os.fstat(file.fileno()).st_nlink > 1 and not self._hard_links:
                    raise errors.Fail(
                        f"External data of initializer {name} cannot be read: {found[1]} has another name as well (a "
                        "hard link), which may lie outside of the model directory. Put a copy of the file in its "
                        "place, or, if you know where it comes from, set the session config entry "
                        "'sardonyx.external_hard_links' = 1"
                    )
                data = map_open_file(file.fileno(), found[1])
        except IrregularError:
            raise errors.Fail(f"Random-access reads require a regular file: {found[1]} (initializer {name})") from None
        except (OSError, ValueError) as error:
            raise errors.Fail(f"External data of initializer {name} cannot be read: {error}") from error
        self._mapped[location] = data
        self.paths.append(found[1])
        link = os.path.normpath(os.path.join(self._place.path, location))
        if link != found[1]:
            self.paths.append(link)
        self._check_digest(location, data)
        return data

    def _checked(self, location: str, name: str) -> tuple[str, str]:
        """The file of a location, and the allowed folder that it is in."""
        problem = f"External data path validation failed for initializer: {name}. Error: "
        if os.path.isabs(location) or location.startswith(("/", "\\\\")):
            raise errors.Fail(f'{problem}Absolute path not allowed for external data location: "{location}"')
        if "\0" in location:
            raise errors.Fail(f'{problem}External data path does not exist: "{location!r}"')
        found = self._place.find(location)
        if found is None:
            origin = "External data path for model loaded from bytes escapes working directory. "
            resolved = os.path.realpath(os.path.join(self._place.path, location))
            allowed = [self._place.path, *self._place.stores][-1]
            raise errors.Fail(
                f"{problem}{origin if self.from_bytes else ''}External data path escapes model directory. "
                f'External data path: "{location}" resolved path: "{resolved}" allowed directory: "{allowed}"'
                f"{_remedy(self._place, resolved)}"
            )
        if not os.path.exists(found[1]):
            raise errors.Fail(f'{problem}External data path does not exist: "{os.path.join(self.folder, location)}"')
        return found

    def _check_digest(self, location: str, data: memoryview) -> None:
        """`errors.Fail` unless the file is the one that the model was written with, as far as that is known."""
        expected = self._checksums.pop(location, None)
        if expected is None:
            return
        import hashlib  # which takes a while to load, and few models say so

        digest = hashlib.sha1(usedforsecurity=False)
        for start in range(0, len(data), _HASHED_AT_ONCE):
            part = data[start : start + _HASHED_AT_ONCE]
            digest.update(part)
            release_pages(np.frombuffer(part, np.uint8))
        found = digest.hexdigest()
        for checksum, name in expected.items():
            if checksum.strip().lower() != found:
                raise errors.Fail(
                    f"External data of initializer {name} is not what the model was written with: the SHA-1 digest of "
                    f"{location!r} is {found}, and its 'checksum' is {checksum[:80]!r}. Get the model and its data "
                    "again, from one place"
                )


def _remedy(place: ModelFolder, resolved: str) -> str:
    """What may help where data are in no allowed folder, as a sentence with a blank before it."""
    folder = os.path.dirname(resolved)
    allow = f"allow their folder by the session config entry 'sardonyx.external_data_folders' = '{folder}'"
    if not os.path.exists(resolved):
        return f" The data are not there either. Put them beside the model, or {allow}"
    if place.is_of_cache or is_stored(resolved):
        return (
            " The data are in the cache of a hub, and not in the store of the snapshot that the model is in. Fetch the "
            "model again into a folder of its own (snapshot_download(local_dir=...), or with "
            f"HF_HUB_DISABLE_SHARED_BLOBS=1), or, if you know where they come from, {allow}"
        )
    return f" Put the data beside the model, or, if you know where they come from, {allow}"


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
