"""One bound convolution: what an algorithm is given, and the views of it that algorithms share.

Tensors keep ONNX's order of axes, [batch, channels, *sizes], while the memory of activations lies channels-last: a
result is computed as [batch, *sizes, channels] and handed on as a view, so that a chain of convolutions never changes
its layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.kernel.expr import Expr, Input, substitute
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.windows import Windows


@dataclass(frozen=True, eq=False)
class Finish:
    """What becomes of the sums: `outputs` over `Input(0)`, the sum, and `Input(1 + i)`, the element of `operands[i]`.

    The bias, where there is one, is the first operand. Operands have the result's shape in channels-last order,
    [batch, *places, filters], with a stride of 0 where they are repeated.
    """

    outputs: tuple[Expr, ...]
    operands: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class ConvolutionCall:
    """A convolution whose shapes are known and fit together.

    `x` is [batch, channels, *sizes] with any strides, `w` [filters, channels / group, *kernel], `bias` [filters]. Both
    have one type, but for an `x` that is rounded already to what the product multiplies.
    `product` names the inner product (`gemm_product`): "f32", "f64", "f16", "bfloat16", or one of bfloat16 for float32
    tensors where the session asks for it.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    windows: Windows
    group: int
    epilogue: Epilogue | None
    product: str

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    @property
    def filters(self) -> int:
        return self.w.shape[0]

    @property
    def taps(self) -> int:
        """Elements of the kernel."""
        return math.prod(self.windows.kernel)

    @property
    def places(self) -> int:
        """Windows of one item of the batch."""
        return math.prod(self.windows.output)

    @property
    def flops(self) -> float:
        """Two for every multiply-add, those with padding counted."""
        return 2.0 * self.batch * self.places * self.filters * self.w.shape[1] * self.taps

    @property
    def has_constant_weights(self) -> bool:
        """Whether the weights may be transformed once, by `binder.derived`."""
        return self.w.is_known and self.w.buffer.kind == "constant"

    @property
    def channels_last(self) -> Tensor:
        """The input as [batch, *sizes, channels]: a view."""
        return transposed(self.x, (0, *range(2, len(self.x.shape)), 1))

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels of a place lie together."""
        return self.x.strides[1] == 1 and self.channels > 1

    @property
    def result_shape(self) -> tuple[int, ...]:
        """In ONNX's order."""
        return (self.batch, self.filters, *self.windows.output)

    def finish(self, binder: Binder) -> Finish:
        """The bias and the epilogue. Operands that do not lie channels-last are copied, unless they are repeated."""
        dtype = self.w.dtype
        result: Expr = Input(dtype, 0)
        operands: list[Tensor] = []
        if self.bias is not None:
            result = result + Input(self.bias.dtype, 1)
            last = (*(1 for _ in self.windows.output), self.filters)
            operands.append(
                _broadcast(self.bias.reshaped((1, *last), (*(0 for _ in last), self.bias.strides[0])), self._last)
            )
        if self.epilogue is None:
            return Finish((result,), tuple(operands))
        first = len(operands)

        def replaced(leaf: Input) -> Expr:
            return result if leaf.index == 0 else Input(leaf.dtype, leaf.index + first)

        outputs = tuple(substitute(self.epilogue.outputs, replaced))
        operands.extend(self._readable(binder, operand) for operand in self.epilogue.operands)
        return Finish(outputs, tuple(operands))

    def results(self, binder: Binder, finish: Finish) -> list[Tensor]:
        """New tensors [batch, *places, filters] for the outputs: contiguous, but for slices of Concats' results."""
        return [binder.result(place, output.dtype, self._last) for place, output in enumerate(finish.outputs)]

    def new_results(self, binder: Binder, finish: Finish) -> list[Tensor]:
        """The same, all of them contiguous."""
        return [binder.new(output.dtype, self._last) for output in finish.outputs]

    @staticmethod
    def handed_on(results: Sequence[Tensor]) -> list[Tensor]:
        """Channels-last results as what the operator gives: [batch, filters, *places]."""
        return [transposed(tensor, (0, len(tensor.shape) - 1, *range(1, len(tensor.shape) - 1))) for tensor in results]

    def by_groups(self, tensor: Tensor) -> Tensor:
        """A result or an operand [batch, *places, filters] as [batch, group, places, filters of a group].

        The places must be evenly spaced, as they are in what `finish` and `results` give.
        """
        sizes, strides = tensor.shape, tensor.strides
        filters = sizes[-1] // self.group
        step = evenly_spaced(sizes[1:-1], strides[1:-1])
        assert step is not None
        return tensor.reshaped(
            (sizes[0], self.group, math.prod(sizes[1:-1]), filters),
            (strides[0], filters * strides[-1], step, strides[-1]),
        )

    @property
    def _last(self) -> tuple[int, ...]:
        return (self.batch, *self.windows.output, self.filters)

    def _readable(self, binder: Binder, operand: Tensor) -> Tensor:
        whole = _broadcast(operand, self.result_shape)
        last = transposed(whole, (0, *range(2, len(whole.shape)), 1))
        if evenly_spaced(last.shape[1:-1], last.strides[1:-1]) is None or last.strides[-1] not in (0, 1):
            return contiguous(binder, last)
        return last


def one_item(call: ConvolutionCall) -> ConvolutionCall:
    """The call for the first item of its batch, or for none."""
    x = call.x
    return replace(call, x=x.reshaped((min(1, call.batch), *x.shape[1:]), x.strides))


def evenly_spaced(sizes: Sequence[int], steps: Sequence[int]) -> int | None:
    """The step of several axes as one; None where their elements are not evenly spaced."""
    found, count = 0, 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 1:
            continue
        if count == 1:
            found = step
        elif step != count * found:
            return None
        count *= size
    return found


def _broadcast(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor repeated to a shape that it broadcasts to."""
    missing = len(shape) - len(tensor.shape)
    sizes, strides = (1,) * missing + tensor.shape, (0,) * missing + tensor.strides
    if missing < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise ValueError(f"shape {tensor.shape} does not broadcast to {tuple(shape)}")
    return tensor.reshaped(
        shape,
        [0 if size == 1 and wanted != 1 else step for size, wanted, step in zip(sizes, shape, strides, strict=True)],
    )
