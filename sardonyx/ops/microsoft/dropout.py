"""Dropout with a bias, a residual and a packed mask.

Only `training_mode` drops anything. Which elements a seed drops is the generator's choice, and differs from other
engines'; each run draws on where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Fact, tensor, unknown_dim
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, same, wide
from sardonyx.ops.random import Drawing, may_be_true

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

_WORD = 32  # elements whose bits share one word of a packed mask


class FusedDropout(Drawing):
    """Dropout(data + bias) + residual, and the mask as truth values or packed."""

    packed: ClassVar[bool] = False
    training_input: ClassVar[int]
    seed: int | None = None

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return may_be_true(inputs, self.training_input)

    def drop(
        self,
        data: Array,
        bias: Array | None,
        residual: Array | None,
        ratio: Array | None,
        training: Array | None,
    ) -> Sequence[Array]:
        share = 0.5 if ratio is None else float(ratio.reshape(()))
        if not 0 <= share < 1:
            raise ValueError(f"input 'ratio' must be in [0, 1), got {share}")
        values = wide(data)
        if bias is not None:
            values = values + wide(bias)
        if training is not None and bool(training.reshape(())) and share > 0:
            kept = self.stream.uniform(data.shape) >= share
            values = np.where(kept, values / values.dtype.type(1 - share), values.dtype.type(0))
        else:
            kept = np.ones(data.shape, np.bool_)
        if residual is not None:
            values = values + wide(residual)
        return np.asarray(values).astype(data.dtype), packed(kept) if self.packed else kept

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data = inputs[0]
        if not self.packed:
            return [same(data), tensor(ir.DataType.BOOL, None if data is None else data.shape)]
        count = unknown_dim() if data is None or data.shape is None else dims.product(data.shape)
        return [same(data), tensor(ir.DataType.UINT32, (dims.ceil_divide(count, _WORD),))]


def packed(kept: Array) -> Array:
    """One bit for each element in row order, the lowest bit of a word first; bits past the end are 0."""
    flat = kept.ravel()
    padded = np.zeros(-(-flat.size // _WORD) * _WORD, np.uint8)
    padded[: flat.size] = flat
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


@operator("BiasDropout", domain=DOMAIN)
class BiasDropout(FusedDropout):
    """Dropout(data + bias, ratio) + residual."""

    inputs: ClassVar[str] = "data, bias, residual?, ratio?, training_mode?"
    training_input: ClassVar[int] = 4
    outputs: ClassVar[str] = "output, mask?"

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, bias, residual, ratio, training = padded(inputs, 5)
        return self.drop(data, bias, residual, ratio, training)


@operator("BitmaskBiasDropout", domain=DOMAIN)
class BitmaskBiasDropout(BiasDropout):
    """BiasDropout whose mask is packed, 32 elements to a word."""

    packed: ClassVar[bool] = True


@operator("BitmaskDropout", domain=DOMAIN)
class BitmaskDropout(FusedDropout):
    """Dropout whose mask is packed, 32 elements to a word."""

    inputs: ClassVar[str] = "data, ratio?, training_mode?"
    training_input: ClassVar[int] = 2
    outputs: ClassVar[str] = "output, mask?"
    packed: ClassVar[bool] = True

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, ratio, training = padded(inputs, 3)
        return self.drop(data, None, None, ratio, training)
