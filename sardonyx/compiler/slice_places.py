"""Coordinates that are those of a slice: known by where it begins and how it steps, not element by element.

Exporters write an assignment to a slice as a ScatterND with the coordinates of every element, each computed along one
axis, expanded, and joined to the others: several times the memory of what they move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array
from sardonyx.compiler.box import find_box
from sardonyx.compiler.computation import Computation, Given
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.lowering import Lowered
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class SlicePlaces:
    """What a node reads instead of the coordinates in `place` among its inputs: what `computation` makes of the values
    `read`. That is the coordinates, of which there are none where they are those of a box, and the numbers of the box,
    of which there are none otherwise: `outputs`. `group` stands for the computation."""

    node: ir.Node
    place: int
    read: Sequence[ir.Value | None]
    computation: Computation
    outputs: tuple[ir.Value, ir.Value]
    group: Group

    def instead_of(self, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None]:
        """What the node reads instead of its `inputs`: the box comes last."""
        places, box = self.outputs
        return [*inputs[: self.place], places, *inputs[self.place + 1 :], box]

    @property
    def all_read(self) -> list[ir.Value | None]:
        """What the node and the computation read together."""
        inputs = self.node.inputs
        return [*self.read, *inputs[: self.place], *inputs[self.place + 1 :]]


def slice_places(
    group: Group, makers: Mapping[ir.Value, Group], constant: Callable[[ir.Value], Array | None]
) -> SlicePlaces | None:
    """The same for a group, if it writes to places that are known while binding; `makers` have made its inputs."""
    item = group.anchor
    native = None if item is None else item.native
    place = None if native is None else native.places_input
    if item is None or place is None:
        return None
    indices = item.node.inputs[place]
    if indices is None:
        return None
    held = constant(indices)
    made = makers.get(indices)
    joined = None if made is None else made.anchor
    if held is None and (joined is None or joined.role != "known"):
        return None
    outputs = ir.Value(name=f"{indices.name}_places"), ir.Value(name=f"{indices.name}_box")
    stand_in = Group([item], None, anchor=replace(item, role="known", native=None))
    if held is not None:
        return SlicePlaces(item.node, place, (), Computation(_once(held)), outputs, stand_in)
    assert joined is not None
    if _joins_coordinates(joined, indices):
        return SlicePlaces(item.node, place, list(joined.node.inputs), Computation(_of_parts), outputs, stand_in)
    return SlicePlaces(item.node, place, [indices], Computation(_of_whole), outputs, stand_in)


def _joins_coordinates(item: Lowered, made: ir.Value) -> bool:
    """Whether a node joins the coordinates of each axis."""
    node = item.node
    rank = None if made.shape is None else len(made.shape)
    axis = node.attributes["axis"].as_int() if node.op_type == "Concat" and node.domain == "" else None
    return axis is not None and (axis == -1 or (rank is not None and axis == rank - 1))


def _once(indices: Array) -> Callable[[Given], Sequence[Array]]:
    """What there is of constant coordinates, found when it is first asked for."""
    kept: list[Sequence[Array]] = []

    def run(_: Given) -> Sequence[Array]:
        if not kept:
            kept.append(_of_whole([indices]))
        return kept[0]

    return run


def _of_whole(arrays: Given) -> Sequence[Array]:
    """The places, and the box, of coordinates along the last axis."""
    (indices,) = arrays
    return _found([indices[..., axis] for axis in range(indices.shape[-1])], lambda: np.ascontiguousarray(indices))


def _of_parts(arrays: Given) -> Sequence[Array]:
    """The same where the parts of that axis are not joined yet."""
    parts = [array for array in arrays if array is not None]
    coordinates = [part[..., axis] for part in parts for axis in range(part.shape[-1])]
    if len({part.shape[:-1] for part in parts}) > 1:  # for whoever joins them to say
        coordinates = []
    return _found(coordinates, lambda: np.concatenate(parts, -1))


def _found(coordinates: Sequence[Array], joined: Callable[[], Array]) -> Sequence[Array]:
    box = find_box(coordinates)
    if box is None:
        return joined(), np.zeros(0, np.int64)
    return np.zeros((*box.sizes, 0), np.int64), np.array(box.numbers, np.int64)
