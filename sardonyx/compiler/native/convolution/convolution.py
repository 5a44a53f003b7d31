"""Convolution: the template, and the choice of an algorithm.

To add an algorithm, write a file with an `Algorithm` (see `algorithm`): a function that predicts its time for a call,
None where it cannot do it, and one that binds it; put it into `ALGORITHMS`. What a call holds, and how results,
operands and the epilogue look to an algorithm, is in `convolution_call`. The least predicted time wins, the first of
equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import ROWS_OF_PARTS, repays_tiles
from sardonyx.compiler.kernels.template import Epilogue, JointKernel, NativeKernel, Part, template
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution import bands, scaled_product
from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall, one_item
from sardonyx.compiler.native.convolution.depthwise import DEPTHWISE
from sardonyx.compiler.native.convolution.group_runs import GROUP_RUNS
from sardonyx.compiler.native.convolution.line_products import LINE_PRODUCTS
from sardonyx.compiler.native.convolution.line_sums import LINE_SUMS
from sardonyx.compiler.native.convolution.run_products import RUN_PRODUCTS
from sardonyx.compiler.native.convolution.window_copies import WINDOW_COPIES
from sardonyx.compiler.native.convolution.window_products import WINDOW_PRODUCTS
from sardonyx.compiler.native.convolution.winograd_calls import WINOGRAD
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.products.inner_products import allows_parts, product_of, products_reason
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.windows import WindowAttributes

ALGORITHMS: tuple[Algorithm, ...] = (
    WINDOW_COPIES,
    WINDOW_PRODUCTS,
    GROUP_RUNS,
    LINE_PRODUCTS,
    LINE_SUMS,
    RUN_PRODUCTS,
    WINOGRAD,
    DEPTHWISE,
)
# Those whose products may be in tiles of AMX, three parts for each number.
IN_PARTS: tuple[Algorithm, ...] = (WINDOW_COPIES, RUN_PRODUCTS, WINOGRAD)
# Those that take an input that is rounded to what a session's coarser products multiply.
OF_WORDS: tuple[Algorithm, ...] = (WINDOW_COPIES, WINDOW_PRODUCTS, RUN_PRODUCTS, DEPTHWISE)


@template("convolution")
class ConvolutionKernel(NativeKernel):
    """activation(Conv(x, w, bias?) + addend?), and an epilogue.

    Parameters: `group`, and `attributes`, from the kernel's sizes to its `WindowAttributes`; if they are there also
    `activation`, a function of an expression, `channels_last`, whether x, the addend and the result have their channels
    at the end, and `weights`, a key and a function that puts stored weights into ONNX's order.
    """

    takes_epilogue = True
    is_depthwise = is_pointwise = False
    writes_slices = reads_slices = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]
        self.channels_last: bool = parameters.get("channels_last", False)
        if "weights" in parameters:
            self.known_inputs = (1,)
        if self.channels_last:
            self.writes_slices = self.reads_slices = False

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        w = inputs[1]
        shape = None if w is None or w.shape is None else tuple(w.shape)
        self.is_depthwise = shape is not None and shape[:2] == (self.group, 1)
        self.is_pointwise = shape is not None and all(size == 1 for size in shape[2:])
        return products_reason(inputs[:2])

    def rounds(self, target: Target) -> tuple[int, ...]:
        # Tiles are so much faster than what reads float32 that they take all convolutions over all channels; windows
        # over single channels wait for memory. By vectors larger windows may be computed by what reads float32.
        if target.has_amx:
            return (0,) if self.group == 1 or self.is_depthwise else ()
        return (0,) if self.group == 1 and self.is_pointwise else ()

    def rounds_operands(self, target: Target) -> bool:
        return True

    def bind(
        self,
        binder: Binder,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        addend: Tensor | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> Sequence[Tensor | None]:
        results = convolve(binder, self.call_of(binder, x, w, bias, addend, epilogue=epilogue))
        return [_channels_at_end(tensor) for tensor in results] if self.channels_last else results

    def after(self, earlier: NativeKernel, made: Sequence[Expr], outputs: Sequence[Expr]) -> JointKernel | None:
        if not isinstance(earlier, ConvolutionKernel) or earlier.channels_last or self.channels_last:
            return None
        if earlier.group > 1 or self.group == 1 or not bands.takes(made, outputs):
            return None
        return ConvolutionPair(earlier, self)

    def over(self, made: Sequence[Expr]) -> JointKernel | None:
        if self.channels_last or self.group > 1 or not scaled_product.is_scaling(made):
            return None
        return ScaledConvolution(self)

    def call_of(
        self,
        binder: Binder,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        addend: Tensor | None = None,
        *,
        epilogue: Epilogue | None = None,
    ) -> ConvolutionCall:
        """The call for the node's inputs; ValueError where their shapes do not fit."""
        if "weights" in self.parameters:
            key, ordered = self.parameters["weights"]
            w = binder.derived(w, key, ordered)
        if self.channels_last:
            x = _channels_second(x)
        return self.call(binder, x, w, bias, self._whole_epilogue(len(x.shape), w.dtype, addend, epilogue))

    def _whole_epilogue(
        self, rank: int, dtype: np.dtype[Any], addend: Tensor | None, epilogue: Epilogue | None
    ) -> Epilogue | None:
        """The addend, the activation and what follows them, for a result of this rank in ONNX's order."""
        activation = self.parameters.get("activation")
        own: Expr = Input(dtype, 0)
        operands = [] if addend is None else [addend]
        if addend is not None:
            own = own + Input(addend.dtype, 1)
        if activation is not None:
            own = activation(own)
        outputs: Sequence[Expr] = (own,)
        if epilogue is not None:
            first = len(operands)

            def replaced(leaf: Input) -> Expr:
                return own if leaf.index == 0 else Input(leaf.dtype, leaf.index + first)

            outputs = substitute(epilogue.outputs, replaced)
            operands.extend(epilogue.operands)
        elif addend is None and activation is None:
            return None
        if self.channels_last:
            operands = [_channels_second(_with_rank(tensor, rank)) for tensor in operands]
        return Epilogue(tuple(outputs), tuple(operands))

    def call(
        self, binder: Binder, x: Tensor, w: Tensor, bias: Tensor | None, epilogue: Epilogue | None
    ) -> ConvolutionCall:
        """The call; ValueError where the shapes do not fit."""
        rank, group = len(x.shape), self.group
        fits = rank == len(w.shape) and rank > 2
        if not fits or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
            raise ValueError(f"input {x.shape} and weights {w.shape} with group {group} do not fit")
        if bias is not None and bias.shape != w.shape[:1]:
            raise ValueError(f"the bias has the shape {bias.shape}, but there are {w.shape[0]} filters")
        product = product_of(w.dtype, binder.target, binder.settings.precision)
        assert product is not None
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        return ConvolutionCall(x, w, bias, windows, group, epilogue, product)


class ConvolutionPair:
    """Two convolutions of which the second reads what the first makes, in one step: see `bands`."""

    def __init__(self, first: ConvolutionKernel, second: ConvolutionKernel) -> None:
        self.first, self.second = first, second

    def pays(self, binder: Binder, first: Part, second: Part) -> bool:
        expand = one_item(_call_of(self.first, binder, first))
        windows = self._windows(binder, expand, second)
        joint = bands.predict(binder, expand, windows)
        return joint is not None and joint < choose(binder, expand)[0] + choose(binder, windows)[0]

    def bind(self, binder: Binder, first: Part, second: Part) -> Sequence[Tensor | None]:
        expand = _call_of(self.first, binder, first)
        return bands.bind(binder, expand, self._windows(binder, expand, second))

    def _windows(self, binder: Binder, expand: ConvolutionCall, second: Part) -> ConvolutionCall:
        """The second call, over a stand-in for what the first makes."""
        return _call_of(self.second, binder, second, bands.made_by(expand))


class ScaledConvolution:
    """A product of two inputs and the convolution that reads it: see `scaled_product`."""

    def __init__(self, kernel: ConvolutionKernel) -> None:
        self.kernel = kernel

    def pays(self, binder: Binder, first: Part, second: Part) -> bool:
        found = scaled_product.map_and_scale(first.inputs)
        if found is None:
            return False
        call = one_item(_call_of(self.kernel, binder, replace(second, epilogue=None), found[0]))
        _, algorithm, chosen = choose(binder, call)
        return algorithm is WINDOW_COPIES and scaled_product.pays(binder, chosen)

    def bind(self, binder: Binder, first: Part, second: Part) -> Sequence[Tensor | None]:
        found = scaled_product.map_and_scale(first.inputs)
        assert found is not None
        call = _call_of(self.kernel, binder, second, found[0])
        return scaled_product.bind(binder, call, found[1])


def _call_of(kernel: ConvolutionKernel, binder: Binder, part: Part, x: Tensor | None = None) -> ConvolutionCall:
    """The call of one of two kernels in one, perhaps with another first input."""
    own, w, *others = part.inputs
    first = own if x is None else x
    assert first is not None
    assert w is not None
    return kernel.call_of(binder, first, w, *others, epilogue=part.epilogue)


def convolve(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps of a call by the algorithm that is chosen for it, and give the outputs in ONNX's order."""
    _, algorithm, chosen = choose(binder, call)
    return algorithm.bind(binder, chosen)


def choose(binder: Binder, call: ConvolutionCall) -> tuple[float, Algorithm, ConvolutionCall]:
    """The algorithm that is predicted to be the fastest, with its nanoseconds and the call as it takes it.

    Where the session allows coarser products than those of the input's type, both are compared: fewer exact products
    may take less time than more coarse ones. So are products of float32 by vectors and in tiles of AMX.
    """
    if call.x.dtype != call.w.dtype:
        tried = [(call, OF_WORDS)]
    else:
        tried = [(call, ALGORITHMS)]
        exact = product_of(call.x.dtype)
        if exact is not None and exact != call.product:
            tried.append((replace(call, product=exact), ALGORITHMS))
        if call.product == "f32" and _may_take_parts(binder, call):
            tried.append((replace(call, product="f32 tiles"), IN_PARTS))
    predicted = [
        (algorithm.predict(binder, one), algorithm, one) for one, algorithms in tried for algorithm in algorithms
    ]
    able = [(time, algorithm, one) for time, algorithm, one in predicted if time is not None]
    return min(able, key=lambda candidate: candidate[0])


def _may_take_parts(binder: Binder, call: ConvolutionCall) -> bool:
    """Whether the products may be in tiles of AMX, three parts for each number."""
    if not allows_parts(binder) or call.group > 1 or not call.has_constant_weights:
        return False
    if call.batch * call.places < ROWS_OF_PARTS or call.flops < OPERATIONS_OF_PARTS:
        return False
    repays = repays_tiles(call.filters, call.taps * call.channels, _MADDS_OF_WORD, _MADDS_OF_RESULT)
    return repays or call.flops >= OPERATIONS_OF_ANY


# Operations of a convolution whose input threads first write as words, and wait for each other: from the first number
# on where an element of the input is multiplied so often that it repays its way into tiles and a result its own (in
# multiply-adds), from the other on wherever tiles are predicted to be faster. With one thread fewer
# would do, but bits must not depend on the number of threads.
OPERATIONS_OF_PARTS, OPERATIONS_OF_ANY = 3e7, 8e7
_MADDS_OF_WORD, _MADDS_OF_RESULT = 80, 50


def _with_rank(tensor: Tensor, rank: int) -> Tensor:
    """The tensor with axes of one element before its own."""
    missing = rank - len(tensor.shape)
    return tensor.reshaped((1,) * missing + tensor.shape, (0,) * missing + tensor.strides)


def _channels_second(tensor: Tensor) -> Tensor:
    """[batch, *sizes, channels] as [batch, channels, *sizes]."""
    rank = len(tensor.shape)
    return transposed(tensor, (0, rank - 1, *range(1, rank - 1)))


def _channels_at_end(tensor: Tensor) -> Tensor:
    """The opposite."""
    return transposed(tensor, (0, *range(2, len(tensor.shape)), 1))
