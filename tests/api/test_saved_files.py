"""Where optimised models and their weights are written."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import sardonyx as ort
from sardonyx import errors

WEIGHTS = np.random.default_rng(3).standard_normal((9, 64)).astype(np.float32)


def saved(path: Path, weights: str) -> None:
    """Make a session that writes its model to `path`, and the weights to the file of this name."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[n, 9] x) => (float[n, 64] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    ort.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("name", ["../weights.bin", "/weights.bin", "saved.onnx", "./saved.onnx", "."])
def test_weights_go_where_readers_look_for_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "inside").mkdir()
    with pytest.raises(errors.Fail, match="must go to another file in its folder"):
        saved(tmp_path / "inside" / "saved.onnx", name)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_constants_of_rewrites_get_names_that_the_model_does_not_use(tmp_path: Path) -> None:
    def graph(result: str) -> onnx.ModelProto:
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["" : 20]>
            g (float[1, 4, 8] x) => (float[1, 4, 8] y, float[1, 4, 8] z) {{
                c = Conv(x, w)  y = Mul(c, s)  {result} = Relu(x)  z = Add({result}, {result})
            }}""")
        model.graph.initializer.append(numpy_helper.from_array(WEIGHTS[:4, :4].reshape(4, 4, 1), "w"))
        model.graph.initializer.append(numpy_helper.from_array(WEIGHTS[4:8, :1], "s"))
        return model

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    ort.InferenceSession(graph("other").SerializeToString(), options)
    made = {constant.name for constant in onnx.load(tmp_path / "saved.onnx").graph.initializer} - {"w", "s"}
    assert made
    x = WEIGHTS[:4, :8][None]
    for name in made:
        session = ort.InferenceSession(graph(name).SerializeToString(), options)
        onnx.checker.check_model(onnx.load(tmp_path / "saved.onnx"))
        again = ort.InferenceSession(tmp_path / "saved.onnx")
        for one, other in zip(session.run(None, {"x": x}), again.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_many_sessions_at_once_write_one_model(tmp_path: Path) -> None:
    problems = []

    def save() -> None:
        try:
            for _ in range(5):
                saved(tmp_path / "saved.onnx", "weights.bin")
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=save) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.onnx", "weights.bin"]
    tensor = onnx.load(tmp_path / "saved.onnx").graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), WEIGHTS)


def test_a_compiled_model_replaces_files_that_are_in_use(tmp_path: Path) -> None:
    path, weights = tmp_path / "saved.onnx", tmp_path / "weights.bin"
    saved(path, "weights.bin")
    before = [path.stat().st_ino, weights.stat().st_ino]
    held = [path.open("rb"), weights.open("rb")]  # so that no new file gets their numbers
    ort.ModelCompiler(
        ort.SessionOptions(),
        str(path),
        external_initializers_file_path="weights.bin",
        external_initializers_size_threshold=0,
    ).compile_to_file(str(path))
    assert not {path.stat().st_ino, weights.stat().st_ino} & set(before)
    for file in held:
        file.close()
    x = np.ones((2, 9), np.float32)
    found = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, x @ WEIGHTS, rtol=1e-4, atol=1e-5)


def test_no_file_is_left_for_weights_that_there_are_none_of(tmp_path: Path) -> None:
    saved(tmp_path / "saved.onnx", "weights.bin")
    ort.ModelCompiler(
        ort.SessionOptions(),
        str(tmp_path / "saved.onnx"),
        external_initializers_file_path="other.bin",
        external_initializers_size_threshold=1 << 20,
    ).compile_to_file(str(tmp_path / "compiled.onnx"))
    assert not (tmp_path / "other.bin").exists()


@pytest.mark.parametrize("level", ort.GraphOptimizationLevel)
def test_nodes_of_one_name_are_told_apart(level: ort.GraphOptimizationLevel, tmp_path: Path) -> None:
    """Names that the model or its rewrites repeat, in branches as well: onnxruntime refuses such files."""
    model = onnx.parser.parse_model("""
<ir_version: 9, opset_import: ["" : 20]>
g (float[n, 9] x, bool up) => (float[n, 9] y, float[n, 9] z) {
    a = Exp(x) b = Sin(a) y = Neg(b)
    z = If(up) <then_branch = t () => (float[n, 9] p) { c = Cos(x) p = Neg(c) },
                else_branch = e () => (float[n, 9] q) { d = Sin(x) q = Exp(d) }>
}""")
    branches = [attribute.g for attribute in model.graph.node[3].attribute]
    for graph in (model.graph, *branches):
        for node in graph.node:
            node.name = "one"
    model.graph.node[1].name = "one_1"
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    feed = {"x": np.linspace(-1, 1, 18, dtype=np.float32).reshape(2, 9), "up": np.array(True)}
    wanted = ort.InferenceSession(model.SerializeToString(), options).run(None, feed)
    written = onnx.load(tmp_path / "saved.onnx").graph
    names = [node.name for node in written.node]
    assert len(set(names)) == len(names)
    assert {"one", "one_1"} <= set(names)
    for package in (ort, pytest.importorskip("onnxruntime")):
        session = package.InferenceSession(str(tmp_path / "saved.onnx"), providers=["CPUExecutionProvider"])
        for found, expected in zip(session.run(None, feed), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
