import copy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.tools import make_dynamic_shape_fixed, onnx_model_utils, remove_initializer_from_input
from tests.api.models import add_and_multiply, add_weight


def peer():
    return pytest.importorskip("onnxruntime.tools.onnx_model_utils")


def model():
    return onnx.load_model_from_string(add_and_multiply())


def test_dimensions_become_numbers_as_in_onnxruntime():
    ours, theirs = model(), model()
    onnx_model_utils.make_dim_param_fixed(ours.graph, "n", 4)
    peer().make_dim_param_fixed(theirs.graph, "n", 4)
    assert ours == theirs
    assert onnx_model_utils.is_fixed_size_tensor(ours.graph.input[0])
    assert not onnx_model_utils.is_fixed_size_tensor(model().graph.input[0])


def test_inputs_get_their_shape_as_in_onnxruntime():
    ours, theirs = model(), model()
    for module, proto in ((onnx_model_utils, ours), (peer(), theirs)):
        module.make_input_shape_fixed(proto.graph, "x", [5, 3])
        module.fix_output_shapes(proto)
    assert ours == theirs
    assert [dim.dim_value for dim in ours.graph.output[0].type.tensor_type.shape.dim] == [5, 3]


@pytest.mark.parametrize(("name", "shape"), [("q", [1, 3]), ("x", [1]), ("x", [1, 4])])
def test_contradictions_raise_as_in_onnxruntime(name, shape):
    texts = []
    for module in (onnx_model_utils, peer()):
        with pytest.raises(ValueError, match=r".") as caught:
            module.make_input_shape_fixed(model().graph, name, shape)
        texts.append(str(caught.value).split(".")[0])
    assert texts[0] == texts[1]


def test_opsets(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(add_and_multiply())
    assert onnx_model_utils.get_opsets_imported(model()) == {"ai.onnx": 17} == peer().get_opsets_imported(model())
    raised = onnx_model_utils.update_onnx_opset(path, 18, tmp_path / "out.onnx")
    assert onnx_model_utils.get_opsets_imported(raised) == {"ai.onnx": 18}
    assert onnx.load(tmp_path / "out.onnx") == raised


@pytest.mark.parametrize("name", ["disable", "basic", "extended", "layout", "all"])
def test_levels(name):
    assert int(onnx_model_utils.get_optimization_level(name)) == int(peer().get_optimization_level(name))
    with pytest.raises(ValueError, match="Invalid optimization level of best"):
        onnx_model_utils.get_optimization_level("best")


def test_bad_dimensions_become_unknown():
    ours = model()
    ours.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    theirs = copy.deepcopy(ours)
    onnx_model_utils.remove_invalid_dim_values(ours.graph)
    peer().remove_invalid_dim_values(theirs.graph)
    assert ours == theirs


def test_the_command_that_fixes_dimensions(tmp_path):
    source, target = tmp_path / "m.onnx", tmp_path / "fixed.onnx"
    source.write_bytes(add_and_multiply())
    command = make_dynamic_shape_fixed.make_dynamic_shape_fixed_helper
    command(["--dim_param", "n", "--dim_value", "2", str(source), str(target)])
    session = sardonyx.InferenceSession(target)
    assert session.get_inputs()[0].shape == session.get_outputs()[0].shape == [2, 3]
    command(["--input_name", "x", "--input_shape", "7,3", str(source), str(target)])
    assert sardonyx.InferenceSession(target).get_inputs()[0].shape == [7, 3]
    with pytest.raises(SystemExit):
        command([str(source), str(target)])


def test_initializers_leave_the_inputs(tmp_path):
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(add_weight(np.ones(3, np.float32)))
    remove_initializer_from_input.main(["--input", str(source), "--output", str(target)])
    assert [value.name for value in onnx.load(target).graph.input] == ["x"]
    assert sardonyx.InferenceSession(target).get_overridable_initializers() == []
    old = helper.make_model(onnx.load(source).graph, ir_version=3)
    with pytest.raises(ValueError, match="ir_version below 4"):
        remove_initializer_from_input.remove_initializer_from_input(old)
    assert onnx_model_utils.is_fixed_size_tensor(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
