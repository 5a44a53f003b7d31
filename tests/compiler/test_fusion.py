"""Which nodes share a kernel, and that sharing changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.runtime.native.native_segment import NativeSegment
from tests.compiler.rewrites import ALL_REWRITES

Array = np.ndarray[Any, Any]


def session(text: str, kernels: str = "") -> ort.InferenceSession:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\nagraph {text}')
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return ort.InferenceSession(model.SerializeToString(), options, disabled_optimizers=ALL_REWRITES)


def steps(made: ort.InferenceSession, feeds: dict[str, Array]) -> list[list[str]]:
    """The nodes of each native step of a session that is one segment."""
    (step,) = made._sess._plan.steps
    assert isinstance(step.call, NativeSegment)
    names = step.call.names
    works = step.call.plan_for(tuple(feeds[name].shape for name in names)).works()
    return [list(work.extra.get("nodes", [work.name])) for work in works]


def groups(text: str, feeds: dict[str, Array]) -> list[list[str]]:
    """The nodes of each kernel; the results are compared with those of NumPy on the way."""
    made = session(text)
    expected = session(text, "numpy").run(None, feeds)
    for found, wanted in zip(made.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)
    return steps(made, feeds)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_chain_of_pointwise_nodes_is_one_kernel() -> None:
    text = """(float[n, 7] x) => (float[n, 7] y) {
        [a] a = Exp(x)
        [b] b = Add(a, x)
        [c] y = Tanh(b)
    }"""
    assert groups(text, {"x": random(5, 7)}) == [["a", "b", "c"]]


def test_two_branches_that_meet_are_one_kernel() -> None:
    text = """(float[n, 7] x, float[n, 7] z) => (float[n, 7] y) {
        [a] a = Sigmoid(x)
        [b] b = Tanh(z)
        [c] y = Mul(a, b)
    }"""
    (nodes,) = groups(text, {"x": random(5, 7), "z": random(5, 7, seed=1)})
    assert sorted(nodes) == ["a", "b", "c"]


def test_a_value_that_leaves_the_graph_stays_an_output_of_the_kernel() -> None:
    text = """(float[n] x) => (float[n] a, float[n] y) {
        [a] a = Exp(x)
        [b] y = Neg(a)
    }"""
    assert groups(text, {"x": random(33)}) == [["a", "b"]]


def test_other_shapes_are_other_kernels() -> None:
    text = """(float[1, 7] x, float[n, 7] z) => (float[n, 7] y) {
        [a] a = Exp(x)
        [b] y = Add(a, z)
    }"""
    assert groups(text, {"x": random(1, 7), "z": random(5, 7)}) == [["a"], ["b"]]


def test_a_node_between_keeps_two_kernels_apart() -> None:
    """c needs the product, which needs a: joining a and c would make the product wait for itself."""
    text = """(float[4, 4] x) => (float[4, 4] y) {
        [a] a = Exp(x)
        [m] m = MatMul(a, a)
        [t] t = Transpose(m)
        [c] y = Sub(a, t)
    }"""
    assert groups(text, {"x": random(4, 4)}) == [["a"], ["m"], ["c"]]


def test_the_epilogue_of_a_product_takes_bias_activation_and_residual() -> None:
    text = """(float[n, 8] x, float[8, 8] w, float[8] b) => (float[n, 8] y) {
        [m] m = MatMul(x, w)
        [add] p = Add(m, b)
        [act] q = Gelu(p)
        [res] y = Add(q, x)
    }"""
    assert groups(text, {"x": random(5, 8), "w": random(8, 8, seed=1), "b": random(8, seed=2)}) == [
        ["m", "add", "act", "res"]
    ]


def test_a_product_read_before_and_after_its_bias_gives_both() -> None:
    text = """(float[n, 8] x, float[8, 8] w, float[8] b) => (float[n, 8] m, float[n, 8] y) {
        [m] m = MatMul(x, w)
        [add] y = Add(m, b)
    }"""
    assert groups(text, {"x": random(5, 8), "w": random(8, 8, seed=1), "b": random(8, seed=2)}) == [["m", "add"]]


def test_the_sum_of_two_products_is_in_the_epilogue_of_the_second() -> None:
    text = """(float[n, 8] x, float[8, 8] v, float[8, 8] w) => (float[n, 8] y) {
        [p] p = MatMul(x, v)
        [q] q = MatMul(x, w)
        [s] y = Add(p, q)
    }"""
    feeds = {"x": random(5, 8), "v": random(8, 8, seed=1), "w": random(8, 8, seed=2)}
    assert groups(text, feeds) == [["p"], ["q", "s"]]


@pytest.mark.parametrize("length", [30, 200])
def test_long_chains_are_cut_into_kernels_of_bounded_size(length: int) -> None:
    lines = [f"[n{i}] v{i + 1} = Add(v{i}, v{i})" for i in range(length)]
    body = "\n".join(lines)
    text = f"(float[4] v0) => (float[4] v{length}) {{ {body} }}"
    found = groups(text, {"v0": np.full(4, 2.0**-120, np.float32)}) if length < 100 else None
    if found is None:
        scaled = text.replace("Add(", "Mul(")
        found = groups(scaled, {"v0": np.ones(4, np.float32)})
    assert sum(map(len, found)) == length
    assert len(found) == -(-length // 96)


def test_what_shapes_alone_decide_is_no_kernel() -> None:
    text = """(float[n, 8] x) => (float[m] y) {
        [s] s = Shape(x)
        [c] c = Constant <value_ints = [-1]> ()
        [r] r = Reshape(x, c)
        [k] k = Cast <to = 1> (s)
        [e] y = Exp(r)
    }"""
    assert groups(text, {"x": random(3, 8)}) == [["e"]]


def test_nodes_whose_results_nobody_reads_are_no_kernels() -> None:
    text = """(float[a, a] x) => (float[a, a] y) {
        alone = Add(x, x)
        product = MatMul(x, x)
        behind = Add(product, x)
        y = Relu(x) }"""
    assert groups(text, {"x": random(3, 3)}) == [["Relu_3"]]


def test_dimensions_without_names_are_dimensions() -> None:
    text = """(float[1, 3, 1, 1] x) => (float[2, 4, 6, 5] y, float[2, 4, 6, 5] z)
        <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
        [a] a = Conv(x, w)
        [b] b = Relu(a)
        [c] y = Add(b, b)
        [d] z = Exp(b)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\nagraph {text}')
    for value, axes in ((model.graph.input[0], (0, 2, 3)), *((one, range(4)) for one in model.graph.output)):
        for axis in axes:
            value.type.tensor_type.shape.dim[axis].Clear()
    made = ort.InferenceSession(model, disabled_optimizers=ALL_REWRITES)
    assert [one.shape for one in (*made.get_inputs(), *made.get_outputs())] == [
        [None, 3, None, None],
        [None, 4, None, None],
        [None, 4, None, None],
    ]
    x = random(2, 3, 6, 5)
    assert steps(made, {"x": x})[0] == ["a", "b", "c", "d"]
    for shape in ((2, 3, 6, 5), (1, 3, 1, 9)):
        x = random(*shape)
        weights = np.reshape([*range(1, 10), 1, 2, 3], (4, 3))
        wanted = np.maximum(np.einsum("nchw,fc->nfhw", x.astype(np.float64), weights), 0)
        y, z = made.run(None, {"x": x})
        np.testing.assert_allclose(y, 2 * wanted, rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(z, np.exp(wanted), rtol=2e-5, atol=1e-5)


def test_many_numbers_are_no_operands() -> None:
    """A chain of quantised sums, each with scales and zero points of its own."""
    lines = [f"[n{i}] v{i} = com.microsoft.QLinearAdd(v{i - 1}, a{i}, z, t, b{i}, z, c{i}, z)" for i in range(1, 6)]
    scales = [f"float a{i} = {{0.{i}}}, float b{i} = {{0.3{i}}}, float c{i} = {{0.6{i}}}" for i in range(1, 6)]
    text = f"""(uint8[n, 70] v0, uint8[n, 70] t) => (uint8[n, 70] v5)
        <{", ".join(scales)}, uint8 z = {{128}}> {{
        {chr(10).join(lines)}
    }}"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>\nagraph {text}')
    made = ort.InferenceSession(model, disabled_optimizers=ALL_REWRITES)
    feeds = {name: np.random.default_rng(3).integers(0, 256, (4, 70)).astype(np.uint8) for name in ("v0", "t")}
    assert steps(made, feeds) == [[f"n{i}" for i in range(1, 6)]]
    found = feeds["v0"].astype(np.float64)
    for i in range(1, 6):
        real = (found - 128) * np.float32(f"0.{i}") + (feeds["t"].astype(np.float64) - 128) * np.float32(f"0.3{i}")
        found = np.clip(np.rint(real / np.float32(f"0.6{i}")) + 128, 0, 255)
    assert np.abs(made.run(None, feeds)[0] - found).max() <= 1
