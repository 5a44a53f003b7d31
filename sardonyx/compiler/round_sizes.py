"""The sizes of what the rounds of a loop collect, as functions of what a run knows before the first round.

Where no round comes, nothing has the shape that the collected items would have. Inference finds it once more, with a
symbol for each size and each small number of the loop's inputs, and of the outer values that its body reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.sizes import size_of
from sardonyx.graph.constants import graphs_of
from sardonyx.ops.control_flow import Collecting
from sardonyx.ops.framework.dims import free_symbols
from sardonyx.ops.framework.facts import Dim, Dims, Fact, known
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.control_flow import CollectingFlow
from sardonyx.runtime.round_sizes import MOST_ELEMENTS, Origin
from sardonyx.runtime.sizes import symbols_in

_COUNTED = (ir.DataType.INT64, ir.DataType.INT32)


def with_sizes(
    operator: Collecting, node: ir.Node, captured: Sequence[ir.Value], inference: Inference
) -> CollectingFlow:
    """The flow of a loop, which knows how large what its rounds collect is; `captured` are the outer values that its
    body reads."""
    flow = operator.flow()
    if all(value.shape is not None and value.shape.is_static() for value in operator.collected):
        return flow
    given = {
        (is_captured, place): value
        for is_captured, values in ((True, captured), (False, node.inputs))
        for place, value in enumerate(values)
        if value is not None and value in inference.facts
    }
    symbols = _Symbols({key: inference.facts[value] for key, value in given.items()})
    shapes = _body_shapes(operator, node, {value: symbols.named(key) for key, value in given.items()}, inference)
    items = tuple(
        item if shape is None else item._replace(shape=tuple([size_of(dim) or 0 for dim in shape]))
        for item, shape in zip(flow.outputs, shapes, strict=True)
    )
    wanted = {symbol for item in items for size in item.shape for symbol in symbols_in(size)}
    origins = tuple([origin for symbol, origin in symbols.origins.items() if symbol in wanted])
    return replace(flow, outputs=items, origins=origins)


# Whether a value is captured, and its place.
_Key = tuple[bool, int]


class _Symbols:
    """The symbols of what a run knows, and where it finds their numbers."""

    def __init__(self, facts: Mapping[_Key, Fact]) -> None:
        self._facts = facts
        self.origins: dict[str, Origin] = {}
        for key, fact in facts.items():
            for axis, element, dim in _dims(fact):
                if not isinstance(dim, int) and dim.value is not None and free_symbols(dim) == {dim.value}:
                    self.origins.setdefault(dim.value, Origin(dim.value, *key, axis, element))

    def named(self, key: _Key) -> Fact:
        """The fact of a value whose sizes and numbers all have names."""
        fact = self._facts[key]
        names = [(axis, self._named(key, axis, element, dim)) for axis, element, dim in _dims(fact)]
        shape = None if fact.shape is None else tuple([dim for axis, dim in names if axis >= 0])
        numbers = tuple([dim for axis, dim in names if axis < 0])
        return replace(fact, shape=shape, elements=numbers if _counts(fact) else fact.elements)

    def _named(self, key: _Key, axis: int, element: int, dim: Dim) -> Dim:
        if known(dim) and free_symbols(dim) <= self.origins.keys():
            return dim
        is_captured, place = key
        name = f"{'outer' if is_captured else 'given'}.{place}." + (f"size.{axis}" if axis >= 0 else f"item.{element}")
        self.origins[name] = Origin(name, is_captured, place, axis, element)
        return ir.SymbolicDim(name)


def _dims(fact: Fact) -> Iterable[tuple[int, int, Dim]]:
    """The sizes and the numbers of a value, as the axis and the element of `Origin` say."""
    for axis, dim in enumerate(fact.shape or ()):
        yield axis, 0, dim
    if _counts(fact):
        (count,) = fact.shape or (1,)
        assert isinstance(count, int)
        yield from ((-1, index, dim) for index, dim in enumerate(fact.elements or [ir.SymbolicDim(None)] * count))


def _counts(fact: Fact) -> bool:
    """Whether a value is a few whole numbers, which may be sizes."""
    if fact.dtype not in _COUNTED or fact.shape is None or len(fact.shape) > 1:
        return False
    return fact.constant is None and all(isinstance(dim, int) and dim <= MOST_ELEMENTS for dim in fact.shape)


def _body_shapes(
    operator: Collecting, node: ir.Node, facts: Mapping[ir.Value, Fact], inference: Inference
) -> list[Dims | None]:
    """The shapes of what the body gives, None where nothing is known; the model is left as it was."""
    scratch = Inference(inference.opsets, inference.ir_version)
    scratch.operators, scratch.facts = inference.operators, {**inference.facts, **facts}
    inside = [value for graph in graphs_of(operator.body) for one in graph for value in one.outputs]
    before = [(value, value.type, value.shape) for value in (*inside, *operator.body.inputs)]
    try:
        operator.infer([scratch.fact(value) for value in node.inputs], scratch)
    except (ValueError, errors.Fail):  # sizes that had no names contradict each other, as a run will say
        return [None] * len(operator.body.outputs)
    finally:
        for value, kind, shape in before:
            value.type, value.shape = kind, shape
    return [scratch.facts[value].shape for value in operator.body.outputs]
