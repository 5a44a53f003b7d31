"""Weights of a few bits: packed several to a byte, with one scale for each block, and made real once a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

# The 16 values of bitsandbytes' 4-bit types, by code (Dettmers et al., QLoRA, 2023).
FP4 = np.array(
    [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4, -0.0, -1 / 192, -2 / 3, -1, -1 / 3, -1 / 2, -1 / 6, -1 / 4],
    np.float32,
)
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)

# The values of OCP's 4-bit float with 2 exponent bits and 1 mantissa bit, by code.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def unpack(packed: Array, bits: int) -> Array:
    """The numbers of `bits` bits in bytes, along the last axis, the lowest bits of a byte first; as uint8."""
    if bits == 8:
        return packed
    if bits not in (1, 2, 4):
        raise ValueError(f"weights of {bits} bits cannot be unpacked; 2, 4 and 8 are known")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], packed.shape[-1] * (8 // bits)))


def pack(codes: Array, bits: int, filler: int = 0) -> Array:
    """Numbers of `bits` bits, uint8, put into bytes along the last axis, the first in the lowest bits.

    `filler` completes the last byte.
    """
    per_byte = 8 // bits
    missing = -codes.shape[-1] % per_byte
    if missing:
        widths = [(0, 0)] * (codes.ndim - 1) + [(0, missing)]
        codes = np.pad(codes, widths, constant_values=filler)
    if per_byte == 1:
        return codes
    parts = codes.reshape(*codes.shape[:-1], -1, per_byte)
    joined = parts[..., 0].copy()
    for index in range(1, per_byte):
        joined |= parts[..., index] << (bits * index)
    return joined


def is_constant(value: ir.Value | None) -> bool:
    """Whether a node's input never changes: a weight of the model that the caller cannot override."""
    return value is None or (value.const_value is not None and not value.is_graph_input())


class WeightCache:
    """The real weight of one node, computed at the first run and kept where the inputs it comes from are constant."""

    def __init__(self, node: ir.Node, indices: Sequence[int]) -> None:
        given = [node.inputs[index] for index in indices if index < len(node.inputs)]
        self._constant = all(is_constant(value) for value in given)
        self._kept: tuple[tuple[Any, ...], Array] | None = None

    def get(self, sources: Sequence[Any], compute: Callable[[], Array]) -> Array:
        """The weight made from `sources`, which are compared by identity."""
        if not self._constant:
            return compute()
        kept = self._kept
        if (
            kept is None
            or len(kept[0]) != len(sources)
            or any(a is not b for a, b in zip(kept[0], sources, strict=True))
        ):
            kept = (tuple(sources), compute())
            self._kept = kept
        return kept[1]


def float8_bits(raw: Array) -> Array:
    """Bytes read as float8 E4M3, in float32."""
    return np.asarray(raw.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def expand_blocks(parameters: Array, block_size: int, length: int) -> Array:
    """Parameters with one entry for each block along the last axis, repeated for each of `length` elements."""
    return np.repeat(parameters, min(block_size, max(1, length)), axis=-1)[..., :length]
