"""How a segment is built: its nodes lowered and fused to operations, each with a function that binds it to shapes."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.bound_step import LyingConstant
from sardonyx.compiler.computation import of_node, of_sizes
from sardonyx.compiler.computed_constants import computed_constant
from sardonyx.compiler.fusion import Group, fuse
from sardonyx.compiler.joint_parts import find_slices
from sardonyx.compiler.joint_results import Slice
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.compiler.native.movement.view import apply_view
from sardonyx.compiler.needed_values import Needs, shape_alone
from sardonyx.compiler.operation import Operation, PairOperation
from sardonyx.compiler.pairs import Pair, check_operands, pairs_of, part_of
from sardonyx.compiler.picked_sizes import picked_sizes
from sardonyx.compiler.recording import Tensors
from sardonyx.compiler.rounded_results import round_results
from sardonyx.compiler.segment import Segment
from sardonyx.compiler.slice_places import slice_places
from sardonyx.compiler.spread_rows import find_spread
from sardonyx.compiler.structure import structure_of
from sardonyx.graph.computed_tensor import ComputedTensor
from sardonyx.graph.constants import is_constant
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Template, View
from sardonyx.ops.framework.facts import Dims
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.settings import DEFAULT, RunSettings

Bind = Callable[[Binder, Tensors], Tensors]

# Kernels that can read weights as they come, packed or not: the second of their inputs.
_READ_AS_THEY_LIE = frozenset({"matmul", "gemm", "convolution", "transposed_convolution"})


def build_segment(
    items: Sequence[Lowered],
    inference: Inference,
    library: KernelLibrary,
    constant: Callable[[ir.Value], Array | None],
    is_read_outside: Callable[[ir.Value], bool],
    settings: RunSettings = DEFAULT,
    steering: frozenset[ir.Value] = frozenset(),
) -> Segment:
    """Fuse the nodes of a segment. `constant` gives the contents of values that never change, None for others.

    `steering` are values whose contents are read where the segment begins.
    """
    made = dict.fromkeys(value for item in items for value in item.node.outputs if value.name != "")
    outer = {value: is_read_outside(value) for value in made}

    def shape_of(value: ir.Value) -> Dims | None:
        fact = inference.fact(value)
        return None if fact is None else fact.shape

    def dtype_of(value: ir.Value) -> np.dtype[Any] | None:
        fact = inference.fact(value)
        return None if fact is None or fact.dtype is None else numpy_dtype(fact.dtype)

    groups = fuse(items, shape_of, dtype_of, outer, joins=settings.fuses)
    if settings.precision == "bfloat16":
        round_results(groups, dtype_of, outer, library.target)
    picked = picked_sizes(items, constant, shape_of)
    makers = {value: group for group in groups for value in _written(group)}
    slices = {group: found for group in groups if (found := slice_places(group, makers, constant)) is not None}
    reads = {group: _read(group) if group not in slices else slices[group].all_read for group in groups}
    outside = [value for value, is_read in outer.items() if is_read]
    needs = Needs([(group, read, _written(group)) for group, read in reads.items()], picked, outside)
    computed = {value for one in slices.values() for value in one.outputs}
    lying = () if settings.packs else _read_as_they_lie(items)
    number = _Numbering(Binder(library), {*made, *computed}, constant, lying)
    operations: list[Operation] = []
    structures: dict[Hashable, int] = {}
    passed = _passed_through(groups, lambda value: value in made or constant(value) is not None)
    for group in groups:
        written, structure, computation = _written(group), None, None
        read = _read(group)
        if group in slices:
            found = slices[group]
            own = tuple(map(number, found.read)), tuple(map(number, found.outputs))
            operations.append(Operation(found.group, *own, found.computation.bind, "places", None, found.computation))
            read = found.instead_of(read)
        if written and picked.keys() >= set(written):
            written = [value for value in written if needs.has(value)]
            if not written:
                continue
            sizes = [picked[value] for value in written]
            read = list(dict.fromkeys(source for one in sizes for source in one.sources))
            computation = of_sizes(sizes, read)
        elif group.anchor is not None and group.anchor.role == "known":
            if not any(map(needs.has, written)):
                continue
            if needs.is_shape_alone(group, written):
                computation = shape_alone([_required(dtype_of(value)) for value in written])
            else:
                computation = of_node(group.anchor, dtype_of)
        if computation is not None:
            bind: Bind = computation.bind
        else:
            is_handed_over = any(outer[value] for value in group.outputs if value in passed)
            bind = _each_by(_binding(group, dtype_of), _own) if is_handed_over else _binding(group, dtype_of)
            if not settings.layouts and group.anchor is not None and group.anchor.role == "native":
                bind = _each_by(bind, contiguous)  # in the order of their axes
            key = structure_of(group) or ("alone", len(operations))
            structure = structures.setdefault(("copied", key) if is_handed_over else key, len(operations))
        places = tuple(map(number, read)), tuple(map(number, written))
        operations.append(Operation(group, *places, bind, _label(group), structure, computation))
    pairs = _paired(groups, outer, operations, structures, number) if settings.pairs else {}
    outputs = tuple(value for value in made if outer[value])
    inputs = tuple(number.inputs)
    dtypes = tuple(_required(dtype_of(value)) for value in inputs)
    kept = tuple(groups), tuple(operations), inputs, outputs, dtypes, number.numbers, number.constants
    by_number = {place: value for value, place in number.numbers.items()}
    parts: dict[int, Slice] = {}
    if settings.layouts:
        known = operations, lambda one: shape_of(by_number[one]), lambda one: outer.get(by_number[one], False)
        parts = find_slices(*known) | find_spread(*known)
    return Segment(library, *kept, settings, steering.intersection(inputs), pairs, parts)


class _Numbering:
    """Numbers the values of a segment as they are asked for. Those that are not `made` in it are constants, by their
    numbers, or its inputs; the constants that are `lying` are read as they lie."""

    def __init__(
        self,
        binder: Binder,
        made: Container[ir.Value],
        constant: Callable[[ir.Value], Array | None],
        lying: Container[ir.Value],
    ) -> None:
        self.numbers: dict[ir.Value, int] = {}
        self.constants: dict[int, Tensor] = {}
        self.inputs: list[ir.Value] = []
        self._binder, self._constant = binder, constant
        self._made, self._lying = made, lying

    def __call__(self, value: ir.Value | None) -> int:
        """The number of a value; -1 for one that is absent."""
        if value is None or value.name == "":
            return -1
        known = self.numbers.get(value)
        if known is None:
            known = self.numbers[value] = len(self.numbers)
            if value not in self._made:
                tensor = _constant_tensor(self._binder, value, self._constant)
                if tensor is None:
                    self.inputs.append(value)
                else:
                    self.constants[known] = LyingConstant(tensor) if value in self._lying else tensor
        return known


def _paired(
    groups: Sequence[Group],
    outer: Mapping[ir.Value, bool],
    operations: Sequence[Operation],
    structures: dict[Hashable, int],
    number: Callable[[ir.Value | None], int],
) -> dict[int, PairOperation]:
    """The pairs among the operations, by the `id` of the first; `structures` gets theirs."""
    pairs: dict[int, PairOperation] = {}
    by_group = {id(operation.group): operation for operation in operations}
    for pair in pairs_of(groups, outer):
        first, second = by_group[id(pair.first)], by_group[id(pair.second)]
        each = structure_of(pair.first), structure_of(pair.second)
        key = ("alone", first.structure, second.structure) if None in each else ("pair", *each)
        numbered = tuple(map(number, pair.reads))
        structure = structures.setdefault(key, len(operations) + len(pairs))
        whole = Operation(pair.group, numbered, second.outputs, _pair_binding(pair), _label(pair.group), structure)
        pairs[id(first)] = PairOperation(pair, whole, second)
    return pairs


def _constant_tensor(binder: Binder, value: ir.Value, constant: Callable[[ir.Value], Array | None]) -> Tensor | None:
    """A value that never changes, by the way in which the model holds it; None for others."""
    held = value.const_value
    if isinstance(held, ComputedTensor) and is_constant(value):
        return computed_constant(binder.library, held)
    array = constant(value)
    return None if array is None else binder.constant(array)


def _read_as_they_lie(items: Sequence[Lowered]) -> set[ir.Value]:
    """The values that nodes read as weights alone whose kernels need not pack them."""
    found: set[ir.Value] = set()
    others: set[ir.Value] = set()
    for item in items:
        takes = isinstance(item.kernel, Template) and item.kernel.name in _READ_AS_THEY_LIE
        for place, value in enumerate(item.node.inputs):
            if value is not None:
                (found if takes and place == 1 else others).add(value)
    return found - others


def _read(group: Group) -> list[ir.Value | None]:
    """What a group reads, absent inputs of its anchor included."""
    return [*(() if group.anchor is None else group.anchor.node.inputs), *group.operands]


def _written(group: Group) -> list[ir.Value]:
    """What it makes, absent outputs of its anchor included."""
    return group.outputs if group.anchor is None or group.values else list(group.anchor.node.outputs)


def _binding(
    group: Group, dtype_of: Callable[[ir.Value], np.dtype[Any] | None]
) -> Callable[[Binder, Tensors], Tensors]:
    """How a group binds that adds steps, or is a view."""
    if group.anchor is None:
        exprs = tuple(group.values.values())
        dtypes = tuple(_required(dtype_of(value)) for value in group.operands)
        kernel = PointwiseKernel(exprs, dtypes)
        return lambda binder, inputs: kernel.bind_nodes(binder, [tensor for tensor in inputs if tensor is not None])
    item = group.anchor
    if item.role == "view":
        view = item.kernel
        assert isinstance(view, View)
        return lambda binder, inputs: apply_view(binder, view, inputs)
    native = item.native
    assert native is not None
    if not group.values:
        options = {"rounded": True} if group.rounded else {}
        return lambda binder, inputs: native.bind(binder, *inputs, **options)

    def bind(binder: Binder, inputs: Tensors) -> Tensors:
        given = part_of(group, inputs)
        made = native.bind(binder, *given.inputs, epilogue=given.epilogue)
        check_operands(made, given)
        return made

    return bind


def _passed_through(groups: Sequence[Group], is_own: Callable[[ir.Value], bool]) -> set[ir.Value]:
    """The results of views of what comes from outside: as outputs they need memory of their own."""
    passed: set[ir.Value] = set()
    for group in groups:
        if group.anchor is not None and group.anchor.role == "view":
            source = group.anchor.node.inputs[0]
            if source is not None and (source in passed or not is_own(source)):
                passed.update(group.anchor.node.outputs)
    return passed


def _own(binder: Binder, tensor: Tensor) -> Tensor:
    """A copy of what a run brings. The plan would copy it, too, but a symbolic one knows steps of operations alone."""
    return tensor if tensor.is_known else copy(binder, tensor)


def _each_by(
    bind: Callable[[Binder, Tensors], Tensors], change: Callable[[Binder, Tensor], Tensor]
) -> Callable[[Binder, Tensors], Tensors]:
    """The same with each result changed."""

    def changed(binder: Binder, inputs: Tensors) -> Tensors:
        return [None if tensor is None else change(binder, tensor) for tensor in bind(binder, inputs)]

    return changed


def _pair_binding(pair: Pair) -> Callable[[Binder, Tensors], Tensors]:
    """How two groups bind as one."""

    def bind(binder: Binder, inputs: Tensors) -> Tensors:
        first, second = pair.parts(inputs)
        made = pair.kernel.bind(binder, first, second)
        check_operands(made, second)
        return made

    return bind


def _required(dtype: np.dtype[Any] | None) -> np.dtype[Any]:
    assert dtype is not None
    return dtype


def _label(group: Group) -> str:
    """What the kernel is called in profiles: its leading operator and what is fused to it."""
    kinds = [item.node.op_type for item in group.nodes]
    return "+".join(kinds[:6]) + ("+…" if len(kinds) > 6 else "")
