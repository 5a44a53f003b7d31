import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.tools import symbolic_shape_infer


def model(nodes, output_rank):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ["batch", "seq", 8])],
        [info("y", TensorProto.FLOAT, [f"o{axis}" for axis in range(output_rank)])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shapes(proto):
    values = [*proto.graph.value_info, *proto.graph.output]
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


def test_symbols_pass_through_operators_as_in_onnxruntime():
    pytest.importorskip("sympy")
    peer = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer").SymbolicShapeInference
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["a", "x"], ["y"], axis=2),
    ]
    proto = model(nodes, 3)
    ours = shapes(symbolic_shape_infer.SymbolicShapeInference.infer_shapes(proto, auto_merge=True, verbose=1))
    theirs = shapes(peer.infer_shapes(proto, auto_merge=True))
    assert ours["a"] == theirs["a"] == ["batch", "seq", 8]
    assert ours["b"] == theirs["b"] == ["batch", 8, "seq"]
    assert ours["y"] == ["batch", "seq", 16]


def test_operators_of_microsoft_have_shapes(tmp_path):
    proto = model(
        [helper.make_node("FastGelu", ["x"], ["a"], domain="com.microsoft"), helper.make_node("Relu", ["a"], ["y"])], 3
    )
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(proto, source)
    symbolic_shape_infer.main(["--input", str(source), "--output", str(target)])
    assert shapes(onnx.load(target))["a"] == ["batch", "seq", 8]


def test_contradictions_are_errors():
    proto = model([helper.make_node("MatMul", ["x", "x"], ["y"])], 3)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    with pytest.raises(errors.Fail, match="MatMul"):
        symbolic_shape_infer.SymbolicShapeInference.infer_shapes(proto)


def test_results_are_listed_as_in_onnxruntime():
    pytest.importorskip("sympy")
    peer = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer").SymbolicShapeInference
    proto = model(
        [helper.make_node("Unsqueeze", ["x", "axes"], ["a"]), helper.make_node("Identity", ["a"], ["y"])], output_rank=4
    )
    proto.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [1], [-1]))
    expected = {"a": ["batch", "seq", 8, 1], "y": ["batch", "seq", 8, 1]}
    for inference in (symbolic_shape_infer.SymbolicShapeInference, peer):
        graph = inference.infer_shapes(proto, auto_merge=True).graph
        assert [info.name for info in graph.value_info] == ["a", "y"]
        assert shapes(onnx.ModelProto(graph=graph)) == expected


def test_an_output_of_unknown_type_gets_one():
    proto = model([helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])], output_rank=3)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    proto.graph.initializer.extend(
        [helper.make_tensor("scale", TensorProto.FLOAT, [], [1]), helper.make_tensor("zero", TensorProto.INT8, [], [0])]
    )
    inferred = symbolic_shape_infer.SymbolicShapeInference.infer_shapes(proto)
    assert inferred.graph.output[0].type.tensor_type.elem_type == TensorProto.INT8


def test_maps_keep_their_types():
    zip_map = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1, 2])
    proto = model([zip_map], output_rank=0)
    del proto.graph.input[0].type.tensor_type.shape.dim[2:]
    kind = onnx.TypeProto()
    kind.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    kind.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    proto.graph.output[0].type.CopyFrom(kind)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    inferred = symbolic_shape_infer.SymbolicShapeInference.infer_shapes(proto)
    assert inferred.graph.output[0].type.sequence_type.elem_type.map_type.key_type == TensorProto.INT64
