"""Operators between DequantizeLinear and QuantizeLinear: which become integer operators, and that results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.passes.base import PACKED_PRODUCTS, QDQ
from sardonyx.passes.rules.unsigned_quantization import NAME as UNSIGNED
from tests.ops.exact_integers import narrow
from tests.passes.models import operators, rewritten

Array = np.ndarray[Any, Any]
N = helper.make_node
RNG = np.random.default_rng(7)


class Model:
    """A model under construction: values pass through QuantizeLinear and DequantizeLinear."""

    def __init__(self, *shape: int, kind: Any = np.uint8) -> None:
        self.kind = np.dtype(kind)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.pair("x", 0.02)

    def pair(self, name: str, scale: float, zero: int | None = 3, kind: Any = None) -> str:
        """Quantise a value and make it real again."""
        dtype = np.dtype(kind or self.kind)
        self.constants |= {f"{name}_s": np.asarray(scale, np.float32), f"{name}_z": np.asarray(zero or 0, dtype)}
        parameters = [f"{name}_s", *([] if zero is None else [f"{name}_z"])]
        self.nodes += [
            N("QuantizeLinear", [name, *parameters], [f"{name}_q"]),
            N("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_d"]),
        ]
        return f"{name}_d"

    def weight(self, name: str, array: Array, scale: Any, axis: int | None = None) -> str:
        scales = np.asarray(scale, np.float32)
        self.constants |= {name: array, f"{name}_s": scales, f"{name}_z": np.zeros(scales.shape, array.dtype)}
        attributes = {} if axis is None else {"axis": axis}
        self.nodes.append(N("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_d"], **attributes))
        return f"{name}_d"

    def add(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> None:
        self.nodes.append(N(op_type, inputs, [name], name=name, **attributes))

    def finished(self, output: str, opset: int = 17) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def convolution(bias_scale: Any = None, kind: Any = np.uint8) -> onnx.ModelProto:
    model = Model(1, 4, 9, 9, kind=kind)
    scales = np.array([0.01, 0.02, 0.005, 0.03, 0.01, 0.02], np.float32)
    w = model.weight("w", narrow(RNG, np.int8, 6, 4, 3, 3), scales, axis=0)
    factors = (np.float32(0.02) * scales).astype(np.float32) if bias_scale is None else bias_scale
    b = model.weight("b", RNG.integers(-500, 500, 6).astype(np.int32), factors, axis=0)
    model.add("Conv", ["x_d", w, b], "c", pads=[1, 1, 1, 1])
    model.add("Relu", ["c"], "r")
    return model.finished(model.pair("r", 0.08, -128 if kind is np.int8 else 0))


def pool_and_add() -> onnx.ModelProto:
    model = Model(1, 4, 8, 8)
    model.add("MaxPool", ["x_d"], "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    p = model.pair("p", 0.02)
    model.add("Add", [p, "x_d"], "a")
    a = model.pair("a", 0.04, 11)
    model.add("Mul", [a, "x_d"], "m")
    return model.finished(model.pair("m", 0.05, 100))


def means() -> onnx.ModelProto:
    model = Model(2, 4, 6, 8)
    model.add("ReduceMean", ["x_d"], "r", axes=[-1], keepdims=1)
    r = model.pair("r", 0.015, 100)
    model.add("GlobalAveragePool", [r], "p")
    return model.finished(model.pair("p", 0.01, 90))


def product(*, real: bool) -> onnx.ModelProto:
    model = Model(3, 5, 12)
    w = model.weight("w", narrow(RNG, np.int8, 12, 7), RNG.uniform(0.01, 0.02, 7), axis=1)
    model.add("MatMul", ["x_d", w], "m")
    return model.finished("m" if real else model.pair("m", 0.2, 120))


def gemm(
    *,
    real: bool,
    kind: Any = np.uint8,
    scale: Any = 0.0125,
    bias_shape: tuple[int, ...] = (7,),
    bias_scale: Any = None,
) -> onnx.ModelProto:
    model = Model(5, 12, kind=kind)
    w = model.weight("w", narrow(RNG, np.int8, 7, 12), scale, axis=0 if np.ndim(scale) else None)
    factor = np.float32(0.02) * np.asarray(scale, np.float32) if bias_scale is None else bias_scale
    bias = RNG.integers(-500, 500, bias_shape).astype(np.int32)
    b = model.weight("b", bias, factor, axis=0 if np.ndim(factor) else None)
    model.add("Gemm", ["x_d", w, b], "g", transB=1)
    return model.finished("g" if real else model.pair("g", 0.2, 20))


CASES = {
    "convolution": (convolution(), ["QLinearConv"]),
    "convolution of int8": (convolution(kind=np.int8), ["QLinearConv"]),
    "pool, sum and product": (pool_and_add(), ["MaxPool", "QLinearAdd", "QLinearMul"]),
    "means": (means(), ["QLinearReduceMean", "QLinearGlobalAveragePool"]),
    "product": (product(real=False), ["QLinearMatMul"]),
    "gemm": (gemm(real=False), ["QGemm"]),
    "gemm of int8": (gemm(real=False, kind=np.int8), ["QGemm"]),
}


def session(module: Any, model: onnx.ModelProto, **config: str) -> Any:
    options = module.SessionOptions()
    options.log_severity_level = 4
    for key, value in config.items():
        options.add_session_config_entry(f"session.{key}", value)
    return module.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES)
def test_integers_between_the_pairs(case: str) -> None:
    model, wanted = CASES[case]
    after, reports = rewritten(model)
    assert operators(after) == ["QuantizeLinear", *wanted, "DequantizeLinear"]
    assert reports[QDQ].changes == len(wanted)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("make", [product, gemm])
def test_real_results(make: Any, real: bool) -> None:
    after, _ = rewritten(make(real=real))
    kinds = {(product, True): "MatMulIntegerToFloat", (gemm, True): "QGemm", (product, False): "QLinearMatMul"}
    assert operators(after)[1] == kinds.get((make, real), "QGemm")
    assert len(operators(after)) == (2 if real else 3)


@pytest.mark.parametrize("case", [*CASES, "real product", "real gemm"])
def test_like_onnxruntime(case: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    more = {"real product": product(real=True), "real gemm": gemm(real=True)}
    model = more[case] if case in more else CASES[case][0]
    x = (RNG.standard_normal([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]) * 1.5).astype("f")
    (found,), (wanted,) = (session(module, model).run(None, {"x": x}) for module in (sardonyx, ort))
    # onnxruntime's vectors and tails differ; its means half way between two steps are sums of rounded numbers.
    last = {"pool, sum and product": "m_s", "means": "p_s"}.get(case)
    scales = [numpy_helper.to_array(item) for item in model.graph.initializer if item.name == last]
    step = float(scales[0]) if last else 0.0
    assert np.abs(found - wanted).max() <= max(1.001 * step, 2e-6 * np.abs(wanted).max())
    assert np.abs(wanted).max() > 0


def test_the_pass_can_be_turned_off() -> None:
    model, _ = CASES["convolution"]
    after, _ = rewritten(model, disabled=[QDQ])
    assert "Conv" in operators(after)
    x = RNG.standard_normal((1, 4, 9, 9)).astype(np.float32)
    kept = session(sardonyx, model, disable_quant_qdq="1").run(None, {"x": x})[0]
    integers = session(sardonyx, model).run(None, {"x": x})[0]
    assert np.abs(kept - integers).max() <= 0.0801  # one step of the result


def _with_real_bias(op_type: str, step: float) -> onnx.ModelProto:
    """A product whose bias is real, as exporters of PyTorch's quantised models write it."""
    is_gemm = op_type == "Gemm"
    model = Model(5, 12) if is_gemm else Model(1, 4, 9, 9)
    shape = (6, 12) if is_gemm else (6, 4, 3, 3)
    w = model.weight("w", narrow(RNG, np.int8, *shape), [0.01, 0.02, 0.005, 0.03, 0.01, 0.02], axis=0)
    model.constants["b"] = RNG.standard_normal(6).astype(np.float32)
    model.add(op_type, ["x_d", w, "b"], "c", **({"transB": 1} if is_gemm else {"pads": [1, 1, 1, 1]}))
    return model.finished(model.pair("c", step, 120))


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_real_biases_become_integers(op_type: str) -> None:
    model = _with_real_bias(op_type, 0.08)
    after, _ = rewritten(model)
    assert operators(after) == ["QuantizeLinear", {"Conv": "QLinearConv", "Gemm": "QGemm"}[op_type], "DequantizeLinear"]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = RNG.standard_normal(shape).astype(np.float32)
    wanted = session(sardonyx, model, disable_quant_qdq="1").run(None, {"x": x})[0]
    found = session(sardonyx, model).run(None, {"x": x})[0]
    assert np.abs(found - wanted).max() <= 0.0801  # one step of the result
    assert (found == wanted).mean() > 0.95
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_real_biases_stay_real_beside_fine_steps(op_type: str) -> None:
    after, reports = rewritten(_with_real_bias(op_type, 0.001))
    assert op_type in operators(after)
    assert any("a step of its result has few units" in reason for reason in reports[QDQ].declined)


def test_reasons() -> None:
    _, reports = rewritten(convolution(bias_scale=np.full(6, 0.5, np.float32)))
    assert any("its bias has another scale than the product" in reason for reason in reports[QDQ].declined)
    model = Model(1, 4, 8, 8)
    model.add("MaxPool", ["x_d"], "p", kernel_shape=[2, 2])
    _, reports = rewritten(model.finished(model.pair("p", 0.03)))
    assert any("quantised differently" in reason for reason in reports[QDQ].declined)
    model = Model(3, 4)
    model.add("Sin", ["x_d"], "s")
    model.add("Add", ["x_d", model.pair("s", 0.01, 0, np.int8)], "a")
    after, reports = rewritten(model.finished(model.pair("a", 0.03)), disabled=[UNSIGNED])
    assert "QLinearAdd" not in operators(after)
    assert any("bytes of different kinds" in reason for reason in reports[QDQ].declined)


TINY = np.float32(1e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (gemm(real=True, scale=TINY, bias_scale=np.float32(1e-7)), "another scale than the product"),
        (gemm(real=True, scale=np.full(7, 0.01), bias_shape=(5, 7), bias_scale=np.full(5, 2e-4)), "another axis"),
        (gemm(real=True, scale=np.full(7, 0.01), bias_shape=(1, 7), bias_scale=np.full(1, 3e-4)), "another scale"),
    ],
)
def test_biases_in_other_units_stay_real(model: onnx.ModelProto, reason: str) -> None:
    after, reports = rewritten(model)
    assert any(reason in text for text in reports[QDQ].declined)
    assert "Gemm" in operators(after)
    feeds = {"x": RNG.standard_normal((5, 12)).astype(np.float32)}
    plain = session(sardonyx, model, disable_quant_qdq="1").run(None, feeds)[0]
    found = session(sardonyx, model).run(None, feeds)[0]
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5 * float(np.abs(plain).max()))


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
@pytest.mark.parametrize(
    "make", [convolution, lambda **more: gemm(real=False, **more), lambda **more: gemm(real=True, **more)]
)
def test_products_of_sixteen_bits_stay_real(make: Any, kind: Any) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = make(kind=kind)
    model.opset_import[0].version = 21
    after, _ = rewritten(model)
    assert {"Conv", "Gemm"} & set(operators(after))
    x = RNG.uniform(-0.5, 0.5, [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])
    found, wanted = (session(module, model).run(None, {"x": x.astype("f")})[0] for module in (sardonyx, ort))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max()))


def test_a_scale_for_each_place_of_a_vector_is_none_for_columns() -> None:
    model = Model(3, 4)
    w = model.weight("w", RNG.integers(-128, 128, 4).astype(np.int8), RNG.uniform(0.01, 0.02, 4), axis=0)
    model.add("MatMul", ["x_d", w], "m")
    finished = model.finished("m")
    assert "MatMul" in operators(rewritten(finished)[0])
    feeds = {"x": RNG.standard_normal((3, 4)).astype(np.float32)}
    plain = session(sardonyx, finished, disable_quant_qdq="1").run(None, feeds)[0]
    np.testing.assert_allclose(session(sardonyx, finished).run(None, feeds)[0], plain, rtol=1e-5)


@pytest.mark.parametrize("op_type", ["Relu", "MaxPool"])
def test_negative_scales_turn_the_order_of_numbers(op_type: str) -> None:
    model = Model(1, 2, 4, 4)
    model.nodes.clear()
    model.constants |= {"x_s": np.float32(-0.5), "x_z": np.array(0, np.uint8)}
    model.pair("x", -0.5, 0)
    model.add(op_type, ["x_d"], "r", **({"kernel_shape": [2, 2]} if op_type == "MaxPool" else {}))
    finished = model.finished(model.pair("r", -0.5, 0))
    after, _ = rewritten(finished)
    assert operators(after).count("DequantizeLinear") == 2
    feeds = {"x": RNG.standard_normal((1, 2, 4, 4)).astype(np.float32) * 50}
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = ort.InferenceSession(finished.SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session(sardonyx, finished).run(None, feeds)[0], theirs.run(None, feeds)[0])


def test_pairs_of_the_contrib_domain_become_integers_as_well() -> None:
    """Writers of models in older operator sets take them for scales of channels."""
    finished = convolution()
    plain = session(sardonyx, finished).run(None, feeds := {"x": RNG.standard_normal((1, 4, 9, 9)).astype(np.float32)})
    expected = operators(rewritten(finished)[0])
    for node in finished.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = "com.microsoft"
    after = rewritten(finished)[0]
    assert operators(after) == expected
    assert "QLinearConv" in expected
    np.testing.assert_array_equal(session(sardonyx, finished).run(None, feeds)[0], plain[0])


@pytest.mark.parametrize("opset", [11, 12])
def test_a_pool_takes_bytes_only_in_versions_that_have_them(opset: int) -> None:
    model = Model(1, 2, 4, 4)
    model.add("MaxPool", ["x_d"], "p", kernel_shape=[2, 2])
    finished = model.finished(model.pair("p", 0.02, 3), opset)
    feeds = {"x": RNG.standard_normal((1, 2, 4, 4)).astype(np.float32)}
    assert operators(rewritten(finished)[0]).count("DequantizeLinear") == (2 if opset < 12 else 1)
    plain = session(sardonyx, finished, disable_quant_qdq="1").run(None, feeds)[0]
    np.testing.assert_array_equal(session(sardonyx, finished).run(None, feeds)[0], plain)


@pytest.mark.parametrize(("zero", "kind", "stays"), [(0, np.uint8, False), (-128, np.int8, False), (5, np.uint8, True)])
def test_relu_before_a_quantisation(zero: int, kind: Any, stays: bool) -> None:
    model = Model(3, 4)
    model.add("Relu", ["x_d"], "r")
    after, _ = rewritten(model.finished(model.pair("r", 0.02, zero, kind)))
    assert ("Relu" in operators(after)) == stays


def packed_product(kind: int, *, zeros: bool, rows: int = 64) -> onnx.ModelProto:
    """A product with weights of four bits in blocks of 32 along its columns."""
    rng = np.random.default_rng(3)
    low = -8 if kind == TensorProto.INT4 else 0
    blocks = -(-rows // 32)
    constants = [
        helper.make_tensor("w", kind, (rows, 21), rng.integers(low, low + 16, rows * 21)),
        numpy_helper.from_array(rng.uniform(0.01, 0.02, (blocks, 21)).astype(np.float32), "s"),
    ]
    if zeros:
        constants.append(helper.make_tensor("z", kind, (blocks, 21), rng.integers(low, low + 16, blocks * 21)))
    given = ["w", "s", *(["z"] if zeros else [])]
    nodes = [N("DequantizeLinear", given, ["d"], axis=0, block_size=32), N("MatMul", ["x", "d"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 21])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_four_bits_stay_packed(kind: int, zeros: bool) -> None:
    model = packed_product(kind, zeros=zeros)
    after, reports = rewritten(model)
    assert operators(after) == ["MatMulNBits"]
    assert reports[PACKED_PRODUCTS].changes == 1
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    (found,) = session(sardonyx, model).run(None, {"x": x})
    exact = session(sardonyx, model, qdq_matmulnbits_accuracy_level="0").run(None, {"x": x})[0]
    assert np.abs(found - exact).max() <= 0.02 * np.abs(exact).max()
    assert np.abs(found - exact).max() > 0
    ort = pytest.importorskip("onnxruntime")
    (wanted,) = session(ort, model).run(None, {"x": x})
    assert np.abs(found - wanted).max() <= 0.01 * np.abs(wanted).max()


def product_of_four_bits(
    shape: tuple[int, ...], *, pair: bool = False, outputs: tuple[str, ...] = ("y",), **attributes: int
) -> tuple[onnx.ModelProto, Array]:
    """A product of x (5, 64), or of what a pair leaves of it, with weights of four bits; these in float64."""
    rng = np.random.default_rng(5)
    codes = rng.integers(-8, 8, (64, 16))
    scale = rng.uniform(0.05, 0.15, shape).astype(np.float32)
    nodes = [N("DequantizeLinear", ["w", "s"], ["d"], **attributes)]
    if pair:
        nodes += [
            N("QuantizeLinear", ["x", "step", "zero"], ["q"]),
            N("DequantizeLinear", ["q", "step", "zero"], ["a"]),
        ]
    nodes.append(N("MatMul", ["a" if pair else "x", "d"], ["y"]))
    if "z" in outputs:
        nodes.append(N("Transpose", ["d"], ["z"]))
    constants = [
        helper.make_tensor("w", TensorProto.INT4, codes.shape, codes.ravel().tolist()),
        numpy_helper.from_array(scale, "s"),
        numpy_helper.from_array(np.array(0.03, np.float32), "step"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    ]
    x, *results = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", *outputs))
    x.CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 64]))
    graph = helper.make_graph(nodes, "graph", [x], results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    wide = scale.astype(np.float64)
    return model, codes * (np.repeat(wide, 64 // shape[0], axis=0) if wide.ndim == 2 else wide)


# Forms that stay real products in onnxruntime, and such as are rounded there: shape of the scales, what else.
REAL_PRODUCTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "of a pair, one scale": ((), {"pair": True}),
    "of a pair, columns": ((16,), {"pair": True, "axis": 1}),
    "of a pair, blocks": ((4, 16), {"pair": True, "axis": 0, "block_size": 16}),
    "columns from the end": ((16,), {"axis": -1}),
    "blocks of 16 from the end": ((4, 16), {"axis": -2, "block_size": 16}),
    "blocks of 32 from the end": ((2, 16), {"axis": -2, "block_size": 32}),
    "weights that others read": ((4, 16), {"outputs": ("y", "z"), "axis": 0, "block_size": 16}),
    "weights that are given out": ((4, 16), {"outputs": ("y", "d"), "axis": 0, "block_size": 16}),
}
ROUNDED_PRODUCTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one scale": ((), {}),
    "one scale, an axis from the end": ((), {"axis": -1}),
    "columns": ((16,), {"axis": 1}),
    "columns, no axis": ((16,), {}),
    "blocks of 16": ((4, 16), {"axis": 0, "block_size": 16}),
}


@pytest.mark.parametrize("form", REAL_PRODUCTS)
def test_products_that_stay_real_keep_their_precision(form: str) -> None:
    shape, others = REAL_PRODUCTS[form]
    model, weights = product_of_four_bits(shape, **others)
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    rows = x.astype(np.float64)
    if others.get("pair"):
        step = np.float32(0.03)
        rows = (np.clip(np.rint(x / step) + 128, 0, 255) - 128) * np.float64(step)
    wanted = rows @ weights
    for level in list(sardonyx.GraphOptimizationLevel):
        options = sardonyx.SessionOptions()
        options.graph_optimization_level = level
        made = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = made.run(["y"], {"x": x})[0]
        assert np.abs(found - wanted).max() <= 2e-6 * (np.abs(rows) @ np.abs(weights)).max()


@pytest.mark.parametrize("form", [*REAL_PRODUCTS, *ROUNDED_PRODUCTS])
def test_the_accuracy_of_products_is_that_of_onnxruntime(form: str) -> None:
    shape, others = {**REAL_PRODUCTS, **ROUNDED_PRODUCTS}[form]
    model, _ = product_of_four_bits(shape, **others)
    after, _ = rewritten(model)
    (node,) = (one for one in after.graph.node if one.op_type == "MatMulNBits")
    level = {attribute.name: attribute.i for attribute in node.attribute}["accuracy_level"]
    assert level == (0 if form in REAL_PRODUCTS else 4)


def test_rows_of_scales_are_no_blocks_of_columns() -> None:
    model = packed_product(TensorProto.INT4, zeros=False)
    sizes = model.graph.initializer[1]
    sizes.CopyFrom(numpy_helper.from_array(np.full((8, 21), 0.01, np.float32), "s"))
    for attribute in model.graph.node[0].attribute:
        attribute.i = {"axis": 0, "block_size": 8}[attribute.name]
    _, reports = rewritten(model)
    assert any("no size that MatMulNBits takes" in reason for reason in reports[PACKED_PRODUCTS].declined)
