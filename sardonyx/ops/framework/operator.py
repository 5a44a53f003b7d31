"""The operator class and the decorator that registers it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import subgraphs
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.cost import operations
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Host, Kernel, Pointwise, Template
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact, broadcast

if TYPE_CHECKING:
    import onnx

    from sardonyx.ops.framework.inference import Inference
    from sardonyx.runtime.control_flow import Flow

Array = np.ndarray[Any, Any]
Value = Any

# Of operators that rewritten models have, and no others.
OWN_DOMAIN = "ai.sardonyx"

_KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})


@dataclass(frozen=True)
class Cost:
    """Work of one node: floating-point operations and bytes moved; None where a size is not known."""

    flops: float | None
    bytes: float | None


class Operator:
    """One node's operator.

    Attributes of the node become the annotated fields of the class, with the class's value as the default; a field
    without one is required. Subclasses override what they know better than the fallback does:

    - `infer`: facts of the outputs from facts of the inputs (default: ONNX's own rule for the operator);
    - `run`: the outputs for given inputs (default: `onnx.reference`);
    - `lower`: the kernel for given dtypes (default: a host call, with a reason);
    - `cost`: operations and bytes (default: one operation per output element);
    - `may_differ`: whether equal inputs may give other outputs in another run (default: not, in the domains that are
      known);
    - `prefers_body`: whether ONNX's definition by other operators, if there is one, should take the node's place;
    - `amend_body`: what has to change in that definition before it does.
    """

    domain: ClassVar[str] = ""
    op_type: ClassVar[str] = ""
    since: ClassVar[int] = 1
    fields: ClassVar[dict[str, Any]] = {}

    # Why nodes of this operator run on the host.
    host_reason: ClassVar[str] = "no kernel for this operator"

    def __init__(self, node: ir.Node, version: int) -> None:
        self.node = node
        self.version = version
        for name in type(self).fields:
            attribute = node.attributes.get(name)
            if attribute is not None:
                setattr(self, name, attribute_value(attribute))
            elif not hasattr(type(self), name):
                raise errors.InvalidGraph(
                    f"This is an invalid model. In Node, {describe(node)}, "
                    f"Error Required attribute '{name}' is missing."
                )

    def prefers_body(self) -> bool:
        return False

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        """Whether another run of the node on equal inputs may give other outputs, as where it draws numbers.

        Nothing that such a node gives is kept from one run, or one round of a loop, to the next, nor shared with a node
        that looks like it. Operators of unknown domains may keep state, and bodies may hold nodes that draw numbers.
        """
        return self.node.domain not in _KNOWN_DOMAINS or any(True for _ in subgraphs(self.node))

    def amend_body(self, body: onnx.FunctionProto) -> None:
        """Change the definition where it does not say what the operator does."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.fields = {}
        for base in reversed(cls.__mro__[1:]):
            cls.fields.update(base.__dict__.get("fields", {}))
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                cls.fields[name] = annotation

    @property
    def wanted_outputs(self) -> int:
        """How many outputs the node has, up to the last one that is named."""
        outputs = self.node.outputs
        return max((index + 1 for index, value in enumerate(outputs) if value.name != ""), default=0)

    def has_output(self, index: int) -> bool:
        outputs = self.node.outputs
        return index < len(outputs) and outputs[index].name != ""

    def is_read(self, index: int) -> bool:
        """Whether another node reads an output, or the model gives it."""
        if not self.has_output(index):
            return False
        value = self.node.outputs[index]
        return bool(value.uses()) or value.is_graph_output()

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        """Facts of the outputs; ValueError where the inputs contradict the operator's rule."""
        return inference.by_onnx(self.node, inputs, self.version)

    def run(self, *inputs: Value) -> Sequence[Value]:
        """The outputs, in order; an output that the node does not name may be left out at the end."""
        raise NotImplementedError

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        """The kernel of this node for inputs of these dtypes (None: absent or not a tensor)."""
        return Host(self.run, self.host_reason)

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        """What one run of the node does, from the facts of its values."""
        return Cost(_total(outputs, elements), _total([*filter(None, inputs), *outputs], nbytes))


def template_unless_text(
    name: str,
    parameters: dict[str, Any],
    run: Callable[..., Sequence[Value]],
    inputs: Sequence[np.dtype[Any] | None],
) -> Kernel:
    """The template called `name`; a host call where an input holds strings."""
    if any(dtype == np.dtype(object) for dtype in inputs):
        return Host(run, "strings are Python objects")
    return Template(name, parameters, run)


class ControlFlow(Operator):
    """An operator whose graph attributes are run by the engine, as its `flow` says."""

    host_reason: ClassVar[str] = "control flow: its bodies run as plans of their own"

    def flow(self) -> Flow:
        raise NotImplementedError


class Elementwise(Operator):
    """An operator that works on each element alone: `scalar` is its whole meaning.

    All tensor inputs broadcast against each other, and the output has their common shape.
    """

    def scalar(self, *inputs: Any) -> Expr:
        raise NotImplementedError

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return False

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if any(dtype == np.dtype(object) for dtype in inputs):
            return Host(self.run, "strings are Python objects")
        return self.pointwise(inputs)

    def pointwise(self, inputs: Sequence[np.dtype[Any] | None]) -> Pointwise:
        """The kernel of this node for inputs of these dtypes (None: absent)."""
        dtypes = tuple(dtype for dtype in inputs if dtype is not None)
        expressions = iter([Input(dtype, index) for index, dtype in enumerate(dtypes)])
        arguments = [None if dtype is None else next(expressions) for dtype in inputs]
        return Pointwise(dtypes, (self.scalar(*arguments),))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        given = [fact for fact in inputs if fact is not None]
        shapes = [fact.shape for fact in given]
        if any(shape is None for shape in shapes):
            return [Fact(self.result_type(given), None)]
        return [Fact(self.result_type(given), broadcast([shape for shape in shapes if shape is not None]))]

    def result_type(self, inputs: Sequence[Fact]) -> Any:
        """The output's type; that of the first input unless a subclass says otherwise."""
        return inputs[0].type

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        moved = super().cost(inputs, outputs)
        dtypes = [None if fact is None or fact.dtype is None else numpy_dtype(fact.dtype) for fact in inputs]
        given = [dtype for fact, dtype in zip(inputs, dtypes, strict=True) if fact is not None]
        if moved.flops is None or any(dtype is None or dtype.kind == "O" for dtype in given):
            return moved
        return Cost(moved.flops * operations(self.pointwise(dtypes)), moved.bytes)

    def run(self, *inputs: Value) -> Sequence[Value]:
        from sardonyx.kernel.evaluate import evaluate

        kernel = self.pointwise([None if value is None else value.dtype for value in inputs])
        return evaluate(kernel, [value for value in inputs if value is not None])


OperatorClass = TypeVar("OperatorClass", bound=type[Operator])

_CLASSES: dict[tuple[str, str], list[type[Operator]]] = {}


def operator(op_type: str, *, since: int = 1, domain: str = "") -> Callable[[OperatorClass], OperatorClass]:
    """Register a class for `op_type` from opset `since` on, until a class with a later `since`.

    Applied more than once, one class serves several names; each gets a subclass of its own.
    """

    def register(cls: OperatorClass) -> OperatorClass:
        identity = {"op_type": op_type, "since": since, "domain": domain, "__doc__": cls.__doc__}
        named = type(cls.__name__, (cls,), identity)
        named.__module__ = cls.__module__
        versions = _CLASSES.setdefault((domain, op_type), [])
        if any(known.since == since for known in versions):
            raise ValueError(f"{domain}:{op_type} is registered twice since opset {since}")
        versions.append(named)
        versions.sort(key=lambda known: known.since)
        return cls

    return register


def find_class(domain: str, op_type: str, version: int) -> type[Operator] | None:
    """The class registered for an operator at an opset version, or None."""
    best = None
    for cls in _CLASSES.get((domain, op_type), ()):
        if cls.since <= version:
            best = cls
    return best


def registered() -> dict[tuple[str, str], list[type[Operator]]]:
    """All classes by domain and operator, oldest first."""
    return _CLASSES


def describe(node: ir.Node) -> str:
    """A node as error messages show it: ``("name", Op, "domain", -1)``."""
    return f'("{node.name or ""}", {node.op_type}, "{node.domain}", -1)'


def attribute_value(attribute: ir.Attr) -> Any:
    """The Python value of an attribute: numbers, str, tuples of them, ir.Graph, ir tensors."""
    value = attribute.value
    if attribute.type == ir.AttributeType.GRAPH:
        return value  # a graph is a sequence of its nodes, too
    if attribute.type == ir.AttributeType.STRING and isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if bytes not in set(map(type, value)):
            return tuple(value)  # there may be very many
        return tuple(item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in value)
    return value


def elements(fact: Fact) -> float | None:
    """The number of elements of a value, where all its dimensions are numbers."""
    if fact.shape is None or not all(isinstance(dim, int) for dim in fact.shape):
        return None
    return float(math.prod(dim for dim in fact.shape if isinstance(dim, int)))


def nbytes(fact: Fact) -> float | None:
    """The size of a value in bytes, where it is known."""
    count = elements(fact)
    if count is None or fact.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    return count * fact.dtype.bitwidth / 8


def _total(facts: Sequence[Fact], measure: Callable[[Fact], float | None]) -> float | None:
    total = 0.0
    for fact in facts:
        part = measure(fact)
        if part is None:
            return None
        total += part
    return total
