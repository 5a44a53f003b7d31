"""What becomes of each node of a partition: known while binding, a view, native, or a step on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.compiler.kernels.template import NativeKernel, find_template
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template, View
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, Operator
from sardonyx.ops.framework.result_size import checked

Role = Literal["known", "view", "native", "counted", "host"]

# Steps of their own, with segments between them: on the host, and native ones whose results have sizes from data.
ALONE: frozenset[Role] = frozenset({"counted", "host"})

# Operators whose result only needs the shape of their input.
SHAPE_READERS = frozenset({"Shape", "Size", "EyeLike"})

# Operators whose result is decided by a few numbers, which make its size too.
_FROM_NUMBERS = frozenset({"Range", "ConstantOfShape", "MelWeightMatrix"})

# Views whose other inputs are places, which may be others in every run.
_MOVING_VIEWS = frozenset({"Slice"})


@dataclass(eq=False)
class Lowered:
    """A node, its kernel and how it will run; `reason` says why it runs on the host.

    `lacks` are the inputs whose contents, were they known while binding, would keep it from the host.
    """

    node: ir.Node
    operator: Operator
    kernel: Kernel | None  # None for control flow
    role: Role
    native: NativeKernel | None = None
    reason: str = ""
    lacks: tuple[ir.Value, ...] = ()

    @property
    def reads_shapes(self) -> bool:
        """Whether only the shape of its input matters."""
        return self.node.op_type in SHAPE_READERS and self.node.domain == ""


def lower_node(node: ir.Node, inference: Inference) -> tuple[Operator, Kernel | None]:
    """The operator of a node and its kernel for the dtypes that inference found; no kernel for control flow."""
    operator = inference.operator(node)
    if isinstance(operator, ControlFlow):
        return operator, None
    dtypes: list[np.dtype[Any] | None] = []
    for value in node.inputs:
        fact = inference.fact(value)
        if fact is None:
            dtypes.append(None)
        elif fact.type is None:
            return operator, Host(operator.run, "the type of an input is not known before the run")
        else:
            dtypes.append(numpy_dtype(fact.type.dtype) if isinstance(fact.type, ir.TensorType) else None)
    try:
        return operator, operator.lower(dtypes)
    except (MemoryError, errors.OnnxRuntimeError):
        raise
    except Exception as error:  # whatever an operator cannot make sense of is the node's typed error
        raise errors.Fail(f"Node ({node.name or ''}) Op ({node.op_type}): {type(error).__name__}: {error}") from error


def classify(
    node: ir.Node,
    inference: Inference,
    is_known: Callable[[ir.Value], bool],
    supports: Callable[[Pointwise], str | None],
) -> Lowered:
    """The role of a node, given which of its inputs have contents that are known while binding.

    `supports` gives the reason why a pointwise kernel cannot be native, or None.
    """
    operator, kernel = lower_node(node, inference)
    if kernel is None:
        return Lowered(node, operator, None, "host", reason=operator.host_reason)
    inputs = [value for value in node.inputs if value is not None and value.name != ""]
    facts = [inference.fact(value) for value in node.inputs]
    results = [inference.fact(value) if value.name != "" else None for value in node.outputs]
    if not all(_is_array(fact) for fact in (*facts, *results) if fact is not None):
        return Lowered(node, operator, kernel, "host", reason=_reason(kernel, "not a tensor of numbers"))
    lowered = Lowered(node, operator, checked(operator, kernel), "known")
    if lowered.reads_shapes or (all(is_known(value) for value in inputs) and not operator.may_differ(facts)):
        return lowered
    if isinstance(kernel, View):
        lacks = tuple(value for value in inputs[1:] if not is_known(value))
        if not lacks:
            return Lowered(node, operator, kernel, "view")
        lacks = () if node.op_type in _MOVING_VIEWS else lacks
        reason = "the shape of its result depends on data"
        return Lowered(node, operator, kernel, "host", reason=reason, lacks=lacks)
    if isinstance(kernel, Pointwise):
        problem = supports(kernel)
        if problem is None:
            return Lowered(node, operator, kernel, "native")
        return Lowered(node, operator, kernel, "host", reason=problem)
    if isinstance(kernel, Template):
        return _template(node, operator, kernel, facts, results, is_known)
    lacks = tuple(value for value in inputs if not is_known(value)) if node.op_type in _FROM_NUMBERS else ()
    return Lowered(node, operator, kernel, "host", reason=_reason(kernel, ""), lacks=lacks)


def _template(
    node: ir.Node,
    operator: Operator,
    kernel: Template,
    facts: Sequence[Fact | None],
    results: Sequence[Fact | None],
    is_known: Callable[[ir.Value], bool],
) -> Lowered:
    found = find_template(kernel.name)
    if found is None:
        return Lowered(node, operator, kernel, "host", reason=f"no kernel called '{kernel.name}' on this provider")
    native = found(kernel.parameters)
    reason = native.declines(facts, results)
    if reason is not None:
        return Lowered(node, operator, kernel, "host", reason=reason)
    if native.counted_axes is not None:
        return Lowered(node, operator, kernel, "counted", native)
    lacks: dict[ir.Value, int] = {}
    for index in native.known_inputs:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.name != "" and not is_known(value):
            lacks.setdefault(value, index)
    if lacks:
        value, index = next(iter(lacks.items()))
        reason = f"input {index} ({value.name}) is not known before the run"
        return Lowered(node, operator, kernel, "host", reason=reason, lacks=tuple(lacks))
    return Lowered(node, operator, kernel, "native", native)


def _is_array(fact: Fact) -> bool:
    """Whether a value is a tensor of a type and rank known before the run, and of numbers."""
    return isinstance(fact.type, ir.TensorType) and fact.type.dtype != ir.DataType.STRING and fact.shape is not None


def _reason(kernel: Kernel, otherwise: str) -> str:
    return kernel.reason if isinstance(kernel, Host) else otherwise
