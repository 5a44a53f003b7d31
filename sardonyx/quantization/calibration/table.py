"""Ranges as the files that TensorRT's execution provider of onnxruntime reads."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.quantization.calibration.ranges import CalibrationCacheEncoder, TensorData, TensorsData
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import replacing


def write_calibration_table(
    calibration_cache: TensorsData | Mapping[str, TensorData | tuple[Any, Any]], dir: str | os.PathLike[str] = "."
) -> None:
    """Write ranges to three files in a folder: ``calibration.json``, ``calibration.flatbuffers`` and
    ``calibration.cache``.

    The first holds all that is known, the other two the largest absolute value of each tensor, which is all that
    symmetric quantization needs. A pair in place of a TensorData is its range. `errors.InvalidArgument` for something
    else, `errors.Fail` where a file cannot be written.
    """
    bounds = {name: _bound(name, one) for name, one in calibration_cache.items()}
    files = {
        "calibration.json": json.dumps(_as_json(calibration_cache), cls=CalibrationCacheEncoder).encode(),
        "calibration.flatbuffers": _flatbuffer(bounds),
        "calibration.cache": "".join(f"{name} {bound}\n" for name, bound in bounds.items()).encode(),
    }
    folder = Path(dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with replacing(folder / name) as file:
                file.write(content)
    except OSError as error:
        raise errors.Fail(f"Writing the ranges to {folder} failed: {error.strerror or error}") from error


def _bound(name: str, one: Any) -> str:
    """The largest absolute value of a tensor, as text."""
    try:
        ends = one.range_value if isinstance(one, TensorData) else one
        low, high = (np.asarray(end, np.float32) for end in ends)
        return str(np.max([np.abs(low).max(), np.abs(high).max()]))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidQuantization(
            f"The range of {name!r} is no pair of numbers ({error}): give a TensorData with lowest and highest"
        ) from error


def _as_json(cache: Any) -> Any:
    if isinstance(cache, TensorsData):
        return cache
    return {
        name: one
        if isinstance(one, TensorData)
        else TensorData(lowest=np.asarray(one[0], np.float32), highest=np.asarray(one[1], np.float32))
        for name, one in cache.items()
    }


def _flatbuffer(texts: Mapping[str, str]) -> bytes:
    """A flatbuffer with the root ``table { dict: [ table { key: string; value: string } ] }``.

    What an offset leads to lies behind it, and starts at a multiple of four bytes.
    """
    entry_type = struct.pack("<HHHH", 8, 12, 4, 8)  # size of this, size of a table, places of its two fields
    root_type = struct.pack("<HHHxx", 6, 8, 4)
    # The root's offset, both types, the root (a way back to its type, and the vector behind it), the vector.
    types_at, root_at = 4, 4 + len(entry_type) + len(root_type)
    vector_at = root_at + 8
    buffer = bytearray(struct.pack("<I", root_at) + entry_type + root_type)
    buffer += struct.pack("<iI", root_at - (types_at + len(entry_type)), 4)
    buffer += struct.pack("<I", len(texts)) + bytes(4 * len(texts))
    for index, pair in enumerate(texts.items()):
        entry_at, slot = len(buffer), vector_at + 4 + 4 * index
        struct.pack_into("<I", buffer, slot, entry_at - slot)
        buffer += struct.pack("<iII", entry_at - types_at, 0, 0)
        for place, text in zip((entry_at + 4, entry_at + 8), pair, strict=True):
            struct.pack_into("<I", buffer, place, len(buffer) - place)
            content = text.encode()
            buffer += struct.pack("<I", len(content)) + content
            buffer += bytes(4 - len(content) % 4)  # the text ends with a zero
    return bytes(buffer)
