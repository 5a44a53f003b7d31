"""Block-wise quantization of weight matrices to 2, 4 and 8 bits, and to the 4-bit types of bitsandbytes.

The functions fill arrays of the caller, with the argument order and the layout of onnxruntime: that is the layout of
``MatMulNBits`` ([columns, blocks, bytes of a block], elements of a byte from its low bits up), of a blocked
``DequantizeLinear`` and of ``MatMulBnb4``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sardonyx.api.arguments import wrong_argument
from sardonyx.api.building.block_rounding import (
    codes_of,
    in_blocks,
    largest_at_the_end,
    slices,
    whole_range,
)
from sardonyx.ops.microsoft import packed_weights
from sardonyx.ops.microsoft.packed_weights import pack

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
    blocks = -(-rows // block_size)
    blob = block_size * bits // 8
    _check(where, quantized, np.uint8, columns * blocks * blob)
    given = _first_weights(where, weights, rows * columns).reshape(rows, columns)
    _check(where, scales, weights.dtype, columns * blocks)
    points_bytes = -(-blocks * bits // 8)
    if not is_symmetric:
        _check(where, zero_points, np.uint8, columns * points_bytes)
    present = np.arange(blocks * block_size) < rows
    used = int(present.reshape(-1, 8 // bits).any(axis=1).sum())  # what lies behind the last row stays as it was
    target, steps = quantized.reshape(columns, -1), scales.reshape(columns, blocks)
    for part in slices(columns, rows):
        codes, scale, zero = _rounded(given[:, part], bits, block_size, is_symmetric, weights.dtype)
        codes.reshape(len(codes), -1)[:, rows:] = 0
        target[part, :used] = pack(codes, bits).reshape(len(codes), -1)[:, :used]
        steps[part] = scale
        if not is_symmetric:
            zero_points.reshape(columns, points_bytes)[part] = pack(zero, bits, filler=1 << (bits - 1))


quantize_matmul_2bits = functools.partial(_quantize_matmul, 2)
quantize_matmul_4bits = functools.partial(_quantize_matmul, 4)
quantize_matmul_8bits = functools.partial(_quantize_matmul, 8)


def _quantize_qdq_matmul(
    bits: int,
    quantized: Array,
    weights: Array,
    scales: Array,
    zero_points: Array,
    block_size: int,
    columns: int,
    rows: int,
    is_symmetric: bool,
) -> bool:
    """Quantize as `_quantize_matmul` does, in the layout of a blocked DequantizeLinear on axis 0.

    Fills `quantized` uint8 with the codes of [rows, columns] in row order, `scales` [blocks, columns] of the type of
    `weights`, and unless symmetric `zero_points` uint8 with those of [blocks, columns] in row order. Symmetric codes
    are signed. Returns whether they are.
    """
    where = f"quantize_qdq_matmul_{bits}bits"
    _check_sizes(where, block_size, columns, rows)
    blocks, per_byte = -(-rows // block_size), 8 // bits
    _check(where, quantized, np.uint8, -(-rows * columns // per_byte))
    given = _first_weights(where, weights, rows * columns).reshape(rows, columns)
    _check(where, scales, weights.dtype, columns * blocks)
    if not is_symmetric:
        _check(where, zero_points, np.uint8, -(-blocks * columns // per_byte))
    all_codes, points = np.empty((rows, columns), np.uint8), np.empty((blocks, columns), np.uint8)
    steps, middle = scales.reshape(blocks, columns), 1 << (bits - 1)
    for part in slices(columns, rows):
        codes, scale, zero = _rounded(given[:, part], bits, block_size, is_symmetric, weights.dtype)
        all_codes[:, part] = codes.reshape(len(codes), -1)[:, :rows].T
        steps[:, part], points[:, part] = scale.T, zero.T
    if is_symmetric:
        all_codes ^= np.uint8(middle)  # the code less the middle, in two's complement
    quantized.reshape(-1)[:] = pack(all_codes.reshape(-1), bits)
    if not is_symmetric:
        zero_points.reshape(-1)[:] = pack(points.reshape(-1), bits)
    return bool(is_symmetric)


quantize_qdq_matmul_2bits = functools.partial(_quantize_qdq_matmul, 2)
quantize_qdq_matmul_4bits = functools.partial(_quantize_qdq_matmul, 4)


def _rounded(
    weights: Array, bits: int, block_size: int, is_symmetric: bool, dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """Codes [columns, blocks, block_size], scales of `dtype` and zero points of some columns of a matrix."""
    groups = in_blocks(weights.T, block_size)
    scale, zero = largest_at_the_end(groups, bits) if is_symmetric else whole_range(groups, bits)
    stored = scale.astype(dtype)
    return codes_of(groups, stored.astype(np.float32), zero, bits), stored, zero


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
