"""The inputs that a fused attention needs anew: its masks as one bias, and its rows as parts of a joint projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims, same
from sardonyx.passes.rule import RULE_KEY
from sardonyx.passes.rules.attention_heads import SPLIT, Heads
from sardonyx.passes.rules.attention_mask import Mask, fits, repeated
from sardonyx.passes.rules.attention_match import NAMES, MaskedMatch, readers
from sardonyx.passes.rules.facts import shape_of


class NewInputs:
    """Nodes before the attention that replaces a match and will stand at `place`; they gather in `nodes`."""

    def __init__(self, m: MaskedMatch, place: ir.Node | None) -> None:
        self.m = m
        self.place = place or m.root
        self.nodes: list[ir.Node] = []

    def rows(self, heads: Heads) -> ir.Value | None:
        """An operand as (batch, length, heads * size)."""
        if heads.columns is None:
            return heads.rows
        first, last = heads.columns
        if self._opset < 10:
            return self._node("Slice", [heads.rows], "rows", {"axes": [2], "starts": [first], "ends": [last]})
        return self._node("Slice", [heads.rows, *(self._integers("columns", one) for one in (first, last, 2))], "rows")

    def heads(self, rows: ir.Value) -> ir.Value:
        """(batch, length, heads, size) as (batch, heads, length, size)."""
        return self._node("Transpose", [rows], "heads", {"perm": SPLIT})

    def added(self) -> tuple[ir.Value, Dims] | None:
        """The masks as one tensor that broadcasts to the scores, and its shape; None without masks."""
        masks = self.m.scores.masks
        return self._sum([self._additive(mask) for mask in masks]) if masks else None

    def size(self, value: ir.Value | None, axis: int) -> ir.Value:
        """One dimension of a value, as a tensor of one element."""
        every = self._node("Shape", [value], "size")
        return self._node("Gather", [every, self._integers("axis", axis)], "size")

    def widened(self, bias: ir.Value, lengths: Sequence[ir.Value]) -> ir.Value:
        """The bias of (…, 1 or keys) for as many keys as `lengths` add up to."""
        total, *others = lengths
        for other in others:
            total = self._node("Add", [total, other], "keys")
        return self._node("Expand", [bias, total], "keys")

    def bias(self) -> ir.Value | None:
        """The masks as one additive tensor of (1 or batch, 1 or heads, queries, keys); None without masks."""
        if not self.m.scores.masks:
            return None
        parts = [self._additive(mask) for mask in self.m.scores.masks if mask.windows is None]
        of_windows = [mask for mask in self.m.scores.masks if mask.windows is not None]
        if of_windows:
            shared = [part for part in parts if _is_shared(part[1])]
            parts = [part for part in parts if part not in shared]
            parts.append(self._for_windows([self._additive(mask) for mask in of_windows] + shared, of_windows[0]))
        bias, shape = self._sum(parts)
        if len(shape) < 4:
            bias, shape = self._padded(bias, shape, 4)
        return bias if fits(shape[2], self.m.shape[2]) else self._expanded(bias, shape)

    def _sum(self, parts: Sequence[tuple[ir.Value, Dims]]) -> tuple[ir.Value, Dims]:
        (total, shape), *others = parts
        for other, other_shape in others:
            shape = _broadcast(shape, other_shape)
            total = self._node("Add", [total, other], "bias")
        return total, shape

    def _for_windows(self, parts: Sequence[tuple[ir.Value, Dims]], mask: Mask) -> tuple[ir.Value, Dims]:
        """The sum of what is added to all windows of an image, for each of the images of the batch."""
        assert mask.windows is not None
        windows = mask.windows[1]
        assert isinstance(windows, int)
        joined, shape = self._sum([self._padded(part, dims, 5) for part, dims in parts])
        batch = self.m.shape[0]
        if batch != shape[1]:
            joined = self._node("Expand", [joined, self._images(windows)], "images")
        sizes = [-1, *(dim for dim in shape[2:] if isinstance(dim, int))]
        return self._node("Reshape", [joined, self._integers("sizes", *sizes)], "images"), (batch, *shape[2:])

    def _images(self, windows: int) -> ir.Value:
        """The shape (images, windows, 1, 1, 1)."""
        batch = self.m.shape[0]
        if isinstance(batch, int):
            return self._integers("images", batch // windows, windows, 1, 1, 1)
        every = self._node("Shape", [self.m.query.rows], "images")
        batches = self._node("Gather", [every, self._integers("first", 0)], "images")
        images = self._node("Div", [batches, self._integers("windows", windows)], "images")
        return self._node("Concat", [images, self._integers("rest", windows, 1, 1, 1)], "images", {"axis": 0})

    def _additive(self, mask: Mask) -> tuple[ir.Value, Dims]:
        """A mask as what is added to the scores, and its shape."""
        shape = shape_of(mask.value, self.m.context)
        assert shape is not None
        if mask.filler is None:
            return (mask.value if mask.factor == 1 else self._times(mask.value, mask.factor, shape)), shape
        choices = [0.0, mask.filler] if mask.keeps else [mask.filler, 0.0]
        made = self._made_before(mask.value, "Where", shape)
        if made is not None and [repeated(value) for value in made.inputs[1:]] == choices:
            return made.outputs[0], shape
        constants = [self.m.initializer(np.array(choice, np.float32), "mask") for choice in choices]
        return self._node("Where", [mask.value, *constants], "mask"), shape

    def _times(self, value: ir.Value, factor: float, shape: Dims) -> ir.Value:
        """What is added to the scores, times a number."""
        made = self._made_before(value, "Mul", shape)
        if made is not None and repeated(made.inputs[1]) == float(np.float32(factor)):
            return made.outputs[0]
        return self._node("Mul", [value, self.m.initializer(np.array(factor, np.float32), "factor")], "mask")

    def _padded(self, value: ir.Value, shape: Dims, rank: int) -> tuple[ir.Value, Dims]:
        """The value with dimensions of 1 in front."""
        missing = rank - len(shape)
        if missing == 0:
            return value, shape
        axes = list(range(missing))
        if self._opset < 13:
            wide = self._node("Unsqueeze", [value], "bias", {"axes": axes})
        else:
            wide = self._node("Unsqueeze", [value, self._integers("axes", *axes)], "bias")
        return wide, (1,) * missing + shape

    def _expanded(self, bias: ir.Value, shape: Dims) -> ir.Value:
        """A bias that is the same for all queries, with a row for each, as onnxruntime wants it."""
        wanted = (*shape[:2], self.m.shape[2], shape[3])
        made = self._made_before(bias, "Expand", wanted)
        if made is not None:
            return made.outputs[0]
        length = self.m.shape[2]
        if isinstance(length, int):
            sizes = self._integers("rows", 1, 1, length, 1)
        else:
            one = self._integers("one", 1)
            every = self._node("Shape", [self.m.query.rows], "rows")
            rows = self._node("Gather", [every, one], "rows")
            sizes = self._node("Concat", [self._integers("ones", 1, 1), rows, one], "rows", {"axis": 0})
        return self._node("Expand", [bias, sizes], "bias")

    def _made_before(self, source: ir.Value, op_type: str, shape: Dims) -> ir.Node | None:
        """The node that the rule made of `source` for another attention, if it stands before this one."""
        graph = self.m.root.graph
        assert isinstance(graph, ir.Graph)
        for node in readers(source, op_type):
            found = shape_of(node.outputs[0], self.m.context)
            ours = not NAMES.isdisjoint(node.metadata_props.get(RULE_KEY, "").split(","))
            if not ours or node.graph is not graph or found is None or not all(map(same, found, shape)):
                continue
            if next(item for item in graph if item in (node, self.place)) is node:
                return node
        return None

    @property
    def _opset(self) -> int:
        return int(self.m.context.model.opset_imports.get("", 1))

    def _integers(self, suffix: str, *numbers: int) -> ir.Value:
        return self.m.initializer(np.array(numbers, np.int64), suffix)

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        attributes: dict[str, Any] | None = None,
    ) -> ir.Value:
        """The result of one more node before the attention."""
        node = self.m.new_node(op_type, inputs, attributes)
        node.name = f"{self.m.root.name}_{suffix}_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]


def _is_shared(shape: Dims) -> bool:
    """Whether a mask of known sizes is the same for the whole batch."""
    return all(isinstance(dim, int) for dim in shape) and (len(shape) < 4 or shape[0] == 1)


def _broadcast(a: Dims, b: Dims) -> Dims:
    """The shape of two masks that are added: each dimension is 1 or that of the scores."""
    rank = max(len(a), len(b))
    both = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    return tuple(y if x == 1 else x for x, y in zip(*both, strict=True))
