"""Transpose: without effect, one after another, around a reshape, around an elementwise operator, or before one."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, OpPattern, Replacement, Rule, op
from sardonyx.passes.rules.facts import in_main_graph, permutation, result_fact, same_shape

UNARY = (
    "Abs|Cast|Ceil|Cos|Elu|Erf|Exp|Floor|Gelu|HardSigmoid|HardSwish|LeakyRelu|Log|Mish|Neg|Not|Reciprocal|Relu|Round|"
    "Selu|Sigmoid|Sign|Sin|Softplus|Softsign|Sqrt|Tan|Tanh"
)
BINARY = "Add|Sub|Mul|Div|Pow"


class EliminateTranspose(Rule):
    """A Transpose that leaves every axis in its place is its input."""

    name = "TransposeElimination"
    level = Level.BASIC
    patterns = (op.Transpose("x"),)

    def check(self, m: Match) -> str | None:
        perm = permutation(m.root, m.fact("x").rank)
        return None if perm is not None and perm == tuple(range(len(perm))) else ""

    def rewrite(self, m: Match) -> ir.Value:
        return m.value("x")


_INNER = op.Transpose("x", shared=True)


class MergeTransposes(Rule):
    """A Transpose of a Transpose is one Transpose, or none where the two cancel."""

    name = "TransposeChainFusion"
    level = Level.BASIC
    patterns = (op.Transpose(_INNER),)

    def check(self, m: Match) -> str | None:
        return None if self._merged(m) is not None else "the number of its input's dimensions is not known"

    @staticmethod
    def _merged(m: Match) -> tuple[int, ...] | None:
        rank = m.fact("x").rank
        inner, outer = permutation(m.covered(_INNER), rank), permutation(m.root, rank)
        return None if inner is None or outer is None else tuple(inner[axis] for axis in outer)

    def rewrite(self, m: Match) -> ir.Node | ir.Value:
        perm = self._merged(m)
        assert perm is not None
        if perm == tuple(range(len(perm))) and not m.root.outputs[0].is_graph_output():
            return m.value("x")
        return m.new_node("Transpose", [m.value("x")], {"perm": perm}, version=m.root.version)


_FLAT = op.Reshape("x", "flat")
_SWAP = op.Transpose(_FLAT)


class UnfoldBatchedTranspose(Rule):
    """Reshape to (batch, rows, columns), Transpose of the last two, Reshape back is a Transpose of the last two."""

    name = "BatchedTransposeFusion"
    level = Level.BASIC
    patterns = (op.Reshape(_SWAP, "shape"),)

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        if permutation(m.covered(_SWAP), 3) != (0, 2, 1):
            return "it does not exchange the last two of three axes"
        source, result = m.fact("x").shape, result_fact(m).shape
        flat = m.context.inference.facts[m.covered(_FLAT).outputs[0]].shape
        if source is None or len(source) < 3 or flat is None or len(flat) != 3:
            return "the number of its input's dimensions is not known or below three"
        if not same_shape(source[-2:], flat[-2:]):
            return "its first Reshape does not keep the last two dimensions"
        if not same_shape((*source[:-2], source[-1], source[-2]), result):
            return "its last Reshape does not bring back the first dimensions"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        rank = m.fact("x").rank
        assert rank is not None
        perm = (*range(rank - 2), rank - 1, rank - 2)
        return m.new_node("Transpose", [m.value("x")], {"perm": perm}, version=m.covered(_SWAP).version)


class SinkTranspose(Rule):
    """Transpose(f(Transpose(a))) of an elementwise f is f(a) where the two orders cancel; so for two inputs."""

    name = "TransposeOptimizer"
    level = Level.BASIC
    patterns = (
        op.Transpose(OpPattern(UNARY, (op.Transpose("a"),))),
        op.Transpose(op.Clip(op.Transpose("a"), "low?", "high?")),
        op.Transpose(OpPattern(BINARY, (op.Transpose("a"), op.Transpose("b")))),
        op.Transpose(OpPattern(BINARY, (op.Transpose("a"), "c!"))),
        op.Transpose(OpPattern(BINARY, ("c!", op.Transpose("a")))),
    )

    def check(self, m: Match) -> str | None:
        inner = [node for node in m.nodes if node.op_type == "Transpose" and node is not m.root]
        rank = m.fact("a").rank
        orders = {permutation(node, rank) for node in inner}
        outer = permutation(m.root, rank)
        if None in orders or outer is None:
            return "the number of its input's dimensions is not known"
        if len(orders) > 1:
            return "the operands are transposed differently"
        (order,) = orders
        assert order is not None
        if tuple(order[axis] for axis in outer) != tuple(range(len(order))):
            return "the two orders of axes do not cancel"
        if len(inner) == 2 and m.fact("b").rank != rank:
            return "the operands differ in rank"
        return _constant_problem(m, len(order))

    def rewrite(self, m: Match) -> Replacement:
        node = m.root.inputs[0].producer() if m.root.inputs[0] is not None else None
        assert node is not None
        plain = [_untransposed(value, m) for value in node.inputs]
        moved = ir.node(node.op_type, plain, domain=node.domain, version=node.version, name=node.name)
        moved.attributes.update(node.attributes)
        return Replacement((moved,), {m.root.outputs[0]: moved.outputs[0]})


class DelayTranspose(Rule):
    """f(Transpose(a)) of an elementwise f is Transpose(f(a)) where a convolution makes a, with whose results f is then
    computed; so for a second input that is transposed alike, which others may read, too."""

    name = "TransposeDelay"
    level = Level.BASIC
    patterns = (
        OpPattern(UNARY, (op.Transpose("a"),)),
        op.Clip(op.Transpose("a"), "low?", "high?"),
        OpPattern(BINARY, (op.Transpose("a"), op.Transpose("b", shared=True))),
        OpPattern(BINARY, (op.Transpose("b", shared=True), op.Transpose("a"))),
        OpPattern(BINARY, (op.Transpose("a"), "c!")),
        OpPattern(BINARY, ("c!", op.Transpose("a"))),
    )

    def check(self, m: Match) -> str | None:
        if not _is_convolved(m.value("a")):
            return ""
        rank = m.fact("a").rank
        orders = {permutation(node, rank) for node in m.nodes[1:]}
        if rank is None or len(orders) > 1:
            return "the operands are transposed differently"
        if m.optional("b") is not None and m.fact("b").rank != rank:
            return "the operands differ in rank"
        return _constant_problem(m, rank)

    def rewrite(self, m: Match) -> Replacement:
        node = m.root
        plain = [_untransposed(value, m) for value in node.inputs]
        kept = {name: attribute.value for name, attribute in node.attributes.items()}
        early = m.new_node(node.op_type, plain, kept, version=node.version)
        transpose = m.nodes[1]
        perm = permutation(transpose, m.fact("a").rank)
        late = m.new_node("Transpose", early.outputs, {"perm": perm}, version=transpose.version)
        return Replacement((early, late), {node.outputs[0]: late.outputs[0]})


class DelayViews(Rule):
    """f(Transpose(Reshape(a))) of an elementwise f is Transpose(Reshape(f(a))) where a convolution makes a, with whose
    results f is then computed."""

    name = "ViewDelay"
    level = Level.BASIC
    patterns = (
        OpPattern(UNARY, (op.Transpose(op.Reshape("a", "shape")),)),
        OpPattern(UNARY, (op.Reshape("a", "shape"),)),
    )

    def check(self, m: Match) -> str | None:
        return None if _is_convolved(m.value("a")) else ""

    def rewrite(self, m: Match) -> Replacement:
        last = m.value("a")
        made: list[ir.Node] = []
        for node in (m.root, *reversed(m.nodes[1:])):
            kept = {name: attribute.value for name, attribute in node.attributes.items()}
            made.append(m.new_node(node.op_type, [last, *node.inputs[1:]], kept, version=node.version))
            last = made[-1].outputs[0]
        return Replacement(tuple(made), {m.root.outputs[0]: last})


_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_ELEMENTWISE = frozenset({*UNARY.split("|"), *BINARY.split("|"), "Clip"})


def _is_convolved(value: ir.Value) -> bool:
    """Whether a convolution makes a value, with or without elementwise operators behind it."""
    node = value.producer()
    while node is not None and node.op_type in _ELEMENTWISE:
        makers = [maker for maker in (one.producer() for one in node.inputs if one is not None) if maker is not None]
        if any(maker.op_type in _CONVOLUTIONS for maker in makers):
            return True
        node = next((maker for maker in makers if maker.op_type in _ELEMENTWISE), None)
    return node is not None and node.op_type in _CONVOLUTIONS


def _constant_problem(m: Match, rank: int) -> str | None:
    """Why the constant `c` of a match cannot be an operand in another order of axes, if it cannot."""
    constant = m.constant("c")
    if constant is not None and constant.size != 1:
        return "its constant is not one number"
    if constant is not None and constant.ndim > rank:
        return "the constant may give the result more dimensions"
    return None


def _untransposed(value: ir.Value | None, m: Match) -> ir.Value | None:
    """An operand before the covered Transpose that made it, or the operand itself."""
    producer = None if value is None else value.producer()
    return producer.inputs[0] if producer is not None and producer in m.nodes else value


RULES: tuple[Rule, ...] = (
    UnfoldBatchedTranspose(),
    SinkTranspose(),
    DelayTranspose(),
    DelayViews(),
    MergeTransposes(),
    EliminateTranspose(),
)
