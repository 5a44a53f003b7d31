"""Linear attention as a recurrence over tokens (opset 27)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft import linear_attention
from sardonyx.ops.microsoft.rules import dim, expect_shape

if TYPE_CHECKING:
    import onnx


@operator("LinearAttention", since=27)
class LinearAttention(linear_attention.LinearAttention):
    """The operator of com.microsoft, with a multiple of the key heads as query heads, and no terms that go unread."""

    def prefers_body(self) -> bool:
        return True

    def amend_body(self, body: onnx.FunctionProto) -> None:
        """State the width of the output, which no tokens leave open, and that all inputs have the queries' sizes."""
        from onnx import helper

        names = [None if one is None else body.input[index] for index, one in enumerate(self.node.inputs)]
        stated = {name: f"{name}_as_stated" for name in filter(None, names[1:])}
        for node in body.node:
            node.input[:] = [stated.get(name, name) for name in node.input]
        makers = {name: node for node in body.node for name in node.output}
        shape = makers[makers[body.output[0]].input[1]]
        shape.input[2] = "output_width"
        body.node.insert(0, helper.make_node("Mul", ["value_size", "query_heads"], ["output_width"]))
        body.node.insert(0, helper.make_node("Div", ["value_width", "value_heads"], ["value_size"]))
        body.node.insert(0, helper.make_node("Shape", [body.input[2]], ["value_width"], start=2, end=3))
        for name, count in (("query_heads", self.q_num_heads), ("value_heads", self.kv_num_heads)):
            body.node.insert(0, helper.make_node("Constant", [], [name], value_ints=[count]))
        for name, other in stated.items():
            first = 1 if name == body.input[3] else 2  # a state has the batch in common with the queries
            body.node.insert(0, helper.make_node("Reshape", [name, f"{name}_shape"], [other]))
            body.node.insert(0, helper.make_node("Concat", [f"{name}_lead", f"{name}_rest"], [f"{name}_shape"], axis=0))
            body.node.insert(0, helper.make_node("Shape", [name], [f"{name}_rest"], start=first))
            body.node.insert(0, helper.make_node("Shape", [body.input[0]], [f"{name}_lead"], end=first))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, key, value, past, decay, beta = (*inputs, None, None, None)[:6]
        heads = self.kv_num_heads
        if heads < 1 or self.q_num_heads < 1 or self.q_num_heads % heads:
            raise ValueError(f"q_num_heads {self.q_num_heads} must be a positive multiple of kv_num_heads {heads}")
        if self.update_rule not in linear_attention.RULES:
            raise ValueError(f"update_rule must be one of {linear_attention.RULES}, not {self.update_rule!r}")
        for name, fact, rule in (("decay", decay, "gated"), ("beta", beta, "delta")):
            if (fact is not None) != (rule in self.update_rule.split("_")):
                words = "needs" if fact is None else "does not take"
                raise ValueError(f"update_rule {self.update_rule!r} {words} the input {name!r}")
        for name, fact, count in (("query", query, self.q_num_heads), ("key", key, heads), ("value", value, heads)):
            width = dim(fact, 2)
            if isinstance(width, int) and width % count:
                raise ValueError(f"input {name!r} of width {width} does not divide into {count} heads")
        size, width = dim(query, 2), dim(key, 2)
        if isinstance(size, int) and isinstance(width, int) and size // self.q_num_heads != width // heads:
            raise ValueError(f"queries of size {size // self.q_num_heads} do not fit keys of size {width // heads}")
        lead = (dim(query, 0), dim(query, 1))
        for name, fact in (("key", key), ("value", value), ("decay", decay), ("beta", beta)):
            expect_shape(name, None if fact is None else fact.shape, (*lead, unknown_dim()))
        found = super().infer(inputs, inference)
        expect_shape("past_state", None if past is None else past.shape, found[1].shape or ())
        return found
