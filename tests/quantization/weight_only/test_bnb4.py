"""`MatMulBnb4Quantizer`: FP4 and NF4 as onnxruntime makes and reads them."""

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.api.explaining.explanation import explain
from sardonyx.ops.microsoft.packed_weights import FP4, NF4
from sardonyx.quantization import matmul_bnb4_quantizer
from sardonyx.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.weight_only.models import attributes_of, constants_of, product_model

VALUES = {0: FP4, 1: NF4}


def quantized(model, kind, block=16, **options):
    quantizer = MatMulBnb4Quantizer(model, kind, block, **options)
    quantizer.process()
    return quantizer.model.model


def real_weight(model, kind):
    (node,) = model.graph.node
    held, given = constants_of(model), attributes_of(node)
    rows, length, block = given["N"], given["K"], given["block_size"]
    packed = held[node.input[1]].astype(np.int64)
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[: rows * length]
    scales = np.repeat(held[node.input[2]].astype(np.float64), block)[: rows * length]
    return (VALUES[kind].astype(np.float64)[codes] * scales).reshape(rows, length).T


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(64, 32), (33, 5), (300, 1000)])
def test_products(kind, dtype, shape):
    rng = np.random.default_rng(kind)
    weight = rng.standard_normal(shape).astype(dtype)
    model = quantized(product_model(weight), kind, 64)
    onnx.checker.check_model(model)
    real = real_weight(model, kind)
    largest = np.abs(weight).max()
    assert np.abs(real - weight).max() <= (0.17 if kind == 0 else 0.16) * largest
    x = rng.standard_normal((3, shape[0])).astype(dtype)
    wanted = x.astype(np.float64) @ real
    session = sardonyx.InferenceSession(model.SerializeToString())
    tolerance = (2e-6 if dtype == np.float32 else 2e-3) * np.abs(wanted).max()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=tolerance)
    assert {row.kind for row in explain(session, {"x": x}).rows} == {"native"}
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(theirs.run(None, {"x": x})[0], wanted, atol=2 * tolerance)


@pytest.mark.parametrize("kind", [0, 1])
def test_the_bytes_are_those_of_onnxruntime(kind):
    theirs = pytest.importorskip("onnxruntime.quantization.matmul_bnb4_quantizer")
    weight = np.random.default_rng(kind).standard_normal((70, 9)).astype(np.float32)
    other = theirs.MatMulBnb4Quantizer(product_model(weight), kind, 32)
    other.process()
    mine = quantized(product_model(weight), kind, 32)
    assert [node.name for node in mine.graph.node] == [node.name for node in other.model.model.graph.node]
    found, wanted = constants_of(mine), constants_of(other.model.model)
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


def test_weights_with_a_dimension_of_one():
    weight = np.random.default_rng(0).standard_normal((1, 32, 5)).astype(np.float32)
    model = quantized(product_model(weight), 1)
    assert [node.op_type for node in model.graph.node] == ["Unsqueeze", "MatMulBnb4"]
    found = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((2, 32), np.float32)})[0]
    assert found.shape == (1, 2, 5)


def test_what_is_refused():
    model = product_model(np.ones((64, 8), np.float32))
    with pytest.raises(InvalidQuantization, match=r"quant_type must be 0 \(FP4\) or 1 \(NF4\), not 2"):
        MatMulBnb4Quantizer(model, 2, 64)
    with pytest.raises(InvalidQuantization, match="block_size must be one of 16, 32, 64, 128, 256, not 17"):
        MatMulBnb4Quantizer(model, 1, 17)
    with pytest.raises(InvalidQuantization, match="matches no node"):
        quantized(model, 1, nodes_to_exclude=["other"])
    with pytest.raises(InvalidQuantization, match="No node of the model can be quantised"):
        quantized(model, 1, nodes_to_exclude=["product"])
    with pytest.raises(InvalidQuantization, match="holds NaN"):
        quantized(product_model(np.full((64, 8), np.nan, np.float32)), 1)


def test_the_command_line(tmp_path):
    onnx.save(product_model(np.ones((32, 8), np.float32)), tmp_path / "m.onnx")
    paths = ["--input_model", str(tmp_path / "m.onnx"), "--output_model", str(tmp_path / "q.onnx")]
    matmul_bnb4_quantizer.main([*paths, "--quant_type", "0", "--block_size", "16"])
    (node,) = onnx.load(tmp_path / "q.onnx").graph.node
    assert (node.op_type, attributes_of(node)["quant_type"]) == ("MatMulBnb4", 0)
