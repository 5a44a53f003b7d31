"""The settings for QNN: beside onnxruntime's on the same models, where they differ on purpose, and what they make."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from sardonyx.quantization import QuantType, quantize
from sardonyx.quantization.execution_providers.qnn import get_qnn_qdq_config
from sardonyx.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.tensor_quant_overrides import TensorQuantOverridesHelper
from tests.quantization.quantizing import run, run_peer

U8, I8, U16, I16, I4 = (QuantType[f"Q{name}"] for name in ("UInt8", "Int8", "UInt16", "Int16", "Int4"))


def parsed(text: str, shapes: Mapping[str, tuple[int, ...]] | None = None, opset: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    rng = np.random.default_rng(7)
    for name, shape in (shapes or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return model


CHAIN = parsed(
    """g (float[2,4] x) => (float[2,4] z) {
    [m] y = MatMul(x, w)  [s] t = Sigmoid(y)  [h] u = Tanh(t)  [f] z = Softmax(u) }""",
    {"w": (4, 4)},
)
NORM = parsed(
    "g (float[2,4] x) => (float[2,4] z) { [l] y = LayerNormalization(x, w, b)  [c] z = Cast<to=1>(y) }",
    {"w": (4,), "b": (4,)},
)
CONV = parsed("g (float[1,3,8,8] x) => (float[1,5,6,6] z) { [c] z = Conv(x, w, b) }", {"w": (5, 3, 3, 3), "b": (5,)})
LEFT = parsed(
    "g (float[2,4] x, int64[2,4] i) => (float[2,4] z, int64[2,4] j) "
    "{ [m] y = MatMul(w, x)  [s] z = Add(y, v)  [a] j = Add(i, i) }",
    {"w": (2, 2), "v": (4,)},
)
SHARED = parsed(
    "g (float[4,4] x) => (float[4,4] z, float[4,4] k) { [m] z = MatMul(x, w)  [n] k = MatMul(z, w) }", {"w": (4, 4)}
)
TREE = parsed(
    """g (float[2,4] i0, float[2,4] i1) => (float[2,4] o0, float[2,4] o1, float[2,4] o2, float[2,4] o3) {
    [A] a = Relu(i0)  [B] b = Neg(a)  [C] o0 = Neg(b)  [D] o1 = Add(b, i1)
    [E] c = Abs(a)  [F] o2 = Neg(c)  [G] o3 = Add(c, a) }"""
)
MODERN = parsed("g (float[2,4] x) => (float[2,4] z) { [m] y = MatMul(x, w)  [s] z = Sigmoid(y) }", {"w": (4, 4)}, 21)
U, SIGNED, DEFAULT = {"quant_type": U16}, {"quant_type": I16}, {"quant_type": U8}


def plain(found: Any) -> Any:
    """Settings as what both packages' settings can be compared by."""
    if isinstance(found, Mapping):
        return {key: plain(one) for key, one in found.items()}
    if isinstance(found, list):
        return [plain(one) for one in found]
    if isinstance(found, np.ndarray):
        return found.dtype.name, found.tolist()
    return getattr(found, "name", found)


def of_peer(found: Any, kinds: Any) -> Any:
    """The same with the types of onnxruntime."""
    if isinstance(found, Mapping):
        return {key: of_peer(one, kinds) for key, one in found.items()}
    if isinstance(found, list):
        return [of_peer(one, kinds) for one in found]
    return kinds[found.name] if isinstance(found, QuantType) else found


def both(model: onnx.ModelProto, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """All fields of the settings of this package and of onnxruntime."""
    pytest.importorskip("onnxruntime.quantization")
    peer = importlib.import_module("onnxruntime.quantization.execution_providers.qnn").get_qnn_qdq_config
    kinds = importlib.import_module("onnxruntime.quantization").QuantType
    ours = vars(get_qnn_qdq_config(model, None, **asked))
    theirs = vars(peer(model, None, **of_peer(asked, kinds)))
    for found in (ours, theirs):
        found["op_types_to_quantize"] = sorted(found["op_types_to_quantize"])
    return plain(ours), plain(theirs)


@pytest.mark.parametrize("name", ["CHAIN", "NORM", "CONV", "LEFT", "SHARED", "MODERN"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_types_as_onnxruntime(name: str, per_channel: bool) -> None:
    for activation, weight in itertools.product([U8, I8, U16, I16], [U8, I8, U16, I16, I4]):
        ours, theirs = both(globals()[name], activation_type=activation, weight_type=weight, per_channel=per_channel)
        assert ours == theirs, (activation, weight)


@pytest.mark.parametrize(
    "asked",
    [
        {"activation_symmetric": True, "activation_type": U16, "weight_type": I8},
        {"weight_symmetric": True},
        {"weight_symmetric": False, "weight_type": I8, "activation_type": U16},
        {"keep_removable_activations": True, "stride": 4, "calibration_providers": ["CPUExecutionProvider"]},
        {"op_types_to_quantize": ["Tanh"], "activation_type": U16},
        {"nodes_to_exclude": ["m", "s"], "activation_type": U16},
    ],
)
def test_arguments_as_onnxruntime(asked: dict[str, Any]) -> None:
    ours, theirs = both(CHAIN, **asked)
    assert ours == theirs


@pytest.mark.parametrize("converts", [True, False])
@pytest.mark.parametrize(
    "overrides",
    [
        {"y": [U]},
        {"t": [U]},
        {"u": [U]},
        {"z": [U]},
        {"x": [U]},
        {"w": [{"quant_type": I8}]},
        {"w": [{"quant_type": I4, "axis": 0, "symmetric": True}]},
        {"u": [{**U, "convert": DEFAULT}]},
        {"x": [{"convert": {**U, "recv_nodes": {"m"}}}]},
    ],
)
def test_overrides_as_onnxruntime(overrides: dict[str, Any], converts: bool) -> None:
    for asked in ({}, {"weight_type": I8, "per_channel": True}):
        ours, theirs = both(CHAIN, init_overrides=overrides, add_qtype_converts=converts, **asked)
        assert ours == theirs


@pytest.mark.parametrize(
    "overrides",
    [
        {"a": [U]},
        {"a": [{**SIGNED, "symmetric": True}]},
        {"a": [U], "o0": [U]},
        {"a": [U], "o0": [SIGNED]},
        {"a": [U], "o0": [SIGNED], "o1": [SIGNED]},
        {"a": [U], "b": [U]},
        {"a": [{**U, "symmetric": True}], "b": [U]},
        {"a": [{**U, "rmin": -1.0, "rmax": 1.0}]},
        {"b": [{**DEFAULT, "convert": {**U, "recv_nodes": {"C"}}}], "o1": [U]},
        {"b": [{**U, "convert": {**DEFAULT, "recv_nodes": {"C"}}}]},
        {"a": [{}]},
    ],
)
def test_conversions_as_onnxruntime(overrides: dict[str, Any]) -> None:
    ours, theirs = both(TREE, init_overrides=overrides)
    assert ours == theirs


def test_the_overrides_of_the_caller_stay() -> None:
    given = {"y": [dict(U)]}
    get_qnn_qdq_config(CHAIN, None, init_overrides=given)
    assert given == {"y": [U]}


def test_a_constant_is_a_weight_whoever_makes_it() -> None:
    model = parsed(
        "g (float[2,2] x) => (float[2,2] z) { c = Constant<value=float[2,2]{1,2,3,4}>()  [m] z = MatMul(x, c) }"
    )
    found = get_qnn_qdq_config(model, None, activation_type=U16).extra_options["TensorQuantOverrides"]
    assert found == {"c": [{"quant_type": U8, "symmetric": False}]}
    found = get_qnn_qdq_config(model, None, init_overrides={"z": [U]}).extra_options["TensorQuantOverrides"]
    assert "convert" not in found["c"][0]


def test_nodes_that_stay_float_get_no_conversions() -> None:
    config = get_qnn_qdq_config(TREE, None, init_overrides={"o0": [U]}, nodes_to_exclude=["C"])
    assert config.extra_options["TensorQuantOverrides"] == {"o0": [U]}


def test_symmetry_alone_asks_for_no_conversion() -> None:
    config = get_qnn_qdq_config(TREE, None, init_overrides={"a": [{"symmetric": True}]})
    assert config.extra_options["TensorQuantOverrides"] == {"a": [{"symmetric": True}]}


class Reader:
    """Some samples."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        rng = np.random.default_rng(1)
        self._samples = iter(
            [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(8)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._samples, None)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"weight_type": I8, "per_channel": True},
        {"activation_type": U16},
        {"activation_type": I16, "weight_type": I8},
        {"init_overrides": {"y": [U]}},
        {"init_overrides": {"t": [{**SIGNED, "symmetric": True}]}},
        {"init_overrides": {"t": [{**U, "rmin": 0.0, "rmax": 2.0}]}},
    ],
)
@pytest.mark.parametrize("opset", [17, 21])
def test_models_load_and_agree_in_onnxruntime(asked: dict[str, Any], opset: int, tmp_path) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(CHAIN)
    model.opset_import[0].version = opset
    model.ir_version = 8 if opset == 17 else 10
    path = tmp_path / "quantized.onnx"
    quantize(model, path, get_qnn_qdq_config(model, Reader({"x": (2, 4)}), **asked))
    feeds = {"x": np.random.default_rng(5).normal(size=(2, 4)).astype(np.float32)}
    quantized = onnx.load(path)
    domain = {node.domain for node in quantized.graph.node if node.op_type == "QuantizeLinear"}
    wide = "UInt16" in str(asked) or "Int16" in str(asked)
    assert domain == ({"com.microsoft"} if wide and opset == 17 else {""})
    (expected,), (ours,), (peer,) = run(model, feeds), run(quantized, feeds), run_peer(quantized, feeds)
    np.testing.assert_allclose(ours, expected, atol=0.02)
    np.testing.assert_allclose(ours, peer, atol=1 / 255)


def test_the_scales_of_wide_sigmoid_and_tanh(tmp_path) -> None:
    path = tmp_path / "quantized.onnx"
    quantize(CHAIN, path, get_qnn_qdq_config(CHAIN, Reader({"x": (2, 4)}), activation_type=U16))
    stored = {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    assert stored["t_scale"] == np.float32(1 / 65536)
    assert stored["t_zero_point"] == 0
    assert stored["u_scale"] == np.float32(1 / 32768)
    assert stored["u_zero_point"] == 32768
    assert stored["w_quantized"].dtype == np.uint8


def test_the_class_that_completes_overrides() -> None:
    overrides = TensorQuantOverridesHelper({"b": [dict(U)]})
    MixedPrecisionTensorQuantOverridesFixer.create_from_model(overrides, TREE, U8).apply(U8, False)
    assert overrides.get_dict() == {
        "a": [{**DEFAULT, "convert": {**U, "recv_nodes": {"B"}}}],
        "b": [U],
        "i1": [{**DEFAULT, "convert": {**U, "recv_nodes": {"D"}}}],
        "o0": [U],
        "o1": [U],
    }


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"activation_type": "QInt8"}, "activation_type must be a QuantType"),
        ({"stride": 0}, "CalibStridedMinMax"),
        ({"nodes_to_exclude": ["nope"]}, "nodes_to_exclude = nope matches no node"),
        ({"init_overrides": {"nope": [U]}, "add_qtype_converts": False}, "'nope': the model has no such tensor"),
        ({"init_overrides": {"o0": [U], "o1": [SIGNED]}}, "'b' would be read in QUInt16 and in QInt16"),
        ({"init_overrides": {"a": [U], "b": [SIGNED]}}, "'b' would be made in QUInt16 and in QInt16"),
        (
            {"init_overrides": {"a": [U], "b": [{"scale": np.float32(0.1), "zero_point": np.uint8(3)}]}},
            "'b' say QUInt8, and the node that makes it needs QUInt16",
        ),
        ({"init_overrides": {"a": [U], "b": [DEFAULT]}}, "'b' say QUInt8, and the node that makes it needs QUInt16"),
        (
            {"init_overrides": {"b": [{**U, "convert": {**DEFAULT, "recv_nodes": {"C"}}}], "o0": [U]}},
            "C need QUInt16 as another override asks",
        ),
    ],
)
def test_refusals(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidQuantization, match=told):
        get_qnn_qdq_config(TREE, None, **asked)


def test_nodes_without_names_are_refused_where_names_count() -> None:
    model = parsed("g (float[2,4] x) => (float[2,4] z) { y = Neg(x)  z = Neg(y) }")
    assert get_qnn_qdq_config(model, None).op_types_to_quantize == ["Neg"]
    with pytest.raises(InvalidQuantization, match="has no name"):
        get_qnn_qdq_config(model, None, init_overrides={"y": [U]})
