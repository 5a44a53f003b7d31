"""A partition of the CPU provider as steps: native code where there is a kernel, the host where there is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir

from sardonyx.compiler.interpret import render
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.lowering import Lowered, classify, lower_node
from sardonyx.compiler.native_resources import NativeResources
from sardonyx.compiler.native_steps import NativeSteps
from sardonyx.compiler.node_call import NodeCall
from sardonyx.compiler.planner import Compilation
from sardonyx.compiler.schedule import borrowed, split
from sardonyx.compiler.steering import classify_steered
from sardonyx.graph.partition import Partition
from sardonyx.kernel.program import Host, Pointwise, View
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, nbytes
from sardonyx.ops.framework.result_size import checked
from sardonyx.runtime.plan import Step, StepCall

# Larger results that are known before the run are made in every run, rather than kept by a session that does not
# compute with them.
_MOST_KNOWN_BYTES = 1 << 20


def partition_steps(
    partition: Partition, compilation: Compilation, provider: str, resources: NativeResources | None
) -> list[Step]:
    """The steps of a partition that the provider of this name runs, in order; all on the host without resources."""
    if resources is None:
        items = [_on_host(node, compilation.inference) for node in partition.nodes]
        return [_step(item, compilation, provider) for item in items]

    def classified(steers: Callable[[ir.Value], bool]) -> list[Lowered]:
        return _classified(partition, compilation, steers)

    items, steering = classify_steered(classified, compilation.inference)
    return _compiled(NativeSteps(resources, provider), items, steering, compilation)


def _classified(partition: Partition, compilation: Compilation, steers: Callable[[ir.Value], bool]) -> list[Lowered]:
    """The roles of the nodes; the contents of values that steer are known while binding."""
    known: set[ir.Value] = set()

    def is_known(value: ir.Value) -> bool:
        return value in known or compilation.is_constant(value) or steers(value)

    def supports(kernel: Pointwise) -> str | None:
        return supported(kernel.outputs)

    items = []
    for node in partition.nodes:
        item = classify(node, compilation.inference, is_known, supports)
        if item.role == "known":
            known.update(item.node.outputs)
        items.append(item)
    return items


def _compiled(
    native: NativeSteps, items: Sequence[Lowered], steering: frozenset[ir.Value], compilation: Compilation
) -> list[Step]:
    """Steps for a partition: segments where something in them is native, single nodes elsewhere."""
    known = {value: item for item in items if item.role == "known" for value in item.node.outputs}
    steps: list[Step] = []
    turns = [(turn, borrowed(turn, known)) for turn in split(items, steering)]
    lent = {value for _, again in turns for item in again for value in item.node.inputs if value is not None}
    for turn, again in turns:
        if any(_has_work(item) or _gives_result(item, compilation.inference, steering) for item in turn):
            steps.append(native.step(turn, again, lent, compilation, steering))
        else:
            for item in turn:
                if item.role == "counted":
                    steps.append(native.counted_step(item, compilation))
                else:
                    steps.append(_step(item, compilation, native.provider))
    return steps


def _step(item: Lowered, compilation: Compilation, provider: str) -> Step:
    """A node that runs by itself, through NumPy."""
    node = item.node
    captured: tuple[ir.Value, ...] = ()
    if item.kernel is None:
        assert isinstance(item.operator, ControlFlow)
        from sardonyx.compiler.control_flow import control_flow  # few models have any

        call: StepCall
        call, captured = control_flow(item.operator, node, compilation)
        kind, reason = "host", item.reason
    else:
        kernel = item.kernel if item.role == "known" else checked(item.operator, item.kernel, item.reason)
        call = NodeCall(render(kernel), node, compilation.inference)
        on_host = item.role == "host" and not isinstance(kernel, View)  # what is known takes no elements
        kind = "host" if on_host else "view" if isinstance(kernel, View) else "kernel"
        reason = item.reason if kind == "host" else ""
    return Step(
        name=compilation.node_name(node),
        op_type=node.op_type,
        provider=provider,
        kind=kind,  # type: ignore[arg-type]
        inputs=compilation.slots((*node.inputs, *captured)),
        outputs=compilation.slots(node.outputs),
        call=call,
        node_index=compilation.node_index(node),
        reason=reason,
    )


def _has_work(item: Lowered) -> bool:
    """Whether a node is worth a native segment: it computes, or gives an output of the graph in another order."""
    if item.role == "view":
        reorders = isinstance(item.kernel, View) and not item.kernel.is_reshape and item.node.op_type != "Identity"
        return reorders and any(value.is_graph_output() for value in item.node.outputs)
    return item.role == "native"


def _gives_result(item: Lowered, inference: Inference, steering: Collection[ir.Value]) -> bool:
    """Whether a node that computes nothing in a run gives an output of the graph, which native code then makes.

    What is known before the run is kept, so it must be small, and not be others with other contents of what steers.
    """
    results = [value for value in item.node.outputs if value.is_graph_output()]
    if item.role == "known":
        if steering:
            return False
        sizes = [None if fact is None else nbytes(fact) for fact in map(inference.fact, results)]
        return bool(sizes) and all(size is not None and size <= _MOST_KNOWN_BYTES for size in sizes)
    return item.role == "view" and bool(results)


def _on_host(node: ir.Node, inference: Inference) -> Lowered:
    """A node of a session without native code."""
    operator, kernel = lower_node(node, inference)
    if kernel is None:
        return Lowered(node, operator, None, "host", reason=operator.host_reason)
    reason = kernel.reason if isinstance(kernel, Host) else "this session runs without native code"
    return Lowered(node, operator, kernel, "host", reason=reason)
