"""What a file is that is no ONNX model, and which file was meant where there is none of a name."""

from __future__ import annotations

import itertools
import os

from sardonyx.graph.wire_format import MalformedError, varint

LOOKED_AT = 512  # bytes that a file begins with
_FIRST_TAG = b"\x08"  # of a model's IR version, with which files of models begin
_MOST_FIELDS = 10_000  # of a model, without those inside of others
_VARINT, _BYTES = 0, 2  # how fields of a model are encoded
_MOST_NAMES = 10_000  # of a folder, that are looked at
_MOST_NEAR = 3

# What files begin with, and what they are.
_BEGINNINGS = (
    (b"\x93NUMPY", "a NumPy array (.npy), which can be an input of a model"),
    (b"PK\x03\x04", "a zip archive, as files of PyTorch (.pt), Keras and NumPy (.npz) are: export the model to ONNX"),
    (b"\x80\x02", "a Python pickle, as older files of PyTorch are: export the model to ONNX"),
    (b"\x80\x04", "a Python pickle: export the model to ONNX"),
    (b"GGUF", "a model in GGUF format: export it to ONNX"),
    (b"\x89HDF\r\n", "an HDF5 file, as of Keras: export the model to ONNX"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches that"),
    (b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (b"<!DOCTYPE", "a web page, as where a download went wrong"),
    (b"<!doctype", "a web page, as where a download went wrong"),
    (b"<html", "a web page, as where a download went wrong"),
    (b"<?xml", "an XML file"),
)
# The same of what lies behind a length of four bytes.
_IDENTIFIERS = {
    b"TFL3": "a TensorFlow Lite model: convert it to ONNX",
    b"ORTM": "a model in ORT format: load the ONNX model that it was made from",
}


def kind_of(data: memoryview) -> str:
    """What the content of a file is, as a sentence with a blank before it; empty where nothing is known of it."""
    return kind_by_beginning(bytes(data[:LOOKED_AT])) or _cut_off(data)


def kind_by_beginning(beginning: bytes) -> str:
    """As `kind_of`, of what files are that are no model, by what they begin with."""
    if not beginning:
        return " It is empty."
    found = next((said for head, said in _BEGINNINGS if beginning.startswith(head)), "")
    found = found or _IDENTIFIERS.get(beginning[4:8], "")
    if not found and beginning[8:10] == b'{"':
        found = "a safetensors file, which holds weights and no model"
    elif not found and not any(beginning):
        return " It begins with zeros, as where a download or a copy was cut off."
    elif not found and _is_text(beginning):
        found = "a text file"
    return f" It is {found}." if found else ""


def _cut_off(data: memoryview) -> str:
    """Where a model ends before a field of it does, a sentence that says so; fields inside of others are not read."""
    if bytes(data[:1]) != _FIRST_TAG:
        return ""
    needed = position = 0
    try:
        for _ in range(_MOST_FIELDS):
            if position >= len(data):
                break
            tag, position = varint(data, position)
            if tag & 7 == _BYTES:
                length, position = varint(data, position)
                needed = position = position + length
            elif tag & 7 == _VARINT:
                _, position = varint(data, position)
            else:
                return ""
    except (IndexError, MalformedError):
        return ""
    if needed <= len(data):
        return ""
    return f" It is a model that was cut off: the file has {len(data)} bytes, of at least {needed}. Get it again."


def _is_text(beginning: bytes) -> bool:
    text = beginning.decode("utf-8", "ignore")  # the last letter may be cut
    return len(text.encode()) > len(beginning) - 4 and all(one.isprintable() or one in "\r\n\t" for one in text)


def similar_names(path: str) -> str:
    """The files that were meant by a path where there is none, as a sentence with a blank before it."""
    folder, name = os.path.split(path)
    folder = folder or "."
    try:
        with os.scandir(folder) as found:
            names = [item.name for item in itertools.islice(found, _MOST_NAMES)]
    except (OSError, ValueError):
        return "" if os.path.isdir(folder) else f" There is no folder {folder}."
    import difflib  # which few models need

    folded = {one.casefold(): one for one in sorted(names)}
    near = difflib.get_close_matches(name.casefold(), folded, n=_MOST_NEAR, cutoff=0.7)
    return f" Did you mean {' or '.join(folded[one] for one in near)}?" if near else ""


def models_in(folder: str) -> str:
    """The models in a folder, as a sentence with a blank before it."""
    try:
        with os.scandir(folder) as found:
            names = sorted(one.name for one in itertools.islice(found, _MOST_NAMES) if one.name.endswith(".onnx"))
    except OSError:
        return ""
    return f" Did you mean {' or '.join(os.path.join(folder, name) for name in names[:_MOST_NEAR])}?" if names else ""
