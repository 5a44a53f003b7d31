"""Results that only products in bfloat16 read are stored in bfloat16, with the numbers that they had."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.llvm.target import host_target, host_targets

Array = np.ndarray[Any, Any]

HIDDEN = 72
MODELS = {
    "gelu": "h = MatMul(x, w1) t = Add(h, b1) g = Gelu(t) y = MatMul(g, w2)",
    "gemm": "f = Reshape(x, rows) h = Gemm(f, w1, b1) g = Relu(h) y = Gemm(g, w2)",
    "normalised": "h = MatMul(x, w1) g = LayerNormalization(h, s1, b1) y = MatMul(g, w2)",
    "loop": "h = MatMul(x, w1) u = Sin(x) v = MatMul(u, w1) g = Mul(h, v) y = MatMul(g, w2)",
    "skip": "h = MatMul(x, w1) s = Add(h, b1) g, m, d, t = com.microsoft.SkipLayerNormalization(h, s, s1, b1)"
    " v = MatMul(g, w2) u = MatMul(t, w3) y = Add(u, v)",
    "attention": "h = MatMul(x, w1) g = com.microsoft.MultiHeadAttention<num_heads = 3>(h, h, h) y = MatMul(g, w2)",
    "concatenated": "h = MatMul(x, w1) u = Sin(x) v = MatMul(u, w1) g = Concat<axis = 1>(h, v) y = MatMul(g, w2)",
    "half rounded": "h = MatMul(x, w1) u = Sin(x) v = MatMul(u, w1) k = Concat<axis = 1>(h, h, v) g = Sin(v)"
    " t = MatMul(k, w2) f = MatMul(g, w2) y = Concat<axis = 1>(t, f)",
    "largest": "h = MatMul(x, w1) t = Relu(h) g = MaxPool<kernel_shape = [2], pads = [0, 1]>(t) y = MatMul(g, w2)",
    "two readers": "h = MatMul(x, w1) g = Tanh(h) a = MatMul(g, w2) c = MatMul(g, w3) y = Add(a, c)",
}


def session(
    body: str, *, hidden: int = HIDDEN, kernels: str = "", threads: int = 1, outputs: str = "float[] y"
) -> ort.InferenceSession:
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    made = onnx.parser.parse_model(f"{head} g (float[n, m, 40] x) => ({outputs}) {{ {body} }}")
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(3)
    shapes = {"w1": (40, hidden), "b1": (hidden,), "s1": (hidden,), "w2": (hidden, 24), "w3": (hidden, 24)}
    for name, shape in shapes.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 40]), "rows"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("sardonyx.cpu.precision", "bfloat16")
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return ort.InferenceSession(made.SerializeToString(), options)


def feeds(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(shape).standard_normal(shape).astype(np.float32)}


def copies(one: ort.InferenceSession, given: dict[str, Array]) -> int:
    """How many steps write rows as words."""
    return sum(row.kernel.startswith("words") for row in explain(one, given).rows)


@pytest.mark.parametrize("variant", host_targets())
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_results_that_somebody_else_reads(name: str, variant: str) -> None:
    for hidden in (HIDDEN, HIDDEN + 3):
        alone = session(MODELS[name], hidden=hidden, kernels=variant)
        beside = session(MODELS[name], hidden=hidden, kernels=variant, outputs="float[] y, float[] g")
        for shape in ((2, 33, 40), (1, 1, 40), (1, 0, 40)):
            (found,) = alone.run(None, feeds(*shape))
            wanted, between = beside.run(None, feeds(*shape))
            assert between.dtype == np.float32
            assert found.dtype == np.float32
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.skipif(bf16_product(host_target()) != "bf16", reason="products of bfloat16 are no faster here")
@pytest.mark.parametrize("name", MODELS)
def test_no_step_rounds_them_again(name: str) -> None:
    alone = session(MODELS[name])
    beside = session(MODELS[name], outputs="float[] y, float[] g")
    given = feeds(1, 33, 40)
    assert copies(alone, given) < copies(beside, given)


def test_the_bits_are_the_same_for_any_number_of_threads() -> None:
    given = feeds(2, 70, 40)
    found = [session(MODELS["gelu"], hidden=600, threads=threads).run(None, given)[0] for threads in (1, 2)]
    assert found[0].tobytes() == found[1].tobytes()


def test_numbers_are_rounded_no_more_than_once() -> None:
    """A hidden layer of one column each: what is left of it are products of numbers that bfloat16 holds."""
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 2] x) => (float[n, 2] y)'
    made = onnx.parser.parse_model(f"{text} {{ h = MatMul(x, w) g = Mul(h, h) y = MatMul(g, w) }}")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"))
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.precision", "bfloat16")
    x = np.random.default_rng(0).standard_normal((50, 2)).astype(ml_dtypes.bfloat16).astype(np.float32)
    (found,) = ort.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})
    exact = x * x
    rounded = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(found, rounded if bf16_product(host_target()) else exact)


BLOCK = {
    "added": "h = Conv(x, w) g = Relu(h) t = Conv<pads = [1, 1, 1, 1]>(g, v) s = Add(t, g) r = Relu(s) y = Conv(r, w)",
    "single places": "h = Conv(x, w) g = Relu(h) t = Conv(g, w) s = Add(t, g) r = Relu(s) y = Conv(r, w)",
    "windows": "h = Conv(x, w) g = Relu(h) s = Conv<pads = [1, 1, 1, 1], group = 32>(g, d) r = Relu(s) y = Conv(r, w)",
}


@pytest.mark.parametrize("variant", host_targets())
@pytest.mark.parametrize("name", BLOCK)
def test_convolutions_read_what_they_add_and_windows_rounded(name: str, variant: str) -> None:
    """Numbers as large as all that is added differ in the third digit; in tiles nothing is rounded by a step, and by
    vectors nothing that windows of one place read."""
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[1, 32, 9, 11] x) => (float[a, b, c, d] y)'
    made = onnx.parser.parse_model(f"{head} {{ {BLOCK[name]} }}")
    rng = np.random.default_rng(5)
    for weight, shape in {"w": (32, 32, 1, 1), "v": (32, 32, 3, 3), "d": (32, 1, 3, 3)}.items():
        array = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        made.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), weight))
    given = {"x": rng.standard_normal((1, 32, 9, 11)).astype(np.float32)}
    found = []
    for precision in ("float32", "bfloat16"):
        options = ort.SessionOptions()
        options.add_session_config_entry("sardonyx.cpu.precision", precision)
        options.add_session_config_entry("sardonyx.cpu.kernels", variant)
        one = ort.InferenceSession(made.SerializeToString(), options)
        found.append(one.run(None, given)[0])
        product = bf16_product(host_target()) if variant == host_target().name else None
        if precision == "bfloat16" and (product == "bf16 tiles" or (product and name == "single places")):
            assert copies(one, given) == 1  # the model's input
    assert np.abs(found[1] - found[0]).max() <= 0.02 * np.abs(found[0]).max()
