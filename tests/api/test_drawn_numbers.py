"""Nodes that draw numbers draw others in each run, in each round of a loop and for each node, whatever they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import sardonyx as ort
from sardonyx.runtime import random_state
from tests.api.engine_models import is_stored, keeps_every_engine, wait


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed of the process, but for tests that set one."""
    monkeypatch.setattr(random_state, "_seed", None)


LEVELS = list(ort.GraphOptimizationLevel)
COUNT = 64  # two masks of so many elements agree once in 2^64 times
X = np.ones(COUNT, np.float32)

# What each of two nodes masks x with; names of values that are its own end in @.
DRAWING = {
    "of what is fed": "m@ = Dropout(x, half, on)",
    "of ones as large as that": "m@ = Dropout(ones, half, on)",
    "of a table": "d@ = Dropout(table, half, on) g@ = Gather(d@, rows) m@ = Reshape(g@, flat)",
    "the mask alone": "d@, k@ = Dropout(ones, half, on) m@ = Cast<to = 1>(k@)",
    "with a seed": "m@ = Dropout<seed = @>(ones, half, on)",
    "with a bias": "m@ = com.microsoft.BiasDropout(ones, bias, , half, on)",
    "with a bias and a seed": "m@ = com.microsoft.BiasDropout<seed = @>(ones, bias, , half, on)",
    "in bits": "d@, k@ = com.microsoft.BitmaskDropout(ones, half, on) m@ = Identity(d@)",
    "with a bias, in bits": "d@, k@ = com.microsoft.BitmaskBiasDropout(ones, bias, , half, on) m@ = Identity(d@)",
    "a sample": "m@ = Bernoulli(halves)",
    "uniform numbers": "m@ = RandomUniformLike(ones)",
    "normal numbers": "m@ = RandomNormalLike(ones)",
    "uniform numbers of a shape": "m@ = RandomUniform<shape = [64]>()",
    "normal numbers of a shape": "m@ = RandomNormal<shape = [64]>()",
    "classes": "n@ = Multinomial<sample_size = 64>(chances) c@ = Cast<to = 1>(n@) m@ = Reshape(c@, flat)",
}
BEFORE = "s = Shape(x) ones = ConstantOfShape<value = float[1] {1.0}>(s) halves = Mul(ones, half)"
CONSTANTS = (
    "float half = {0.5}, bool on = {1}, int64[1] flat = {-1}, int64[4] rows = {0, 1, 2, 3}, float[1] bias = {1}, "
    "float[1, 4] chances = {0, 0, 0, 0}, bool yes = {1}"
)


def made(body: str, results: str, opset: int = 17, inputs: str = "float[n] x") -> onnx.ModelProto:
    imports = f'opset_import: ["" : {opset}, "com.microsoft" : 1]'
    model = parser.parse_model(f"<ir_version: 8, {imports}> g ({inputs}) => ({results}) <{CONSTANTS}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 16), np.float32), "table"))
    return model


def session(source: onnx.ModelProto | str, level: ort.GraphOptimizationLevel = LEVELS[-1]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    content = source if isinstance(source, str) else source.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def two_of(form: str, opset: int = 17) -> onnx.ModelProto:
    first, second = (form.replace("@", which) for which in "12")
    return made(f"{BEFORE} {first} y = Mul(x, m1) {second} z = Mul(x, m2)", "float[n] y, float[n] z", opset)


def different(rows: list[np.ndarray]) -> bool:
    return len(np.unique(np.stack(rows), axis=0)) == len(rows)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", DRAWING)
def test_each_run_and_each_node_draws(form: str, level: ort.GraphOptimizationLevel) -> None:
    running = session(two_of(DRAWING[form]), level)
    assert different([row for _ in range(3) for row in running.run(None, {"x": X})])


@pytest.mark.parametrize("level", LEVELS)
def test_a_dropout_of_old_models_draws(level: ort.GraphOptimizationLevel) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Constant", [], ["ones"], value=numpy_helper.from_array(X)),
        *(node("Dropout", ["ones"], [f"m{which}"]) for which in "12"),
        *(node("Add", ["x", f"m{which}"], [result]) for which, result in zip("12", "yz", strict=True)),
    ]
    x, y, z = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [COUNT]) for name in "xyz")
    graph = onnx.helper.make_graph(nodes, "old", [x], [y, z])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 6)], ir_version=3)
    running = session(model, level)
    assert different([row for _ in range(3) for row in running.run(None, {"x": X})])


@pytest.mark.parametrize("level", LEVELS)
def test_each_round_draws(level: ort.GraphOptimizationLevel) -> None:
    size = "size = Constant<value_ints = [64]>() ones = ConstantOfShape<value = float[1] {1.0}>(size)"
    drawn = "p = Dropout(ones, half, on) q = Dropout(x, half, on) u = RandomUniformLike(ones)"
    loop = f"bool c1) => (bool c2, float[n] p, float[n] q, float[n] u) {{ c2 = Identity(c1) {drawn} }}"
    body = f"{size} a, b, c = Loop(k, yes) <body = l (int64 i, {loop}>"
    results = "float[r, n] a, float[r, n] b, float[r, n] c"
    model = made(body, results, inputs="int64 k, float[64] x")
    for rows in session(model, level).run(None, {"k": np.array(4), "x": X}):
        assert different(list(rows))
    scan = f"(float[n] e) => (float[n] p, float[n] q, float[n] u) {{ {drawn} }}"
    body = f"{size} a, b, c = Scan<num_scan_inputs = 1, body = s {scan}>(t)"
    model = made(body, results, inputs="float[r, n] t, float[64] x")
    for rows in session(model, level).run(None, {"t": np.ones((4, COUNT), np.float32), "x": X}):
        assert different(list(rows))
    body = f"{size} t = SplitToSequence(x, places) a = SequenceMap(t) <body = m (float[o] e) => (float[n] p) {{ "
    body += "p = Dropout(ones, half, on) }> b = ConcatFromSequence<axis = 0, new_axis = 1>(a)"
    model = made(body, "float[r, n] b")
    model.graph.initializer.append(numpy_helper.from_array(np.array(16), "places"))
    assert different(list(session(model, level).run(None, {"x": X})[0]))


@pytest.mark.parametrize("level", LEVELS)
def test_both_branches_of_an_if_draw(level: ort.GraphOptimizationLevel) -> None:
    branch = "() => (float[n] %s) { %s = Dropout(ones, half, on) }"
    body = f"{BEFORE} y = If(c) <then_branch = t {branch % ('p', 'p')}, else_branch = e {branch % ('q', 'q')}>"
    running = session(made(body, "float[n] y", inputs="float[n] x, bool c"), level)
    rows = [running.run(None, {"x": X, "c": np.array(which)})[0] for which in (True, True, False, False)]
    assert different(rows)


def test_a_kept_engine_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    path = tmp_path / "model.onnx"
    onnx.save(two_of(DRAWING["of a table"]), path)
    first = session(str(path))
    assert not is_stored(first)
    rows = [row for _ in range(2) for row in first.run(None, {"x": X})]
    wait()
    for _ in range(2):
        later = session(str(path))
        assert is_stored(later)
        rows += [row for _ in range(2) for row in later.run(None, {"x": X})]
    assert different(rows)


def asking_for_sizes(seed: str) -> onnx.ModelProto:
    """A model whose If leaves a rank open, so that it is compiled again for sizes that come again."""
    branches = (
        "then_branch = t () => (float[a] q) { o = Constant<value_ints = [0]>() q = ReduceSum<keepdims = 0>(x, o) }, "
        "else_branch = e () => (float[a, b] r) { r = Identity(x) }"
    )
    body = (
        f"s = Shape(x) e = Gather(s, first) c = Equal(e, height) d = Squeeze(c) w = If(d) <{branches}> v = Neg(w) "
        f"ones = ConstantOfShape<value = float[1] {{1.0}}>(s) m = Dropout{seed}(ones, half, on) y = Reshape(m, flat)"
    )
    model = made(body, "float v, float[k] y", inputs="float[n, j] x")
    for name, number in (("first", [0]), ("height", [COUNT])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("seed", ["<seed = 3>", ""])
def test_plans_that_are_made_later_draw_on(seed: str) -> None:
    """A seed does not begin anew with plans for sizes that come again, or for some of the outputs."""
    random_state.set_seed(5)
    running = session(asking_for_sizes(seed))
    x = X.reshape(COUNT, 1)
    rows = [running.run(None, {"x": x})[1] for _ in range(4)]
    assert running._session()._settled.latest == {"x": (COUNT, 1)}
    rows += [running.run(["y"], {"x": x})[0] for _ in range(2)]
    assert different(rows)
    random_state.set_seed(5)
    np.testing.assert_array_equal(session(asking_for_sizes(seed)).run(["y"], {"x": x})[0], rows[0])


@pytest.mark.parametrize("seed", ["<seed = 3>", ""])
def test_engines_for_sizes_draw_from_the_same_numbers(
    seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    random_state.set_seed(5)
    path = tmp_path / "model.onnx"
    onnx.save(asking_for_sizes(seed), path)
    shapes = [(COUNT, 1), (COUNT, 2), (COUNT, 1), (COUNT, 2)]
    for stored in (False, True):
        running = session(str(path))
        assert is_stored(running) == stored
        rows = [running.run(None, {"x": np.ones(shape, np.float32)})[1][:COUNT] for shape in shapes]
        wait()
        assert different(rows)


@pytest.mark.parametrize("on", [False, True])
def test_only_training_draws(on: bool) -> None:
    model = two_of("d@, k@ = Dropout(ones, half, on) f@ = Cast<to = 1>(k@) m@ = Mul(d@, f@)")
    for constant in model.graph.initializer:
        if constant.name == "on":
            constant.CopyFrom(numpy_helper.from_array(np.array(on), "on"))
    for level in LEVELS:
        assert [np.array_equal(row, X) for row in session(model, level).run(None, {"x": X})] == [not on] * 2
