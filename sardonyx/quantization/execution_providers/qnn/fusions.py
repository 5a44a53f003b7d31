"""Sequences of nodes for each of which QNN has one operator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.passes.anchored import AnchoredRule
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, OpPattern, Rule, op
from sardonyx.passes.rules.facts import integers, permutation, result_fact, same_shape, shape_of

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})
_NO_NORM = 1.001e-12  # PyTorch's least length of a vector, as it rounds
_MOST_NODES = 8
_MOST_ELEMENTS = 1 << 24  # of a tensor whose order is compared


def _length_patterns() -> tuple[OpPattern, ...]:
    length = op.Clip(op.ReduceL2("x", "axes?"), "least?", "most?")
    return op.Div("x", op.Expand(length, "shape")), op.Div("x", length)


class FuseLpNormalization(AnchoredRule):
    """Vectors along the last dimension over their lengths, those at least 1e-12, become LpNormalization."""

    name = "LpNormalizationFusion"
    level = Level.EXTENDED
    patterns = _length_patterns()
    anchor = "ReduceL2"
    reach = 3

    def check(self, m: Match) -> str | None:
        x = m.fact("x")
        if x.dtype not in _FLOATS or x.rank is None:
            return "the type or the number of dimensions of its input is not known"
        if not same_shape(x.shape, result_fact(m).shape):
            return "the result may be of another shape than the input"
        reduced, clip = m.node("ReduceL2"), m.node("Clip")
        axes = m.attribute(reduced, "axes")
        if m.optional("axes") is not None:
            axes = integers(m.value("axes"), m)
        if axes is None or [axis % x.rank for axis in axes] != [x.rank - 1] or not m.attribute(reduced, "keepdims", 1):
            return "it does not reduce the last dimension alone and keep it"
        least = m.attribute(clip, "min")
        if m.optional("least") is not None:
            constant = m.constant("least")
            least = None if constant is None or constant.size != 1 else float(constant.reshape(()))
        if least is None or not 0 < least <= _NO_NORM:
            return f"lengths are clipped at {least}, and LpNormalization clips none"
        if m.optional("most") is not None or m.attribute(clip, "max") is not None:
            return "lengths have an upper bound"
        return None

    def rewrite(self, m: Match) -> ir.Node:
        return m.new_node("LpNormalization", [m.value("x")], {"axis": -1, "p": 2})


class _Blocks(Match):
    """A chain of nodes that move the items of a tensor, the last first."""

    def __init__(self, chain: Sequence[ir.Node], context: Context, block: int) -> None:
        super().__init__(chain[0], context)
        self.block = block
        self._chain = tuple(chain)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return self._chain


class FuseSpaceToDepth(Rule):
    """Reshape and Transpose nodes that move blocks of an image into its channels become SpaceToDepth.

    Any such chain will do, in whatever steps it was written: the order in which it leaves the items is compared.
    """

    name = "SpaceToDepthFusion"
    level = Level.EXTENDED
    patterns = (op.Reshape("x", "shape"),)

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        result = _sizes(node.outputs[0], context)
        if result is None or len(result) != 4:
            return
        chain = [node]
        while len(chain) <= _MOST_NODES:
            source = chain[-1].inputs[0]
            shape = _sizes(source, context)
            if shape is None:
                return
            block = _block(shape, result)
            if block and _orders(chain, context, shape, block):
                yield _Blocks(chain, context, block)
                return
            producer = None if source is None else source.producer()
            if producer is None or producer.op_type not in ("Reshape", "Transpose") or producer.domain != "":
                return
            chain.append(producer)

    def rewrite(self, m: Match) -> ir.Node:
        assert isinstance(m, _Blocks)
        return m.new_node("SpaceToDepth", [m.nodes[-1].inputs[0]], {"blocksize": m.block})


def _sizes(value: ir.Value | None, context: Context) -> tuple[int, ...] | None:
    """The shape of a tensor, where it is the same in every run."""
    shape = shape_of(value, context)
    found = tuple(size for size in shape or () if isinstance(size, int))
    return None if shape is None or len(found) != len(shape) else found


def _block(source: Sequence[int], result: Sequence[int]) -> int | None:
    """The size of the blocks by which a shape may have become another one."""
    if len(source) != 4 or not 0 < math.prod(source) <= _MOST_ELEMENTS or result[2] == 0 or source[2] % result[2]:
        return None
    block = source[2] // result[2]
    number, channels, height, width = source
    expected = (number, channels * block * block, height // block, width // block)
    return block if block > 1 and width % block == 0 and tuple(result) == expected else None


def _orders(chain: Sequence[ir.Node], context: Context, shape: Sequence[int], block: int) -> bool:
    """Whether nodes leave the items of a tensor as SpaceToDepth does."""
    number, channels, height, width = shape
    start = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    moved = start
    for node in reversed(chain):
        sizes = _sizes(node.outputs[0], context)
        if sizes is None:
            return False
        if node.op_type == "Reshape":
            moved = moved.reshape(sizes)
        else:
            order = permutation(node, moved.ndim)
            assert order is not None
            moved = moved.transpose(order)
    blocks = start.reshape(number, channels, height // block, block, width // block, block)
    return bool(np.array_equal(blocks.transpose(0, 3, 5, 1, 2, 4).reshape(moved.shape), moved))


RULES: tuple[Rule, ...] = (FuseSpaceToDepth(), FuseLpNormalization())
