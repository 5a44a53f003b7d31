"""Config keys of rewrites: each is seen by the model that a session runs, or by what the model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort

Array = np.ndarray[Any, Any]
N = helper.make_node
RNG = np.random.default_rng(31)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Array | onnx.TensorProto],
    outputs: Sequence[onnx.ValueInfoProto] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    given = outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, given, held), opset_imports=opsets, ir_version=10)


def _rows(*shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)


class Run:
    """A session with config entries: the nodes of the model that it saved, and what it computes."""

    def __init__(self, model: onnx.ModelProto, folder: Path, level: int = 99, **entries: str) -> None:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel(level)
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        for key, value in entries.items():
            options.add_session_config_entry(key.replace("__", "."), value)
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.nodes = list(onnx.load(options.optimized_model_filepath).graph.node)

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.nodes]

    def __call__(self, **feeds: Array) -> list[Array]:
        return list(self.session.run(None, feeds))


@pytest.mark.parametrize("opset", [17, 20])
def test_gelu_approximation(tmp_path: Path, opset: int) -> None:
    domain = "" if opset >= 20 else "com.microsoft"
    model = _model([N("Gelu", ["x"], ["y"], domain=domain)], [_rows("n", 64)], {}, opset=opset)
    key = {"optimization__enable_gelu_approximation": "1"}
    exact, near = Run(model, tmp_path), Run(model, tmp_path, **key)
    assert exact.operators == ["Gelu"]
    assert near.operators == ["FastGelu"]
    x = np.linspace(-4, 4, 256, dtype=np.float32).reshape(4, 64)
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(near(x=x)[0], wanted, atol=1e-6)
    assert np.abs(exact(x=x)[0] - wanted).max() > 1e-4
    assert Run(model, tmp_path, level=1, **key).operators == ["Gelu"]


def _casts(between: int) -> onnx.ModelProto:
    nodes = [N("Cast", ["x"], ["a"], to=between), N("Cast", ["a"], ["b"], to=TensorProto.FLOAT), N("Neg", ["b"], ["y"])]
    return _model(nodes, [_rows("n")], {})


def test_cast_chains(tmp_path: Path) -> None:
    x = np.array([0.1, 1.5, -2.7, 3e5], np.float32)
    model = _casts(TensorProto.FLOAT16)
    plain, joined = Run(model, tmp_path), Run(model, tmp_path, optimization__enable_cast_chain_elimination="1")
    assert plain.operators.count("Cast") == 2
    assert "Cast" not in joined.operators
    np.testing.assert_array_equal(joined(x=x)[0], -x)
    assert np.isinf(plain(x=x)[0][3])


@pytest.mark.parametrize("between", [TensorProto.INT32, TensorProto.BOOL])
def test_a_cast_that_changes_the_meaning_stays(tmp_path: Path, between: int) -> None:
    run = Run(_casts(between), tmp_path, optimization__enable_cast_chain_elimination="1")
    assert run.operators.count("Cast") == 2
    kind = np.int32 if between == TensorProto.INT32 else bool
    x = np.array([0.1, 1.5, -2.7, 0.0], np.float32)
    np.testing.assert_array_equal(run(x=x)[0], -x.astype(kind).astype(np.float32))


@pytest.mark.parametrize(
    ("limit", "folds"),
    [(None, True), ("4000", True), ("3999", False), ("0", True), ("100", False)],
)
def test_the_largest_folded_constant(tmp_path: Path, limit: str | None, folds: bool) -> None:
    nodes = [N("ConstantOfShape", ["s"], ["c"]), N("Add", ["x", "c"], ["y"])]
    model = _model(nodes, [_rows(1)], {"s": np.array([1000])})
    key = {} if limit is None else {"optimization__constant_folding_max_output_size_in_bytes": limit}
    run = Run(model, tmp_path, level=1, **key)
    assert ("ConstantOfShape" in run.operators) is not folds
    np.testing.assert_array_equal(run(x=np.ones(1, np.float32))[0], np.ones(1000, np.float32))


def test_without_a_limit_more_than_a_mebibyte_is_folded(tmp_path: Path) -> None:
    nodes = [N("ConstantOfShape", ["s"], ["c"]), N("Add", ["x", "c"], ["y"])]
    model = _model(nodes, [_rows(1)], {"s": np.array([(1 << 18) + 1])})
    assert "ConstantOfShape" in Run(model, tmp_path, level=1).operators
    unlimited = Run(model, tmp_path, level=1, optimization__constant_folding_max_output_size_in_bytes="0")
    assert unlimited.operators == ["Add"]


def _weights(kind: Any = np.int8) -> onnx.ModelProto:
    nodes = [N("DequantizeLinear", ["w", "s", "z"], ["d"]), N("MatMul", ["x", "d"], ["y"])]
    constants = {
        "w": RNG.integers(-100, 100, (8, 6)).astype(kind),
        "s": np.array(0.02, np.float32),
        "z": np.array(3, kind),
    }
    return _model(nodes, [_rows("n", 8)], constants)


def test_without_integer_operators_dequantised_weights_are_constants(tmp_path: Path) -> None:
    model = _weights()
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    off = {"session__disable_quant_qdq": "1"}
    folded = Run(model, tmp_path, **off)
    assert folded.operators == ["MatMul"]
    kept = Run(model, tmp_path, **off, session__disable_qdq_constant_folding="1")
    assert kept.operators == ["DequantizeLinear", "MatMul"]
    assert "DequantizeLinear" in Run(model, tmp_path, level=1).operators
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    wanted = x @ ((held["w"].astype(np.float32) - 3) * held["s"])
    for run in (folded, kept):
        np.testing.assert_allclose(run(x=x)[0], wanted, rtol=1e-5, atol=1e-5)


def _pairs(count: int) -> onnx.ModelProto:
    nodes, value = [N("Softplus", ["x"], ["a"])], "a"
    for place in range(count):
        nodes.append(N("QuantizeLinear", [value, f"s{place}", "z"], [f"q{place}"]))
        nodes.append(N("DequantizeLinear", [f"q{place}", f"s{place}", "z"], [f"d{place}"]))
        value = f"d{place}"
    nodes.append(N("Softplus", [value], ["y"]))
    constants = {f"s{place}": np.array(0.05 * (place + 1), np.float32) for place in range(count)}
    return _model(nodes, [_rows("n", 16)], constants | {"z": np.array(100, np.uint8)})


def test_pairs_that_no_integer_operator_took(tmp_path: Path) -> None:
    model, x = _pairs(1), RNG.standard_normal((2, 16)).astype(np.float32)
    plain, cleaned = Run(model, tmp_path), Run(model, tmp_path, session__enable_quant_qdq_cleanup="1")
    assert plain.operators.count("QuantizeLinear") == 1
    assert cleaned.operators == ["Softplus", "Softplus"]
    exact = np.log1p(np.exp(np.log1p(np.exp(x))))
    np.testing.assert_allclose(cleaned(x=x)[0], exact, rtol=1e-5)
    assert np.abs(plain(x=x)[0] - exact).max() > 1e-3


def test_two_pairs_in_a_row(tmp_path: Path) -> None:
    model = _pairs(2)
    joined, kept = Run(model, tmp_path), Run(model, tmp_path, session__disable_double_qdq_remover="1")
    assert joined.operators.count("QuantizeLinear") == 1
    assert kept.operators.count("QuantizeLinear") == 2
    x = RNG.standard_normal((2, 16)).astype(np.float32)
    np.testing.assert_allclose(joined(x=x)[0], kept(x=x)[0], atol=0.1)


@pytest.mark.parametrize("kernels", ["", "avx2", "portable"])
@pytest.mark.parametrize("entry", ["0", "1"])
def test_products_of_bytes_never_saturate(tmp_path: Path, kernels: str, entry: str) -> None:
    """255 * 127 twice is beyond 16 bits: instructions that add pairs there give 32767 instead."""
    x = np.full((4, 64), 255, np.uint8)
    weights = np.full((64, 16), 127, np.int8)
    model = _model(
        [N("MatMulInteger", ["x", "w"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 64])],
        {"w": weights},
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
    )
    try:
        run = Run(model, tmp_path, session__x64quantprecision=entry, sardonyx__cpu__kernels=kernels)
    except (ort.capi.onnxruntime_pybind11_state.InvalidArgument, ValueError) as error:
        pytest.skip(f"this machine has no such instructions: {error}")
    np.testing.assert_array_equal(run(x=x)[0], x.astype(np.int32) @ weights.astype(np.int32))


def _four_bits(name: str, array: Array) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.UINT4, array.shape, array.reshape(-1).tolist())


@pytest.mark.parametrize(("text", "block"), [("", 32), ("0", 32), ("16", 16), ("128", 128), ("-1", 64)])
def test_the_blocks_of_columns_with_one_scale(tmp_path: Path, text: str, block: int) -> None:
    codes = RNG.integers(0, 16, (80, 24))
    scale = RNG.uniform(0.1, 0.2, 24).astype(np.float32)
    nodes = [N("DequantizeLinear", ["w", "s"], ["d"], axis=1), N("MatMul", ["x", "d"], ["y"])]
    model = _model(nodes, [_rows("n", 80)], {"w": _four_bits("w", codes), "s": scale})
    run = Run(model, tmp_path, **({"session__qdq_matmulnbits_block_size": text} if text else {}))
    (node,) = (node for node in run.nodes if node.op_type == "MatMulNBits")
    assert {attribute.name: attribute.i for attribute in node.attribute}["block_size"] == block
    x = RNG.standard_normal((3, 80)).astype(np.float32)
    wanted = x @ (codes * scale)
    np.testing.assert_allclose(run(x=x)[0], wanted, atol=0.02 * np.abs(wanted).max())


def test_a_block_size_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match=r"qdq_matmulnbits_block_size.*'7'.*'16'"):
        Run(_weights(), tmp_path, session__qdq_matmulnbits_block_size="7")


@pytest.mark.parametrize("zero", [True, False])
def test_packed_weights_that_are_turned(tmp_path: Path, zero: bool) -> None:
    codes = RNG.integers(0, 16, (16, 4, 16))
    scale = RNG.uniform(0.1, 0.2, (16, 4, 1)).astype(np.float32)
    inputs = ["w", "s", "z"] if zero else ["w", "s"]
    nodes = [
        N("DequantizeLinear", inputs, ["d"], axis=2, block_size=16),
        N("Reshape", ["d", "shape"], ["r"]),
        N("Transpose", ["r"], ["t"], perm=[1, 0]),
        N("MatMul", ["x", "t"], ["y"]),
    ]
    constants = {"w": _four_bits("w", codes), "s": scale, "shape": np.array([16, 64])}
    if zero:
        constants["z"] = _four_bits("z", np.full((16, 4, 1), 7))
    model = _model(nodes, [_rows("n", 64)], constants)
    plain = Run(model, tmp_path, level=1)
    packed = Run(model, tmp_path, level=1, session__enable_dq_matmulnbits_fusion="1")
    assert "DequantizeLinear" in plain.operators
    assert packed.operators == ["MatMulNBits"]
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    wanted = x @ ((codes - (7 if zero else 0)) * scale).reshape(16, 64).T
    np.testing.assert_allclose(plain(x=x)[0], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(packed(x=x)[0], wanted, atol=0.02 * np.abs(wanted).max())
    kept = {"session__enable_dq_matmulnbits_fusion": "1", "session__qdq_matmulnbits_accuracy_level": "0"}
    assert "DequantizeLinear" in Run(model, tmp_path, level=1, **kept).operators


HEADS, KV_HEADS, SIZE = 4, 2, 8


def _grouped(identity: bool = False, shared: bool = False) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    width = KV_HEADS * SIZE
    nodes = [
        N(
            "GroupQueryAttention",
            ["q", "k", "v", "pk", "past" if identity else "pv", "last", "total"],
            ["o", "nk", "nv"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
        )
    ]
    if identity:
        nodes.insert(0, N("Identity", ["pv"], ["past"]))
    inputs = [
        value("q", TensorProto.FLOAT, [1, 1, HEADS * SIZE]),
        *(value(name, TensorProto.FLOAT, [1, 1, width]) for name in "kv"),
        *(value(name, TensorProto.FLOAT, [1, KV_HEADS, "p", SIZE]) for name in ("pk", "pv")),
        *(value(name, TensorProto.INT32, [1]) for name in ("last", "total")),
    ]
    outputs = [
        value("o", TensorProto.FLOAT, [1, 1, HEADS * SIZE]),
        *(value(name, TensorProto.FLOAT, [1, KV_HEADS, "t", SIZE]) for name in ("nk", "nv")),
    ]
    if shared:
        nodes.append(N("Neg", ["pv"], ["other"]))
        outputs.append(value("other", TensorProto.FLOAT, None))
    return _model(nodes, inputs, {}, outputs)


def _tokens(past: int = 3) -> dict[str, Array]:
    shapes = {"q": (1, 1, HEADS * SIZE), "k": (1, 1, KV_HEADS * SIZE), "v": (1, 1, KV_HEADS * SIZE)}
    shapes |= dict.fromkeys(("pk", "pv"), (1, KV_HEADS, past, SIZE))
    feeds = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return feeds | {"last": np.array([past], np.int32), "total": np.array([past + 1], np.int32)}


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("level", [0, 99])
def test_caches_of_values_with_their_lengths_last(tmp_path: Path, level: int, identity: bool) -> None:
    model, feeds = _grouped(identity), _tokens()
    plain = Run(model, tmp_path, level)
    turned = Run(model, tmp_path, level, session__gqa_value_layout="BNHS")
    assert turned.operators.count("Transpose") == 2
    shapes = {item.name: item.shape for item in (*turned.session.get_inputs(), *turned.session.get_outputs())}
    assert shapes["pv"] == [1, KV_HEADS, SIZE, "p"]
    assert shapes["nv"][:3] == [1, KV_HEADS, SIZE]
    assert shapes["pk"] == [1, KV_HEADS, "p", SIZE]
    wanted = plain(**feeds)
    swapped = feeds | {"pv": np.ascontiguousarray(feeds["pv"].swapaxes(2, 3))}
    found = turned(**swapped)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[2], wanted[2].swapaxes(2, 3))
    peer = pytest.importorskip("onnxruntime")
    options = peer.SessionOptions()
    options.add_session_config_entry("session.gqa_value_layout", "BNHS")
    session = peer.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(found, session.run(None, swapped), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_cache_that_others_read_cannot_be_turned(tmp_path: Path) -> None:
    model = _grouped(shared=True)
    assert "Transpose" not in Run(model, tmp_path).operators
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match=r"'pv' is the past of values.*other nodes"):
        Run(model, tmp_path, session__gqa_value_layout="BNHS")
