"""The reader of packs of kernels."""

from __future__ import annotations

import random
import struct
import tempfile
import zlib
from pathlib import Path

from sardonyx.runtime.files import kernel_pack
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.kernel_cache import sealed
from sardonyx.runtime.files.kernel_pack import KernelPack, write_pack
from tests.robustness.guided.target import Target, with_other_bytes, write_private

_KERNELS = {f"kernel {number}": b"\x7fELF code" * (number + 1) for number in range(3)}
_KERNEL = "kernel 1"


def _seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pack"
        write_pack(path, _KERNELS, {"version": "1"})
        return [path.read_bytes()]


def _entry(data: bytes) -> tuple[int, int]:
    """Where the first entry lies, and its bytes."""
    _, _, note = kernel_pack._HEAD.unpack_from(data)
    _, start, size = kernel_pack._LINE.unpack_from(data, kernel_pack._HEAD.size + note)
    return start, size


def _change(data: bytes, choice: random.Random) -> bytes:
    """Other places, counts and lengths; or an entry whose contents are others, with a digest that is right."""
    start, size = _entry(data)
    if choice.random() < 0.5:
        return with_other_bytes(data[:start], choice) + data[start:]
    body = with_other_bytes(zlib.decompress(data[start : start + size])[:-32], choice)
    entry = zlib.compress(body + sha256(body).digest())
    line = kernel_pack._HEAD.size + struct.unpack_from("<I", data, 20)[0] + 20
    return data[:line] + struct.pack("<QI", len(data), len(entry)) + data[line + 12 :] + entry


def _check(data: bytes, folder: Path) -> bool:
    """The code of a kernel, which the file holds as an entry of its key, or nothing."""
    pack = KernelPack(write_private(folder / "a.pack", data))
    assert isinstance(pack.note, dict)
    assert len(pack) * kernel_pack._LINE.size <= len(data)
    found = {key: pack.find(key) for key in (*_KERNELS, "another")}
    assert found.pop("another") is None
    for key, code in found.items():
        assert code is None or sealed(key, code) in map(_expanded, _entries(data))
    return found[_KERNEL] is not None


def _entries(data: bytes) -> list[bytes]:
    """Whatever the table leads to."""
    _, count, note = kernel_pack._HEAD.unpack_from(data)
    table = data[kernel_pack._HEAD.size + note :][: count * kernel_pack._LINE.size]
    return [data[start : start + size] for _, start, size in kernel_pack._LINE.iter_unpack(table)]


def _expanded(text: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(text)
    except zlib.error:
        return b""


def _found() -> list[bytes]:
    """A table beyond the file, places beyond it, and what expands to a thousand times its size."""
    (seed,) = _seeds()
    start, _ = _entry(seed)
    large = zlib.compress(bytes(64 << 20))
    line = kernel_pack._HEAD.size + struct.unpack_from("<I", seed, 20)[0] + 20
    return [
        seed[:16] + b"\xff" * 8 + seed[24:],
        seed[:line] + b"\xff" * 12 + seed[line + 12 :],
        seed[:line] + struct.pack("<QI", len(seed), len(large)) + seed[line + 12 :] + large,
        seed[:start],
    ]


PACK = Target("pack", _seeds, _check, _change, _found)
