"""Optimisation levels: which rewrites, kernels and layouts each brings, what is left out by name, and what is saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.api.explaining.explanation import Explanation, explain
from sardonyx.api.options.config_keys import CONFIG_KEYS
from sardonyx.compiler.native.convolution import bands
from sardonyx.graph import saving
from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_up_to
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings

RATES = Ceilings(
    {1: {"f32": 100.0, "f64": 50.0}, 2: {"f32": 200.0, "f64": 100.0}},
    {1: {"L2": 100.0, "L3": 50.0, "DRAM": 10.0}, 2: {"L2": 200.0, "L3": 60.0, "DRAM": 12.0}},
    l2=1 << 20,
    l3=1 << 25,
)
LEVELS = list(ort.GraphOptimizationLevel)
DISABLED_ALL, BASIC, EXTENDED, LAYOUT, ALL = LEVELS


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)


def made(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], **constants: Any) -> bytes:
    """A model of float tensors; `inputs` gives their shapes."""
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def picture() -> bytes:
    """Convolutions with normalisation, activation and a residual sum; pools; a product with the erf form of Gelu."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32) / 4

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], name="conv0", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "scale", "shift", "mean", "variance"], ["b0"], name="norm0"),
        node("Relu", ["b0"], ["r0"], name="relu0"),
        node("Conv", ["r0", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        node("Add", ["c1", "r0"], ["s1"], name="residual"),
        node("Relu", ["s1"], ["r1"], name="relu1"),
        node("GlobalAveragePool", ["r1"], ["pooled"], name="pool"),
        node("Identity", ["pooled"], ["same"], name="same"),
        node("Flatten", ["same"], ["flat"], name="flat"),
        node("MatMul", ["flat", "w2"], ["product"], name="product"),
        node("Add", ["product", "bias"], ["sum"], name="bias"),
        node("Div", ["sum", "root"], ["scaled"], name="div"),
        node("Erf", ["scaled"], ["erf"], name="erf"),
        node("Add", ["erf", "one"], ["more"], name="more"),
        node("Mul", ["sum", "more"], ["twice"], name="twice"),
        node("Mul", ["twice", "half"], ["y"], name="half"),
    ]
    return made(
        nodes,
        {"x": ["n", 3, 12, 12]},
        ["y"],
        w0=normal(16, 3, 3, 3),
        w1=normal(16, 16, 3, 3),
        w2=normal(16, 10),
        scale=np.abs(normal(16)) + 1,
        shift=normal(16),
        mean=normal(16),
        variance=np.abs(normal(16)) + 1,
        bias=normal(10),
        root=np.float32(np.sqrt(2)),
        one=np.float32(1),
        half=np.float32(0.5),
    )


PICTURE = picture()
FEED = {"x": np.random.default_rng(1).standard_normal((2, 3, 12, 12)).astype(np.float32)}


def session_at(level: Any, model: bytes = PICTURE, **config: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return ort.InferenceSession(model, options)


def explained(session: ort.InferenceSession) -> Explanation:
    return explain(session, shapes={name: array.shape for name, array in FEED.items()})


def several(found: Explanation) -> list[tuple[str, ...]]:
    """The operators of steps that do the work of more than one."""
    return [row.operators for row in found.rows if len(row.operators) > 1]


def turned(found: Explanation) -> list[str]:
    """The kernels that bring results of convolutions into another order."""
    return [row.kernel for row in found.rows if "Conv" in row.operators and row.kernel.split()[0] in _ORDERING]


_ORDERING = {"copy", "transpose", "heads"}


def test_each_level_has_the_rewrites_of_those_below_it() -> None:
    reports = {level: {one.name: one.changes for one in session_at(level)._session().passes} for level in LEVELS}
    levels = {one.name: one.level for one in passes_up_to(Level.ALL)}
    assert reports[DISABLED_ALL] == {}
    assert set(reports[BASIC].values()) > {0}
    assert {levels[name] for name in reports[BASIC]} == {Level.BASIC}
    assert reports[BASIC]["ConvBNFusion"] == reports[BASIC]["EliminateIdentity"] == 1
    assert "GeluFusionL2" not in reports[BASIC]
    assert reports[EXTENDED]["GeluFusionL2"] == 1
    assert reports[BASIC].items() <= {**reports[EXTENDED], "RemoveUnused": reports[BASIC]["RemoveUnused"]}.items()
    assert reports[EXTENDED].keys() <= reports[LAYOUT].keys() <= reports[ALL].keys()


def test_plans_have_fused_kernels_from_extended_on() -> None:
    for level in (DISABLED_ALL, BASIC):
        assert several(explained(session_at(level))) == []
    for level in (EXTENDED, LAYOUT, ALL):
        operators = several(explained(session_at(level)))
        assert ("Conv", "Relu") in operators
        assert ("Conv", "Add", "Relu") in operators
        assert ("MatMul", "Add", "Gelu") in operators
    named = {row.nodes for row in explained(session_at(DISABLED_ALL)).rows}
    assert {("norm0",), ("relu0",), ("residual",), ("erf",), ("half",)} <= named


def test_convolutions_hand_on_their_layout_from_layout_on() -> None:
    for level in (DISABLED_ALL, BASIC, EXTENDED):
        assert len(turned(explained(session_at(level)))) >= 2  # what each convolution makes
    for level in (LAYOUT, ALL):
        assert turned(explained(session_at(level))) == []


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_computes_the_same(level: Any) -> None:
    theirs = pytest.importorskip("onnxruntime")
    (wanted,) = theirs.InferenceSession(PICTURE, providers=["CPUExecutionProvider"]).run(None, FEED)
    session = session_at(level)
    for size in (2, 1, 2):
        (found,) = session.run(None, {"x": FEED["x"][:size]})
        np.testing.assert_allclose(found, wanted[:size], rtol=1e-5, atol=1e-5)


def sized() -> bytes:
    """Sizes for a Reshape, computed as exporters write it: from scalars of a shape."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["count"], name="count"),
        node("Unsqueeze", ["count", "axes"], ["rows"]),
        node("Concat", ["rows", "rest"], ["sizes"], axis=0),
        node("Reshape", ["x", "sizes"], ["y"]),
    ]
    zero, axes, rest = np.array(0, np.int64), np.array([0], np.int64), np.array([-1], np.int64)
    return made(nodes, {"x": ["n", 2, 3]}, ["y"], zero=zero, axes=axes, rest=rest)


@pytest.mark.parametrize("level", LEVELS)
def test_sizes_are_computed_at_every_level(level: Any) -> None:
    session = session_at(level, sized())
    for rows in (4, 1, 4):
        array = np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3)
        np.testing.assert_array_equal(session.run(None, {"x": array})[0], array.reshape(rows, 6))


def inverted() -> bytes:
    """Channels expanded by a product and depthwise windows over them: a pair of kernels pays."""
    rng = np.random.default_rng(2)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        node("Clip", ["c", "low", "high"], ["r"], name="clip"),
        node("Conv", ["r", "w0"], ["c0"], name="expand"),
        node("Clip", ["c0", "low", "high"], ["r0"], name="clip0"),
        node("Conv", ["r0", "w1"], ["c1"], name="depthwise", pads=[1, 1, 1, 1], group=96, strides=[2, 2]),
        node("Clip", ["c1", "low", "high"], ["y"], name="clip1"),
    ]
    return made(
        nodes,
        {"x": [1, 3, 112, 112]},
        ["y"],
        w=rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        w0=rng.standard_normal((96, 16, 1, 1)).astype(np.float32),
        w1=rng.standard_normal((96, 1, 3, 3)).astype(np.float32),
        low=np.float32(0),
        high=np.float32(6),
    )


def test_kernels_of_two_groups_come_at_the_last_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pair can be one kernel: whether that is the faster way depends on the machine."""
    predict = bands.predict
    monkeypatch.setattr(bands, "predict", lambda *calls: None if predict(*calls) is None else 1.0)
    shapes = {"x": (1, 3, 112, 112)}
    joint, apart = (explain(session_at(level, inverted()), shapes=shapes) for level in (ALL, LAYOUT))
    assert any({"expand", "depthwise"} <= set(row.nodes) for row in joint.rows)
    assert not any({"expand", "depthwise"} <= set(row.nodes) for row in apart.rows)
    options = ort.SessionOptions()
    named = ort.InferenceSession(inverted(), options, disabled_optimizers=["KernelPairs"])
    assert [row.nodes for row in explain(named, shapes=shapes).rows] == [row.nodes for row in apart.rows]
    feed = {"x": np.random.default_rng(3).standard_normal(shapes["x"]).astype(np.float32)}
    np.testing.assert_allclose(
        named.run(None, feed)[0], session_at(ALL, inverted()).run(None, feed)[0], rtol=1e-5, atol=1e-5
    )


# Leaving out by name

DISABLED = "optimization__disable_specified_optimizers"


@pytest.mark.parametrize("separator", [";", ",", "; "])
def test_optimizers_are_left_out_by_name(separator: str) -> None:
    names = ["GeluFusionL2", "ConvBNFusion", "BatchNormToMulAdd"]
    by_config = session_at(ALL, **{DISABLED: separator.join(names)})
    by_argument = ort.InferenceSession(PICTURE, disabled_optimizers=names)
    for session in (by_config, by_argument):
        reports = {one.name for one in session._session().passes}
        assert not reports & set(names)
        assert "EliminateIdentity" in reports
        operators = {kind for row in explained(session).rows for kind in row.operators}
        assert {"BatchNormalization", "Erf"} <= operators


def test_what_plans_do_is_left_out_by_name() -> None:
    assert several(explained(session_at(ALL, **{DISABLED: "KernelFusion"}))) == []
    found = explained(session_at(ALL, **{DISABLED: "NchwcTransformer"}))
    assert len(turned(found)) >= 2
    assert several(found) != []


def test_a_name_that_nobody_knows_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    ort.InferenceSession(PICTURE, disabled_optimizers=["GeluFusionL3"])
    text = capfd.readouterr().err
    assert "No optimizer is called 'GeluFusionL3'" in text
    assert "GeluFusionL2" in text
    session_at(ALL, **{DISABLED: "no such thing"})
    assert "docs/rewrites.md lists them" in capfd.readouterr().err


def test_names_of_onnxruntime_are_taken_silently(capfd: pytest.CaptureFixture[str]) -> None:
    names = ["MatMulAddFusion", "Level1_RuleBasedTransformer", "ReluQuantRewrite", "NhwcTransformer"]
    session = ort.InferenceSession(PICTURE, disabled_optimizers=names)
    assert capfd.readouterr().err == ""
    assert "ReluQuantFusion" not in {one.name for one in session._session().passes}


def test_rewrites_are_repeated_where_the_loop_level_asks_for_it() -> None:
    """The factor goes into the product first, and then nothing is between the transposition and the product."""
    nodes = [
        helper.make_node("Transpose", ["a"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Mul", ["turned", "factor"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "b"], ["y"]),
    ]
    model = made(nodes, {"a": [2, 3, 4], "b": [2, 3, 5]}, ["y"], factor=np.float32(0.25))
    rng = np.random.default_rng(4)
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("a", (2, 3, 4)), ("b", (2, 3, 5)))}
    wanted = 0.25 * feed["a"].transpose(0, 2, 1) @ feed["b"]
    kinds = {}
    for level in ("0", "1", "2"):
        session = session_at(ALL, model, session__graph_optimizations_loop_level=level)
        kinds[level] = [node.op_type for node in session._session().model.graph]
        np.testing.assert_allclose(session.run(None, feed)[0], wanted, rtol=1e-5, atol=1e-6)
    assert kinds == {"0": ["Transpose", "FusedMatMul"], "1": ["Transpose", "FusedMatMul"], "2": ["FusedMatMul"]}


# The saved model


@pytest.mark.parametrize("level", LEVELS)
def test_the_optimised_model_means_the_same(level: Any, tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    (wanted,) = ort.InferenceSession(PICTURE, options).run(None, FEED)
    saved = onnx.load(tmp_path / "optimised.onnx")
    kinds = {node.op_type for node in saved.graph.node}
    assert ("BatchNormalization" in kinds) == (level == DISABLED_ALL)
    assert ("Gelu" in kinds) == (int(level) >= int(EXTENDED))
    again = ort.SessionOptions()
    again.graph_optimization_level = DISABLED_ALL
    for package, path in ((ort, str(tmp_path / "optimised.onnx")), (theirs, str(tmp_path / "optimised.onnx"))):
        given = package.SessionOptions()
        given.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = package.InferenceSession(path, given, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, FEED)[0], wanted, rtol=1e-5, atol=1e-5)


def with_table(folder: Path, rows: int, columns: int) -> Path:
    """A model that gives the first elements of rows of a table; all of them are 0 but three of row 2."""
    with open(folder / "table.bin", "wb") as file:
        file.seek(4 * columns * 2)
        file.write(np.array([1, 2, 3], np.float32).tobytes())
        file.truncate(4 * columns * rows)
    table = onnx.TensorProto(name="table", data_type=1, dims=[rows, columns], data_location=TensorProto.EXTERNAL)
    table.external_data.add(key="location", value="table.bin")
    numbers = {"from": 0, "to": 4, "axis": 1}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "x"], ["row"], axis=0),
            helper.make_node("Slice", ["row", *numbers], ["y"]),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [table, *(numpy_helper.from_array(np.array([number]), name) for name, number in numbers.items())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def check_weights_beside(folder: Path, rows: int, columns: int) -> None:
    """Save a model whose weights no message holds: they lie beside it, and the zeros take no room on disk."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "saved.onnx")
    ort.InferenceSession(str(with_table(folder, rows, columns)), options)
    beside = (folder / "saved.onnx.data").stat()
    assert beside.st_size == 4 * columns * rows
    assert beside.st_blocks * 512 < beside.st_size // 2
    assert (folder / "saved.onnx").stat().st_size < 10_000
    (found,) = ort.InferenceSession(str(folder / "saved.onnx")).run(None, {"x": np.array([2])})
    np.testing.assert_array_equal(found, [[1, 2, 3, 0]])


def test_weights_that_no_message_holds_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_LARGEST_MESSAGE", 8 << 20)
    check_weights_beside(tmp_path, 8, 1 << 18)


@pytest.mark.models
def test_weights_of_more_than_two_gigabytes_go_beside_the_model(tmp_path: Path) -> None:
    check_weights_beside(tmp_path, 2049, 1 << 18)


def test_blocks_of_zeros_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_BLOCK", 64)
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((9, 16)).astype(np.float32)
    weights[2:5] = weights[8] = 0
    model = made([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 9]}, ["y"], w=weights)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    ort.InferenceSession(model, options)
    tensor = onnx.load(tmp_path / "saved.onnx").graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), weights)


# What is decided with the level


def test_the_order_of_execution_decides_how_much_memory_a_run_needs() -> None:
    """Three large values, each made smaller afterwards: made one after the other they share their memory."""
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"large{i}"], name=f"large{i}") for i in range(3)]
    nodes += [helper.make_node("MatMul", [f"large{i}", f"v{i}"], [f"small{i}"], name=f"small{i}") for i in range(3)]
    nodes.append(helper.make_node("Sum", ["small0", "small1", "small2"], ["y"], name="sum"))
    rng = np.random.default_rng(6)
    constants = {f"w{i}": rng.standard_normal((8, 1024)).astype(np.float32) for i in range(3)}
    constants |= {f"v{i}": rng.standard_normal((1024, 8)).astype(np.float32) for i in range(3)}
    model = made(nodes, {"x": [64, 8]}, ["y"], **constants)
    feed = {"x": rng.standard_normal((64, 8)).astype(np.float32)}
    arena, results = {}, {}
    for order in ort.ExecutionOrder:
        options = ort.SessionOptions()
        options.execution_order = order
        session = ort.InferenceSession(model, options)
        arena[order.name] = explain(session, shapes={"x": (64, 8)}).arena_bytes
        (results[order.name],) = session.run(None, feed)
    large = 64 * 1024 * 4
    assert arena["DEFAULT"] >= 3 * large
    assert arena["MEMORY_EFFICIENT"] < 2 * large
    assert arena["PRIORITY_BASED"] == arena["DEFAULT"]
    for result in results.values():
        np.testing.assert_array_equal(result, results["DEFAULT"])


@pytest.mark.parametrize("order", ort.ExecutionOrder)
def test_texts_are_brought_into_any_order(order: ort.ExecutionOrder) -> None:
    text = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    result = helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])
    nodes = [
        helper.make_node("StringConcat", ["x", name], ["twice" if name == "x" else "y"]) for name in ("x", "twice")
    ]
    graph = helper.make_graph(nodes, "texts", [text], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.execution_order = order
    (found,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": np.array(["a", "bc"], object)})
    assert found.tolist() == ["aaa", "bcbcbc"]


def test_sizes_are_read_first_where_nodes_have_priorities() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["less"], name="less"),
        helper.make_node("Exp", ["less"], ["y"], name="more"),
        helper.make_node("Shape", ["x"], ["sizes"], name="sizes"),
        helper.make_node("Cast", ["sizes"], ["z"], name="cast", to=TensorProto.FLOAT),
    ]
    model = made(nodes, {"x": ["n", "m"]}, ["y", "z"])
    steps = {}
    for order in (ort.ExecutionOrder.DEFAULT, ort.ExecutionOrder.PRIORITY_BASED):
        options = ort.SessionOptions()
        options.execution_order = order
        options.add_session_config_entry("sardonyx.cpu.kernels", "numpy")
        steps[order.name] = [step.name for step in ort.InferenceSession(model, options)._session().plan.steps]
    assert steps == {
        "DEFAULT": ["less", "more", "sizes", "cast"],
        "PRIORITY_BASED": ["sizes", "less", "more", "cast"],
    }


def chain() -> bytes:
    rng = np.random.default_rng(7)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="up"),
        helper.make_node("Softmax", ["h"], ["s"], name="soft"),
        helper.make_node("MatMul", ["s", "v"], ["y"], name="down"),
    ]
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 256), (256, 8)))
    return made(nodes, {"x": ["n", 8]}, ["y"], w=up, v=down)


def lanes_of(session: ort.InferenceSession) -> Any:
    """The memory of a session's runs."""
    (step,) = session._session().plan.steps
    return step.call.resources[1]  # type: ignore[union-attr]


def test_memory_for_the_largest_shapes_is_there_before_the_first_run() -> None:
    small, large = (np.ones((rows, 8), np.float32) for rows in (3, 500))
    plain, ready = ort.InferenceSession(chain()), session_at(ALL, chain(), session__max_shape_override="x:[500, 8]")
    assert lanes_of(plain).nbytes == 0
    held = lanes_of(ready).nbytes
    assert held >= 500 * 256 * 4
    results = [ready.run(None, {"x": array})[0] for array in (small, large, small)]
    assert held <= lanes_of(ready).nbytes <= held + 4096  # kernels of few rows may have a little scratch of their own
    plain.run(None, {"x": small})
    before = lanes_of(plain).nbytes
    np.testing.assert_array_equal(plain.run(None, {"x": large})[0], results[1])
    assert lanes_of(plain).nbytes > before
    np.testing.assert_array_equal(ready.run(None, {"x": np.ones((501, 8), np.float32)})[0][:500], results[1])


@pytest.mark.parametrize(
    "text",
    [
        "x:[0,8]",
        "x:[4,-8]",
        "x[4]",
        "x:[4,8];q:[1]",
        "x:[4]",
        "x:[]",
        "x:[4,9]",
        "x:[4,8];",
        "x : [4, 8] ",
        "",
        "x:[4,8],y",
    ],
)
def test_largest_shapes_are_those_that_inputs_can_have(text: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    outcomes = []
    for package in (theirs, ort):
        options = package.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.max_shape_override", text)
        try:
            package.InferenceSession(chain(), options, providers=["CPUExecutionProvider"], enable_fallback=0)
            outcomes.append("made")
        except Exception as error:
            outcomes.append(f"{type(error).__name__} {'max_shape_override' in str(error)}")
    assert outcomes[0] == outcomes[1]


def test_the_keys_of_this_page_are_known() -> None:
    names = ("optimization.disable_specified_optimizers", "session.graph_optimizations_loop_level")
    assert all(CONFIG_KEYS[name].state == "works" for name in (*names, "session.max_shape_override"))
