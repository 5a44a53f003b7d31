"""GatherBlockQuantized while binding: how the table, its parameters and the rows of the result lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.quantization.gathered_blocks import (
    ARGUMENTS,
    GatheredBlocksSpec,
    emit_gathered_blocks,
)
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

_BYTES = np.dtype(np.uint8)
_REAL = ("float32", "float16", "bfloat16")


@template("gathered_blocks")
class GatheredBlocks(NativeKernel):
    """Inputs: data, indices, scales, zero points. Parameters: `bits`, `block_size`, `gather_axis`, `quantize_axis`."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data, _, scales = inputs[:3]
        if data is None or data.dtype is None or type_of(numpy_dtype(data.dtype)) is None:
            return "only codes of at most 8 bits"
        if scales is None or scales.dtype is None or numpy_dtype(scales.dtype).name not in _REAL:
            return "only scales of float32, float16 and bfloat16"
        if numpy_dtype(data.dtype) != _BYTES or self.parameters["bits"] == _BITS:
            return None
        per_byte = _BITS // self.parameters["bits"]
        if data.shape is None or self.parameters["quantize_axis"] not in (-1, len(data.shape) - 1):
            return "only packed numbers whose blocks lie along the last axis"
        if self.parameters["block_size"] % per_byte:
            return "only blocks of whole bytes"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, indices, scales, zeros = (*inputs, None)[:4]
        assert data is not None
        assert indices is not None
        assert scales is not None
        rank = len(data.shape)
        gather, quantized = (axis_of(self.parameters[name], rank) for name in ("gather_axis", "quantize_axis"))
        bits = self.parameters["bits"] if data.dtype == _BYTES else _BITS
        per_byte = _BITS // bits
        if data.dtype == _BYTES and gather:
            raise ValueError(f"attribute 'gather_axis' must be 0 for uint8 data, not {self.parameters['gather_axis']}")
        shape = (*data.shape[:-1], data.shape[-1] * per_byte)
        block, wanted = self._blocks(shape, scales, quantized)
        scales = _spread(binder, scales, wanted, gather, "scales")
        if zeros is not None:
            packed = (*wanted[:-1], -(-wanted[-1] // per_byte))
            zeros = _spread(binder, zeros, packed, gather, "zero_points")
        data, indices = contiguous(binder, data), contiguous(binder, indices)
        output = binder.new(scales.dtype, (*shape[:gather], *indices.shape, *shape[gather + 1 :]))
        if output.size == 0:
            return [output]
        values = _geometry(shape, wanted, gather, quantized, block)
        values |= {"data": data, "indices": indices, "scales": scales, "zeros": scales if zeros is None else zeros}
        values |= {"output": output, "rows": indices.size, "size": shape[gather]}
        inner = math.prod(shape[gather + 1 :])
        values |= {"data_row": inner // per_byte, "data_outer": shape[gather] * (inner // per_byte)}
        values |= _steps("scale", scales, gather)
        values |= _steps("zero", scales if zeros is None else zeros, gather)
        values["zero_bytes"] = 0 if zeros is None else -(-wanted[-1] // per_byte)
        items = math.prod(shape[:gather]) * indices.size
        per_chunk = max(1, CHUNK_BYTES // (inner * output.dtype.itemsize))
        values |= {"items": items, "per_chunk": per_chunk}
        is_packed = data.dtype == _BYTES
        spec = GatheredBlocksSpec(
            stored=data.dtype.name,
            bits=bits,
            real=output.dtype.name,
            index=indices.dtype.itemsize * 8,
            has_zeros=zeros is not None,
            middle=1 << (bits - 1) if is_packed else 0,
            alone=values["after"] == 1,
        )
        binder.step(
            emit_gathered_blocks,
            spec,
            [values[name] for name in ARGUMENTS],
            reads=(data, indices, scales, *([] if zeros is None else [zeros])),
            writes=(output,),
            chunks=-(-items // per_chunk),
            flops=2.0 * output.size,
            nbytes=float(output.nbytes + output.size // per_byte),
            detail=lambda: f"{items} rows of {inner} numbers, {bits} bits in blocks of {block}",
        )
        return [output]

    def _blocks(self, shape: tuple[int, ...], scales: Tensor, axis: int) -> tuple[int, tuple[int, ...]]:
        """Elements of a block, and the shape of parameters that no axis shares; ValueError where scales do not fit."""
        if len(scales.shape) != len(shape):
            raise ValueError(f"input 'scales' must have {len(shape)} dimensions as the data, got {len(scales.shape)}")
        size, given = self.parameters["block_size"], scales.shape[axis]
        if given == 1:
            size = max(1, shape[axis])
        elif size <= 0 or given != -(-shape[axis] // size):
            raise ValueError(f"{given} scales do not fit blocks of {size} along axis {axis} of {shape}")
        return size, (*shape[:axis], given, *shape[axis + 1 :])


_BITS = 8


def _spread(binder: Binder, parameters: Tensor, wanted: tuple[int, ...], gather: int, name: str) -> Tensor:
    """Parameters of this shape, contiguous; along the axis of rows they may stay one for all."""
    shape = parameters.shape
    if len(shape) != len(wanted) or any(size not in (1, full) for size, full in zip(shape, wanted, strict=True)):
        raise ValueError(f"input '{name}' has the shape {shape}, which does not fit {wanted}")
    target = tuple(shape[axis] if axis == gather else full for axis, full in enumerate(wanted))
    if shape == target:
        return contiguous(binder, parameters)
    strides = [0 if size == 1 else step for size, step in zip(shape, parameters.strides, strict=True)]
    return contiguous(binder, parameters.reshaped(target, strides))


def _steps(stem: str, parameters: Tensor, gather: int) -> dict[str, Argument]:
    """Elements between outer places and between rows of parameters; rows that there is one of do not move."""
    row, rows = math.prod(parameters.shape[gather + 1 :]), parameters.shape[gather]
    return {f"{stem}_outer": row * rows, f"{stem}_row": 0 if rows == 1 else row}


def _geometry(
    shape: tuple[int, ...], wanted: tuple[int, ...], gather: int, quantized: int, block: int
) -> dict[str, Argument]:
    """The dimensions of a row, and which parameters belong to an outer place and to a row of the table."""
    one_row = {"before": 1, "length": 1, "after": math.prod(shape[gather + 1 :]), "block": 1, "blocks": 1}
    outer = {"row_block": 1, "inside": 1, "along": 1, "outer_block": 1, "outer_blocks": 1}
    if quantized > gather:
        row = {
            "before": math.prod(shape[gather + 1 : quantized]),
            "length": shape[quantized],
            "after": math.prod(shape[quantized + 1 :]),
            "block": block,
            "blocks": wanted[quantized],
        }
        return {**outer, **row}
    if quantized == gather:
        return {**outer, **one_row, "row_block": block}
    along = {"along": shape[quantized], "outer_block": block, "outer_blocks": wanted[quantized]}
    return {**outer, **one_row, **along, "inside": math.prod(shape[quantized + 1 : gather])}
