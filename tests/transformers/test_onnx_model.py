"""`OnnxModel`: looking up, walking, changing, tidying up, sorting and saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.transformers.onnx_model import OnnxModel

TEXT = """<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x, float[4] unused)
  => (float[n, 4] y, float[n, 4] z) {
  two = Constant <value = float {2.0}> ()
  a = MatMul(x, w)
  b = Mul(a, two)
  c = Add(b, v)
  y = Relu(c)
  z = Tanh(b)
  nobody = Neg(a)
}"""


def proto() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(2)
    for name, shape in (("w", (4, 4)), ("v", (4,)), ("spare", (2,))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for node in model.graph.node:
        node.name = f"{node.op_type}_0"
    return model


@pytest.fixture
def model() -> OnnxModel:
    return OnnxModel(proto())


def by_type(model: OnnxModel, op_type: str) -> onnx.NodeProto:
    (node,) = model.get_nodes_by_op_type(op_type)
    return node


def outputs(model: onnx.ModelProto | str) -> list[np.ndarray]:
    session = sardonyx.InferenceSession(model if isinstance(model, str) else model.SerializeToString())
    shapes = {item.name: [2 if isinstance(dim, str) else dim for dim in item.shape] for item in session.get_inputs()}
    feeds = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()}
    return session.run(None, feeds)


BRANCHES = """<ir_version: 10, opset_import: ["" : 18]> g (bool c, float[2] x) => (float[2] y) {
  h = Neg(x)
  spare = Abs(x)
  y = If (c) <then_branch = yes () => (float[2] t) { t = Add(h, x) },
    else_branch = no () => (float[2] e) { e = Relu(h) }>
}"""


class Peer:
    """The same model there and here, to compare answers."""

    def __init__(self) -> None:
        module = pytest.importorskip("onnxruntime.transformers.onnx_model")
        self.theirs = module.OnnxModel(proto())
        self.ours = OnnxModel(proto())

    def both(self, question):
        answers = [question(model) for model in (self.ours, self.theirs)]
        assert plain(answers[0]) == plain(answers[1])
        return answers[0]


def plain(answer):
    """Nodes as their names, so that answers about different copies can be compared."""
    if isinstance(answer, onnx.NodeProto):
        return answer.name
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(item) for item in answer]
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


PATHS = [(["Add", "Mul", "MatMul"], [0, 0, 0]), (["Add", "MatMul"], [0, 0]), (["Add", "Mul"], [None, None])]
QUESTIONS = {
    "readers": lambda m: m.input_name_to_nodes(),
    "producers": lambda m: m.output_name_to_node(),
    "statistics": lambda m: m.get_operator_statistics(),
    "statistics by domain": lambda m: m.get_operator_statistics(include_domain=True),
    "inputs": lambda m: m.get_graphs_input_names(),
    "outputs": lambda m: m.get_graphs_output_names(),
    "opset": lambda m: m.get_opset_version(),
    "children": lambda m: m.get_children(by_type(m, "Mul")),
    "children of an output": lambda m: m.get_children(by_type(m, "Mul"), output_index=3),
    "parents": lambda m: m.get_parents(by_type(m, "Add")),
    "parent": lambda m: [m.get_parent(by_type(m, "Add"), index) for index in (0, 1, 7)],
    "match parent": lambda m: [m.match_parent(by_type(m, "Relu"), name, 0) for name in ("Add", "Mul")],
    "match any parent": lambda m: m.match_parent(by_type(m, "Add"), "Mul"),
    "path": lambda m: m.match_parent_path(by_type(m, "Relu"), ["Add", "Mul", "MatMul"], [0, 0, 0]),
    "free path": lambda m: m.match_parent_path(by_type(m, "Relu"), ["Add", "Mul", "Constant"], [0, None, None]),
    "no path": lambda m: m.match_parent_path(by_type(m, "Relu"), ["Add", "Tanh"]),
    "paths": lambda m: m.match_parent_paths(by_type(m, "Relu"), PATHS, m.output_name_to_node()),
    "no paths": lambda m: m.match_parent_paths(by_type(m, "Tanh"), PATHS, m.output_name_to_node()),
    "all paths": lambda m: m.match_parent_paths_all(by_type(m, "Relu"), PATHS, m.output_name_to_node()),
    "child path": lambda m: m.match_child_path(by_type(m, "MatMul"), ["Mul", "Add", "Relu"]),
    "child path by edges": lambda m: m.match_child_path(by_type(m, "MatMul"), ["Mul", "Tanh"], [(0, 0), (0, 0)]),
    "first child": lambda m: m.find_first_child_by_type(by_type(m, "MatMul"), "Relu"),
    "no direct child": lambda m: m.find_first_child_by_type(by_type(m, "MatMul"), "Relu", recursive=False),
    "first parent": lambda m: m.find_first_parent_by_type(by_type(m, "Relu"), "MatMul"),
    "below": lambda m: m.get_children_subgraph_nodes(by_type(m, "MatMul"), [by_type(m, "Add")]),
    "above": lambda m: m.get_parent_subgraph_nodes(by_type(m, "Relu"), []),
    "graph inputs": lambda m: [m.get_graph_inputs(by_type(m, "Relu"), recursive) for recursive in (False, True)],
    "input index": lambda m: [m.input_index(name, by_type(m, "Add")) for name in ("b", "v", "x")],
    "constant": lambda m: [m.get_constant_value(name) for name in ("two", "v", "x")],
    "constant input": lambda m: m.get_constant_input(by_type(m, "Mul")),
    "find constant": lambda m: [m.find_constant_input(by_type(m, "Mul"), number) for number in (2.0, 3.0)],
    "has constant": lambda m: m.has_constant_input(by_type(m, "Mul"), 2.0),
    "dimensions": lambda m: [m.is_constant_with_specified_dimension("w", rank, "weight") for rank in (1, 2)],
    "attribute": lambda m: [m.get_node_attribute(by_type(m, "Relu"), "alpha")],
    "types": lambda m: [m.get_dtype(name) for name in ("x", "w", "a")],
    "shapes": lambda m: [list(m.get_shape(name)) for name in ("x", "w", "y")],
    "real inputs": lambda m: [value.name for value in m.get_graph_inputs_excluding_initializers()],
    "names": lambda m: [m.create_node_name("Add"), m.create_node_name("Add"), m.create_node_name("Add", "My_Add")],
    "half": lambda m: m.use_float16(),
    "safe": lambda m: [
        m.is_safe_to_fuse_nodes(
            [by_type(m, "Mul"), by_type(m, "Add")], kept, m.input_name_to_nodes(), m.output_name_to_node()
        )
        for kept in (["c"], ["b", "c"])
    ],
    "insert": lambda m: [m.get_topological_insert_id(m.graph(), names) for names in (["b"], ["nothing"])],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_those_of_onnxruntime(question: str) -> None:
    peer, ask = Peer(), QUESTIONS[question]
    assert plain(ask(peer.ours)) == plain(ask(peer.theirs))


def test_pruning_keeps_what_outputs_need(model: OnnxModel) -> None:
    wanted = outputs(model.model)
    model.prune_graph()
    assert "Neg" not in model.get_operator_statistics()
    assert [tensor.name for tensor in model.graph().initializer] == ["w", "v"]
    assert [value.name for value in model.graph().input] == ["x"]
    for ours, before in zip(outputs(model.model), wanted, strict=True):
        np.testing.assert_array_equal(ours, before)
    model.prune_graph(["z"])
    assert [value.name for value in model.graph().output] == ["z"]
    assert [tensor.name for tensor in model.graph().initializer] == ["w"]
    np.testing.assert_array_equal(outputs(model.model)[0], wanted[1])


def test_pruning_sees_into_branches() -> None:
    model = OnnxModel(onnx.parser.parse_model(BRANCHES))
    model.prune_graph()
    assert [node.op_type for node in model.graph().node] == ["Neg", "If"]
    assert len(model.graphs()) == 3
    assert [node.op_type for node in model.nodes()] == ["Neg", "If", "Add", "Relu"]
    onnx.checker.check_model(model.model)


@pytest.mark.parametrize("deterministic", [False, True])
def test_sorting_follows_what_branches_read(deterministic: bool) -> None:
    model = OnnxModel(onnx.parser.parse_model(BRANCHES))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph().node]
    del model.graph().node[:]
    model.graph().node.extend(copies[::-1])
    for name, node in zip(("b", "c", "a"), model.graph().node, strict=True):
        node.name = name
    model.topological_sort(is_deterministic=deterministic)
    assert [node.name for node in model.graph().node] == (["a", "b", "c"] if deterministic else ["c", "a", "b"])
    onnx.checker.check_model(model.model)


def test_what_cannot_be_sorted_is_told(model: OnnxModel) -> None:
    by_type(model, "Mul").input[0] = "c"
    with pytest.raises(RuntimeError, match=r"Graph is not a DAG: .* reads what follows from it"):
        model.topological_sort()
    by_type(model, "Mul").input[0] = "nothing"
    with pytest.raises(RuntimeError, match="Mul_0 reads nothing, which nobody makes"):
        model.topological_sort()


def test_nodes_and_values_come_and_go(model: OnnxModel, caplog: pytest.LogCaptureFixture) -> None:
    relu = by_type(model, "Relu")
    model.remove_node(relu)
    model.add_node(helper.make_node("Softplus", ["c"], ["y"], name="new"))
    model.add_initializer(numpy_helper.from_array(np.float32([1, 2, 3, 4]), "u"))
    model.replace_node_input(by_type(model, "Add"), "v", "u")
    model.topological_sort()
    assert {"Softplus"} < model.get_operator_statistics().keys()
    assert "Relu" not in model.get_operator_statistics()
    (first, _) = outputs(model.model)
    product = np.arange(8, dtype=np.float32).reshape(2, 4) @ model.get_constant_value("w")
    np.testing.assert_allclose(first, np.log1p(np.exp(2 * product + [1, 2, 3, 4])), rtol=1e-4)
    model.remove_node(relu)
    assert "Failed to remove node Relu_0" in caplog.text
    with pytest.raises(ValueError, match="no graph named nowhere; it has g"):
        model.add_node(helper.make_node("Neg", ["c"], ["q"]), "nowhere")
    model.remove_initializer(model.get_initializer("u"))
    assert model.get_initializer("u") is None


def test_nodes_of_subgraphs() -> None:
    model = OnnxModel(onnx.parser.parse_model(BRANCHES))
    inner = model.get_graph_by_name("yes")
    assert model.get_graph_by_node(inner.node[0]).name == "yes"
    model.add_nodes([helper.make_node("Abs", ["h"], ["k"], name="first")], {"first": "yes"})
    model.replace_node_input(model.get_graph_by_name("yes").node[-1], "x", "k")
    model.get_graph_by_name("yes").node[0].input[0] = "k"
    model.topological_sort()
    assert [node.op_type for node in model.get_graph_by_name("yes").node] == ["Abs", "Add"]
    onnx.checker.check_model(model.model)


def test_outputs_get_other_names(model: OnnxModel) -> None:
    wanted = outputs(model.model)
    model.rename_graph_output("y", "renamed")
    assert [value.name for value in model.graph().output] == ["renamed", "z"]
    np.testing.assert_array_equal(outputs(model.model)[0], wanted[0])
    with pytest.raises(RuntimeError, match="z exists in graph"):
        model.rename_graph_output("renamed", "z")


def test_a_prefix_before_names(model: OnnxModel) -> None:
    wanted = outputs(model.model)
    model.add_prefix_to_names("p_")
    assert {"x", "y", "z", "p_a", "p_b"} < {*model.output_name_to_node(), *model.input_name_to_nodes()}
    assert [tensor.name for tensor in model.graph().initializer] == ["p_w", "p_v", "p_spare"]
    for ours, before in zip(outputs(model.model), wanted, strict=True):
        np.testing.assert_array_equal(ours, before)
    branches = OnnxModel(onnx.parser.parse_model(BRANCHES))
    branches.add_prefix_to_names("p_")
    onnx.checker.check_model(branches.model)
    assert {value.name for graph in branches.graphs()[1:] for value in graph.output} == {"p_t", "p_e"}


def test_equal_weights_are_kept_once(model: OnnxModel) -> None:
    array = model.get_constant_value("v")
    model.add_initializer(numpy_helper.from_array(array, "same"))
    model.add_initializer(numpy_helper.from_array(array * np.float32(1 + 1e-6), "nearly"))
    model.add_nodes([helper.make_node("Add", ["y", "same"], ["q"]), helper.make_node("Add", ["y", "nearly"], ["r"])])
    cache: dict[str, int] = {}
    model.remove_duplicated_initializer(cache)
    assert {"w", "v", "same", "nearly"} <= cache.keys()
    assert [node.input[1] for node in model.graph().node[-2:]] == ["v", "nearly"]
    assert "same" not in [tensor.name for tensor in model.graph().initializer]


def test_comparing_tensors() -> None:
    tensors = {
        name: numpy_helper.from_array(np.float32(values), name) for name, values in (("a", [1, 2]), ("b", [1, 2.00001]))
    }
    assert OnnxModel.has_same_value(*tensors.values())
    assert not OnnxModel.has_same_value(*tensors.values(), rtol=1e-8)
    assert not OnnxModel.has_same_value(tensors["a"], numpy_helper.from_array(np.int64([1, 2]), "i"))
    assert OnnxModel.to_data_hash(tensors["a"]) != OnnxModel.to_data_hash(tensors["b"])
    with pytest.raises(TypeError, match="nothing has no element type"):
        OnnxModel.to_data_hash(TensorProto(name="nothing"))


CASTS = """<ir_version: 10, opset_import: ["" : 18]> g (float16[n] x, float[n] f) => (float16[n] y, float[n] same) {
  wide = Cast <to = 1> (x)
  back = Cast <to = 10> (wide)
  y = Neg(back)
  whole = Cast <to = 7> (f)
  again = Cast <to = 1> (whole)
  twice = Cast <to = 1> (again)
  same = Abs(twice)
}"""


def test_casts_that_change_nothing_go() -> None:
    model = OnnxModel(onnx.parser.parse_model(CASTS))
    model.remove_cascaded_cast_nodes()
    model.remove_useless_cast_nodes()
    # Floats that became integers have lost what was behind the point.
    assert [node.op_type for node in model.graph().node] == ["Neg", "Cast", "Cast", "Abs"]
    session = sardonyx.InferenceSession(model.model)
    found = session.run(None, {"x": np.float16([1, 2]), "f": np.float32([1.7, -2.2])})
    assert [array.tolist() for array in found] == [[-1, -2], [1, 2]]


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.INT32])
def test_inputs_of_another_type(kind: int) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> g (int64[n] i) => (float[n] f, int64[n] j, int32[n] k) {
      f = Cast <to = 1> (i) j = Neg(i) c = Cast <to = 6> (i) k = Abs(c) }"""
    model = OnnxModel(onnx.parser.parse_model(text))
    cast, removed = model.change_graph_input_type(model.graph().input[0], kind)
    assert cast is not None
    assert len(removed) == (kind == TensorProto.INT32)
    model.topological_sort()
    session = sardonyx.InferenceSession(model.model)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    assert [array.tolist() for array in session.run(None, {"i": np.array([3, -4], dtype)})] == [
        [3, -4],
        [-3, 4],
        [3, 4],
    ]
    assert model.change_graph_input_type(model.graph().input[0], kind) == (None, [])


def test_outputs_of_another_type(model: OnnxModel) -> None:
    wanted = outputs(model.model)
    cast = model.change_graph_output_type(model.find_graph_output("z"), TensorProto.DOUBLE)
    assert cast.op_type == "Cast"
    assert model.change_graph_output_type(model.find_graph_output("z"), TensorProto.DOUBLE) is None
    found = outputs(model.model)
    assert [array.dtype for array in found] == [np.float32, np.float64]
    np.testing.assert_array_equal(found[1], wanted[1])
    with pytest.raises(ValueError, match="x is no output"):
        model.change_graph_output_type(model.graph().input[0], TensorProto.DOUBLE)


def test_half_precision_keeps_inputs_and_outputs_by_default(model: OnnxModel, caplog: pytest.LogCaptureFixture) -> None:
    wanted = outputs(model.model)
    model.convert_float_to_float16(op_block_list=["Tanh"], surprise=1)
    assert "no option surprise" in caplog.text
    assert model.use_float16()
    assert model.get_constant_value("w").dtype == np.float16
    for ours, before in zip(outputs(model.model), wanted, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, before, rtol=1e-2, atol=3e-2)
    model.convert_model_float32_to_float16(cast_input_output=False)
    assert {value.type.tensor_type.elem_type for value in model.graph().output} == {TensorProto.FLOAT16}


def test_saving_leaves_the_model_as_it_is(model: OnnxModel, tmp_path: Path) -> None:
    wanted = outputs(model.model)
    before = model.model.SerializeToString()
    inside, outside, apart = (tmp_path / name / "m.onnx" for name in ("inside", "outside", "apart"))
    model.save_model_to_file(str(inside))
    model.save_model_to_file(str(outside), use_external_data_format=True, size_threshold=17)
    model.save_model_to_file(apart, use_external_data_format=True, all_tensors_to_one_file=False, size_threshold=0)
    assert model.model.SerializeToString() == before
    assert [path.name for path in sorted(outside.parent.iterdir())] == ["m.onnx", "m.onnx.data"]
    assert (outside.parent / "m.onnx.data").stat().st_size == 64  # w alone is larger than 17 bytes
    assert {path.name for path in apart.parent.iterdir()} == {"m.onnx", "w", "v", "spare"}
    ort = pytest.importorskip("onnxruntime")
    for path in (inside, outside, apart):
        for ours, theirs in zip(outputs(str(path)), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert len(ort.InferenceSession(str(path)).get_outputs()) == 2
    with pytest.raises(RuntimeError, match=r"Output directory .* is not empty"):
        model.save_model_to_file(inside.parent / "new.onnx", True, all_tensors_to_one_file=False)


def test_small_weights_stay_in_the_file(model: OnnxModel, tmp_path: Path) -> None:
    model.save_model_to_file(tmp_path / "m.onnx", use_external_data_format=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert len(outputs(str(tmp_path / "m.onnx"))) == 2


def test_tensors_in_attributes_may_be_written_outside(tmp_path: Path) -> None:
    model = OnnxModel(proto())
    large = helper.make_node("Constant", [], ["u"], value=numpy_helper.from_array(np.ones(600, np.float32)))
    model.add_node(large)
    path = tmp_path / "m.onnx"
    model.save_model_to_file(path, use_external_data_format=True, convert_attribute=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 2400
    found = onnx.load(path)
    assert [
        numpy_helper.to_array(node.attribute[0].t).size for node in found.graph.node if node.op_type == "Constant"
    ] == [1, 600]


def test_models_beyond_two_gigabytes_are_written_with_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sardonyx.transformers import large_weights

    monkeypatch.setattr(large_weights, "_LARGEST_MESSAGE", 60)
    monkeypatch.setattr(large_weights, "_SMALL", 32)
    model = OnnxModel(proto())
    OnnxModel.save(model.model, tmp_path / "m.onnx", size_threshold=32)
    assert (tmp_path / "m.onnx.data").exists()
    np.testing.assert_array_equal(outputs(str(tmp_path / "m.onnx"))[0], outputs(model.model)[0])
    loaded = large_weights.load_proto(model.model)
    assert {value.name for value in loaded.model.graph.initializers.values()} == {"w", "v"}
    bare, taken = large_weights.detached(model.model, least=32)
    assert [tensor.name for tensor in taken] == ["w"]
    assert len(bare.SerializeToString()) < len(model.model.SerializeToString()) - 32
    np.testing.assert_array_equal(
        loaded.model.graph.initializers["w"].const_value.numpy(), model.get_constant_value("w")
    )


def test_inference_on_demand(model: OnnxModel) -> None:
    known = model.infer_runtime_shape({"n": 7})
    assert known.get_edge_shape("c") == [7, 4]
    assert model.get_shape("a", known) == [7, 4]
    assert model.get_dtype("a", known) == TensorProto.FLOAT
    assert model.infer_runtime_shape() is known
    model.disable_shape_inference()
    assert model.infer_runtime_shape() is None
    model.model.graph.value_info.add(name="a")
    model.clean_shape_infer()
    assert list(model.model.graph.value_info) == []
