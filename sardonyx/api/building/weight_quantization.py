"""Block-wise quantization of weight matrices to 2, 4 and 8 bits, and to the 4-bit types of bitsandbytes.

The functions fill arrays of the caller, with the argument order and the layout of onnxruntime: that is the layout of
``MatMulNBits`` ([columns, blocks, bytes of a block], elements of a byte from its low bits up) and ``MatMulBnb4``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sardonyx.api.arguments import wrong_argument
from sardonyx.ops.microsoft import packed_weights

Array = np.ndarray[Any, Any]

FP4, NF4 = 0, 1

# The borders between neighbouring values as bitsandbytes has them, to the digit; those of FP4 between magnitudes.
_BORDERS = {
    FP4: np.array([0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333], np.float32),
    NF4: np.array(
        [
            *(-0.84809643, -0.6106329, -0.45999527, -0.33967943, -0.2346074, -0.13791174, -0.045525018, 0.03979015),
            *(0.120255254, 0.20352125, 0.29201376, 0.38931254, 0.5016634, 0.6427869, 0.8614784),
        ],
        np.float32,
    ),
}


def _quantize_matmul(
    bits: int,
    quantized: Array,
    weights: Array,
    scales: Array,
    zero_points: Array,
    block_size: int,
    columns: int,
    rows: int,
    is_symmetric: bool,
) -> None:
    """Quantize `weights` [rows, columns], float32 or float16, in blocks of `block_size` rows of one column.

    Of larger `weights`, such as those with rows up to a multiple of the block, the first rows * columns elements in
    row order are read; what follows them has no say.

    Fills `quantized` uint8 [columns, blocks, block_size * bits / 8], `scales` [columns * blocks] of the type of
    `weights`, and unless symmetric `zero_points` uint8 [columns * ceil(blocks * bits / 8)]. A symmetric block has the
    zero point 2**(bits - 1) and a scale that puts its largest element at the lower end.
    """
    where = f"quantize_matmul_{bits}bits"
    _check_sizes(where, block_size, columns, rows)
    _check(where, quantized, np.uint8, columns * -(-rows // block_size) * (block_size * bits // 8))
    given = _first_weights(where, weights, rows * columns)
    blocks = -(-rows // block_size)
    _check(where, scales, weights.dtype, columns * blocks)
    padded = np.zeros((columns, blocks * block_size), np.float32)
    padded[:, :rows] = given.reshape(rows, columns).T
    groups = padded.reshape(columns, blocks, block_size)
    scale, zero = _symmetric(groups, bits) if is_symmetric else _asymmetric(groups, bits)
    stored = scale.astype(weights.dtype).astype(np.float32)
    reciprocal = np.divide(np.float32(1), stored, out=np.zeros_like(stored), where=stored != 0)
    shifted = groups * reciprocal[..., None] + zero[..., None].astype(np.float32)
    codes = np.clip(np.trunc(shifted + np.copysign(np.float32(0.5), shifted)), 0, (1 << bits) - 1).astype(np.uint8)
    present = np.arange(blocks * block_size) < rows
    codes.reshape(columns, -1)[:, ~present] = 0
    bytes_used = present.reshape(-1, 8 // bits).any(axis=1)  # what lies behind the last row stays as it was
    target = quantized.reshape(columns, -1)
    target[:, bytes_used] = _packed(codes, bits).reshape(columns, -1)[:, bytes_used]
    scales.reshape(-1)[:] = scale.reshape(-1).astype(weights.dtype)
    if not is_symmetric:
        packed = _packed(zero, bits, filler=1 << (bits - 1))
        _check(where, zero_points, np.uint8, packed.size)
        zero_points.reshape(-1)[:] = packed.reshape(-1)


quantize_matmul_2bits = functools.partial(_quantize_matmul, 2)
quantize_matmul_4bits = functools.partial(_quantize_matmul, 4)
quantize_matmul_8bits = functools.partial(_quantize_matmul, 8)


def quantize_matmul_bnb4(
    quantized: Array, weights: Array, absmax: Array, block_size: int, quant_type: int, columns: int, rows: int
) -> None:
    """Quantize weights in row order to FP4 (0) or NF4 (1) in blocks of `block_size`: the first rows * columns of them.

    Fills `quantized` uint8 with two codes a byte, the first in the high bits, and `absmax` with the largest magnitude
    of each block.
    """
    where = "quantize_matmul_bnb4"
    if quant_type not in _BORDERS:
        raise ValueError(f"{where}: quant_type must be 0 (FP4) or 1 (NF4), not {quant_type}")
    _check_sizes(where, block_size, columns, rows)
    count = rows * columns
    blocks = -(-count // block_size)
    _check(where, quantized, np.uint8, (count + 1) // 2)
    given = _first_weights(where, weights, count)
    _check(where, absmax, weights.dtype, blocks)
    padded = np.zeros(blocks * block_size, np.float32)
    padded[:count] = given
    groups = padded.reshape(blocks, block_size)
    largest = np.abs(groups).max(axis=1)
    reciprocal = np.divide(np.float32(1), largest, out=np.zeros_like(largest), where=largest != 0)
    codes = _nearest(groups * reciprocal[:, None], quant_type).reshape(-1)[: count + count % 2]
    if count % 2:
        codes[-1] = _nearest(np.zeros(1, np.float32), quant_type)[0]
    quantized.reshape(-1)[:] = codes[0::2] << 4 | codes[1::2]
    absmax.reshape(-1)[:] = largest.astype(weights.dtype)


def _symmetric(groups: Array, bits: int) -> tuple[Array, Array]:
    """The scale and zero point of each block, the largest magnitude at the lower end of the codes."""
    high, low = groups.max(axis=2), groups.min(axis=2)
    largest = np.where(np.abs(high) > np.abs(low), high, low)
    middle = 1 << (bits - 1)
    return largest / np.float32(-middle), np.full(largest.shape, middle, np.uint8)


def _asymmetric(groups: Array, bits: int) -> tuple[Array, Array]:
    """The scale and zero point that map the range of each block, zero included, to all codes."""
    high, low = np.maximum(groups.max(axis=2), 0), np.minimum(groups.min(axis=2), 0)
    top = np.float32((1 << bits) - 1)
    scale = (high - low) / top
    raw = np.divide(-low, scale, out=np.zeros_like(scale), where=scale != 0)
    return scale, np.clip(np.floor(raw + np.float32(0.5)), 0, top).astype(np.uint8)


def _packed(codes: Array, bits: int, filler: int = 0) -> Array:
    """Codes of the last axis packed into bytes from the low bits up; `filler` completes the last byte."""
    per_byte = 8 // bits
    missing = -codes.shape[-1] % per_byte
    if missing:
        widths = [(0, 0)] * (codes.ndim - 1) + [(0, missing)]
        codes = np.pad(codes, widths, constant_values=filler)
    parts = codes.reshape(*codes.shape[:-1], -1, per_byte)
    packed = np.zeros(parts.shape[:-1], np.uint8)
    for index in range(per_byte):
        packed |= parts[..., index] << (bits * index)
    return packed


def _nearest(values: Array, quant_type: int) -> Array:
    """The code of the nearest value of a 4-bit type; half way, the code of the smaller magnitude or value."""
    borders = _BORDERS[quant_type]
    if quant_type == NF4:
        return np.searchsorted(borders, values, side="left").astype(np.uint8)
    order = np.argsort(packed_weights.FP4[:8], kind="stable").astype(np.uint8)
    codes: Array = order[np.searchsorted(borders, np.abs(values), side="left")] | (values < 0).astype(np.uint8) << 3
    return codes


def _check_sizes(where: str, block_size: int, columns: int, rows: int) -> None:
    if block_size < 1 or columns < 0 or rows < 0:
        raise ValueError(f"{where}: no matrix has {rows} rows and {columns} columns in blocks of {block_size}")


def _check(where: str, array: Any, dtype: Any, size: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
        raise wrong_argument(where, f"a contiguous array of {np.dtype(dtype)}", array)
    if array.size != size:
        raise ValueError(f"{where}: expected an array of {size} elements, got one of shape {array.shape}")


def _first_weights(where: str, weights: Any, size: int) -> Array:
    """So many weights in row order; TypeError and ValueError where there are none of the right type, or too few."""
    if not isinstance(weights, np.ndarray) or weights.dtype not in (np.float32, np.float16):
        raise wrong_argument(where, "weights of float32 or float16", weights)
    if weights.size < size:
        raise ValueError(f"{where}: expected {size} weights, got an array of shape {weights.shape}")
    return weights.reshape(-1)[:size]
