"""MatMulNBits while binding: weights packed in panels of words, rows as bytes with a scale for each block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.gemm_choice import asks_ahead, panel_columns, panels_of, tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, TileEpilogue
from sardonyx.compiler.llvm.kernels.quantization.block_product import (
    BlockProductSpec,
    argument_names,
    emit_block_product,
)
from sardonyx.compiler.llvm.kernels.quantization.byte_blocks import WORD, ByteBlocksSpec, emit_byte_blocks
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.quantization.epilogues import as_matrix_operands, joined_epilogue
from sardonyx.compiler.native.template import Epilogue, NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.microsoft.packed_weights import unpack

_FLOATS = ("float32", "float16", "bfloat16")
_F32, _I32, _U8 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)

# The accuracy level that lets rows be rounded to bytes.
_BYTES = 4
# Bytes of weights of a chunk, rows of one, and bytes that are asked for ahead where memory is far.
_CHUNK_BYTES = 256 << 10
_CHUNK_ROWS = 64
_AHEAD = 4 << 10
# Elements that one chunk turns into bytes.
_CONVERTED = 8192


@template("matmul_nbits")
class MatMulNBitsKernel(NativeKernel):
    """A times the transpose of a weight of `bits` bits, plus a bias.

    Parameters: `K`, `N`, `bits`, `block_size`. Inputs: A, B, scales, zero points, group indices, bias.
    """

    takes_epilogue = True
    known_inputs = (1, 2, 3, 4)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, b = inputs[0], inputs[1]
        if a is None or a.dtype is None or numpy_dtype(a.dtype).name not in _FLOATS:
            return "only rows of float32, float16 and bfloat16"
        if b is None or b.dtype is None or numpy_dtype(b.dtype) != _U8:
            return "only weights packed in bytes"
        if self.parameters["bits"] not in (2, 4, 8) or self.parameters["block_size"] not in (16, 32, 64, 128, 256):
            return "only 2, 4 and 8 bits in blocks of 16 to 256"
        if self.parameters["accuracy_level"] != _BYTES:
            return "a product in float32 with weights that stay packed"
        if len(inputs) > 4 and inputs[4] is not None:
            return "columns in an order of their own (g_idx)"
        return None

    def bind(
        self, binder: Binder, inputs: Sequence[Tensor | None], *, epilogue: Epilogue | None = None
    ) -> Sequence[Tensor | None]:
        a, b, scales, zeros, _, bias = (*inputs, None, None, None, None)[:6]
        assert a is not None
        assert b is not None
        assert scales is not None
        size_k, size_n, bits, block = (self.parameters[name] for name in ("K", "N", "bits", "block_size"))
        blocks = -(-size_k // block)
        _check(a, b, scales, size_k, size_n, blocks, block * bits // 8)
        target = binder.target
        result: Expr = Input(a.dtype, 0)
        operands: list[Tensor] = []
        if bias is not None:
            operands.append(bias.reshaped((bias.size,)))
            result = result + Input(bias.dtype, 1)
        shape = (*a.shape[:-1], size_n)
        outputs, operands = joined_epilogue(result, operands, epilogue)
        results = [binder.new(output.dtype, shape) for output in outputs]
        if math.prod(shape) == 0:
            return results
        kinds, operands = as_matrix_operands(binder, operands, shape)
        spec = BlockProductSpec(
            bits=bits,
            block=block,
            has_zeros=zeros is not None,
            rows=4 if target.registers >= 32 else 2,
            vectors=tile_shape(target).vectors,
            ahead=_AHEAD if asks_ahead(target) else 0,
            epilogue=TileEpilogue(kinds, outputs),
        )
        rows = math.prod(a.shape[:-1])
        words, a_scales, a_sums = _as_bytes(binder, a, spec, rows, size_k, blocks)
        panels = binder.derived(b, ("words", size_n), partial(_columns_of_words, binder, size_n))
        steps = binder.derived(scales, ("blocks", size_n), partial(_columns_of_floats, binder, size_n, blocks))
        origins = steps
        if zeros is not None:
            origins = binder.derived(
                zeros, ("zeros", size_n, bits, blocks), partial(_origins, binder, size_n, blocks, bits)
            )
        panel = panel_columns(target)
        panel_bytes = blocks * panel * (spec.words + 1 + spec.has_zeros) * WORD
        count = panels_of(size_n, panel)
        group = -(-count // -(-count // max(1, _CHUNK_BYTES // panel_bytes)))
        row_block = rows if rows <= _CHUNK_ROWS else _CHUNK_ROWS
        values: dict[str, Argument] = {"a": words, "a_scales": a_scales, "a_sums": a_sums, "b": panels}
        values |= {"scales": steps, "zeros": origins, "m": rows, "n": size_n, "blocks": blocks, "group": group}
        values |= {"row_block": row_block, "row_blocks": -(-rows // row_block)}
        for name, tensor in [*_named("operand", operands), *_named("output", results)]:
            values[name] = tensor
            values[f"{name}_stride"] = size_n
            values.update({f"{name}_batch{axis}": 0 for axis in range(BATCH_DIMS)})
        binder.step(
            emit_block_product,
            spec,
            [values[name] for name in argument_names(spec)],
            reads=(words, a_scales, a_sums, panels, steps, origins, *operands),
            writes=results,
            chunks=-(-rows // row_block) * -(-count // group),
            scratch=spec.rows * panel * WORD,
            flops=2.0 * rows * size_n * size_k,
            detail=f"{rows}x{size_k}x{size_n}, {bits} bits in blocks of {block}, {group} panels a chunk",
            arithmetic="int8",
        )
        return results


def _check(a: Tensor, b: Tensor, scales: Tensor, size_k: int, size_n: int, blocks: int, blob: int) -> None:
    """ValueError where the inputs do not hold what the attributes say."""
    if not a.shape or a.shape[-1] != size_k:
        raise ValueError(f"the last dimension of input 'A' must be {size_k}, got shape {a.shape}")
    if b.size != size_n * blocks * blob:
        raise ValueError(f"input 'B' of shape {b.shape} does not hold {size_n} x {blocks} blocks of {blob} bytes")
    if scales.size != size_n * blocks:
        raise ValueError(f"input 'scales' must have {size_n} x {blocks} elements, got shape {scales.shape}")


def _named(stem: str, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"{stem}{index}", tensor) for index, tensor in enumerate(tensors)]


def _as_bytes(
    binder: Binder, a: Tensor, spec: BlockProductSpec, rows: int, size_k: int, blocks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the step that turns rows into bytes: their words, and the scales and sums of their blocks."""
    a = contiguous(binder, a)
    words = binder.new(_I32, (rows, blocks * spec.block // WORD))
    scales = binder.new(_F32, (rows, blocks))
    sums = binder.new(_F32 if spec.has_zeros else _I32, (rows, blocks))
    per_chunk = max(1, _CONVERTED // size_k)
    binder.step(
        emit_byte_blocks,
        ByteBlocksSpec(a.dtype.name, spec.block, spec.per_byte, None if spec.has_zeros else 1 << (spec.bits - 1)),
        [a, size_k, rows, per_chunk, size_k, blocks, words, scales, sums],
        reads=(a,),
        writes=(words, scales, sums),
        chunks=-(-rows // per_chunk),
        flops=4.0 * rows * size_k,
    )
    return words, scales, sums


def _columns_of_words(binder: Binder, columns: int, packed: Array) -> Array:
    """Panels of the weights' words, [K in words, columns]; float32 stands for any 32 bits."""
    words = np.ascontiguousarray(packed).reshape(columns, -1).view(_F32)
    return pack_b(binder.library, words.T, "f32")


def _columns_of_floats(binder: Binder, columns: int, blocks: int, parameters: Array) -> Array:
    """Panels of a number for each block of a column."""
    return pack_b(binder.library, np.ascontiguousarray(parameters, _F32).reshape(columns, blocks).T, "f32")


def _origins(binder: Binder, columns: int, blocks: int, bits: int, zeros: Array) -> Array:
    """Panels of the zero points, which are packed like the weights, each column for itself, or real numbers."""
    if zeros.dtype == _U8:
        zeros = unpack(zeros.reshape(columns, -1), bits)[:, :blocks]
    return _columns_of_floats(binder, columns, blocks, zeros.astype(_F32))
