"""MurmurHash3: 32-bit hashes of numbers and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

_FIRST = np.uint32(0xCC9E2D51)
_SECOND = np.uint32(0x1B873593)


def _rotated(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mixed_block(block: Array) -> Array:
    return np.asarray(_rotated(block * _FIRST, 15) * _SECOND)


def murmur3(blocks: Array, tail: Array, length: int, seed: int) -> Array:
    """MurmurHash3_x86_32 (Appleby, public domain) of many keys of one length.

    `blocks` is (keys, length // 4) of little-endian uint32, `tail` (keys) holds the last length % 4 bytes as a number.
    """
    hashed = np.full(blocks.shape[0], seed, np.uint32)
    for index in range(blocks.shape[1]):
        hashed = _rotated(hashed ^ _mixed_block(blocks[:, index]), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if length % 4:
        hashed = hashed ^ _mixed_block(tail)
    hashed = hashed ^ np.uint32(length)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return np.asarray(hashed ^ (hashed >> np.uint32(16)))


def hash_bytes(key: bytes, seed: int) -> int:
    """The hash of one string of bytes."""
    whole = len(key) // 4 * 4
    blocks = np.frombuffer(key[:whole], "<u4").astype(np.uint32).reshape(1, -1)
    tail = np.array([int.from_bytes(key[whole:], "little")], np.uint32)
    return int(murmur3(blocks, tail, len(key), seed)[0])


@operator("MurmurHash3", domain=DOMAIN)
class MurmurHash3(Operator):
    """The hash of each element's bytes, as uint32 or, for `positive` = 0, int32; strings are hashed in UTF-8."""

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    positive: int = 1
    seed: int = 0
    host_reason: ClassVar[str] = "a hash"

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        seed = self.seed & 0xFFFFFFFF
        if x.dtype.kind in "OUT":
            hashes = [hash_bytes(str(item).encode("utf-8", "surrogateescape"), seed) for item in x.ravel()]
            hashed = np.array(hashes, np.uint32).reshape(x.shape)
        else:
            size = x.dtype.itemsize
            flat = np.ascontiguousarray(x.astype(x.dtype.newbyteorder("<"), copy=False)).reshape(-1)
            blocks = flat.view("<u4").astype(np.uint32).reshape(-1, size // 4)
            with np.errstate(over="ignore"):
                hashed = murmur3(blocks, np.zeros(len(blocks), np.uint32), size, seed).reshape(x.shape)
        return (hashed if self.positive else hashed.view(np.int32),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        kind = ir.DataType.UINT32 if self.positive else ir.DataType.INT32
        return [Fact(ir.TensorType(kind), None if inputs[0] is None else inputs[0].shape)]
