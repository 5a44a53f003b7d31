"""What loops give that do no round: as large as in other runs, as far as the inputs tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import sardonyx as ort
from tests.api.engine_models import is_stored, keeps_every_engine, wait

LEVELS = list(ort.GraphOptimizationLevel)
X = np.array([1, -2, 3], np.float32)
W = np.arange(6, dtype=np.float32).reshape(3, 2)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def session(
    model: onnx.ModelProto | str, level: ort.GraphOptimizationLevel = LEVELS[-1], kernels: str = ""
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    if kernels:
        options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def made(inputs: str, outputs: str, body: str, constants: str = "") -> onnx.ModelProto:
    yes = "yes = Constant<value = bool {1}>()"
    return parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {constants} {{ {yes} {body} }}")


def shape_of(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[int]:
    """The shape of `y` without a round, the same at each level and, but for the number of rounds, with two of them."""
    found = set()
    for level in LEVELS:
        running = session(model, level)
        shapes = [running.run(["y"], {**feeds, "k": np.array(count)})[0].shape for count in (2, 0, 0, 1, 0)]
        assert [shape[0] for shape in shapes] == [2, 0, 0, 1, 0]
        found.update(shape[1:] for shape in shapes)
    (shape,) = found
    return list(shape)


LOOP = "Loop(k, yes%s) <body = b (int64 i, bool c%s) => (bool c2, %s) { c2 = Identity(c) %s }>"


ROWS = "float[r, a] y"


@pytest.mark.parametrize("dim", ["n", "", "3", "2*n", "n - 1"])
def test_a_carried_value(dim: str) -> None:
    loop = LOOP % (", x", ", float[a] p", "float[a] q, float[b] r", "q = Neg(p) r = Concat<axis = 0>(q, q)")
    model = made("float[n] x, int64 k", ROWS, f"last, y = {loop}")
    size = model.graph.input[0].type.tensor_type.shape.dim[0]
    size.Clear()
    if dim:
        setattr(size, "dim_value" if dim == "3" else "dim_param", 3 if dim == "3" else dim)
    x = X if dim != "2*n" else X[:2]
    assert shape_of(model, {"x": x}) == [2 * len(x)]


@pytest.mark.parametrize("dims", ["n, m", "?, ?", "n, n", "3, 2"])
def test_a_captured_value(dims: str) -> None:
    loop = LOOP % ("", "", "float[a, b] r", "r = Transpose(x)")
    x = W if dims != "n, n" else np.eye(3, dtype=np.float32)
    model = made(f"float[{dims}] x, int64 k", "float[r, a, b] y", f"y = {loop}")
    assert shape_of(model, {"x": x}) == [x.shape[1], 3]


def test_a_value_whose_size_data_tell() -> None:
    loop = LOOP % ("", "", "float[a, b] r", "r = Neg(g)")
    body = f"f = NonZero(x) t = Transpose(f) g = Cast<to = 1>(t) y = {loop}"
    model = made("float[n] x, int64 k", "float[r, a, b] y", body)
    assert shape_of(model, {"x": np.array([0, 2, 3], np.float32)}) == [2, 1]


def test_numbers_that_are_sizes() -> None:
    loop = LOOP % ("", "", "float[a, b] r", "r = ConstantOfShape(size)")
    model = made("int64[2] size, int64 k", "float[r, a, b] y", f"y = {loop}")
    assert shape_of(model, {"size": np.array([4, 5])}) == [4, 5]
    expanded = "f = Constant<value_floats = [0.0]>() z = Unsqueeze(m, o) r = Expand(f, z)"
    body = f"o = Constant<value_ints = [0]>() y = {LOOP % ('', '', 'float[a] r', expanded)}"
    assert shape_of(made("int64 m, int64 k", ROWS, body), {"m": np.array(7)}) == [7]


def test_a_product_of_what_is_captured_and_carried() -> None:
    loop = LOOP % (", x", ", float[a, b] p", "float[a, b] q, float[s, t] r", "q = Neg(p) r = MatMul(q, w)")
    model = made("float[?, ?] x, float[?, ?] w, int64 k", "float[r, a, b] y", f"l, y = {loop}")
    assert shape_of(model, {"x": np.ones((4, 3), np.float32), "w": W}) == [4, 2]


def test_a_loop_within_a_loop() -> None:
    inner = "body = d (int64 j, bool e, float[a] p) => (bool e2, float[a] q, float[a] s) { e2 = Identity(e) "
    inner = f"l, r = Loop(k, c, x) <{inner} q = Neg(p) s = Abs(p) }}>"
    loop = (LOOP % ("", "", "float[a, b] r", inner)).replace("Loop(k, yes)", "Loop(outer, yes)")
    model = made("float[n] x, int64 k, int64 outer", "float[u, v, w] y", f"y = {loop}")
    for level in LEVELS:
        running = session(model, level)
        for outer, k in ((2, 2), (2, 0), (0, 2), (0, 0), (1, 0)):
            (found,) = running.run(None, {"x": X, "k": np.array(k), "outer": np.array(outer)})
            # How many rounds of the inner loop one of the outer one would do is not known before it comes.
            assert found.shape == (outer, k if outer else 0, 3)


@pytest.mark.parametrize("going", [True, False])
def test_a_condition_that_never_holds(going: bool) -> None:
    loop = (LOOP % (", x", ", float[a] p", "float[a] q, float[a] r", "q = Neg(p) r = Abs(p)")).replace(
        "k, yes", "k, first"
    )
    model = made("float[n] x, int64 k, bool first", "float[n] last, float[r, n] y", f"last, y = {loop}")
    for level in LEVELS:
        last, y = session(model, level).run(None, {"x": X, "k": np.array(2), "first": np.array(going)})
        np.testing.assert_array_equal(last, X)
        np.testing.assert_array_equal(y, np.abs(np.stack([X, X])) if going else np.zeros((0, 3)))


def test_results_are_read_on() -> None:
    loop = LOOP % (", x", ", float[a] p", "float[a] q, float[a] r", "q = Neg(p) r = Abs(p)")
    body = f"last, rows = {loop} zero = Constant<value_ints = [0]>() u = MatMul(rows, w) "
    body += "v = Concat<axis = 1>(rows, rows) t = ReduceSum<keepdims = 0>(rows, zero) z = Add(t, x)"
    outputs, constants = "float[r, a] u, float[r, b] v, float[m] z", "<float[3, 2] w = {0, 1, 2, 3, 4, 5}>"
    model = made("float[n] x, int64 k", outputs, body, constants)
    for level in LEVELS:
        running = session(model, level)
        for count in (2, 0, 1, 0, 0, 3):
            rows = np.repeat(np.abs(X)[None], count, 0)
            found = running.run(None, {"x": X, "k": np.array(count)})
            for one, right in zip(found, (rows @ W, np.concatenate([rows, rows], 1), rows.sum(0) + X), strict=True):
                np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize("kernels", ["", "numpy"])
@pytest.mark.parametrize(
    ("dims", "axes"),
    [("t, n, m", (0, 0)), ("?, ?, ?", (0, 0)), ("n, t, m", (1, 0)), ("n, t, m", (1, 1)), ("n, t, m", (1, -1))],
)
def test_a_scan_of_nothing(dims: str, axes: tuple[int, int], kernels: str) -> None:
    settings = f"num_scan_inputs = 1, scan_input_axes = [{axes[0]}], scan_output_axes = [{axes[1]}]"
    body = "(float[a, b] s, float[a, b] p) => (float[a, b] s2, float[b, a] q) { s2 = Add(s, p) q = Transpose(p) }"
    scan = f"z, y = Scan<{settings}, body = b {body}>(s, x)"
    model = made(f"float[{dims}] x, float[u, v] s", "float[u, v] z, float[i, j, l] y", scan)
    for level in LEVELS:
        running = session(model, level, kernels)
        for length in (2, 0, 1, 0):
            x = np.moveaxis(np.arange(length * 12, dtype=np.float32).reshape(length, 3, 4), 0, axes[0])
            start = np.ones((3, 4), np.float32)
            z, y = running.run(None, {"x": x, "s": start})
            items = np.moveaxis(x, axes[0], 0)
            np.testing.assert_array_equal(z, start + items.sum(0))
            np.testing.assert_array_equal(y, np.moveaxis(items.transpose(0, 2, 1), 0, axes[1]))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4), (0, 3, 4), (0, 0, 4)])
def test_a_scan_of_an_old_model(shape: tuple[int, ...]) -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["s", "p"], ["s2"]), helper.make_node("Concat", ["p", "p"], ["q"], axis=0)]
    body = helper.make_graph(
        nodes,
        "body",
        [value("s", TensorProto.FLOAT, ["a"]), value("p", TensorProto.FLOAT, ["a"])],
        [value("s2", TensorProto.FLOAT, ["a"]), value("q", TensorProto.FLOAT, ["b"])],
    )
    graph = helper.make_graph(
        [helper.make_node("Scan", ["", "start", "x"], ["z", "y"], body=body, num_scan_inputs=1)],
        "graph",
        [value("start", TensorProto.FLOAT, ["e", "a"]), value("x", TensorProto.FLOAT, ["e", "t", "a"])],
        [value("z", TensorProto.FLOAT, ["e", "a"]), value("y", TensorProto.FLOAT, ["e", "t", "b"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    start = np.ones((shape[0], shape[2]), np.float32)
    for level in LEVELS:
        z, y = session(model, level).run(None, {"start": start, "x": x})
        np.testing.assert_array_equal(z, start + x.sum(1))
        np.testing.assert_array_equal(y, np.concatenate([x, x], 2))


def test_a_kept_engine_knows_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    loop = LOOP % (", x", ", float[a] p", "float[a] q, float[b] r", "q = Neg(p) r = Concat<axis = 0>(q, w)")
    model = made("float[?] x, float[?] w, int64 k", "float[n] last, float[r, n] y", f"last, y = {loop}")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    for stored in (False, True):
        running = session(str(path))
        assert is_stored(running) == stored
        for count in (2, 0):
            feeds = {"x": X, "w": X[:2], "k": np.array(count)}
            assert running.run(None, feeds)[1].shape == (count, 5)
        wait()


def test_what_nobody_knows_is_declared_or_empty() -> None:
    loop = LOOP % ("", "", "int64[1, %s] r", "r = NonZero(x)")
    for declared, size in (("a", 0), ("7", 7)):
        model = made("float[n] x, int64 k", "int64[r, a, b] y", f"y = {loop % declared}")
        assert session(model).run(None, {"x": X, "k": np.array(0)})[0].shape == (0, 1, size)
