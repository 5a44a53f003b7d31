"""GatherBlockQuantized: rows of a block-quantised table, made real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Dim, Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.packed_weights import Array, unpack
from sardonyx.ops.microsoft.rules import DOMAIN, like, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("GatherBlockQuantized", domain=DOMAIN)
class GatherBlockQuantized(Operator):
    """Gather along `gather_axis`, then (q - zero_point) * scale with one pair for each block of `quantize_axis`.

    uint8 data hold 8 / bits values in a byte of the last axis; an index out of range gives zeros.
    """

    inputs: ClassVar[str] = "data, indices, scales, zero_points?"
    outputs: ClassVar[str] = "output"
    bits: int = 4
    block_size: int = 128
    gather_axis: int = 0
    quantize_axis: int = 1
    host_reason: ClassVar[str] = "a gather that unpacks what it reads"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        names = ("bits", "block_size", "gather_axis", "quantize_axis")
        return Template("gathered_blocks", {name: getattr(self, name) for name in names}, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        data, indices, scales, zero_points = padded(inputs, 4)
        rank = data.ndim
        gather, quantized = self.axis("gather_axis", rank), self.axis("quantize_axis", rank)
        packed = data.dtype == np.uint8
        if packed and gather != 0:
            raise ValueError(f"attribute 'gather_axis' must be 0 for uint8 data, not {self.gather_axis}")
        size = data.shape[gather]
        flat = indices.reshape(-1).astype(np.int64)
        flat = np.where(flat < 0, flat + size, flat)
        outside = (flat < 0) | (flat >= size)
        rows = np.where(outside, 0, flat)
        codes = np.take(data, rows, axis=gather)
        values = (unpack(codes, self.bits) if packed else codes).astype(np.float32)
        shape = list(data.shape)
        if packed:
            shape[-1] *= 8 // self.bits
        if zero_points is not None:
            origins = unpack(zero_points, self.bits)[..., : scales.shape[-1]] if packed else zero_points
            values -= self.gathered(origins.astype(np.float32), rows, gather, quantized, shape)
        elif packed:
            values -= np.float32(1 << (self.bits - 1))
        values *= self.gathered(wide(scales), rows, gather, quantized, shape)
        values[(*[slice(None)] * gather, outside)] = 0
        result = (*values.shape[:gather], *indices.shape, *values.shape[gather + 1 :])
        return (values.reshape(result).astype(scales.dtype),)

    def gathered(self, parameters: Array, rows: Array, gather: int, quantized: int, shape: Sequence[int]) -> Array:
        """The parameters of the gathered elements, in a shape that broadcasts against them.

        `shape` is that of the unpacked table. An axis where the parameters have size 1 broadcasts.
        """
        if parameters.shape[quantized] != 1:
            wanted = np.arange(shape[quantized]) // self.block_size
            parameters = np.take(parameters, wanted, axis=quantized)
        return parameters if parameters.shape[gather] == 1 else np.take(parameters, rows, axis=gather)

    def axis(self, name: str, rank: int) -> int:
        value = int(getattr(self, name))
        if not -rank <= value < rank:
            raise ValueError(f"attribute '{name}' {value} is not one of the {rank} axes of input 'data'")
        return value % rank

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, indices, scales = inputs[:3]
        if data is None or indices is None or data.shape is None or indices.shape is None:
            return [like(scales, None)]
        gather = self.axis("gather_axis", len(data.shape))
        self.axis("quantize_axis", len(data.shape))
        shape: list[Dim] = list(data.shape)
        if data.dtype == ir.DataType.UINT8:
            shape[-1] = shape[-1] * (8 // self.bits)
        return [like(scales, (*shape[:gather], *indices.shape, *shape[gather + 1 :]))]
