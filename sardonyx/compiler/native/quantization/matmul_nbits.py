"""MatMulNBits while binding: weights packed in panels of words, rows as bytes with a scale for each block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import asks_ahead, panel_columns, panels_of, tile_shape
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, TileEpilogue
from sardonyx.compiler.llvm.kernels.quantization.block_product import (
    BlockProductSpec,
    argument_names,
    emit_block_product,
)
from sardonyx.compiler.llvm.kernels.quantization.byte_blocks import WORD, ByteBlocksSpec, emit_byte_blocks
from sardonyx.compiler.llvm.kernels.quantization.unpacked_product import (
    PANEL_ARGUMENTS,
    RAISED,
    RealPanelsSpec,
    UnpackedProductSpec,
    emit_real_panels,
    emit_unpacked_product,
)
from sardonyx.compiler.llvm.kernels.quantization.unpacked_product import argument_names as unpacked_names
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.compiler.native.products.matmul import ProductShape, add_product, as_matrix
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.compiler.native.quantization.epilogues import as_matrix_operands, joined_epilogue
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.light_dataclass import dataclass
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
_LINE = 64
# Rows that meet weights in registers, where there are many; and rows from which on weights are made real all at once,
# of so many bytes at most.
_FEW_ROWS, _MANY_REGISTERS = 4, 32
_ROWS_OF_WHOLE, _MOST_WHOLE = 96, 64 << 20
# Elements that one chunk turns into bytes.
_CONVERTED = 8192


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights of `k` x `n` in blocks, and their parameters, in panels."""

    k: int
    n: int
    bits: int
    block: int
    panels: Tensor
    scales: Tensor
    zeros: Tensor | None
    has_real_zeros: bool

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @property
    def all_read(self) -> tuple[Tensor, ...]:
        return (self.panels, self.scales, *([] if self.zeros is None else [self.zeros]))

    @property
    def arguments(self) -> dict[str, Argument]:
        """Those of kernels."""
        zeros = self.zeros or self.scales
        return {"b": self.panels, "scales": self.scales, "zeros": zeros, "blocks": self.blocks}

    def group(self, panel: int) -> int:
        """Panels of a chunk of about equal bytes."""
        words = self.blocks * (self.block * self.bits // 32 + len(self.all_read) - 1)
        count = panels_of(self.n, panel)
        return -(-count // -(-count // max(1, _CHUNK_BYTES // (words * panel * WORD))))


@dataclass(frozen=True, eq=False)
class _Call:
    """A product of `rows` rows by weights whose sizes fit together."""

    weights: _Weights
    rows: int
    epilogue: TileEpilogue
    operands: Sequence[Tensor]
    results: Sequence[Tensor]

    @property
    def k(self) -> int:
        return self.weights.k

    @property
    def n(self) -> int:
        return self.weights.n

    def cut(self, panel: int, most_rows: int) -> dict[str, int]:
        """The arguments that say how the work is divided."""
        row_block = min(self.rows, most_rows)
        row_blocks = -(-self.rows // row_block)
        return {"row_block": row_block, "row_blocks": row_blocks, "group": self.weights.group(panel)}

    def arguments(self, cut: Mapping[str, int]) -> dict[str, Argument]:
        values = self.weights.arguments
        values |= {"m": self.rows, "n": self.n, "k": self.k, **cut}
        for stem, tensors in (("operand", self.operands), ("output", self.results)):
            for index, tensor in enumerate(tensors):
                values |= {f"{stem}{index}": tensor, f"{stem}{index}_stride": self.n}
                values |= {f"{stem}{index}_batch{axis}": 0 for axis in range(BATCH_DIMS)}
        return values

    def chunks(self, cut: Mapping[str, int], panel: int) -> int:
        return cut["row_blocks"] * -(-panels_of(self.n, panel) // cut["group"])

    @property
    def detail(self) -> str:
        return f"{self.rows}x{self.k}x{self.n}, {self.weights.bits} bits in blocks of {self.weights.block}"


@template("matmul_nbits")
class MatMulNBitsKernel(NativeKernel):
    """A times the transpose of a weight of `bits` bits, plus a bias.

    Parameters: `K`, `N`, `bits`, `block_size`, `accuracy_level`, and `weight`, which makes the real weight of B,
    scales, zero points and group indices. Inputs: A, these four, bias.
    """

    takes_epilogue = True
    known_inputs = (1, 2, 3, 4)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._real: tuple[Array, Array] | None = None

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, b = inputs[0], inputs[1]
        if a is None or a.dtype is None or numpy_dtype(a.dtype).name not in _FLOATS:
            return "only rows of float32, float16 and bfloat16"
        if b is None or b.dtype is None or numpy_dtype(b.dtype) != _U8:
            return "only weights packed in bytes"
        if self.parameters["bits"] not in (2, 4, 8) or self.parameters["block_size"] not in (16, 32, 64, 128, 256):
            return "only 2, 4 and 8 bits in blocks of 16 to 256"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        a, b, scales, zeros, groups, bias = (*inputs, None, None, None, None)[:6]
        assert a is not None
        assert b is not None
        assert scales is not None
        size_k, size_n, bits, block = (self.parameters[name] for name in ("K", "N", "bits", "block_size"))
        blocks = -(-size_k // block)
        _check(a, b, scales, size_k, size_n, blocks, block * bits // 8)
        result: Expr = Input(a.dtype, 0)
        operands: list[Tensor] = []
        if bias is not None:
            operands.append(bias.reshaped((bias.size,)))
            result = result + Input(bias.dtype, 1)
        if groups is not None and not np.array_equal(_contents(groups)[:size_k], np.arange(size_k) // block):
            real = self._real_panels(binder, b, scales, zeros, groups)
            return self._with_real_weights(binder, a, real, result, operands, epilogue)
        shape, library = (*a.shape[:-1], size_n), binder.library
        takes_bytes = self.parameters["accuracy_level"] == _BYTES
        raised = 0.0 if takes_bytes else RAISED
        weights = _Weights(
            k=size_k,
            n=size_n,
            bits=bits,
            block=block,
            panels=binder.derived(b, ("words", size_n), partial(_columns_of_words, library, size_n)),
            scales=binder.derived(scales, ("blocks", size_n), partial(_columns_of_floats, library, size_n, blocks)),
            zeros=None
            if zeros is None
            else binder.derived(
                zeros, ("zeros", size_n, bits, raised), partial(_origins, library, size_n, blocks, bits, raised)
            ),
            has_real_zeros=zeros is not None and zeros.dtype != _U8,
        )
        if not takes_bytes and _is_worth_whole(binder, a, weights):
            real = _real_weights(binder, weights)
            return self._with_real_weights(binder, a, real, result, operands, epilogue)
        outputs, operands = joined_epilogue(result, operands, epilogue)
        results = [binder.new(output.dtype, shape) for output in outputs]
        if math.prod(shape) == 0:
            return results
        kinds, operands = as_matrix_operands(binder, operands, shape)
        call = _Call(weights, math.prod(a.shape[:-1]), TileEpilogue(kinds, outputs), operands, results)
        if takes_bytes:
            _multiply_bytes(binder, a, call)
        else:
            _multiply_real(binder, a, call)
        return results

    @staticmethod
    def _with_real_weights(
        binder: Binder, a: Tensor, weights: Packed, result: Expr, operands: list[Tensor], epilogue: Epilogue | None
    ) -> Sequence[Tensor]:
        """The steps of an ordinary product."""
        left = as_matrix(a, vector="row")
        shape = ProductShape(left.shape[:-2], left.shape[-2], weights.shape[-1], len(a.shape) > 1, True)
        product = product_of(a.dtype)
        assert product is not None
        return add_product(binder, shape, left, weights, result, operands, epilogue, product)

    def _real_panels(self, binder: Binder, b: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor) -> Packed:
        """The real weight in panels, for columns whose blocks lie in an order of their own."""
        source = _contents(b)
        if self._real is None or self._real[0] is not source:
            points = None if zeros is None else _contents(zeros)
            weight = self.parameters["weight"](source, _contents(scales), points, _contents(groups))
            self._real = source, pack_b(binder.library, np.ascontiguousarray(weight, _F32).T, "f32")
        return Packed(binder.constant(self._real[1]), (self.parameters["K"], self.parameters["N"]))


def _contents(tensor: Tensor) -> Array:
    assert tensor.array is not None
    return tensor.array


def _multiply_bytes(binder: Binder, a: Tensor, call: _Call) -> None:
    """Add the steps of a product whose rows are rounded to bytes, block by block."""
    target, weights = binder.target, call.weights
    spec = BlockProductSpec(
        bits=weights.bits,
        block=weights.block,
        has_zeros=weights.zeros is not None,
        rows=4 if target.registers >= 32 else 2,
        vectors=tile_shape(target).vectors,
        ahead=_AHEAD if asks_ahead(target) else 0,
        epilogue=call.epilogue,
    )
    rows = _as_bytes(binder, a, spec, call.rows, call.k, weights.blocks)
    panel = panel_columns(target)
    cut = call.cut(panel, _CHUNK_ROWS)
    values = call.arguments(cut) | dict(zip(("a", "a_scales", "a_sums"), rows, strict=True))
    binder.step(
        emit_block_product,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(*rows, *weights.all_read, *call.operands),
        writes=call.results,
        chunks=call.chunks(cut, panel),
        scratch=spec.rows * panel * WORD,
        flops=2.0 * call.rows * call.n * call.k,
        detail=call.detail,
        arithmetic="int8",
    )


def _multiply_real(binder: Binder, a: Tensor, call: _Call) -> None:
    """Add the steps of a product in float32, of weights that are unpacked panel by panel."""
    target, weights = binder.target, call.weights
    tile = tile_shape(target)
    few = _FEW_ROWS if target.registers >= _MANY_REGISTERS else _FEW_ROWS // 2
    stored = call.rows > few or call.k % weights.block != 0
    rows = tile.rows if stored else min(few, call.rows)
    spec = UnpackedProductSpec(
        bits=weights.bits,
        block=weights.block,
        has_zeros=weights.zeros is not None,
        rows=rows,
        vectors=tile.vectors,
        stored=stored,
        has_real_zeros=weights.has_real_zeros,
        epilogue=call.epilogue,
    )
    a = contiguous(binder, a)
    if a.dtype != _F32:
        (a,) = PointwiseKernel([Input(a.dtype, 0).cast(_F32)], [a.dtype]).bind(binder, [a])
    panel = panel_columns(target)
    cut = call.cut(panel, max(_CHUNK_ROWS, call.rows))
    tile_bytes = -(-spec.rows * panel * WORD // _LINE) * _LINE
    values = call.arguments(cut) | {"a": a, "unpacked": tile_bytes}
    binder.step(
        emit_unpacked_product,
        spec,
        [values[name] for name in unpacked_names(spec)],
        reads=(a, *weights.all_read, *call.operands),
        writes=call.results,
        chunks=call.chunks(cut, panel),
        scratch=tile_bytes + (weights.blocks * weights.block * panel * WORD if stored else 0),
        flops=2.0 * call.rows * call.n * call.k,
        detail=call.detail,
    )


def _is_worth_whole(binder: Binder, a: Tensor, weights: _Weights) -> bool:
    """Whether the weights are made real all at once, so that the product may multiply less: where rows are so many that
    writing and reading them costs little, and the memory that they take for a while is bounded."""
    if a.dtype != _F32 or weights.k % weights.block or not binder.settings.fast_products:
        return False
    if panel_columns(binder.target) != panel_columns(binder.target, "f32", weights.n):
        return False
    return math.prod(a.shape[:-1]) >= _ROWS_OF_WHOLE and weights.k * weights.n * WORD <= _MOST_WHOLE


def _real_weights(binder: Binder, weights: _Weights) -> Packed:
    """Add the step that makes weights real, as an ordinary product reads them."""
    tile, panel = tile_shape(binder.target), panel_columns(binder.target)
    count, group = panels_of(weights.n, panel), weights.group(panel)
    real = binder.new(_F32, (count * panel * weights.k,))
    values = weights.arguments | {"group": group, "panels": count, "real": real}
    binder.step(
        emit_real_panels,
        RealPanelsSpec(weights.bits, weights.block, weights.zeros is not None, tile.vectors, weights.has_real_zeros),
        [values[name] for name in PANEL_ARGUMENTS],
        reads=weights.all_read,
        writes=(real,),
        chunks=-(-count // group),
        flops=2.0 * weights.k * weights.n,
        detail=f"{weights.k}x{weights.n}, {weights.bits} bits in blocks of {weights.block}",
    )
    return Packed(real, (weights.k, weights.n))


def _check(a: Tensor, b: Tensor, scales: Tensor, size_k: int, size_n: int, blocks: int, blob: int) -> None:
    """ValueError where the inputs do not hold what the attributes say."""
    if not a.shape or a.shape[-1] != size_k:
        raise ValueError(f"the last dimension of input 'A' must be {size_k}, got shape {a.shape}")
    if b.size != size_n * blocks * blob:
        raise ValueError(f"input 'B' of shape {b.shape} does not hold {size_n} x {blocks} blocks of {blob} bytes")
    if scales.size != size_n * blocks:
        raise ValueError(f"input 'scales' must have {size_n} x {blocks} elements, got shape {scales.shape}")


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


def _columns_of_words(library: KernelLibrary, columns: int, packed: Array) -> Array:
    """Panels of the weights' words, [K in words, columns]; float32 stands for any 32 bits."""
    words = np.ascontiguousarray(packed).reshape(columns, -1).view(_F32)
    return pack_b(library, words.T, "f32", panel_columns(library.target))


def _columns_of_floats(library: KernelLibrary, columns: int, blocks: int, parameters: Array) -> Array:
    """Panels of a number for each block of a column."""
    by_blocks = np.ascontiguousarray(parameters, _F32).reshape(columns, blocks).T
    return pack_b(library, by_blocks, "f32", panel_columns(library.target))


def _origins(library: KernelLibrary, columns: int, blocks: int, bits: int, raised: float, zeros: Array) -> Array:
    """Panels of the zero points, which are packed like the weights, each column for itself, and `raised`; or of real
    numbers."""
    if zeros.dtype == _U8:
        zeros = unpack(zeros.reshape(columns, -1), bits)[:, :blocks] + np.float32(raised)
    return _columns_of_floats(library, columns, blocks, zeros.astype(_F32))
