"""What all methods share: blocks of weights, their codes, and a weight that is quantised part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sardonyx.api.building.block_rounding import AT_ONCE, in_blocks, slices
from sardonyx.ops.microsoft.packed_weights import pack, unpack
from sardonyx.quantization.refusal import InvalidQuantization

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """What codes are made of: `bits` of one, whether its zero point is the middle of all codes, the scales' type, and
    whether zero points may be real numbers."""

    bits: int
    symmetric: bool
    dtype: np.dtype[Any]
    real_zeros: bool = False

    @property
    def top(self) -> int:
        """The largest code; the lowest is 0."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def stored(self, scales: Array) -> Array:
        """Scales as they will be stored, in float32."""
        return np.asarray(scales.astype(self.dtype).astype(np.float32))


class Rounded(NamedTuple):
    """Rows of blocks as integers: a weight is (code - zero) * scale.

    `codes` is uint8 [rows, blocks, block]; `scales` float32 [rows, blocks], numbers of the type that stores them;
    `zeros` [rows, blocks], uint8 or, where the form allows it, float32.
    """

    codes: Array
    scales: Array
    zeros: Array

    def real(self) -> Array:
        """The weights that these stand for, float32 [rows, blocks, block]."""
        return np.asarray((self.codes - self.zeros[..., None].astype(np.float32)) * self.scales[..., None])


# Makes integers of blocks, float32 [rows, blocks, block]. The mask, [blocks, block], tells which elements there are:
# the last block of a row may be filled up with zeros. None stands for all.
Method = Callable[[Array, "Array | None", Form], Rounded]


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [rows, length] whose rows are quantised in blocks.

    `codes`: uint8 [rows, bytes of a row's blocks], packed from the low bits up, 0 behind the end of a row; `scales`
    [rows, blocks]; `zeros`, [rows, blocks] of uint8 or of the scales' type, None for the middle of all codes.
    """

    form: Form
    length: int
    block: int
    codes: Array
    scales: Array
    zeros: Array | None

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def blocks(self) -> int:
        return -(-self.length // self.block)

    def unpacked(self) -> Array:
        """The codes, uint8 [rows, length]."""
        return unpack(self.codes, self.form.bits)[:, : self.length]


def quantized(
    weight: Array, block: int, method: Method, form: Form, where: str, at_once: int = AT_ONCE
) -> QuantizedWeight:
    """Quantise the rows of a matrix in blocks of `block` elements, about `at_once` elements at a time.

    `weight` may be a view of any strides, also of a file. `InvalidQuantization` where it holds NaN or infinite numbers;
    `where` names it.
    """
    rows, length = weight.shape
    blocks = -(-length // block)
    codes = np.empty((rows, -(-blocks * block * form.bits // 8)), np.uint8)
    scales = np.empty((rows, blocks), form.dtype)
    zeros: Array | None = None
    mask = None
    if length % block:
        mask = (np.arange(blocks * block) < length).reshape(blocks, block)
    for part in slices(rows, blocks * block, at_once):
        groups = in_blocks(np.asarray(weight[part]), block)
        if not np.isfinite(groups).all():
            raise InvalidQuantization(
                f"{where} holds NaN or infinite numbers, which no integer stands for: mend the model, or leave the "
                "node out with nodes_to_exclude"
            )
        result = method(groups, mask, form)
        of_rows = result.codes.reshape(len(groups), -1)
        of_rows[:, length:] = 0
        codes[part] = pack(of_rows, form.bits)
        scales[part] = result.scales
        if not form.symmetric:
            if zeros is None:
                zeros = np.empty((rows, blocks), np.uint8 if result.zeros.dtype == np.uint8 else form.dtype)
            zeros[part] = result.zeros
    return QuantizedWeight(form, length, block, codes, scales, zeros)
