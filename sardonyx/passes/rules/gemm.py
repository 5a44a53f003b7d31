"""Products over the rows of a tensor that was flattened for them: they take the tensor as it is."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.base import Level
from sardonyx.passes.rule import Match, Replacement, Rule, op
from sardonyx.passes.rules.facts import in_main_graph, result_fact, same_shape

_ROWS = op.Reshape("x", "rows", shared=True)
_PRODUCT = op.Gemm(_ROWS, "weight!", "bias?")
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class GemmOfRows(Rule):
    """Reshape to rows, Gemm, Reshape back is MatMul and Add: that is how exporters write linear layers of GPT-2."""

    name = "GemmReshapeFusion"
    level = Level.BASIC
    patterns = (op.Reshape(_PRODUCT, "shape"),)

    def check(self, m: Match) -> str | None:
        gemm = m.covered(_PRODUCT)
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        x, result, weight = m.fact("x"), result_fact(m), m.fact("weight")
        if x.dtype not in _FLOATS:
            return "it is a product of integers, which Gemm and MatMul round differently"
        if m.attribute(gemm, "transA", 0):
            return "its first matrix is transposed"
        if m.attribute(gemm, "alpha", 1.0) != 1.0 or m.attribute(gemm, "beta", 1.0) != 1.0:
            return "its product or its bias is scaled"
        if x.shape is None or result.shape is None or weight.shape is None or len(x.shape) < 3:
            return "the shape of its input or its result is not known"
        inner, columns = weight.shape[::-1] if m.attribute(gemm, "transB", 0) else weight.shape
        rows = m.context.inference.facts[m.covered(_ROWS).outputs[0]].shape
        if rows is None or len(rows) != 2 or not same_shape((rows[-1], x.shape[-1]), (inner, inner)):
            return "the Reshape before it does not keep the last dimension"
        if not same_shape(result.shape, (*x.shape[:-1], columns)):
            return "the Reshape behind it does not bring back the first dimensions"
        if m.attribute(gemm, "transB", 0) and len(m.value("weight").uses()) > 1:
            return "its transposed weight is read elsewhere too, and would be there twice"
        if m.optional("bias") is not None and m.fact("bias").shape not in ((columns,), (1, columns)):
            return "its bias is not one row"
        return None

    def rewrite(self, m: Match) -> Replacement:
        gemm, opset = m.covered(_PRODUCT), m.context.model.opset_imports.get("", 1)
        product = ir.node(
            "MatMul", [m.value("x"), self._upright(m, gemm)], version=opset, name=gemm.name or m.root.name
        )
        if m.optional("bias") is None:
            return Replacement((product,), {m.root.outputs[0]: product.outputs[0]})
        product.outputs[0].name = f"{m.root.outputs[0].name}_product"
        bias = m.value("bias")
        if m.fact("bias").rank == 2 and (constant := m.constant("bias")) is not None:
            bias = m.initializer(constant.reshape(-1), "bias")
        total = m.new_node("Add", [product.outputs[0], bias], version=opset)
        return Replacement((product, total), {m.root.outputs[0]: total.outputs[0]})

    @staticmethod
    def _upright(m: Match, gemm: ir.Node) -> ir.Value:
        """The weight as (inner, columns); a transposed one is a view of the same memory."""
        if not m.attribute(gemm, "transB", 0):
            return m.value("weight")
        weight = m.constant("weight")
        assert weight is not None
        return m.initializer(weight.T, "weight")


_PLAIN = op.MatMul(_ROWS, "weight!")
_COMPRESSED = op.MatMulNBits(_ROWS, "weight!", "scales!", "zeros?", "groups?", "inner_bias?", domain="com.microsoft")
_TOTALS = tuple(op.Add(product, "bias!") for product in (_PLAIN, _COMPRESSED))


class ProductOfRows(Rule):
    """Reshape to rows, MatMul or MatMulNBits, perhaps a bias, Reshape back is the product of the tensor itself."""

    name = "MatMulReshapeFusion"
    level = Level.BASIC
    patterns = tuple(op.Reshape(inner, "shape") for inner in (*_TOTALS, _PLAIN, _COMPRESSED))

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        facts = m.context.inference.facts
        x, result = m.fact("x").shape, result_fact(m).shape
        rows, product = facts[m.covered(_ROWS).outputs[0]].shape, facts[self._product(m).outputs[0]].shape
        if x is None or result is None or rows is None or product is None or len(x) < 3:
            return "the shape of its input or its result is not known"
        if len(rows) != 2 or len(product) != 2 or not same_shape(rows[-1:], x[-1:]):
            return "the Reshape before it does not keep the last dimension"
        if not same_shape(result, (*x[:-1], product[-1])):
            return "the Reshape behind it does not bring back the first dimensions"
        if m.optional("bias") is not None and m.fact("bias").shape != product[-1:]:
            return "its bias is not one row"
        return None

    @staticmethod
    def _product(m: Match) -> ir.Node:
        return next(node for node in m.nodes if node.op_type in ("MatMul", "MatMulNBits"))

    def rewrite(self, m: Match) -> Replacement:
        old = self._product(m)
        product = ir.node(
            old.op_type, [m.value("x"), *old.inputs[1:]], domain=old.domain, version=old.version, name=old.name
        )
        product.attributes.update(old.attributes)
        if m.optional("bias") is None:
            return Replacement((product,), {m.root.outputs[0]: product.outputs[0]})
        product.outputs[0].name = f"{m.root.outputs[0].name}_product"
        version = m.context.model.opset_imports.get("", 1)
        total = m.new_node("Add", [product.outputs[0], m.value("bias")], version=version)
        return Replacement((product, total), {m.root.outputs[0]: total.outputs[0]})


RULES: tuple[Rule, ...] = (GemmOfRows(), ProductOfRows())
