"""Fusions that callers write themselves, the helpers around nodes, and inference by names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.transformers.fusion_base import Fusion
from sardonyx.transformers.fusion_utils import FusionUtils, NumpyHelper
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.shape_infer_helper import SymbolicShapeInferenceHelper

TEXT = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
  g (float[batch, seq, 4] x, int64[batch, seq] i) => (float[batch, seq, 4] y, int64[batch, seq] j) {
  same = Identity(x)
  axes = Constant <value = int64[1] {0}> ()
  target = Constant <value = int64[3] {0, 0, 4}> ()
  r = Reshape(same, target)
  u = Unsqueeze(r, axes)
  s = Squeeze(u, axes)
  h = com.microsoft.Gelu(r)
  y = Add(h, s)
  c = Cast <to = 6> (i)
  d = Cast <to = 7> (c)
  j = Neg(d)
}"""


@pytest.fixture
def model() -> OnnxModel:
    return OnnxModel(onnx.parser.parse_model(TEXT))


class AddToSum(Fusion):
    """Add as Sum, to see that a fusion by a caller takes its place."""

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model, "Sum", "Add", "a test")

    def fuse(self, node, input_name_to_nodes, output_name_to_node):
        assert output_name_to_node[node.input[0]].op_type == "Gelu"
        assert input_name_to_nodes[node.input[0]] == [node]
        self.add_initializer("bias", TensorProto.FLOAT, [4], np.ones(4, np.float32))
        name = self.model.create_node_name("Sum")
        self.nodes_to_add.append(helper.make_node("Sum", [*node.input, "bias"], list(node.output), name=name))
        self.node_name_to_graph_name[name] = self.this_graph_name
        self.add_nodes_to_remove([node, node])
        self.increase_counter("Sum")


def outputs(model: OnnxModel) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "i": np.arange(6).reshape(2, 3)}
    return sardonyx.InferenceSession(model.model).run(None, feeds)


def test_a_fusion_of_a_caller(model: OnnxModel) -> None:
    before = outputs(model)
    fusion = AddToSum(model)
    fusion.apply()
    model.topological_sort()
    assert (len(model.get_nodes_by_op_type("Add")), len(model.get_nodes_by_op_type("Sum"))) == (0, 1)
    np.testing.assert_allclose(outputs(model)[0], before[0] + 1, rtol=1e-6)
    assert fusion.description == "Sum(a test)"
    assert fusion.fused_count == {"Sum": 1}
    with pytest.raises(NotImplementedError, match="Fusion does not say how"):
        Fusion(model, "Sum", ["Reshape"]).apply()


def test_a_fusion_may_prune(model: OnnxModel) -> None:
    fusion = AddToSum(model)
    fusion.prune_graph = True
    fusion.fuse = lambda node, readers, producers: fusion.nodes_to_remove.append(node)
    fusion.apply()
    assert "Add" not in model.get_operator_statistics()


def test_nodes_without_effect_go(model: OnnxModel) -> None:
    before = outputs(model)
    utils = FusionUtils(model)
    utils.remove_identity_nodes()
    utils.remove_useless_reshape_nodes()
    utils.remove_cascaded_cast_nodes()
    assert not {"Identity", "Reshape"} & model.get_operator_statistics().keys()
    for ours, theirs in zip(outputs(model), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_casts_of_values(model: OnnxModel) -> None:
    utils = FusionUtils(model)
    assert utils.cast_graph_input_to_int32("i") == (True, "i_int32")
    assert utils.cast_graph_input_to_int32("nobody") == (False, "nobody")
    name, node = utils.cast_input("d", "int32")
    assert (name, node.input[0]) == ("d_int32", "c")
    assert utils.cast_input("x", "float16")[1].attribute[0].i == TensorProto.FLOAT16
    with pytest.raises(ValueError, match="Invalid target_type: text"):
        utils.cast_input("x", "text")
    utils.remove_cast_int32("i")
    assert model.output_name_to_node()["d"].input[0] == "i"


def test_questions_about_nodes(model: OnnxModel) -> None:
    utils = FusionUtils(model)
    (squeeze,) = model.get_nodes_by_op_type("Squeeze")
    assert list(utils.get_squeeze_or_unsqueeze_axes(squeeze)) == [0]
    assert list(utils.get_squeeze_or_unsqueeze_axes(helper.make_node("Squeeze", ["x"], ["y"], axes=[1]))) == [1]
    (add,) = model.get_nodes_by_op_type("Add")
    with pytest.raises(ValueError, match="is a Add"):
        utils.get_squeeze_or_unsqueeze_axes(add)
    (reshape,) = model.get_nodes_by_op_type("Reshape")
    assert utils.check_node_input_value(reshape, 1, [0, 0, 4])
    assert not utils.check_node_input_value(reshape, 1, [0, 4])
    node = helper.make_node("Softmax", ["x"], ["y"], axis=2)
    assert utils.check_node_attribute(node, "axis", 2)
    assert utils.check_node_attribute(node, "absent", 5, default_value=5)
    assert not utils.check_node_attribute(node, "absent", 5)
    readers = model.input_name_to_nodes()
    assert utils.skip_parent(model, squeeze, model.get_nodes_by_op_type("Unsqueeze")[0], readers)
    assert squeeze.input[0] == "r"
    assert squeeze in readers["r"]


@pytest.mark.parametrize(
    ("scale", "zero", "fits"), [([0.5], [0], True), ([0.5], [3], False), ([0.5, 1], [0, 0], False)]
)
def test_quantisation_that_may_be_fused(scale: list[float], zero: list[int], fits: bool) -> None:
    model = OnnxModel(onnx.parser.parse_model(TEXT))
    model.add_initializer(numpy_helper.from_array(np.float32(scale), "scale"))
    model.add_initializer(numpy_helper.from_array(np.int8(zero), "zero"))
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    assert FusionUtils.check_qdq_node_for_fusion(node, model) is fits
    assert not FusionUtils.check_qdq_node_for_fusion(helper.make_node("QuantizeLinear", ["x", "x"], ["q"]), model)


def test_contents_of_tensors() -> None:
    matrix = numpy_helper.from_array(np.int8([[1, 2, 3], [4, 5, 6]]), "m")
    assert FusionUtils.transpose_2d_int8_tensor(matrix) is matrix
    assert NumpyHelper.to_array(matrix).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert NumpyHelper.to_array(matrix, fill_zeros=True).tolist() == [[0, 0]] * 3
    narrow = helper.make_tensor("b", TensorProto.BFLOAT16, [2], [1.5, -2.0])
    assert NumpyHelper.to_array(narrow).astype(np.float32).tolist() == [1.5, -2.0]
    with pytest.raises(ValueError, match="only INT8 2-D"):
        FusionUtils.transpose_2d_int8_tensor(numpy_helper.from_array(np.int8([1]), "v"))
    with pytest.raises(TypeError, match="TensorProto but got"):
        FusionUtils.transpose_2d_int8_tensor(np.zeros((2, 2)))


def test_shapes_by_names_are_those_of_onnxruntime(model: OnnxModel) -> None:
    theirs = pytest.importorskip("onnxruntime.transformers.shape_infer_helper").SymbolicShapeInferenceHelper
    for sizes in ({}, {"batch": 2}, {"batch": 2, "seq": 5}):
        ours, peer = SymbolicShapeInferenceHelper(model.model), theirs(model.model)
        assert ours.infer(sizes) is True
        assert peer.infer(sizes)
        for name in ("r", "u", "s", "y", "c"):
            assert ours.get_edge_shape(name) == peer.get_edge_shape(name)
        assert ours.compare_shape("r", "s") is peer.compare_shape("r", "s") is True
        assert ours.compare_shape("r", "u") is False
    assert ours.known_vi_["c"].type.tensor_type.elem_type == TensorProto.INT32
    inferred = ours.infer_shapes(model.model, auto_merge=True)
    assert {info.name for info in inferred.graph.value_info} > {"r", "u", "s"}


def test_what_is_not_known_is_told(model: OnnxModel) -> None:
    known = SymbolicShapeInferenceHelper(model.model)
    with pytest.raises(ValueError, match=r"call infer\(\{\}\) first"):
        known.get_edge_shape("r")
    model.add_node(helper.make_node("Reshape", ["x", "i_as_shape"], ["free"]))
    model.model.graph.input.append(helper.make_tensor_value_info("i_as_shape", TensorProto.INT64, None))
    known = SymbolicShapeInferenceHelper(model.model)
    assert known.infer({}) is False
    assert known.get_edge_shape("free") is None
    with pytest.raises(ValueError, match="the shape of free is unknown"):
        known.compare_shape("free", "r")
