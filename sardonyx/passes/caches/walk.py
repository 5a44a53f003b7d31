"""What a decoder computes of the length of its past, for caches of one capacity.

Each value that has to do with the length is one of these:

- A *size*: whole numbers of which inference knows how they depend on the length. There are two of each afterwards,
  one for shapes and one for contents (`lengths`), made where somebody reads them.
- A *long* value: one or more of its axes had an element for each position that is filled or new, and have one for
  each position of the capacity. Those of the positions that are filled or new are what they were, the others anything.
- Any other value whose contents depend on the length: it is what it was.

A node is left as it is, gets other nodes in its place, or declines with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of, subgraphs
from sardonyx.ops.framework.dims import add, at_least, product, subtract
from sardonyx.ops.framework.facts import Dim, Dims, Fact, known, same
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Elementwise
from sardonyx.passes.caches.lengths import NAME, Lengths, Nodes, Reading, Sizes
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.rule import stamp

# Ends of slices that mean the end of the axis.
_FAR = 1 << 31

# Inputs that are shapes or places and decide about the shape of the result, where no rule below knows better.
_DECIDING = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
}


class Walk:
    """One pass over the nodes of a graph, in order."""

    def __init__(
        self,
        graph: ir.Graph,
        inference: Inference,
        sizes: Sizes,
        nodes: Nodes,
        lengths: Lengths,
        caches: Sequence[ir.Value],
    ) -> None:
        self.graph, self.inference, self.sizes, self.nodes, self.lengths = graph, inference, sizes, nodes, lengths
        self.pasts = frozenset(caches)
        self.long: dict[ir.Value, tuple[int, ...]] = {}
        self._sizes: set[ir.Value] = set()
        self._read: dict[tuple[ir.Value, Reading], ir.Value] = {}
        self.written: dict[ir.Value, ir.Value] = {}  # by each past, the cache with new rows
        self._flat: dict[ir.Value, ir.Value] = {}  # (rows, positions) as one axis, by what that was made of
        self._counted: set[ir.Value] = set()  # whose elements are numbers of positions of the capacity, at any place
        for value in graph.inputs:
            if value not in self.pasts and value is not lengths.past:
                self._see(value, f"input {value.name}")

    # What is known

    def fact(self, value: ir.Value | None) -> Fact:
        found = self.inference.fact(value)
        return found if found is not None else Fact()

    def is_size(self, value: ir.Value | None) -> bool:
        return value in self._sizes

    def axes(self, value: ir.Value | None) -> tuple[int, ...]:
        """The axes of a value that are as long as the capacity."""
        return () if value is None else self.long.get(value, ())

    def written_axes(self, past: ir.Value) -> tuple[int, ...]:
        """The axis of a past along which rows are written."""
        return self.axes(self.written[past])

    def touches(self, node: ir.Node) -> bool:
        """Whether a node reads something that has to do with the length."""
        return any(
            value in self.long or value in self._sizes or value in self.pasts
            for value in node.inputs
            if value is not None
        )

    def _see(self, value: ir.Value, place: str) -> None:
        """Note which axes of a value are long; DeclinedError where one has to do with the length in another way."""
        shape = self.fact(value).shape
        if shape is None:
            raise DeclinedError(f"{place} has a shape that is not known")
        axes = []
        for axis, dim in enumerate(shape):
            if self.sizes.is_whole(dim):
                axes.append(axis)
            elif not known(dim) or self.sizes.depends(dim):
                raise DeclinedError(f"{place} has {_text(dim)} elements along axis {axis}")
        if axes:
            self.long[value] = tuple(axes)

    def see_results(self, node: ir.Node) -> None:
        """Note what the results of a node are."""
        for value in node.outputs:
            if value.name != "" and value.name is not None:
                self._see(value, f"the result of {named(node)}")

    # Sizes

    def _size_results(self, node: ir.Node) -> bool:
        """Whether a node gives sizes, which are made anew where they are read."""
        if len(node.outputs) != 1 or any(True for _ in subgraphs(node)):
            return False
        fact = self.fact(node.outputs[0])
        if fact.elements is None or not any(self.sizes.depends(dim) for dim in fact.elements):
            return False
        if any(self.sizes.depends(dim) for dim in fact.shape or ()):
            return False
        if not all(map(known, fact.elements)):
            raise DeclinedError(f"the sizes that {named(node)} gives are not all known")
        if node.op_type != "Shape" and any(value in self.long or value in self.pasts for value in node.inputs):
            return False
        self._sizes.add(node.outputs[0])
        return True

    def _is_known(self, value: ir.Value) -> bool:
        elements = self.fact(value).elements
        return elements is not None and all(map(known, elements))

    def read(self, value: ir.Value, reading: Reading) -> ir.Value:
        """A value as it is to be read; that of a size depends on what it is for."""
        if value not in self._sizes:
            return value
        found = self._read.get((value, reading))
        if found is None:
            found = self._read[value, reading] = self._made(value, reading)
            if reading is Reading.DATA:
                self.inference.facts[found] = self.fact(value)
        return found

    def _made(self, value: ir.Value, reading: Reading) -> ir.Value:
        node, fact = value.producer(), self.fact(value)
        assert node is not None
        assert fact.elements is not None
        assert fact.dtype is not None
        if len(fact.elements) == 1:
            found = self._number(fact.elements[0], reading)
            if found is not None:
                made: list[ir.Node] = []
                if fact.rank == 1:
                    made.append(self.nodes.reshaped(found, [1]))
                if fact.dtype != ir.DataType.INT64:
                    made.append(self.nodes.cast(made[-1].outputs[0] if made else found, fact.dtype))
                self.insert_after(node, made)
                return made[-1].outputs[0] if made else found
        if node.op_type == "Shape" and node.domain == "":
            return self._shape(node, fact, reading)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        inputs = [None if one is None else self.read(one, reading) for one in node.inputs]
        copy = self.nodes.make(node.op_type, inputs, attributes, version=node.version)
        self.insert_after(node, [copy], inputs)
        return copy.outputs[0]

    def _number(self, dim: Dim, reading: Reading) -> ir.Value | None:
        """The length of the past, or of it and what is new, as a number; None for others."""
        if self.sizes.is_past(dim):
            return self.lengths.past if reading is Reading.DATA else self.lengths.room
        if self.sizes.is_whole(dim):
            return self.lengths.whole if reading is Reading.DATA else self.lengths.capacity
        return None

    def _shape(self, node: ir.Node, fact: Fact, reading: Reading) -> ir.Value:
        """The sizes of a value, one by one."""
        source = node.inputs[0]
        assert source is not None
        assert fact.elements is not None
        natural = self.nodes.make(
            "Shape", [source], {k: v.value for k, v in node.attributes.items()}, version=node.version
        )
        made, parts = [natural], []
        for place, dim in enumerate(fact.elements):
            number = self._number(dim, reading)
            if number is not None:
                made.append(self.nodes.reshaped(number, [1]))
            elif self.sizes.depends(dim):
                raise DeclinedError(f"{named(node)} gives the size {_text(dim)}")
            else:
                made.append(self.nodes.make("Gather", [natural.outputs[0], self.nodes.constant([place])]))
            parts.append(made[-1].outputs[0])
        made.append(self.nodes.make("Concat", parts, {"axis": 0}))
        self.insert_after(node, made)
        return made[-1].outputs[0]

    # Putting nodes into the graph

    def insert_after(self, node: ir.Node, made: Sequence[ir.Node], inputs: Sequence[ir.Value | None] = ()) -> None:
        """Put nodes behind one that has been there, and behind all that they read."""
        if not made:
            return
        stamp(made, NAME, [node])
        place = node
        produced = {value.producer() for value in inputs if value is not None} - {None}
        if produced:
            order = {one: number for number, one in enumerate(self.graph)}
            place = max([node, *(one for one in produced if one is not None)], key=order.__getitem__)
        self.graph.insert_after(place, made)

    def insert_before(self, node: ir.Node, made: Sequence[ir.Node]) -> None:
        stamp(made, NAME, [node])
        self.graph.insert_before(node, made)

    def replace(self, node: ir.Node, made: Sequence[ir.Node], result: ir.Value) -> None:
        """Put nodes in the place of one with one result, and let its readers read another value."""
        old = node.outputs[0]
        self.insert_before(node, made)
        self.inference.facts[result] = self.fact(old)
        if old in self.long:
            self.long[result] = self.long[old]
        if old in self._counted:
            self._counted.add(result)
        if old.is_graph_output():
            raise DeclinedError(f"{named(node)} makes an output of the model of the length of the past")
        ir.convenience.replace_all_uses_with(old, result)
        self.graph.remove(node, safe=True)

    def pass_through(self, node: ir.Node, deciding: Sequence[int] = ()) -> None:
        """Let a node read its inputs as contents, those at the places `deciding` as shapes."""
        for place, value in enumerate(node.inputs):
            if value is not None and value in self._sizes:
                reading = Reading.SHAPE if place in deciding else Reading.DATA
                node.replace_input_with(place, self.read(value, reading))

    # The nodes

    def node(self, node: ir.Node) -> None:
        """Take one node that reads what has to do with the length; DeclinedError where nothing is known of it."""
        if self._size_results(node):
            return
        if any(True for _ in subgraphs(node)):
            raise DeclinedError(f"{named(node)} has a body")
        if node.op_type == "Shape" and node.domain == "" and self._is_known(node.outputs[0]):
            return  # of another axis, which is what it was
        if any(value in self.pasts for value in node.inputs):
            raise DeclinedError(f"{named(node)} reads a cache beside the node that appends to it")
        if any(value in self._flat for value in node.inputs) and node.op_type != "Gather":
            raise DeclinedError(f"{named(node)} reads the positions of all rows as one axis")
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is not None:
            rule(self, node)
            return
        if isinstance(self.inference.operator(node), Elementwise):
            self._elementwise(node)
            return
        if any(value in self.long for value in node.inputs):
            raise DeclinedError(f"{named(node)} is not known to work on what is filled of a cache alone")
        self._exact(node)

    def _keeps_long_axes(self, node: ir.Node) -> None:
        """DeclinedError where an axis that is long in an input of a node that broadcasts is not long in the result.

        Inference takes a number there for the size, which the length would have to be by chance.
        """
        rank, found = self.fact(node.outputs[0]).rank or 0, self.axes(node.outputs[0])
        for value in node.inputs:
            width = self.fact(value).rank or 0
            if any(axis - width + rank not in found for axis in self.axes(value)):
                raise DeclinedError(f"{named(node)} broadcasts the positions to another size")

    def _exact(self, node: ir.Node) -> None:
        """A node whose inputs are what they were, as contents."""
        deciding = _DECIDING.get(node.op_type, ()) if node.domain == "" else ()
        if any(place in deciding and value in self._sizes for place, value in enumerate(node.inputs)):
            raise DeclinedError(f"the length of the past decides what {named(node)} gives")
        self.pass_through(node)
        self.see_results(node)
        if any(value in self.long for value in node.outputs):
            raise DeclinedError(f"{named(node)} is not known to give an element for each position")

    def _elementwise(self, node: ir.Node) -> None:
        if node.op_type in ("Div", "Mod") and self.fact(node.outputs[0]).dtype in _WHOLE and self.axes(node.inputs[1]):
            raise DeclinedError(f"{named(node)} divides by what lies beyond the filled positions")
        self.pass_through(node)
        self.see_results(node)
        self._keeps_long_axes(node)
        if node.op_type in ("Cast", "Identity") and node.inputs[0] in self._counted:
            self._counted.add(node.outputs[0])

    def _view(self, node: ir.Node) -> None:
        """What moves or adds axes, or repeats elements."""
        self.pass_through(node, _DECIDING.get(node.op_type, ()))
        self.see_results(node)
        if node.op_type == "Expand":
            self._keeps_long_axes(node)
        if node.inputs[0] in self._counted:
            self._counted.add(node.outputs[0])

    def _reshape(self, node: ir.Node) -> None:
        before, after = self.fact(node.inputs[0]).shape, self.fact(node.outputs[0]).shape
        if self._is_flattened(node):
            assert node.inputs[0] is not None
            self._flat[node.outputs[0]] = node.inputs[0]
            return
        source = self.axes(node.inputs[0])
        self._view(node)
        target = self.axes(node.outputs[0])
        assert before is not None
        assert after is not None
        if len(source) != len(target) or not all(
            _same_size(before[:one], after[:other]) for one, other in zip(source, target, strict=True)
        ):
            raise DeclinedError(f"{named(node)} joins the positions with other axes")

    def _is_flattened(self, node: ir.Node) -> bool:
        """Whether a node makes one axis of (rows, positions), behind which there may be axes of one element."""
        before, after = self.fact(node.inputs[0]).shape, self.fact(node.outputs[0]).shape
        if before is None or after is None or len(before) != 2 or self.axes(node.inputs[0]) != (1,):
            return False
        return bool(after) and same(after[0], product(before)) and all(dim == 1 for dim in after[1:])

    def _gather_all(self, node: ir.Node) -> None:
        """Elements of (rows, positions) as one axis, by numbers row * positions + position: a view of what that was."""
        data, indices = node.inputs
        assert data is not None
        source = self._flat[data]
        shape, result = self.fact(indices).shape, self.fact(node.outputs[0]).shape
        axis = node.attributes.get("axis")
        order = self._in_order(indices, self.fact(source).shape or ())
        if shape is None or result is None or order is None or (axis is not None and axis.as_int() != 0):
            raise DeclinedError(f"{named(node)} takes elements of all rows by numbers that are not known")
        self.see_results(node)
        self._spread(node, source, order, len(result))

    def _in_order(self, indices: ir.Value | None, dims: Dims) -> tuple[int, int] | None:
        """The axes of rows and positions of the numbers row * positions + position for all of `dims`, in this order."""
        node = None if indices is None else indices.producer()
        if node is None or node.op_type != "Add":
            return None
        rank = self.fact(indices).rank or 0
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
        elements = self.fact(value).elements
        return value if elements is not None and len(elements) == 1 and self.sizes.is_whole(elements[0]) else None

    def _counting(self, value: ir.Value | None, length: Dim, rank: int) -> int | None:
        """The axis, of `rank` ones, along which a value counts 0, 1, … up to a length; None for any other value."""
        shape = self.fact(value).shape
        if shape is None:
            return None
        long = [axis - len(shape) + rank for axis, dim in enumerate(shape) if dim != 1]
        while value is not None and (node := value.producer()) is not None and node.domain == "":
            if node.op_type == "Range":
                counted = self.fact(value).shape
                fits = counted is not None and same(counted[0], length) and len(long) == 1
                begins = self.fact(node.inputs[0]).integers() == [0] and self.fact(node.inputs[2]).integers() == [1]
                return long[0] if fits and begins else None
            if node.op_type not in ("Unsqueeze", "Reshape", "Cast", "Identity"):
                return None
            value = node.inputs[0]
        return None

    def _concat(self, node: ir.Node) -> None:
        rank = self.fact(node.outputs[0]).rank
        if rank is None:
            raise DeclinedError(f"the rank of what {named(node)} gives is not known")
        axis = node.attributes["axis"].as_int() % rank
        if any(axis in self.axes(value) for value in node.inputs):
            raise DeclinedError(f"{named(node)} puts something behind the filled positions")
        self.pass_through(node)
        self.see_results(node)
        self._keeps_long_axes(node)

    def _range(self, node: ir.Node) -> None:
        """Consecutive numbers: as many as the capacity has positions, or from what is filled on."""
        start, limit, step = node.inputs
        fact = self.fact(node.outputs[0])
        assert start is not None
        assert limit is not None
        assert step is not None
        if fact.shape is None or fact.dtype != ir.DataType.INT64 or self.fact(step).integers() != [1]:
            raise DeclinedError(f"{named(node)} does not count by ones")
        length = fact.shape[0]
        if self.sizes.is_whole(length):
            if self.is_size(start):
                raise DeclinedError(f"{named(node)} begins at the length of the past")
            self.pass_through(node, (1,))
            self.see_results(node)
            if self.fact(start).integers() == [0]:
                self._counted.add(node.outputs[0])
            return
        if not known(length) or self.sizes.depends(length):
            raise DeclinedError(f"{named(node)} gives {_text(length)} numbers")
        if not self.is_size(start):
            raise DeclinedError(f"the end of {named(node)} is the length of the past")
        count = self.nodes.make("Sub", [self.read(value, Reading.SHAPE) for value in (limit, start)])
        numbers = self.nodes.make("Range", [self.nodes.constant(0), count.outputs[0], step])
        moved = self.nodes.make("Add", [numbers.outputs[0], self.read(start, Reading.DATA)])
        self.replace(node, [count, numbers, moved], moved.outputs[0])

    def _slice(self, node: ir.Node) -> None:
        data = node.inputs[0]
        assert data is not None
        shape, result = self.fact(data).shape, self.fact(node.outputs[0]).shape
        bounds = self._bounds(node)
        if shape is None or result is None or bounds is None:
            raise DeclinedError(f"the bounds of {named(node)} are not known")
        taken: list[tuple[int, ir.Value]] = []
        for number, (axis, start, end) in enumerate(bounds):
            is_long = axis in self.axes(data)
            if is_long and known(start) and same(add(start, self.sizes.new), 0) and _is_far(end):
                taken.append(
                    (number, self._places(node, axis, ir.SymbolicDim(self.sizes.past), shape[axis], self.sizes.new))
                )
                continue
            if not is_long and not self.sizes.depends(start) and not self.sizes.depends(end):
                continue
            if self.sizes.is_whole(result[axis]) and start == 0:
                continue
            if self.sizes.depends(result[axis]) or not known(result[axis]):
                raise DeclinedError(f"{named(node)} gives {_text(result[axis])} elements along axis {axis}")
            if start == 0 and not self.sizes.depends(end) and at_least(end, 0):
                continue  # the first ones, which are what they were
            taken.append((number, self._places(node, axis, start, shape[axis], result[axis])))
        if not taken:
            self.pass_through(node, (1, 2))
            self.see_results(node)
            return
        if len(bounds) != len(taken):
            raise DeclinedError(f"{named(node)} takes parts of several axes at once")
        made = []
        value: ir.Value = data
        for number, places in taken:
            made.append(self.nodes.make("Gather", [value, places], {"axis": bounds[number][0]}))
            value = made[-1].outputs[0]
        dims = list(result)
        for number, _ in taken:
            axis = bounds[number][0]
            dims[axis] = dims[axis] if isinstance(dims[axis], int) else self.sizes.new
        self.inference.facts[node.outputs[0]] = Fact(self.fact(node.outputs[0]).type, tuple(dims))
        self.see_results(node)
        self.replace(node, made, value)

    def _places(self, node: ir.Node, axis: int, start: Dim, size: Dim, count: Dim) -> ir.Value:
        """The places from `start` on, of which the first depends on the length of the past."""
        if isinstance(start, int) and start < 0:
            start = subtract(self.sizes.whole, -start) if self.sizes.is_whole(size) else start
        made: list[ir.Node] = []
        if self.sizes.is_past(start) and same(count, self.sizes.new):
            base, length = self.lengths.past, self.lengths.new
        elif isinstance(count, int) and same(start, subtract(self.sizes.whole, count)):
            made.append(self.nodes.make("Sub", [self.lengths.whole, self.nodes.constant(count)]))
            base, length = made[-1].outputs[0], self.nodes.constant(count)
        else:
            raise DeclinedError(f"{named(node)} takes {_text(count)} elements from {_text(start)} on along axis {axis}")
        if count == 1:
            made.append(self.nodes.reshaped(base, [1]))
        else:
            made.append(self.nodes.make("Range", [self.nodes.constant(0), length, self.nodes.constant(1)]))
            made.append(self.nodes.make("Add", [made[-1].outputs[0], base]))
        self.insert_before(node, made)
        return made[-1].outputs[0]

    def _bounds(self, node: ir.Node) -> list[tuple[int, Dim, Dim]] | None:
        """The axes that a Slice cuts, where each begins and ends; None where that is not known, or it has steps."""
        rank = self.fact(node.inputs[0]).rank
        if rank is None or len(node.inputs) < 3:
            return None
        starts, ends = (self.fact(value).elements for value in node.inputs[1:3])
        given = [node.inputs[place] if place < len(node.inputs) else None for place in (3, 4)]
        axes, steps = (None if value is None else self.fact(value).integers() for value in given)
        if starts is None or ends is None or (given[0] is not None and axes is None):
            return None
        if given[1] is not None and (steps is None or set(steps) != {1}):
            return None
        places = range(len(starts)) if axes is None else [axis % rank for axis in axes]
        return list(zip(places, starts, ends, strict=True))

    def _gather(self, node: ir.Node) -> None:
        data, indices = node.inputs
        if data in self._flat:
            self._gather_all(node)
            return
        rank = self.fact(data).rank
        attribute = node.attributes.get("axis")
        if rank is None or rank == 0:
            raise DeclinedError(f"the rank of what {named(node)} reads is not known")
        axis = (0 if attribute is None else attribute.as_int()) % rank
        self.pass_through(node)
        self.see_results(node)
        if axis in self.axes(data) and indices not in self._counted and not self._is_near(indices):
            self._count_from_the_front(node)
        if self.axes(indices) and (indices not in self._counted or axis not in self.axes(data)):
            self._keep_to_the_filled(node)

    def _keep_to_the_filled(self, node: ir.Node) -> None:
        """Let indices of positions that are not filled be 0, so that they are in their range, whatever they were."""
        indices = node.inputs[1]
        assert indices is not None
        rank, axes, dtype = self.fact(indices).rank, self.axes(indices), self.fact(indices).dtype
        assert rank is not None
        assert dtype is not None
        if len(axes) != 1:
            raise DeclinedError(f"{named(node)} takes elements by numbers for pairs of positions")
        filled = self.lengths.filled
        made = []
        if rank - axes[0] > 1:
            made.append(self.nodes.reshaped(filled, [-1] + [1] * (rank - axes[0] - 1)))
            filled = made[0].outputs[0]
        zero = self.nodes.constant(0, np.int32 if dtype == ir.DataType.INT32 else np.int64)
        made.append(self.nodes.make("Where", [filled, indices, zero]))
        self._put_indices(node, made)

    def _scatter(self, node: ir.Node) -> None:
        """Updates of every element in its place, as exporters write `mask[...] = `; they are the result."""
        data, indices, updates = node.inputs
        shape = self.fact(data).shape
        apart = None if indices is None else indices.producer()
        same_shape = shape is not None and _same_dims(shape, self.fact(updates).shape)
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
        self.pass_through(node)
        self.see_results(node)
        self.replace(node, [], updates)

    def _gather_places(self, node: ir.Node) -> None:
        """Every element of (rows, positions) by its place, as exporters write `mask[rows, positions]`: a view."""
        data, indices = node.inputs
        assert data is not None
        before, result = self.fact(data).shape, self.fact(node.outputs[0]).shape
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
        self.see_results(node)
        self._spread(node, data, (order[0], order[1]), rank)

    def _spread(self, node: ir.Node, source: ir.Value, order: tuple[int, int], rank: int) -> None:
        """Put a view of (rows, positions) in the place of a node, with these at two of `rank` axes."""
        axes = [place for place in range(rank) if place not in order]
        if self.nodes.has_axes_input:
            view = self.nodes.make("Unsqueeze", [source, self.nodes.constant(axes)])
        else:
            view = self.nodes.make("Unsqueeze", [source], {"axes": axes})
        self.replace(node, [view], view.outputs[0])

    def _triangle(self, node: ir.Node) -> None:
        """A triangle that is counted from the first position."""
        if len(node.inputs) > 1 and self.is_size(node.inputs[1]):
            raise DeclinedError(f"the diagonal of {named(node)} is the length of the past")
        self.see_results(node)

    def _coordinate(self, value: ir.Value | None, rank: int) -> ir.Value | None:
        """What was expanded to one coordinate of each place, behind which an axis was added."""
        outer = None if value is None else value.producer()
        if outer is None or outer.op_type != "Unsqueeze" or self.fact(value).rank != rank + 1:
            return None
        shape = self.fact(value).shape
        inner = outer.inputs[0]
        before = self.fact(inner).shape
        if shape is None or before is None or not _same_dims(shape[:-1], before) or inner is None:
            return None
        expand = inner.producer()
        return expand.inputs[0] if expand is not None and expand.op_type == "Expand" else None

    def _is_coordinate(self, base: ir.Value, axis: int, dim: Dim, rank: int) -> bool:
        """Whether a value that broadcasts to all places is the number of each along an axis."""
        if dim == 1:
            constant = self.fact(base).constant
            return constant is not None and not constant.any()
        return self._counting(base, dim, rank) == axis

    def _is_near(self, indices: ir.Value | None) -> bool:
        """Whether indices surely count from the front."""
        numbers = self.fact(indices).integers()
        return numbers is not None and all(number >= 0 for number in numbers)

    def _count_from_the_front(self, node: ir.Node) -> None:
        """Let indices that are below 0 count from the end of what is filled or new."""
        indices = node.inputs[1]
        assert indices is not None
        dtype = self.fact(indices).dtype
        whole, zero = self.lengths.whole, self.nodes.constant(0)
        made = []
        if dtype != ir.DataType.INT64:
            raise DeclinedError(f"{named(node)} takes elements by numbers of {dtype}")
        made.append(self.nodes.make("Less", [indices, zero]))
        made.append(self.nodes.make("Add", [indices, whole]))
        made.append(self.nodes.make("Where", [made[-2].outputs[0], made[-1].outputs[0], indices]))
        self._put_indices(node, made)

    def _put_indices(self, node: ir.Node, made: Sequence[ir.Node]) -> None:
        """Let a Gather read other indices, of which the same is known."""
        old, result = node.inputs[1], made[-1].outputs[0]
        fact = self.fact(old)
        self.inference.facts[result] = Fact(fact.type, fact.shape)
        if self.axes(old):
            self.long[result] = self.axes(old)
        self.insert_before(node, made)
        node.replace_input_with(1, result)

    def _sum_up(self, node: ir.Node) -> None:
        """Running sums from the front: those of the filled positions are what they were."""
        reverse = node.attributes.get("reverse")
        if reverse is not None and reverse.as_int() != 0 and self.axes(node.inputs[0]):
            raise DeclinedError(f"{named(node)} sums up from the end")
        if self.is_size(node.inputs[1]):
            raise DeclinedError(f"the axis of {named(node)} is not known")
        self.pass_through(node)
        self.see_results(node)


_WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT8})

_RULES: dict[str, Callable[[Walk, ir.Node], None]] = {
    "Concat": Walk._concat,
    "ConstantOfShape": Walk._view,
    "CumSum": Walk._sum_up,
    "Expand": Walk._view,
    "Flatten": Walk._reshape,
    "Gather": Walk._gather,
    "GatherND": Walk._gather_places,
    "Identity": Walk._elementwise,
    "Range": Walk._range,
    "ScatterND": Walk._scatter,
    "Reshape": Walk._reshape,
    "Slice": Walk._slice,
    "Squeeze": Walk._view,
    "Transpose": Walk._view,
    "Trilu": Walk._triangle,
    "Unsqueeze": Walk._view,
}


def _is_far(end: Dim) -> bool:
    return isinstance(end, int) and end >= _FAR - 1


def _same_dims(one: Dims, other: Dims | None) -> bool:
    return other is not None and len(one) == len(other) and all(map(same, one, other))


def _same_size(one: Dims, other: Dims) -> bool:
    return same(product(one), product(other))


def _captured(node: ir.Node) -> Iterator[ir.Value | None]:
    """What the bodies of a node read and give out, of the graph around it or their own."""
    for body in subgraphs(node):
        for inner in nodes_of(body):
            yield from inner.inputs
        yield from body.outputs


def named(node: ir.Node) -> str:
    """A node as messages call it."""
    return f"{node.op_type} ({node.name or node.outputs[0].name})"


def _text(dim: Dim) -> str:
    return f"'{dim}'" if known(dim) and not isinstance(dim, int) else str(dim) if isinstance(dim, int) else "unknown"
