"""Masks that exporters gather or scatter element by element, at all places in order: views of what they read."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ops.framework.dims import product
from sardonyx.ops.framework.facts import Dim, Dims, same
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.caches.walk import Walk, named, same_dims


class Places:
    """The rules for these, of a walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def node(self, node: ir.Node) -> bool:
        """Take such a node; False for any other one."""
        if node.domain != "":
            return False
        if node.op_type in ("Flatten", "Reshape") and self._is_flattened(node):
            assert node.inputs[0] is not None
            self.walk.flat[node.outputs[0]] = node.inputs[0]
        elif node.op_type == "Gather" and node.inputs[0] in self.walk.flat:
            self._gather_all(node)
        elif node.op_type == "GatherND":
            self._gather_places(node)
        elif node.op_type == "ScatterND":
            self._scatter(node)
        else:
            return False
        return True

    def _is_flattened(self, node: ir.Node) -> bool:
        """Whether a node makes one axis of (rows, positions), behind which there may be axes of one element."""
        before, after = self.walk.fact(node.inputs[0]).shape, self.walk.fact(node.outputs[0]).shape
        if before is None or after is None or len(before) != 2 or self.walk.axes(node.inputs[0]) != (1,):
            return False
        return bool(after) and same(after[0], product(before)) and all(dim == 1 for dim in after[1:])

    def _gather_all(self, node: ir.Node) -> None:
        """Elements of (rows, positions) as one axis, by numbers row * positions + position: a view of what that was."""
        data, indices = node.inputs
        assert data is not None
        source = self.walk.flat[data]
        shape, result = self.walk.fact(indices).shape, self.walk.fact(node.outputs[0]).shape
        axis = node.attributes.get("axis")
        order = self._in_order(indices, self.walk.fact(source).shape or ())
        if shape is None or result is None or order is None or (axis is not None and axis.as_int() != 0):
            raise DeclinedError(f"{named(node)} takes elements of all rows by numbers that are not known")
        self.walk.see_results(node)
        self._spread(node, source, order, len(result))

    def _in_order(self, indices: ir.Value | None, dims: Dims) -> tuple[int, int] | None:
        """The axes of rows and positions of the numbers row * positions + position for all of `dims`, in this order."""
        node = None if indices is None else indices.producer()
        if node is None or node.op_type != "Add":
            return None
        rank = self.walk.fact(indices).rank or 0
        for first, second in (node.inputs, node.inputs[::-1]):
            product_ = None if second is None else second.producer()
            if product_ is None or product_.op_type != "Mul":
                continue
            for rows, width in (product_.inputs, product_.inputs[::-1]):
                source = self._width(width)
                row, position = self._counting(rows, dims[0], rank), self._counting(first, dims[1], rank)
                if source is not None and row is not None and position is not None and row < position:
                    return row, position
        return None

    def _width(self, value: ir.Value | None) -> ir.Value | None:
        """A size of one element that is the number of positions, as the walk has left it."""
        elements = self.walk.fact(value).elements
        return value if elements is not None and len(elements) == 1 and self.walk.sizes.is_whole(elements[0]) else None

    def _counting(self, value: ir.Value | None, length: Dim, rank: int) -> int | None:
        """The axis, of `rank` ones, along which a value counts 0, 1, … up to a length; None for any other value."""
        shape = self.walk.fact(value).shape
        if shape is None:
            return None
        long = [axis - len(shape) + rank for axis, dim in enumerate(shape) if dim != 1]
        while value is not None and (node := value.producer()) is not None and node.domain == "":
            if node.op_type == "Range":
                counted = self.walk.fact(value).shape
                fits = counted is not None and same(counted[0], length) and len(long) == 1
                begins = self.walk.fact(node.inputs[0]).integers() == [0] and self.walk.fact(
                    node.inputs[2]
                ).integers() == [1]
                return long[0] if fits and begins else None
            if node.op_type not in ("Unsqueeze", "Reshape", "Cast", "Identity"):
                return None
            value = node.inputs[0]
        return None

    def _gather_places(self, node: ir.Node) -> None:
        """Every element of (rows, positions) by its place, as exporters write `mask[rows, positions]`: a view."""
        data, indices = node.inputs
        assert data is not None
        before, result = self.walk.fact(data).shape, self.walk.fact(node.outputs[0]).shape
        apart = None if indices is None else indices.producer()
        if before is None or result is None or len(before) != 2 or apart is None or apart.op_type != "Concat":
            raise DeclinedError(f"{named(node)} takes elements from places that are not known")
        rank = len(result)
        bases = [self._coordinate(value, rank) for value in apart.inputs]
        last = apart.attributes["axis"].as_int() in (-1, rank)
        order = [self._counting(base, dim, rank) for base, dim in zip(bases, before, strict=False)]
        batches = node.attributes.get("batch_dims")
        is_all = last and len(bases) == 2 and (batches is None or batches.as_int() == 0)
        if not is_all or order[0] is None or order[1] is None or order[0] >= order[1]:
            raise DeclinedError(f"{named(node)} takes elements from places that are not known")
        self.walk.see_results(node)
        self._spread(node, data, (order[0], order[1]), rank)

    def _spread(self, node: ir.Node, source: ir.Value, order: tuple[int, int], rank: int) -> None:
        """Put a view of (rows, positions) in the place of a node, with these at two of `rank` axes."""
        axes = [place for place in range(rank) if place not in order]
        if self.walk.nodes.has_axes_input:
            view = self.walk.nodes.make("Unsqueeze", [source, self.walk.nodes.constant(axes)])
        else:
            view = self.walk.nodes.make("Unsqueeze", [source], {"axes": axes})
        self.walk.replace(node, [view], view.outputs[0])

    def _scatter(self, node: ir.Node) -> None:
        """Updates of every element in its place, as exporters write `mask[...] = `; they are the result."""
        data, indices, updates = node.inputs
        shape = self.walk.fact(data).shape
        apart = None if indices is None else indices.producer()
        same_shape = shape is not None and same_dims(shape, self.walk.fact(updates).shape)
        if shape is None or updates is None or not same_shape or apart is None or apart.op_type != "Concat":
            raise DeclinedError(f"{named(node)} writes to places that are not known")
        rank = len(shape)
        places = [self._coordinate(value, rank) for value in apart.inputs]
        wanted = [(axis, dim) for axis, dim in enumerate(shape)]
        last = apart.attributes["axis"].as_int() in (-1, rank)
        if (
            not last
            or len(places) != rank
            or not all(
                base is not None and self._is_coordinate(base, axis, dim, rank)
                for base, (axis, dim) in zip(places, wanted, strict=True)
            )
        ):
            raise DeclinedError(f"{named(node)} writes to places that are not known")
        self.walk.pass_through(node)
        self.walk.see_results(node)
        self.walk.replace(node, [], updates)

    def _coordinate(self, value: ir.Value | None, rank: int) -> ir.Value | None:
        """What was expanded to one coordinate of each place, behind which an axis was added."""
        outer = None if value is None else value.producer()
        if outer is None or outer.op_type != "Unsqueeze" or self.walk.fact(value).rank != rank + 1:
            return None
        shape = self.walk.fact(value).shape
        inner = outer.inputs[0]
        before = self.walk.fact(inner).shape
        if shape is None or before is None or not same_dims(shape[:-1], before) or inner is None:
            return None
        expand = inner.producer()
        return expand.inputs[0] if expand is not None and expand.op_type == "Expand" else None

    def _is_coordinate(self, base: ir.Value, axis: int, dim: Dim, rank: int) -> bool:
        """Whether a value that broadcasts to all places is the number of each along an axis."""
        if dim == 1:
            constant = self.walk.fact(base).constant
            return constant is not None and not constant.any()
        return self._counting(base, dim, rank) == axis
