"""Files of a model that are there by halves: downloads that were cut off, and pointers of Git LFS."""

from __future__ import annotations

import json
import os
from io import BufferedReader
from pathlib import Path

from sardonyx import errors
from sardonyx.graph.other_files import LOOKED_AT, kind_by_beginning
from sardonyx.runtime.files.opening import open_file

_MOST_NAMES = 10_000
# What files of downloads that have not ended are called.
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".download")
_LARGEST_HEADER = 100 << 20  # of safetensors, by its format


def check_whole(path: Path) -> None:
    """`errors.Fail` for a file that is empty, a pointer of Git LFS, or a safetensors file that was cut off, and for
    what is no file."""
    try:
        file = open_file(path)
    except OSError as error:
        raise errors.Fail(f"{path} cannot be read: {error}") from None
    with file:
        beginning = file.read(LOOKED_AT)
        said = kind_by_beginning(beginning)
        if not beginning or "Git LFS" in said or "web page" in said or "cut off" in said:
            raise errors.Fail(f"{path} is not the file that it should be.{said} Get the file again")
        if path.suffix == ".safetensors":
            _check_safetensors(path, file, beginning)


def unfinished_in(folder: Path) -> list[Path]:
    """The files in a folder of a model that are downloads which have not ended, also those that hub clients hide.

    A client keeps them in ``.cache/huggingface/download`` of the folder, or, where the folder is a snapshot of its
    cache, in ``blobs`` beside the snapshots.
    """
    places = [folder, folder / "onnx", folder / ".cache" / "huggingface" / "download"]
    places += [folder / ".cache" / "huggingface" / "download" / "onnx"]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    found: list[Path] = []
    for place in places:
        try:
            with os.scandir(place) as entries:
                found += [Path(entry.path) for _, entry in zip(range(_MOST_NAMES), entries, strict=False)]
        except OSError:
            continue
    return sorted(path for path in found if path.name.endswith(_UNFINISHED))


def unfinished_note(folder: Path) -> str:
    """A sentence about downloads that have not ended, with a blank before it; empty where there are none."""
    found = unfinished_in(folder)
    if not found:
        return ""
    return f" A download has not ended: {found[0]}. Fetch the model again, which goes on where it was cut off"


def _check_safetensors(path: Path, file: BufferedReader, beginning: bytes) -> None:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(beginning[:8], "little")
    cut = f"{path} is cut off: it has {size} bytes, and its header"
    if len(beginning) < 8 or length > _LARGEST_HEADER or 8 + length > size:
        raise errors.Fail(f"{cut} alone takes {8 + length}. Get the file again")
    file.seek(8)
    try:
        header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise errors.Fail(f"{path} is no safetensors file: its header cannot be read ({error})") from None
    if needed > size:
        raise errors.Fail(f"{cut} says {needed}. Get the file again")
