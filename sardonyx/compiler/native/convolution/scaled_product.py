"""A convolution 1x1 over channels that are scaled first, each by one number: its filters are scaled instead.

That is how squeeze-and-excitation ends. Scaling the map would read and write it once more; where a map has many places,
the filters are far less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import packed_words, panel_columns
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.window_copies import columns, multiply_rows
from sardonyx.compiler.native.products.packed_constants import Packed
from sardonyx.kernel.expr import Apply, Expr, Input

_FLOAT32 = np.dtype(np.float32)

# Scaling a word of a filter costs so much more than one of a map: rows with one factor are as short as a panel.
_SHORT_ROWS = 3


def is_scaling(made: Sequence[Expr]) -> bool:
    """Whether a loop multiplies one input by another one, both float32."""
    if len(made) != 1 or not isinstance(made[0], Apply) or made[0].primitive != "multiply":
        return False
    factors = made[0].args
    both = all(isinstance(one, Input) and one.dtype == _FLOAT32 for one in factors)
    return both and {one.index for one in factors if isinstance(one, Input)} == {0, 1}


def map_and_scale(inputs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor] | None:
    """The map [batch, channels, *sizes] and the scale [batch, channels, 1, ...] among two factors, if they are that."""
    x, scale = sorted((one for one in inputs if one is not None), key=lambda one: -one.size)
    ones = (1,) * (len(x.shape) - 2)
    return (x, scale) if len(x.shape) > 2 and scale.shape == (*x.shape[:2], *ones) else None


def pays(binder: Binder, call: ConvolutionCall) -> bool:
    """Whether the filters of a convolution 1x1 that is computed as one product are fewer than what they multiply.

    The call is for one item of a batch.
    """
    if call.taps > 1 or call.group > 1 or call.windows.size != call.windows.output or not call.is_channels_last:
        return False
    if not call.has_constant_weights or call.product != "f32" or 0 in call.result_shape:
        return False
    return _SHORT_ROWS * packed_words(binder.target, "f32", call.channels, call.filters) < call.x.size


def bind(binder: Binder, call: ConvolutionCall, scale: Tensor) -> Sequence[Tensor]:
    """Add the steps of a call over the map that is not scaled yet, and give the outputs in ONNX's order."""
    panels = columns(binder, call, True, "f32")
    assert isinstance(panels, Packed)
    panel, channels = panel_columns(binder.target, "f32", call.filters), call.channels
    words = panels.words.reshaped((1, panels.words.size // (channels * panel), channels, panel))
    factors = scale.reshaped((call.batch, 1, channels, 1), (scale.strides[0], 0, scale.strides[1], 0))
    scaled = binder.new(_FLOAT32, (call.batch, *words.shape[1:]))
    product = Input(_FLOAT32, 0) * Input(_FLOAT32, 1)
    PointwiseKernel((product,), (_FLOAT32, _FLOAT32)).bind_into(binder, [words, factors], [scaled])
    b = Packed(scaled.reshaped((scaled.size,)), (call.batch, *panels.shape))
    return multiply_rows(binder, replace(call, product="f32"), b)
