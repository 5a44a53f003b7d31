"""Whether the items of a batch are independent of each other, so that they can be done a few at a time.

It is proved for the shapes of a run, of operations that are bound for a single item. A value carries the batch where
its first axis counts items, or equally many rows of each item, with the same sizes behind as for one item; every
operation must make such values of such values, be one of those listed here, and read nothing else that depends on the
number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.batches.batch_size import NotSeparableError
from sardonyx.compiler.binding import Binder, Tensor, row_major
from sardonyx.compiler.bound_step import Buffer
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.operation import BoundOperation, Operation
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.operator import Elementwise

Tensors = Sequence["Tensor | None"]
Values = dict[int, "Tensor | None"]


def is_never_separable(operation: Operation) -> bool:
    """Whether an operation is none of those that keep items apart, whatever its sizes."""
    group = operation.group
    anchor = group.anchor
    if anchor is not None and anchor.role == "known":
        return False
    rest = [item for item in group.nodes if item is not anchor]
    if anchor is not None and _rule(anchor) is None:
        return True
    return not all(isinstance(item.operator, Elementwise) for item in rest)


def of_items(
    one: Sequence[BoundOperation],
    count: int,
    given: Mapping[int, Tensor | None],
    inputs: Sequence[int],
    binder: Binder,
) -> Values:
    """What values there are for so many items: shapes of those that carry the batch, and contents of those that are
    known.

    `one` are the operations bound for a single item; `given` are the model's constants and the `inputs`, all of which
    begin with `count` items. NotSeparableError where the items are not proved to be independent of each other. `binder`
    takes what is bound on the way, of which nothing is kept.
    """
    values: Values = dict(given)
    carried = set(inputs)
    for bound in one:
        operation = bound.operation
        read = [None if number < 0 else values[number] for number in operation.inputs]
        anchor = operation.group.anchor
        role = "" if anchor is None else anchor.role
        if role == "known":
            values.update(zip(operation.outputs, _bind(operation, binder, read), strict=False))
            continue
        batched = [number in carried for number in operation.inputs]
        if not (any(batched) and _is_listed(bound, batched) and _reads_alike(bound, read, batched)):
            raise NotSeparableError(f"{operation.label} may mix them")
        for number, tensor in zip(operation.outputs, bound.outputs, strict=False):
            if number < 0:
                continue
            if tensor is None or tensor.is_known or not tensor.shape:
                raise NotSeparableError(f"{operation.label} does not make a batch")
            values[number] = stand_in(tensor.dtype, (count * tensor.shape[0], *tensor.shape[1:]))
            carried.add(number)
        if role == "view":
            check_shapes(operation, values, _bind(operation, binder, read))
    return values


def _bind(operation: Operation, binder: Binder, read: Tensors) -> Tensors:
    """What an operation makes that computes nothing; NotSeparableError where it does not take so many items."""
    try:
        return operation.bind(binder, read)
    except Exception as error:  # the same comes up again where the batch is bound as a whole, with the node's name
        raise NotSeparableError(f"{operation.label} does not take them") from error


def check_shapes(operation: Operation, expected: Mapping[int, Tensor | None], made: Tensors) -> None:
    """NotSeparableError where an operation does not make what is expected for some items."""
    for number, tensor in zip(operation.outputs, made, strict=False):
        wanted = expected.get(number)
        if number >= 0 and wanted is not None and (tensor is None or tensor.shape != wanted.shape):
            raise NotSeparableError(f"{operation.label} does not keep the batch in front")


def stand_in(dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
    """A value of which nothing but its type and shape counts."""
    shape = tuple(shape)
    strides = row_major(shape)
    return Tensor(dtype, shape, strides, Buffer(dtype.itemsize * (strides[0] * shape[0] if shape else 1)))


def _reads_alike(one: BoundOperation, read: Tensors, batched: Sequence[bool]) -> bool:
    """Whether what is not of the batch is known and the same for one item and for more; a new shape may differ."""
    anchor = one.operation.group.anchor
    is_reshape = anchor is not None and anchor.node.op_type == "Reshape"
    for place, (large, small, flag) in enumerate(zip(read, one.inputs, batched, strict=True)):
        if flag or (large is None and small is None) or (is_reshape and place == 1):
            continue
        if large is None or small is None or not (large.is_known and small.is_known):
            return False
        if large.source is not small.source and not _are_equal(large, small):
            return False
    return True


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether known tensors have the same type, shape and contents."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one.array, other.array)  # type: ignore[arg-type]


def _rule(anchor: Lowered) -> Callable[[_Call], bool] | None:
    domain = anchor.node.domain
    return _RULES.get(anchor.node.op_type if domain in ("", "ai.onnx") else f"{domain}.{anchor.node.op_type}")


def _is_listed(bound: BoundOperation, batched: Sequence[bool]) -> bool:
    """Whether an operation makes item n of item n, by its operators and the ranks of what it reads."""
    anchor = bound.operation.group.anchor
    result = bound.outputs[0] if bound.outputs else None
    if result is None or is_never_separable(bound.operation):
        return False
    own = 0
    if anchor is not None:
        own = len(anchor.node.inputs)
        rule = _rule(anchor)
        if rule is None or not rule(_Call(anchor, bound.inputs[:own], batched[:own])):
            return False
    operands = zip(bound.inputs[own:], batched[own:], strict=True)
    return all(_is_aligned(tensor, flag, result.shape) for tensor, flag in operands)


def _is_aligned(tensor: Tensor | None, is_batched: bool, result: tuple[int, ...]) -> bool:
    """Whether an operand that is broadcast to a result of this shape meets item n of it with its own item n."""
    if tensor is None:
        return not is_batched
    if is_batched:
        return len(tensor.shape) == len(result) and tensor.shape[:1] == result[:1]
    return len(tensor.shape) < len(result) or (len(tensor.shape) == len(result) and tensor.shape[:1] == (1,))


@dataclass(frozen=True, slots=True)
class _Call:
    """A node with what it reads, and which of that is of the batch."""

    item: Lowered
    inputs: Tensors
    batched: Sequence[bool]

    @property
    def is_led(self) -> bool:
        """Whether the first input alone is of the batch."""
        return self.batched[0] and not any(self.batched[1:])

    @property
    def rank(self) -> int:
        first = self.inputs[0]
        return 0 if first is None else len(first.shape)

    def attribute(self, name: str, default: Any) -> Any:
        found = self.item.node.attributes.get(name)
        return default if found is None else found.value

    def contents(self, place: int) -> list[Any] | None:
        """What a small input holds; None where it is absent or not known."""
        tensor = self.inputs[place] if place < len(self.inputs) else None
        return None if tensor is None or tensor.array is None else tensor.array.reshape(-1).tolist()

    def is_behind(self, axis: int) -> bool:
        """Whether an axis is another one than the batch's."""
        return 0 < axis + (self.rank if axis < 0 else 0) < self.rank


def _window(call: _Call) -> bool:
    """Convolutions and pools: over the axes behind the first two; places of maxima count through the batch."""
    return call.is_led and call.rank >= 3 and sum(one.name != "" for one in call.item.node.outputs) == 1


def _view(call: _Call) -> bool:
    """Another shape of the same elements in the same order: items stay where the first axis does."""
    return call.is_led


def _join(call: _Call) -> bool:
    counts = {tensor.shape[:1] for tensor in call.inputs if tensor is not None}
    return all(call.batched) and len(counts) == 1 and call.is_behind(call.attribute("axis", 1))


def _split(call: _Call) -> bool:
    return call.is_led and call.is_behind(call.attribute("axis", 0))


def _transpose(call: _Call) -> bool:
    order = call.attribute("perm", None)
    return call.is_led and order is not None and order[0] == 0


def _slice(call: _Call) -> bool:
    axes = call.attribute("axes", None) if len(call.inputs) == 1 else call.contents(3)
    return call.is_led and axes is not None and all(call.is_behind(axis) for axis in axes)


def _pad(call: _Call) -> bool:
    pads = call.contents(1)
    if not call.is_led or len(call.inputs) > 3 or pads is None or len(pads) != 2 * call.rank:
        return False
    return bool(pads[0] == pads[call.rank] == 0)


def _reduction(call: _Call) -> bool:
    axes = call.contents(1) if len(call.inputs) > 1 else call.attribute("axes", None)
    return call.is_led and axes is not None and len(axes) > 0 and all(call.is_behind(axis) for axis in axes)


def _along(call: _Call) -> bool:
    return call.is_led and call.is_behind(call.attribute("axis", -1))


def _resize(call: _Call) -> bool:
    """Sizes by scales that leave the first axis alone."""
    if not call.is_led or call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return False
    place = 1 if len(call.inputs) == 2 else 2
    scales = call.contents(place)
    return scales is not None and len(scales) == call.rank and scales[0] == 1 and call.attribute("axes", None) is None


def _axes_apart(call: _Call) -> bool:
    """Axes of length 1 that come or go behind the first one; those of a result are not counted from its end."""
    axes = call.contents(1) if len(call.inputs) > 1 else call.attribute("axes", None)
    return call.is_led and axes is not None and all(axis > 0 for axis in axes)


def _normalisation(call: _Call) -> bool:
    """Over axes of an item, or over the channels with statistics that are known."""
    training = call.attribute("training_mode", 0) or len(call.item.node.outputs) > 1
    return call.is_led and call.rank >= 2 and not training


def _pick(call: _Call) -> bool:
    """Places that are known behind the first axis, or rows of a known table for places of the batch."""
    axis = call.attribute("axis", 0)
    if call.is_led:
        return call.is_behind(axis)
    return list(call.batched) == [False, True] and axis == 0


def _product(call: _Call) -> bool:
    """Of the batch and a matrix that is known, or of both items of two batches of matrices."""
    first, second = call.inputs
    if first is None or second is None:
        return False
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        return False
    if all(call.batched):
        return len(first.shape) == len(second.shape) >= 3 and first.shape[0] == second.shape[0]
    return call.is_led and call.rank >= (3 if call.attribute("transA", 0) else 2) and len(second.shape) == 2


def _gemm(call: _Call) -> bool:
    added = call.inputs[2] if len(call.inputs) > 2 else None
    return call.is_led and not call.attribute("transA", 0) and (added is None or _is_aligned(added, False, (1, 1)))


_RULES: dict[str, Callable[[_Call], bool]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), _window),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _window),
    **dict.fromkeys(("Reshape", "Flatten"), _view),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _axes_apart),
    "Concat": _join,
    "Split": _split,
    "Transpose": _transpose,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"), _reduction),
    "ai.sardonyx.Reductions": _reduction,
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), _along),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization"), _normalisation),
    **dict.fromkeys(("LRN", "DepthToSpace", "SpaceToDepth"), _window),
    "Gather": _pick,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    **dict.fromkeys(("MatMul", "com.microsoft.FusedMatMul"), _product),
    "Gemm": _gemm,
}
