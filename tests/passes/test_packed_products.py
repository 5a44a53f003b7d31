"""Products with dequantised constant weights stay packed: which forms, at which accuracy, against float64."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.api.explaining.explanation import explain

N = helper.make_node
KINDS = {"int2": TensorProto.INT2, "uint2": TensorProto.UINT2, "int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
KINDS |= {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
K, COLUMNS = 96, 24

# The operator behind the DequantizeLinear, whether the weights are stored by columns, the axis, blocks, zero points.
FORMS: dict[str, tuple[str, bool, int, int, bool]] = {
    "columns": ("MatMul", False, 1, 0, False),
    "columns with zeros, axis -1": ("MatMul", False, -1, 0, True),
    "blocks": ("MatMul", False, 0, 32, False),
    "blocks with zeros, axis -2": ("MatMul", False, -2, 32, True),
    "blocks of 96": ("MatMul", False, 0, 96, True),
    "blocks of more than K": ("MatMul", False, 0, 512, True),
    "blocks of 48": ("MatMul", False, 0, 48, True),
    "the last block is not full": ("MatMul", False, 0, 64, True),
    "transposed columns": ("Transpose", True, 0, 0, True),
    "transposed blocks": ("Transpose", True, -1, 32, True),
    "transposed, blocks of K": ("Transpose", True, 1, K, False),
    "Gemm": ("Gemm", False, 1, 0, True),
    "Gemm of transposed columns": ("Gemm", True, 0, 0, False),
    "Gemm of transposed blocks": ("Gemm", True, 1, 16, True),
    "one scale": ("MatMul", False, 0, -1, True),
}
# Forms that onnxruntime multiplies by rows rounded to bytes.
ROUNDED = ("columns", "blocks", "the last block is not full", "one scale")


def build(kind: str, form: str, dtype: Any = np.float32, domain: str = "") -> tuple[onnx.ModelProto, Any]:
    """The model, and the weight [K, columns] that it stands for in float64."""
    rng = np.random.default_rng(len(form))
    reader, by_columns, axis, block, has_zeros = FORMS[form]
    bits = int(kind[-1])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)
    shape = (COLUMNS, K) if by_columns else (K, COLUMNS)
    codes = rng.integers(low, high + 1, shape)
    along = axis % 2
    if block > 0:
        sizes = [-(-size // block) if place == along else size for place, size in enumerate(shape)]
    else:
        sizes = [] if block else [shape[along]]
    scale = np.asarray(rng.uniform(0.02, 0.1, sizes), dtype)
    zeros = rng.integers(low, high + 1, sizes) if has_zeros else np.zeros(sizes, int)
    if block > 0:
        spread = [np.take(np.repeat(each, block, along), np.arange(shape[along]), along) for each in (scale, zeros)]
    else:
        place = [-1 if each == along else 1 for each in range(2)] if not block else ()
        spread = [np.reshape(each, place) for each in (scale, zeros)]
    real = (codes - spread[1]) * spread[0].astype(np.float64)
    tensors = [helper.make_tensor("w", KINDS[kind], shape, codes.ravel().tolist()), numpy_helper.from_array(scale, "s")]
    inputs = ["w", "s"]
    if has_zeros:
        tensors.append(helper.make_tensor("z", KINDS[kind], sizes, np.ravel(zeros).tolist()))
        inputs.append("z")
    given = {"axis": axis} if block >= 0 else {}
    if block > 0:
        given["block_size"] = block
    nodes = [N("DequantizeLinear", inputs, ["d"], domain=domain, **given)]
    if reader == "Gemm":
        tensors.append(numpy_helper.from_array(rng.standard_normal(COLUMNS).astype(dtype), "bias"))
        nodes.append(N("Gemm", ["x", "d", "bias"], ["y"], transB=int(by_columns)))
    else:
        source = "d"
        if reader == "Transpose":
            nodes.append(N("Transpose", ["d"], ["t"], perm=[1, 0]))
            source = "t"
        nodes.append(N("MatMul", ["x", source], ["y"]))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["n", K])],
        [helper.make_tensor_value_info("y", element, ["n", COLUMNS])],
        tensors,
    )
    opsets = [helper.make_opsetid("", 25 if bits == 2 else 21)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=13), real.T if by_columns else real


def rows_of(dtype: Any, count: int = 5) -> Any:
    return np.random.default_rng(0).standard_normal((count, K)).astype(dtype)


def bias_of(model: onnx.ModelProto) -> Any:
    held = {one.name: one for one in model.graph.initializer}
    return numpy_helper.to_array(held["bias"]).astype(np.float64) if "bias" in held else 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_stays_packed(kind: str, form: str) -> None:
    model, weight = build(kind, form)
    session = sardonyx.InferenceSession(model.SerializeToString())
    x = rows_of(np.float32)
    wanted = x.astype(np.float64) @ weight + bias_of(model)
    rounded = form in ROUNDED and kind.endswith("4")
    tolerance = (0.015 if rounded else 2e-6) * np.abs(wanted).max()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=tolerance)
    one = session.run(None, {"x": x[:1]})[0]
    np.testing.assert_allclose(one, wanted[:1], atol=tolerance)
    rows = explain(session, {"x": x}).rows
    assert {row.kind for row in rows} == {"native"}
    operators = [operator for row in rows for operator in row.operators]
    assert set(operators) == {"MatMulNBits"}
    assert any("block_product" in row.kernel for row in rows) is rounded


@pytest.mark.parametrize("kind", ["int4", "uint8"])
@pytest.mark.parametrize("form", ["columns", "blocks", "Gemm"])
def test_half_precision(kind: str, form: str) -> None:
    model, weight = build(kind, form, np.float16)
    x = rows_of(np.float16)
    wanted = x.astype(np.float64) @ weight + bias_of(model)
    found = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, atol=0.015 * np.abs(wanted).max())


@pytest.mark.parametrize("form", ROUNDED)
def test_a_session_may_ask_for_rows_that_are_not_rounded(form: str) -> None:
    model, weight = build("int4", form)
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    session = sardonyx.InferenceSession(model.SerializeToString(), options)
    x = rows_of(np.float32)
    wanted = x.astype(np.float64) @ weight
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=2e-6 * np.abs(wanted).max())
    assert {operator for row in explain(session, {"x": x}).rows for operator in row.operators} == {"MatMulNBits"}


def test_the_operators_of_onnxruntime_are_taken_as_well() -> None:
    model, weight = build("int4", "columns with zeros, axis -1", domain="com.microsoft")
    x = rows_of(np.float32)
    session = sardonyx.InferenceSession(model.SerializeToString())
    wanted = x.astype(np.float64) @ weight
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=2e-6 * np.abs(wanted).max())
    assert {operator for row in explain(session, {"x": x}).rows for operator in row.operators} == {"MatMulNBits"}


@pytest.mark.parametrize(
    "change",
    [{"alpha": 0.5}, {"beta": 2.0}, {"transA": 1}],
    ids=str,
)
def test_a_gemm_that_scales_or_transposes_rows_stays(change: dict[str, Any]) -> None:
    model, weight = build("int8", "Gemm")
    for name, number in change.items():
        model.graph.node[-1].attribute.append(helper.make_attribute(name, number))
    if "transA" in change:
        del model.graph.input[0].type.tensor_type.shape.dim[:]
        for size in (K, 5):
            model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=size)
    x = rows_of(np.float32)
    found = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x.T if "transA" in change else x})[0]
    wanted = change.get("alpha", 1) * (x.astype(np.float64) @ weight) + change.get("beta", 1) * bias_of(model)
    np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


def test_weights_that_others_read_are_there_for_them() -> None:
    model, weight = build("int8", "columns")
    model.graph.node.append(N("ReduceSum", ["d"], ["total"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    x = rows_of(np.float32)
    product, total = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    wanted = x.astype(np.float64) @ weight
    np.testing.assert_allclose(product, wanted, atol=2e-6 * np.abs(wanted).max())
    np.testing.assert_allclose(total, weight.sum(), atol=1e-3)


def test_quantised_rows_and_bytes_are_multiplied_as_integers() -> None:
    model, weight = build("int8", "columns")
    step, zero = np.float32(0.03), np.uint8(128)
    for name, number in (("a", step), ("b", zero)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    model.graph.node[-1].input[0] = "r"
    product = model.graph.node.pop()
    rounding = [N("QuantizeLinear", ["x", "a", "b"], ["q"]), N("DequantizeLinear", ["q", "a", "b"], ["r"])]
    model.graph.node.extend([*rounding, product])
    x = rows_of(np.float32)
    session = sardonyx.InferenceSession(model.SerializeToString())
    rounded = (np.clip(np.rint(x / step) + 128, 0, 255) - 128) * np.float64(step)
    wanted = rounded @ weight
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=1e-4 * np.abs(wanted).max())
    assert not any("MatMulNBits" in row.operators for row in explain(session, {"x": x}).rows)


@pytest.mark.parametrize("clips", [True, False])
def test_rows_and_transposed_weights_that_a_model_quantises_itself(clips: bool) -> None:
    """As Brevitas writes a linear layer: weights by columns, real, rounded in the model, then transposed."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((COLUMNS, K)).astype(np.float32)
    scale = (np.abs(weight).max(axis=1) / 120).astype(np.float32)
    constants = {"w": weight, "s": scale, "z": np.zeros(COLUMNS, np.int8), "a": np.float32(0.03), "b": np.uint8(128)}
    constants |= {"low": np.int8(-127), "high": np.int8(127), "bottom": np.uint8(1), "top": np.uint8(255)}
    nodes = [N("QuantizeLinear", ["w", "s", "z"], ["wq"], axis=0), N("QuantizeLinear", ["x", "a", "b"], ["xq"])]
    names = ["wq", "xq"]
    if clips:
        nodes += [N("Clip", ["wq", "low", "high"], ["wc"]), N("Clip", ["xq", "bottom", "top"], ["xc"])]
        names = ["wc", "xc"]
    nodes += [
        N("DequantizeLinear", [names[0], "s", "z"], ["wd"], axis=0),
        N("DequantizeLinear", [names[1], "a", "b"], ["xd"]),
        N("Transpose", ["wd"], ["wt"], perm=[1, 0]),
        N("MatMul", ["xd", "wt"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = sardonyx.InferenceSession(model.SerializeToString())
    x = rows_of(np.float32)
    rounded = (np.clip(np.rint(x / np.float32(0.03)) + 128, 1 if clips else 0, 255) - 128) * np.float64(
        np.float32(0.03)
    )
    wanted = rounded @ (np.rint(weight / scale[:, None]) * scale[:, None].astype(np.float64)).T
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=1e-5 * np.abs(wanted).max())
    rows = explain(session, {"x": x}).rows
    assert {row.kind for row in rows} == {"native"}
    assert any("MatMulIntegerToFloat" in row.operators for row in rows)
