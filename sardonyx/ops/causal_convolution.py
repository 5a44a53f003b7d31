"""Causal depthwise convolution that carries its last inputs from call to call (opset 27)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft import convolution_state

if TYPE_CHECKING:
    import onnx


@operator("CausalConvWithState", since=27)
class CausalConvWithState(convolution_state.CausalConvWithState):
    """The operator of com.microsoft, along one axis, channels first and without dilation."""

    def prefers_body(self) -> bool:
        return True

    def amend_body(self, body: onnx.FunctionProto) -> None:
        """Let the convolution, which is over no fewer places than its kernel has, go on by one place that is cut off.

        Of no tokens it is over the state alone.
        """
        from onnx import helper

        x = self.node.inputs[0]
        length = None if x is None or x.shape is None else x.shape[2]
        if isinstance(length, int) and length > 0:
            return
        given, result = body.input[0], body.output[0]
        for node in body.node:
            if node.op_type == "Conv":
                node.attribute.append(helper.make_attribute("pads", [0, 1]))
            node.output[:] = ["longer" if name == result else name for name in node.output]
        body.node.extend(
            [
                helper.make_node("Constant", [], ["first_token"], value_ints=[0]),
                helper.make_node("Shape", [given], ["token_count"], start=2, end=3),
                helper.make_node("Constant", [], ["token_axis"], value_ints=[2]),
                helper.make_node("Slice", ["longer", "first_token", "token_count", "token_axis"], [result]),
            ]
        )

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        if x is not None and x.shape is not None and len(x.shape) != 3:
            raise ValueError(f"input 'input' is expected to have 3 dimensions, got {len(x.shape)}")
        return super().infer(inputs, inference)
