"""Batches in rounds: a plan that is made for a few items and repeated until all of them are done.

The maps of one image fit into caches that those of a whole batch run out of, so that every layer of the batch streams
its maps from memory. Where all that a segment does goes from item n of its inputs to item n of its outputs, its plan
is bound for a few items and its steps are repeated with other addresses of the inputs and outputs: one arena of a few
items serves all rounds, and to whatever runs plans it is a plan like any other.

That items are independent is proved for the shapes of this run. A value carries the batch where its shape is
(batch, ...) in the binding of the whole and (few, ...) in that of a few items, with the same sizes behind; every
operation must make such values of such values, be one of those listed here, and read nothing else that differs
between the two bindings. What is not listed runs as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compiler.binding import Bound, BoundStep, Tensor
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.llvm.target import Caches
from sardonyx.compiler.lowering import Lowered
from sardonyx.ops.framework.operator import Elementwise
from sardonyx.runtime.native_plan import NativePlan, StepColumn, StepFlag
from sardonyx.runtime.settings import RunSettings

if TYPE_CHECKING:
    from sardonyx.compiler.segment import BoundOperation

Tensors = Sequence["Tensor | None"]

# Steps of all rounds of a plan, at most: its tables are a few hundred bytes for each.
_MOST_STEPS = 1 << 15

# What a core moves from a cache of each level or from memory, in bytes of a nanosecond: the ratios are those of many
# machines of servers and desktops, and only sums of them are compared.
_FROM_L2, _FROM_L3, _FROM_MEMORY = 200.0, 100.0, 40.0
# Operations of a core in a nanosecond, roughly: what moving is weighed against.
_FLOPS = 200.0
# What a step costs besides: to be found, to begin, and at its end a meeting of the threads.
_STEP_NS = 1000.0
# What a smaller number of items must save of the estimated time to be chosen.
_LEAST_GAIN = 0.03


class NotSeparableError(Exception):
    """Why the items of a batch cannot be computed one by one."""


def items_at_a_time(whole: Bound, shapes: Sequence[Sequence[int]], settings: RunSettings, caches: Caches) -> int:
    """How many items of a batch to do in a round, where they turn out to be independent; 0 for all of them.

    `whole` is the plan for inputs of these shapes.
    """
    wanted = settings.batch_items
    sizes = {shape[0] if len(shape) else 0 for shape in shapes}
    batch = max(sizes, default=0)
    if wanted == 0 or len(sizes) != 1 or batch < 2 or whole.faults or not whole.steps:
        return 0
    few = choose(whole.steps, batch, caches) if wanted is None else _divisor(batch, wanted)
    return 0 if few == batch or batch // few * len(whole.steps) > _MOST_STEPS else few


def in_rounds(whole: Bound, part: Bound, inputs: Sequence[tuple[np.dtype[Any], Sequence[int]]], few: int) -> Bound:
    """The plan that does what `whole` does by rounds of `part`, which does as many items; `inputs` are as in `whole`.

    Nothing is copied: a round finds its items where they lie in the inputs and outputs of the batch.
    """
    batch = inputs[0][1][0]
    rounds = batch // few
    externals = [*inputs, *whole.outputs]
    moving = [math.prod(shape) * dtype.itemsize // rounds for dtype, shape in externals]
    largest = max(one.nbytes for step in whole.steps for one in (*step.reads, *step.writes)) / 1e6
    reason = f"{few} of {batch} items at a time: values of all of them have up to {largest:.1f} MB"
    return replace(repeated(part, rounds, list(enumerate(moving, 1))), reason=reason)


def _divisor(batch: int, wanted: int) -> int:
    """The largest number of items up to `wanted` that divides a batch."""
    return max(few for few in range(1, min(batch, wanted) + 1) if batch % few == 0)


def check(
    whole: Sequence[BoundOperation], few: Sequence[BoundOperation], inputs: Sequence[int], outputs: Sequence[int]
) -> None:
    """NotSeparableError where the items of a batch are not proved to be independent of each other.

    `whole` and `few` are the same operations bound for the batch and for some of its items; `inputs` and `outputs`
    number the values that cross the segment's border, the former of which all begin with the batch.
    """
    carried = set(inputs)
    for one, other in zip(whole, few, strict=True):
        operation = one.operation
        anchor = operation.group.anchor
        if anchor is not None and anchor.role == "known":
            continue
        batched = [number in carried for number in operation.inputs]
        if not (any(batched) and _is_listed(one, batched) and _reads_alike(one, other, batched)):
            raise NotSeparableError(f"{operation.label} may mix them")
        for number, large, small in zip(operation.outputs, one.outputs, other.outputs, strict=False):
            if number < 0:
                continue
            if large is None or small is None or large.array is not None:
                raise NotSeparableError(f"{operation.label} does not make a batch")
            carried.add(number)
        if not _are_batches(one, other, batched):
            raise NotSeparableError(f"{operation.label} does not keep the batch in front")
    if not carried.issuperset(outputs):
        raise NotSeparableError("an output is not of the batch")


def _are_batches(one: BoundOperation, other: BoundOperation, batched: Sequence[bool]) -> bool:
    """Whether all outputs begin with as many items as the inputs do, in both bindings, and are equal behind."""
    large, small = (
        next(tensor for tensor, flag in zip(bound.inputs, batched, strict=True) if flag and tensor is not None)
        for bound in (one, other)
    )
    for made, part in zip(one.outputs, other.outputs, strict=True):
        if made is None or part is None:
            continue
        if made.shape[:1] != large.shape[:1] or part.shape[:1] != small.shape[:1] or made.shape[1:] != part.shape[1:]:
            return False
    return True


def _reads_alike(one: BoundOperation, other: BoundOperation, batched: Sequence[bool]) -> bool:
    """Whether what is not of the batch is known and the same in both bindings; a view's new shape may differ."""
    anchor = one.operation.group.anchor
    is_reshape = anchor is not None and anchor.node.op_type == "Reshape"
    for place, (large, small, flag) in enumerate(zip(one.inputs, other.inputs, batched, strict=True)):
        if flag or (large is None and small is None) or (is_reshape and place == 1):
            continue
        if large is None or small is None or large.array is None or small.array is None:
            return False
        if large.array is not small.array and not (
            large.dtype == small.dtype and large.shape == small.shape and np.array_equal(large.array, small.array)
        ):
            return False
    return True


def _is_listed(bound: BoundOperation, batched: Sequence[bool]) -> bool:
    """Whether an operation makes item n of item n, by its operators and the ranks of what it reads."""
    return _is_group_listed(bound.operation.group, bound.inputs, bound.outputs, batched)


def _is_group_listed(group: Group, inputs: Tensors, outputs: Tensors, batched: Sequence[bool]) -> bool:
    anchor, before = group.anchor, group.before
    rest = [item for item in group.nodes if item is not anchor]
    if before is not None:
        # What is between two templates is of the batch as the first one's input is, and has its rank.
        assert before.anchor is not None
        count = len(before.anchor.node.inputs) + len(before.operands)
        if not _is_group_listed(before, inputs[:count], inputs[:1], batched[:count]):
            return False
        inputs, batched = [inputs[0], *inputs[count:]], [batched[0], *batched[count:]]
        rest = [item for item in rest if item not in before.nodes]
    result = outputs[0] if outputs else None
    if result is None or not all(isinstance(item.operator, Elementwise) for item in rest):
        return False
    own = 0
    if anchor is not None:
        own = len(anchor.node.inputs)
        rule = None if anchor.node.domain not in ("", "ai.onnx") else _RULES.get(anchor.node.op_type)
        if rule is None or not rule(_Call(anchor, inputs[:own], batched[:own], outputs)):
            return False
    operands = list(zip(inputs[own:], batched[own:], strict=True))
    return all(_is_aligned(tensor, flag, len(result.shape)) for tensor, flag in operands)


def _is_aligned(tensor: Tensor | None, is_batched: bool, rank: int) -> bool:
    """Whether an operand that is broadcast to a result of some rank meets item n of it with its own item n."""
    if tensor is None:
        return not is_batched
    if is_batched:
        return len(tensor.shape) == rank
    return len(tensor.shape) < rank or (len(tensor.shape) == rank and tensor.shape[:1] == (1,))


@dataclass(frozen=True, slots=True)
class _Call:
    """A node with what it reads, which of that is of the batch, and what it makes."""

    item: Lowered
    inputs: Tensors
    batched: Sequence[bool]
    outputs: Tensors

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
    return all(call.batched) and call.is_behind(call.attribute("axis", 1))


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


def _product(call: _Call) -> bool:
    """Rows of the batch times a matrix that is known."""
    second = call.inputs[1]
    return call.is_led and second is not None and call.rank >= 2 and len(second.shape) == 2


def _gemm(call: _Call) -> bool:
    added = call.inputs[2] if len(call.inputs) > 2 else None
    return _product(call) and not call.attribute("transA", 0) and (added is None or _is_aligned(added, False, 2))


_RULES: dict[str, Callable[[_Call], bool]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), _window),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _window),
    **dict.fromkeys(("Reshape", "Flatten"), _view),
    "Concat": _join,
    "Split": _split,
    "Transpose": _transpose,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _along),
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "MatMul": _product,
    "Gemm": _gemm,
}


def repeated(bound: Bound, rounds: int, moving: Sequence[tuple[int, int]]) -> Bound:
    """The plan of `bound` done so many times; each external base (base, bytes) of `moving` goes on by its bytes.

    The rounds share one arena, so that each begins when the one before it is done.
    """
    plan = bound.plan
    word_count, step_count = len(plan.words), len(plan.steps)
    stride = np.zeros(plan.base_count, np.int64)
    for base, nbytes in moving:
        stride[base] = nbytes
    fixups = np.tile(plan.fixups, (rounds, 1))
    steps = np.tile(plan.steps, (rounds, 1))
    rounds_of_fixups = np.repeat(np.arange(rounds, dtype=np.int64), len(plan.fixups))
    fixups[:, 0] += rounds_of_fixups * word_count
    fixups[:, 2] += rounds_of_fixups * stride[fixups[:, 1]]
    steps[:, StepColumn.ARGUMENTS] += np.repeat(np.arange(rounds, dtype=np.int64), step_count) * word_count
    steps[::step_count, StepColumn.FLAGS] |= int(StepFlag.BARRIER)
    whole = NativePlan(
        words=np.tile(plan.words, rounds),
        fixups=fixups,
        steps=steps,
        arena_bytes=plan.arena_bytes,
        scratch_bytes=plan.scratch_bytes,
        base_count=plan.base_count,
        labels=plan.labels * rounds,
        owners=plan.owners,
        nanoseconds=None if plan.nanoseconds is None else plan.nanoseconds * rounds,
        flush_denormals=plan.flush_denormals,
    )
    outputs = tuple((dtype, (shape[0] * rounds, *shape[1:])) for dtype, shape in bound.outputs)
    return Bound(whole, outputs, bound.steps, rounds=rounds)


def choose(whole: Sequence[BoundStep], batch: int, caches: Caches) -> int:
    """How many items to take at a time: the divisor of `batch` with the least time for moving values and constants.

    `whole` are the steps for the whole batch. The values of a step come from the level of which they fill half, so
    that what one step writes is still there when the next one reads it. Constants are read again in every round, from
    the level that holds those of all steps; they lie in the order in which they are read, so that this goes on behind
    the arithmetic.
    """
    shares = [(*_share(step), step.flops / _FLOPS) for step in whole]
    constant_rate = _rate(sum(constants for _, constants, _ in shares), caches)

    def estimate(few: int) -> float:
        rounds = batch // few
        return sum(
            values / _rate(2 * values / rounds, caches)
            + rounds * (max(arithmetic / rounds, constants / constant_rate) + _STEP_NS)
            for values, constants, arithmetic in shares
        )

    best = min((few for few in range(1, batch + 1) if batch % few == 0), key=estimate)
    return best if estimate(best) < (1 - _LEAST_GAIN) * estimate(batch) else batch


def _share(step: BoundStep) -> tuple[float, float]:
    """Bytes of values and of constants that a step touches."""
    values = constants = 0.0
    for tensor in (*step.reads, *step.writes):
        nbytes = min(tensor.nbytes, tensor.buffer.nbytes)
        if tensor.buffer.kind == "constant":
            constants += nbytes
        else:
            values += nbytes
    return values, constants


def _rate(nbytes: float, caches: Caches) -> float:
    """Bytes in a nanosecond from the level that holds so many."""
    if nbytes <= caches.l2:
        return _FROM_L2
    return _FROM_L3 if nbytes <= caches.l3 else _FROM_MEMORY
