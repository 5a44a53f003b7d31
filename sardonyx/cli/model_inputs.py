"""Values for a model's inputs: from files, constant, or random in a range that the model can take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.api.values.element_types import is_float8
from sardonyx.cli.failure import CommandError, UsageError
from sardonyx.graph.types import numpy_dtype, type_name
from sardonyx.ops.framework.facts import symbol
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.files.opening import open_file

Array = np.ndarray[Any, Any]

# Operators whose first input flows through unchanged, so that what bounds their result bounds it too.
_PASSES_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Expand", "Clip"}
)


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller must give: those without an initializer."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def open_dimensions(values: Iterable[ir.Value]) -> list[str]:
    """The names of all symbolic dimensions of these values; one without a name goes by its place, as ``data[1]``."""
    return sorted({name for value in values for axis in range(len(value.shape or ())) for name in _names(value, axis)})


def _names(value: ir.Value, axis: int) -> set[str]:
    """The names on which the size of a dimension depends."""
    dim = (value.shape or ())[axis]
    return {_place(value, axis)} if not isinstance(dim, int) and dim.value is None else _symbols_of(dim)


def _place(value: ir.Value, axis: int) -> str:
    return f"{value.name}[{axis}]"


def _symbols_of(dim: int | ir.SymbolicDim) -> set[str]:
    """The symbols of a dimension; a name that is no expression is a symbol itself."""
    if isinstance(dim, int) or dim.value is None:
        return set()
    if symbol(dim.value).value != dim.value:
        return {dim.value}
    return {str(name) for name in dim.free_symbols()}


class Sizes:
    """The sizes of a model's symbolic dimensions: what the caller says, what given arrays have, else 1."""

    def __init__(self, inputs: Sequence[ir.Value], given: Mapping[str, int]) -> None:
        known = open_dimensions(inputs)
        for name in given:
            if name not in known:
                raise UsageError(f"--dim {name}: the inputs have no such dimension; they have {_listed(known)}")
        self._sizes = dict.fromkeys(known, 1) | dict(given)
        self._fixed = set(given)

    def learn(self, value: ir.Value, array: Array) -> None:
        """Take the sizes that an array gives to the dimensions of its input."""
        for dim, size in zip(value.shape or (), array.shape, strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value in self._sizes and dim.value not in self._fixed:
                self._sizes[dim.value] = size
                self._fixed.add(dim.value)

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of an input with all its dimensions known."""
        return tuple(self._size(value, axis, dim) for axis, dim in enumerate(value.shape or ()))

    def _size(self, value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> int:
        if isinstance(dim, int):
            return dim
        if dim.value is None:
            return self._sizes[_place(value, axis)]
        size = self._sizes.get(dim.value)
        if size is None:
            evaluated = dim.evaluate({name: self._sizes[name] for name in _symbols_of(dim)})
            size = evaluated if isinstance(evaluated, int) else 1
        return size


def make_inputs(
    model: ir.Model, inference: Inference, given: Mapping[str, str], dims: Mapping[str, int], seed: int
) -> dict[str, Array]:
    """An array for every required input and every other one that is given.

    `given` says how, by name: a file name that ends in .npy, `random`, `zeros`, `ones` or a value for all elements.
    Random integers stay below the size of every table that they index.
    """
    by_name = {value.name: value for value in model.graph.inputs}
    for name in given:
        if name not in by_name:
            raise UsageError(f"--input {name}: the model has no such input; it has {_listed(filter(None, by_name))}")
    required = {value.name for value in required_inputs(model)}
    wanted = [value for name, value in by_name.items() if name in required or name in given]
    sizes = Sizes(list(model.graph.inputs), dims)
    arrays: dict[str, Array] = {}
    for value in wanted:
        text = given.get(str(value.name), "")
        if text.endswith(".npy"):
            arrays[str(value.name)] = _load(value, Path(text))
            sizes.learn(value, arrays[str(value.name)])
    rng = np.random.default_rng(seed)
    for value in wanted:
        name = str(value.name)
        if name not in arrays:
            shape = sizes.shape(value)
            try:
                arrays[name] = _fill(value, given.get(name, "random"), shape, inference, rng)
            except (ValueError, MemoryError) as error:  # NumPy's limit of an array, the machine's
                raise CommandError(f"input {name} of {' x '.join(map(str, shape))} is too large: {error}") from error
    return {str(value.name): arrays[str(value.name)] for value in wanted}


def _load(value: ir.Value, path: Path) -> Array:
    option = f"--input {value.name}={path}"
    try:
        with open_file(path) as file:
            array = np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise CommandError(f"{option}: cannot read it: {error}") from error
    wanted = numpy_dtype(value.type.dtype) if isinstance(value.type, ir.TensorType) else None
    if wanted is not None and is_float8(wanted) and array.dtype == np.uint8:  # as which callers see them
        return array.view(wanted)
    if array.dtype.kind != "V":
        return array
    # As which types that NumPy does not have come back, bfloat16 among them.
    if wanted is None or array.dtype.fields or (wanted.kind, wanted.itemsize) != ("V", array.dtype.itemsize):
        raise CommandError(f"{option}: its elements are {array.dtype}, the input is of type {type_name(value.type)}")
    return array.view(wanted)


def _fill(value: ir.Value, how: str, shape: tuple[int, ...], inference: Inference, rng: np.random.Generator) -> Array:
    if not isinstance(value.type, ir.TensorType):
        raise CommandError(f"input {value.name} is of type {type_name(value.type)}; this command gives tensors only")
    dtype = numpy_dtype(value.type.dtype)
    if how == "random":
        return _random(value, dtype, shape, inference, rng)
    if dtype.kind == "O":
        return np.full(shape, {"zeros": "", "ones": "1"}.get(how, how), object)
    if how in ("zeros", "ones"):
        return np.full(shape, how == "ones", np.bool_).astype(dtype)
    try:
        number = {"true": 1.0, "false": 0.0}.get(how.lower())
        number = float(how) if number is None else number
    except ValueError as error:
        raise UsageError(
            f"--input {value.name}={how}: expected a file that ends in .npy, random, zeros, ones or a number"
        ) from error
    return np.full(shape, number).astype(dtype)


def _random(
    value: ir.Value, dtype: np.dtype[Any], shape: tuple[int, ...], inference: Inference, rng: np.random.Generator
) -> Array:
    if dtype.kind == "O":
        return np.full(shape, "text", object)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if np.issubdtype(dtype, np.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        limit = index_limit(value, inference)
        return rng.integers(0, 2 if limit is None else max(limit, 1), shape).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def index_limit(value: ir.Value, inference: Inference) -> int | None:
    """The size of the smallest table that the elements of a value index; None where they index none."""
    limits: list[int] = []
    seen = {value}
    waiting = [value]
    while waiting:
        for node, position in waiting.pop().uses():
            table = _table(node, position)
            if table is not None:
                limits.append(_rows(*table, inference))
            elif node.op_type in _PASSES_ON and position == 0 and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])
    return min(limits, default=None)


def _table(node: ir.Node, position: int) -> tuple[ir.Value | None, int] | None:
    """The table and its axis that input number `position` of a node indexes."""
    if node.op_type in ("Gather", "GatherElements") and position == 1:
        attribute = node.attributes.get("axis")
        return node.inputs[0], 0 if attribute is None else attribute.as_int()
    if node.op_type == "EmbedLayerNormalization" and position in (0, 1):
        return node.inputs[2 if position == 0 else 4], 0
    return None


def _rows(table: ir.Value | None, axis: int, inference: Inference) -> int:
    """The size of a table along an axis; 1 where it is not known, so that index 0 is the only choice."""
    fact = inference.fact(table)
    if fact is None or fact.shape is None or not -len(fact.shape) <= axis < len(fact.shape):
        return 1
    size = fact.shape[axis]
    return size if isinstance(size, int) else 1


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(str(name) for name in names) or "none"
