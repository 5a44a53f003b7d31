"""RNN, GRU and LSTM while binding: the product with X for all time steps at once, then the loop over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import row_step
from sardonyx.compiler.kernels.recurrent.layer import HALVES, Gates, Layer, element_type, is_constant
from sardonyx.compiler.kernels.recurrent.unit_rows import PanelsSpec, emit_recurrent_panels
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.types import BF16
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.inner_products import by_constant, product_of
from sardonyx.compiler.native.products.packed_constants import Packed, in_panels
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.recurrent import check_shapes
from sardonyx.ops.recurrent_cells import Cell, Stage
from sardonyx.runtime.memory.constant_memory import constant_empty

# Rows of X that find room in one set of the nearest cache.
_LINES_OF_A_SET = 8


@template("recurrent")
class RecurrentKernel(NativeKernel):
    """A recurrent layer.

    Parameters: ``cells``, the time step of each direction; ``backwards`` for each of them; ``batch_first``, whether the
    batch is the first axis; ``hidden_size``, how many units there are to be, or None; ``outputs``, which of Y and the
    last states are wanted.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        dtype = None if x is None or x.dtype is None else numpy_dtype(x.dtype)
        if dtype is None or product_of(dtype) is None:
            return f"no kernel for recurrent layers of {dtype}"
        lengths = inputs[4] if len(inputs) > 4 else None
        if lengths is not None and lengths.dtype != ir.DataType.INT32:
            return "sequence lengths are int32"
        return None

    def bind(
        self, binder: Binder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None, *others: Tensor | None
    ) -> Sequence[Tensor | None]:
        cells: tuple[Cell, ...] = self.parameters["cells"]
        check_shapes(len(cells), cells[0].gates, self.parameters["hidden_size"], x.shape, w.shape, r.shape)
        layer = Layer(binder, self.parameters, x.shape, r.shape[2], working_dtype(x.dtype))

        halves = _keeps_halves(binder, x.dtype)

        def gates() -> Gates:
            return Gates(
                _projected(layer, x, w, bias),
                [_panels(layer, r, stage, halves) for stage in cells[0].stages],
                None if bias is None else layer.wide_rows(*layer.half(bias, 1), layer.sizes.row),
            )

        return layer.bind(x.dtype, bias, others, gates)


def _projected(layer: Layer, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """X W' + the biases of the input."""
    binder, sizes = layer.binder, layer.sizes
    result = layer.new_projected()
    _, rows, columns = result.shape
    value: Expr = Input(x.dtype, 0).cast(layer.working)
    operands = []
    if bias is not None:
        first = _input_biases(layer, bias)
        across, _, along = first.strides
        value = value + Input(first.dtype, 1)
        operands.append(first.reshaped((sizes.directions, 1, columns), (across, along, along)))
    product = product_of(x.dtype, binder.target, binder.settings.precision)
    assert product is not None
    if is_constant(w):
        product = by_constant(binder, product, rows, columns, sizes.width)
    left = _rows_of_input(layer, x, product)
    multiply(binder, left, _weights(binder, w, product), (value,), operands, [result], product)
    return result


def _rows_of_input(layer: Layer, x: Tensor, product: str) -> Tensor:
    """X as rows; copied where those of a product's tile would share one set of the nearest cache.

    What `spread_rows` does for results of products is worth a copy here, as the columns of all gates read it.
    """
    rows, width = layer.sizes.steps * layer.sizes.batch, layer.sizes.width
    given = contiguous(layer.binder, x)
    room = row_step(width)
    if product != "f32" or room == width or rows <= _LINES_OF_A_SET:
        return given.reshaped((rows, width))
    wide = layer.wide_rows(given, (1, rows, width), (rows * width, width, 1), 0, room)
    return wide.reshaped((rows, width), (room, 1))


def _weights(binder: Binder, w: Tensor, product: str) -> Tensor | Packed:
    """W with the gates as columns, in panels where it is constant."""
    directions, columns, width = w.shape
    shape, strides = (directions, width, columns), (w.strides[0], w.strides[2], w.strides[1])
    if not is_constant(w):
        return w.reshaped(shape, strides)

    def matrices(array: Array) -> Array:
        return array.swapaxes(1, 2)

    return in_panels(binder, w, "gates in columns", matrices, product, shape)


def _input_biases(layer: Layer, bias: Tensor) -> Tensor:
    """The first half of B as working numbers, [directions, gates, hidden], the last two axes contiguous."""
    given, shape, strides, offset = layer.half(bias, 0)
    if strides[2] == 1 and bias.dtype == layer.working:
        return bias.reshaped(shape, strides, offset)
    return layer.wide_rows(given, shape, strides, offset, shape[2])


def _keeps_halves(binder: Binder, dtype: np.dtype[np.generic]) -> bool:
    """Whether R is kept as bfloat16: it is given so, or products of float32 are computed from that."""
    product = product_of(dtype, binder.target, binder.settings.precision)
    return dtype == HALVES or (product is not None and PRODUCTS[product].packed_b == BF16)


def _panels(layer: Layer, r: Tensor, stage: Stage, halves: bool) -> Tensor:
    """The rows of R for the gates of a stage, in panels; packed once where R is constant."""
    binder, sizes = layer.binder, layer.sizes
    panel = sizes.hidden * stage.count * layer.block_units
    count = sizes.directions * sizes.unit_blocks
    spec = PanelsSpec(element_type(r.dtype), element_type(layer.working), halves)
    kept = HALVES if halves else layer.working
    numbers = [sizes.unit_blocks, sizes.hidden, sizes.gates, stage.first, stage.count, panel]
    if is_constant(r):
        make = partial(_packed, binder.library, spec, numbers, count, kept)
        return binder.derived(r, ("recurrent panels", stage.first, stage.count, spec), make)
    source, result = contiguous(binder, r), binder.new(kept, (count, panel))
    binder.step(
        emit_recurrent_panels, spec, [source, result, *numbers], reads=(source,), writes=(result,), chunks=count
    )
    return result


def _packed(
    library: KernelLibrary,
    spec: PanelsSpec,
    numbers: Sequence[int],
    count: int,
    kept: np.dtype[np.generic],
    array: Array,
) -> Array:
    """The panels of a constant R."""
    panels = constant_empty(count * numbers[-1], kept)
    library.run(emit_recurrent_panels, spec, (np.ascontiguousarray(array), panels, *numbers), count)
    return panels
