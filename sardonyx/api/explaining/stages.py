"""What each stage of compilation makes of a model, as text for people.

The stages are those of `docs/architecture.md`: the model after its rewrites, its kernels before their sizes are known,
the plan for given sizes, the text of one kernel in LLVM's language, and its machine code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.api.explaining.explained_plan import PlacedStep, Subject, placed_steps
from sardonyx.api.explaining.explanation_records import abbreviated, counted
from sardonyx.compiler.llvm.codegen import compile_assembly
from sardonyx.kernel.program import Pointwise, Reduction, Template
from sardonyx.kernel.text import text_of
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from sardonyx.runtime.native_plan import StepColumn, StepFlag

if TYPE_CHECKING:
    from sardonyx.compiler.binding import BoundStep, Buffer, Tensor
    from sardonyx.compiler.fusion import Group
    from sardonyx.runtime.native.native_segment import ReadyPlan

Stage = Literal["rewritten", "kernels", "plan", "llvm", "asm"]
STAGES: tuple[Stage, ...] = get_args(Stage)

# Elements of a constant attribute that are listed.
_MOST_ELEMENTS = 8


def rewritten(subject: Subject) -> Iterator[str]:
    """The nodes of the model after its rewrites, in the order of execution, each with the rewrites that made it."""
    yield from _graph(subject.compiled.model.graph, "")


def of_steps(
    subject: Subject,
    stage: Stage,
    feeds: Mapping[str, Any] | None,
    shapes: Mapping[str, tuple[int, ...]],
    number: int | None = None,
) -> Iterator[str]:
    """The stage `kernels`, `plan`, `llvm` or `asm` of every step for these sizes, or of the one of this `number`.

    InvalidArgument where no step has the number, `llvm` or `asm` is asked of no step, or of one that is no kernel.
    """
    placed = placed_steps(subject, feeds, shapes)
    if number is not None and not 0 <= number < len(placed):
        raise errors.InvalidArgument(f"there is no step {number}: the plan has steps 0 to {len(placed) - 1}")
    if stage in ("llvm", "asm"):
        if number is None:
            raise errors.InvalidArgument(f"the stage {stage} is one kernel's: give the number of its step")
        yield _code(placed[number], stage)
        return
    chosen = placed if number is None else [placed[number]]
    if stage == "plan":
        yield from _plan(chosen)
    else:
        yield from _kernels(chosen)


def _graph(graph: ir.Graph, indent: str) -> Iterator[str]:
    for value in graph.inputs:
        yield f"{indent}input {_described(value)}"
    for node in graph:
        made = ", ".join(_described(value) for value in node.outputs)
        read = [_read(value) for value in node.inputs]
        domain = f"{node.domain}." if node.domain else ""
        plain = [f"{one.name}={_attribute(one)}" for one in node.attributes.values() if not _is_graph(one)]
        yield f"{indent}{made} = {domain}{node.op_type}({', '.join([*read, *plain])}){_origin(node)}"
        for one in node.attributes.values():
            if isinstance(one, ir.Attr) and one.type == ir.AttributeType.GRAPH:
                yield f"{indent}  {one.name}:"
                yield from _graph(one.as_graph(), f"{indent}    ")
    for value in graph.outputs:
        yield f"{indent}output {value.name}"


def _is_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _described(value: ir.Value) -> str:
    return f"{value.name or '_'}: {_type(value)}"


def _read(value: ir.Value | None) -> str:
    if value is None or value.name == "":
        return "_"
    return f"{value.name}: {_type(value)}" if value.is_initializer() else str(value.name)


def _type(value: ir.Value) -> str:
    kind = "?" if value.dtype is None else value.dtype.name.lower()
    dims = "…" if value.shape is None else ", ".join("?" if dim is None else str(dim) for dim in value.shape.dims)
    return f"{kind}[{dims}]"


def _attribute(attribute: ir.Attr) -> str:
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return _array(value.numpy())
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else repr(value)


def _array(array: Any) -> str:
    found = np.asarray(array)
    return str(found.tolist()) if found.size <= _MOST_ELEMENTS else f"{found.dtype}{list(found.shape)}"


def _origin(node: ir.Node) -> str:
    rules, sources = node.metadata_props.get(RULE_KEY), node.metadata_props.get(SOURCES_KEY)
    if not rules:
        return ""
    return (
        f"  # {rules.replace(',', ', ')} from {abbreviated(tuple(sources.split(',')))}" if sources else f"  # {rules}"
    )


def _title(one: PlacedStep) -> str:
    row = one.row
    words = " ".join([row.kernel, *(f"+{word}" for word in row.epilogue)])
    place = f" in {row.body}" if row.body else ""
    return f"step {row.step}{place}: {words}  # {abbreviated(row.nodes)}"


def _kernels(placed: Sequence[PlacedStep]) -> Iterator[str]:
    """Each step's kernel; the steps of one kernel share it."""
    before: Group | None = None
    for one in placed:
        yield _title(one)
        group = _group(one.step)
        if group is None:
            yield f"  {one.row.reason or one.row.detail or one.row.kind}"
        elif group is before:
            yield "  of the same kernel"
        else:
            yield from (f"  {line}" for line in _of_group(group))
        before = group


def _group(step: BoundStep | None) -> Group | None:
    return None if step is None or step.origin is None else step.origin.operation.group


def _of_group(group: Group) -> Iterator[str]:
    if group.before is not None:
        yield "first"
        yield from (f"  {line}" for line in _of_group(group.before))
    anchor = group.anchor
    operands = [_name(value) for value in group.operands]
    if anchor is None:
        yield from _epilogue(group, operands)
        return
    results = [_name(value) for value in anchor.node.outputs]
    if isinstance(anchor.kernel, Template):
        yield from _template(anchor.kernel, anchor.node)
        yield from _epilogue(group, [results[0], *operands])
    elif isinstance(anchor.kernel, Pointwise):
        names = [_name(value) for value in anchor.node.inputs if value is not None]
        yield from text_of(anchor.kernel.outputs, names, results)
    else:
        yield f"{', '.join(results)} = {anchor.role} {anchor.node.op_type}"


def _template(kernel: Template, node: ir.Node) -> Iterator[str]:
    """The kernel that a template names, or the expressions of a reduction, which say what it computes."""
    program = kernel.parameters.get("program")
    if isinstance(program, Reduction):
        inputs = [_name(node.inputs[place]) for place in kernel.parameters["operands"]]
        made = [_name(node.outputs[place]) for place in kernel.parameters["outputs"]]
        yield "for each row"
        yield from (f"  {line}" for line in text_of(program.outputs, inputs, made))
        return
    parameters = [
        f"{name}={_array(value) if isinstance(value, np.ndarray) else value}"
        for name, value in kernel.parameters.items()
    ]
    made = [_described(value) for value in node.outputs if value.name]
    yield f"{', '.join(made)} = {kernel.name}({', '.join([*map(_read, node.inputs), *parameters])})"


def _epilogue(group: Group, names: Sequence[str]) -> Iterator[str]:
    """The elementwise part of a group: all of a loop, or the epilogue of a template."""
    made = [value for value in group.outputs if value in group.values and value is not group.result]
    yield from text_of([group.values[value] for value in made], names, [_name(value) for value in made])


def _name(value: ir.Value | None) -> str:
    return "_" if value is None else value.name or "_"


def _plan(placed: Sequence[PlacedStep]) -> Iterator[str]:
    starts: dict[int, dict[int, int]] = {}
    for one in placed:
        step, ready = one.step, one.ready
        if step is None or ready is None:
            yield f"{_title(one)}\n  {one.row.reason or one.row.kind}"
            continue
        table = starts.setdefault(id(ready), _arena_starts(ready))
        first = ready.source.bound.order.index(one.index)
        flags = int(ready.plan.steps[first, StepColumn.FLAGS])
        after = "after a barrier, " if flags & StepFlag.BARRIER else ""
        alone = ", by the calling thread" if flags & StepFlag.CALLER else ""
        yield _title(one)
        cut = f", {step.claim} at a time" if step.chunks > 1 else ""
        yield f"  {after}{counted(step.chunks, 'chunk')}{cut}{alone}"
        for verb, tensors in (("reads", step.reads), ("writes", step.writes)):
            for tensor in tensors:
                yield f"  {verb:6} {_place(tensor, table)}"


def _arena_starts(ready: ReadyPlan) -> dict[int, int]:
    """Where buffers begin in the arena, by `id`: as the first step that reads or writes each finds it."""
    plan, bound = ready.plan, ready.source.bound
    moved = {int(word): (int(base), int(offset)) for word, base, offset in plan.fixups}
    found: dict[int, int] = {}
    for row, index in reversed(list(enumerate(bound.order))):
        step = bound.steps[index]
        first = int(plan.steps[row, StepColumn.ARGUMENTS])
        for word, ref, offset in step.form.places:
            base, start = moved.get(first + word, (None, 0))
            if base == 0:
                buffer, inside = step.buffers[ref].settled()
                found[id(buffer)] = start - offset - inside
    return found


def _place(tensor: Tensor, starts: Mapping[int, int]) -> str:
    buffer, inside = tensor.buffer.settled()
    look = f"{tensor.dtype}{list(tensor.shape)}"
    if not tensor.is_contiguous:
        look += f" strides {list(tensor.strides)}"
    return f"{_memory(buffer, inside + tensor.offset, starts)}  {look}"


def _memory(buffer: Buffer, offset: int, starts: Mapping[int, int]) -> str:
    if buffer.kind == "arena":
        return f"arena {starts[id(buffer)] + offset}" if id(buffer) in starts else "arena"
    more = f" byte {offset}" if offset else ""
    return f"constant{more}" if buffer.kind == "constant" else f"{buffer.kind} {buffer.index}{more}"


def _code(one: PlacedStep, stage: Stage) -> str:
    """The text of a kernel, or its assembly, for the processor of the session."""
    source = None if one.step is None else one.step.form.function.source
    if source is None or one.ready is None:
        raise errors.InvalidArgument(f"step {one.row.step}, {one.row.kernel}, is no kernel that is compiled")
    emit, spec = source
    target = one.ready.source.segment.library.target
    text: str = emit(target, spec)
    head = f"{spec!r}, {target.name}"
    return f"; {head}\n{text}" if stage == "llvm" else f"# {head}\n{compile_assembly(text, target)}"
