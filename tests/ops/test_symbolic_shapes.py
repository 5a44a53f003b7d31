"""Shape rules of the compute operators over symbolic dimensions, checked by running them with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.ops.single_node import compiled, make_model, run_ours

NUMBERS = {"n": 2, "h": 13, "w": 11, "k": 4}

CASES: list[tuple[str, list[tuple[int | str, ...]], dict[str, Any], list[Any]]] = [
    ("Conv", [("n", 3, "h", "w"), (5, 3, 3, 3)], {"strides": [2, 1], "pads": [1, 1, 1, 1]}, []),
    ("Conv", [("n", 3, "h", "w"), (5, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, []),
    ("ConvTranspose", [("n", 3, "h", "w"), (3, 5, 3, 3)], {"strides": [2, 1], "pads": [1, 1, 1, 1]}, []),
    ("MaxPool", [("n", 3, "h", "w")], {"kernel_shape": [3, 2], "strides": [2, 2]}, []),
    ("AveragePool", [("n", 3, "h", "w")], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, []),
    ("GlobalAveragePool", [("n", 3, "h", "w")], {}, []),
    ("MatMul", [("n", "h", "k"), ("k", "w")], {}, []),
    ("MatMul", [("h", "k"), ("n", "k", "w")], {}, []),
    ("Gemm", [("k", "h"), ("w", "k")], {"transA": 1, "transB": 1}, []),
    ("Einsum", [("n", "h", "k"), ("n", "w", "k")], {"equation": "bij,bkj->bik"}, []),
    ("Softmax", [("n", "h")], {}, []),
    ("LayerNormalization", [("n", "h", 4), (4,)], {}, []),
    ("Add", [("n", 1, "h"), ("w", 1)], {}, []),
    ("ReduceSum", [("n", "h", "w")], {"keepdims": 0}, [np.array([1], np.int64)]),
    ("ReduceMax", [("n", "h", "w")], {}, [np.array([0, -1], np.int64)]),
    ("ArgMax", [("n", "h")], {"axis": 1, "keepdims": 0}, []),
    ("Resize", [("n", 3, "h", "w")], {}, [None, np.array([1, 1, 2, 3], np.float32)]),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "constants"), CASES, ids=lambda value: str(value)[:24])
def test_symbols_survive(op: str, shapes: Any, attributes: Any, constants: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.random([NUMBERS.get(dim, dim) for dim in shape]).astype(np.float32) for shape in shapes]
    inputs = [*arrays, *constants]
    constant_places = range(len(arrays), len(inputs))
    proto = make_model(op, inputs, attributes, 22, constant_inputs=constant_places)
    for value, shape in zip(proto.graph.input, shapes, strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    (output,) = compiled(proto).model.graph.outputs
    (result,) = run_ours(proto, {f"x{index}": array for index, array in enumerate(arrays)})
    assert output.shape is not None
    symbols = [dim for dim in output.shape if isinstance(dim, ir.SymbolicDim)]
    assert all(dim.value is not None for dim in symbols), "a dimension became unknown"
    sizes = [dim if isinstance(dim, int) else dim.evaluate(NUMBERS) for dim in output.shape]
    assert sizes == list(result.shape)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("MatMul", [(2, 3), (4, 5)], {}),
        ("Gemm", [(2, 3, 4), (4, 5)], {}),
        ("Conv", [(1, 3, 5, 5), (4, 2, 3, 3)], {}),
        ("Add", [(2, 3), (4,)], {}),
        ("ReduceMean", [(2, 3)], {"axes": [2]}),
        ("Einsum", [(2, 3), (4, 5)], {"equation": "ij,jk->ik"}),
    ],
)
def test_contradictions_are_found_before_the_run(op: str, shapes: Any, attributes: Any) -> None:
    inputs = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(Exception, match=r"\w"):
        compiled(make_model(op, inputs, attributes, 17))
