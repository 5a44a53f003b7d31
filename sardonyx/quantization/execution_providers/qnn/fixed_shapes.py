"""Models with inputs of any size, made models of one size."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.graph.constants import graphs_of
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.selection import nearest


def fix_input_shapes(model: ir.Model, shapes: Sequence[tuple[str, str]]) -> bool:
    """Give inputs their sizes, ("name", "1,3,224,224"), wherever a named size of theirs occurs; whether there are any.

    `InvalidQuantization` for an input that is not there, and for sizes that are none or contradict the model.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    fixed: dict[str, int] = {}
    for pair in shapes:
        if isinstance(pair, str) or len(pair) != 2:
            raise InvalidQuantization(f"dynamic_input_shapes must be pairs of a name and its sizes, not {pair!r}")
        name, text = pair
        if name not in inputs:
            raise InvalidQuantization(
                f"dynamic_input_shapes: the model has no input '{name}'.{nearest(name, inputs)} It has "
                f"{', '.join(inputs)}"
            )
        _fix(inputs[name], _parsed(name, text), fixed)
    if fixed:
        for graph in graphs_of(model.graph):
            made = [value for node in graph for value in node.outputs]
            for value in (*graph.inputs, *made):
                _replace(value, fixed)
    return bool(shapes)


def _parsed(name: str, text: str) -> list[int]:
    try:
        sizes = [int(size) for size in str(text).split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InvalidQuantization(
            f"dynamic_input_shapes: the sizes of '{name}' must be whole numbers above 0 with commas between them, as "
            f"'1,3,224,224', not {text!r}"
        )
    return sizes


def _fix(value: ir.Value, sizes: Sequence[int], fixed: dict[str, int]) -> None:
    """Set the sizes of an input, and note those of its named sizes."""
    told = f"dynamic_input_shapes: '{value.name}'"
    if value.shape is not None:
        if len(value.shape) != len(sizes):
            raise InvalidQuantization(f"{told} has {len(value.shape)} dimensions, and {len(sizes)} sizes are given")
        for place, (old, new) in enumerate(zip(value.shape, sizes, strict=True)):
            if isinstance(old, int):
                if old > 0 and old != new:
                    raise InvalidQuantization(f"{told} has size {old} in dimension {place}, and {new} is given")
            elif old.value is not None and fixed.setdefault(old.value, new) != new:
                raise InvalidQuantization(
                    f"{told}: size {old.value} would be {new}, and {fixed[old.value]} by what is given before"
                )
    value.shape = ir.Shape(sizes)


def _replace(value: ir.Value, fixed: dict[str, int]) -> None:
    if value.shape is None:
        return
    sizes = [size if isinstance(size, int) else fixed.get(size.value or "", size) for size in value.shape]
    value.shape = ir.Shape(sizes)
