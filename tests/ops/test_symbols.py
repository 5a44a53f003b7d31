"""Names of dimensions are untrusted: no name may hang, crash or be evaluated."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.compiler.sizes import size_of
from sardonyx.ops.framework.facts import symbol
from sardonyx.ops.framework.inference import Inference

HOSTILE = [
    "9**9**9**9",
    "9" * 5000 + "*x",
    "a b",
    "max(",
    "(" * 5000 + "x" + ")" * 5000,
    "x*" * 3000 + "x",
    "__import__('os').abort()",
    "1/0",
    "höhe",
    "\x00",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_an_opaque_symbol(name: str) -> None:
    dim = symbol(name)
    assert dim == symbol(name)
    assert dim != symbol(name + "!")
    assert str(dim + 1) != str(dim)
    assert size_of(dim * 2) is not None


@pytest.mark.parametrize("name", ["batch", "past + seq", "decoder.45_dim_1", "2_or_3", "a-b"])
def test_plain_name_arithmetic(name: str) -> None:
    assert size_of(symbol(name) + 1) is not None


@pytest.mark.parametrize("name", HOSTILE)
def test_inference_over_a_hostile_name(name: str) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])
    x.type.tensor_type.shape.dim[0].dim_param = name
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
            helper.make_node("Conv", ["image", "w"], ["z"]),
        ],
        "g",
        [x, helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, "h", "w"])],
        [helper.make_empty_tensor_value_info("y"), helper.make_empty_tensor_value_info("z")],
        [onnx.numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")],
    )
    import onnx_ir as ir

    model = ir.serde.deserialize_model(helper.make_model(graph))
    for node in model.graph:
        node.version = 17
    y, _ = Inference({"": 17}, 8).graph(model.graph)
    assert y.rank == 2
    assert y.shape is not None
    assert y.shape[1] == 4
