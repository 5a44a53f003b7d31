"""LSTMs with weights of bytes while binding: X is quantised and multiplied for all time steps at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.recurrent.layer import Gates, Layer, Quantized, Sizes, is_constant
from sardonyx.compiler.kernels.recurrent.quantized_states import WORD, Quantization
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.integer_matmul import OFFSET, signed
from sardonyx.compiler.native.quantization.scaled_products import DynamicQuantizeMatMulKernel
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.expr import Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.microsoft.dynamic_quantize_lstm import check_quantized_shapes
from sardonyx.ops.quantization import quantized, range_parameters
from sardonyx.runtime.memory.constant_memory import constant_empty

_F32, _I32, _U8 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)
_PARAMETERS = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")


@template("dynamic_quantize_lstm")
class DynamicQuantizeLSTMKernel(NativeKernel):
    """An LSTM of X in float32, with the parameters of `RecurrentKernel` and the inputs of DynamicQuantizeLSTM."""

    known_inputs = (1, 2, 8, 9, 10, 11)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._product = DynamicQuantizeMatMulKernel({})
        low, high = (Input(_F32, index) for index in range(2))
        x, scale, zero = (Input(_F32, index) for index in range(3))
        byte = quantized(x / scale, zero, _U8)
        self._quantization = Quantization(canonical(range_parameters(low, high)), canonical([byte]))

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        return None if x is not None and x.dtype == ir.DataType.FLOAT else "only sequences of float32"

    def bind(
        self, binder: Binder, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, *others: Tensor | None
    ) -> Sequence[Tensor | None]:
        *more, w_scale, w_zero, r_scale, r_zero = others
        given = dict(zip(_PARAMETERS, (w_scale, w_zero, r_scale, r_zero), strict=True))
        parameters = {name: tensor for name, tensor in given.items() if tensor is not None}
        shapes = {name: tensor.shape for name, tensor in parameters.items()}
        cells, hidden = self.parameters["cells"], self.parameters["hidden_size"]
        check_quantized_shapes(len(cells), hidden, x.shape, w.shape, r.shape, shapes)
        layer = Layer(binder, self.parameters, x.shape, r.shape[1], _F32)

        def gates() -> Gates:
            units, sizes = layer.block_units, layer.sizes
            panels = binder.derived(r, ("recurrent panels", units), lambda array: _panels(array, sizes, units))
            return Gates(
                self._projected(layer, x, w, bias, parameters), [panels], None, self._states(layer, r, parameters)
            )

        return layer.bind(x.dtype, bias, more, gates)

    def _projected(
        self, layer: Layer, x: Tensor, w: Tensor, bias: Tensor | None, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        """X W + all biases, from X as bytes."""
        binder, result = layer.binder, layer.new_projected()
        directions, rows, columns = result.shape
        shape = directions, 1, columns

        def of_columns(name: str) -> Tensor:
            return binder.derived(
                parameters[name], ("of columns", shape), lambda array: _spread(array, directions, columns)[:, None]
            )

        scale, zero = of_columns("W_scale"), of_columns("W_zero_point")
        left = contiguous(binder, x).reshaped((rows, layer.sizes.width))
        both = None if bias is None else _biases(layer, bias).reshaped(shape)
        self._product.bind(binder, left, w, scale, zero, both, into=result)
        return result

    def _states(self, layer: Layer, r: Tensor, parameters: Mapping[str, Tensor]) -> Quantized:
        """The bytes of the hidden state, and what is known of R's columns."""
        binder, sizes = layer.binder, layer.sizes

        def rows(tensor: Tensor, name: str, make: Any) -> Tensor:
            return binder.derived(tensor, (name, sizes.row, sizes.hidden), lambda array: _rows(make(array), sizes))

        return Quantized(
            self._quantization,
            binder.new(_U8, (sizes.directions, sizes.batch, sizes.row)),
            binder.new(_I32, (sizes.directions, 2 + sizes.batch)),
            rows(r, "sums of columns", lambda array: signed(array).sum(axis=1, dtype=np.int32)),
            rows(
                parameters["R_zero_point"],
                "zero points",
                lambda array: array.astype(np.int32) - OFFSET * (array.dtype == _U8),
            ),
            rows(parameters["R_scale"], "scales", lambda array: array),
        )


def _spread(array: Array, directions: int, columns: int) -> Array:
    """A parameter of each direction, or of each of its columns, for every column."""
    return np.ascontiguousarray(np.broadcast_to(array.reshape(directions, -1), (directions, columns)))


def _rows(array: Array, sizes: Sizes) -> Array:
    """The same as rows of units, [directions, gates, row]."""
    wide = _spread(array, sizes.directions, sizes.gates * sizes.hidden)
    result = np.zeros((sizes.directions, sizes.gates, sizes.row), array.dtype)
    result[..., : sizes.hidden] = wide.reshape(sizes.directions, sizes.gates, sizes.hidden)
    return result


def _panels(array: Array, sizes: Sizes, units: int) -> Array:
    """R as signed bytes, [directions, blocks, words of hidden units, gates, units of a block, bytes of a word]."""
    words = -(-sizes.hidden // WORD)
    rows = np.zeros((sizes.directions, words * WORD, sizes.gates, sizes.row), np.int8)
    shape = (sizes.directions, sizes.hidden, sizes.gates, sizes.hidden)
    rows[:, : sizes.hidden, :, : sizes.hidden] = signed(array).reshape(shape)
    blocks = rows.reshape(sizes.directions, words, WORD, sizes.gates, sizes.unit_blocks, units)
    result = constant_empty(rows.size, np.dtype(np.int8)).reshape(
        sizes.directions, sizes.unit_blocks, words, sizes.gates, units, WORD
    )
    result[...] = blocks.transpose(0, 4, 1, 3, 5, 2)
    return result


def _biases(layer: Layer, bias: Tensor) -> Tensor:
    """The sums of both halves of B, [directions, gates, hidden]; computed once where it is constant."""
    if is_constant(bias):
        half = bias.shape[1] // 2
        return layer.binder.derived(bias, "sums of biases", lambda array: array[:, :half] + array[:, half:])
    halves = [bias.reshaped(*layer.half(bias, which)[1:]) for which in range(2)]
    total = Input(bias.dtype, 0) + Input(bias.dtype, 1)
    return PointwiseKernel([total], [bias.dtype, bias.dtype]).bind(layer.binder, halves)[0]
