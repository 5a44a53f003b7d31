"""Models made ready for quantization: what is left, what is known of it, and where the weights go."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

import sardonyx
from sardonyx import errors
from sardonyx.quantization import quant_pre_process
from sardonyx.quantization.preprocess import main
from sardonyx.quantization.preprocess import quant_pre_process as of_preprocess
from sardonyx.quantization.quant_utils import model_has_pre_process_metadata

TEXT = """
<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
g (float[n, 3, 8, 8] x) => (float[n, 4] y) <float[4] zeros = {0, 0, 0, 0}, int64[1] far = {9}, int64[1] one = {1}> {
  c = Conv(x, w)
  b = BatchNormalization(c, scale, bias, mean, variance)
  i = Identity(b)
  g = Gelu(i)
  p = GlobalAveragePool(g)
  f = Flatten(p)
  ones = Sub(one, one)
  to = Add(far, ones)
  y = Slice(f, ones, to, one)
}
"""


def save(path, text=TEXT):
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    shapes = {"w": (4, 3, 3, 3), "scale": (4,), "bias": (4,), "mean": (4,), "variance": (4,)}
    for name, shape in shapes.items():
        array = rng.uniform(0.5, 2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return str(path)


def results(path, x):
    return sardonyx.InferenceSession(str(path)).run(None, {"x": x})[0]


def test_fewer_nodes_with_shapes_and_the_same_results(tmp_path):
    path, out = save(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    quant_pre_process(path, out)
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node][:2] == ["Conv", "Gelu"]
    assert "Sub" not in {node.op_type for node in model.graph.node}
    shapes = {
        info.name: [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
        for info in model.graph.value_info
    }
    assert shapes["g"] == ["n", 4, 6, 6]
    assert model_has_pre_process_metadata(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 20)]
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(results(out, x), results(path, x), rtol=1e-5, atol=1e-6)


def test_steps_can_be_skipped(tmp_path):
    path, out = save(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    quant_pre_process(path, out, skip_optimization=True)
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert kinds[:4] == ["Conv", "BatchNormalization", "Identity", "Gelu"]
    quant_pre_process(path, out, skip_optimization=True, skip_onnx_shape=True, skip_symbolic_shape=True)
    assert "c" not in {info.name for info in onnx.load(out).graph.value_info}
    for skipped in ("skip_onnx_shape", "skip_symbolic_shape"):
        quant_pre_process(path, out, skip_optimization=True, **{skipped: True})
        assert "c" in {info.name for info in onnx.load(out).graph.value_info}


def test_the_old_name_of_the_first_argument_and_messages(tmp_path):
    path, out = save(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    of_preprocess(input_model_path=path, output_model_path=str(out), auto_merge=True, verbose=3)
    wanted = out.read_bytes()
    quant_pre_process(onnx.load(path), out)
    assert [node.op_type for node in onnx.load(out).graph.node] == [
        node.op_type for node in onnx.load_from_string(wanted).graph.node
    ]
    quant_pre_process(path, path)
    assert onnx.load(path).graph.node[1].op_type == "Gelu"


def locations(model):
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}["location"]
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


@pytest.mark.parametrize("inside", [True, False])
def test_weights_in_files_of_their_own(tmp_path, inside):
    path = tmp_path / "in" / "m.onnx"
    path.parent.mkdir()
    save(path)
    if not inside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "o.onnx"
    x = np.ones((1, 3, 8, 8), np.float32)
    wanted = results(path, x)
    options = {"save_as_external_data": True, "external_data_size_threshold": 100}
    for more, files in (
        ({}, {"w"}),
        ({"all_tensors_to_one_file": True}, {"o.onnx.data"}),
        ({"all_tensors_to_one_file": True, "external_data_location": "weights.bin"}, {"weights.bin"}),
    ):
        quant_pre_process(path, out, **options, **more)
        found = locations(onnx.load(out, load_external_data=False))
        assert len(found) == 1
        assert len(set(found.values())) == 1
        if more:
            assert set(found.values()) == files
        np.testing.assert_allclose(results(out, x), wanted, rtol=1e-5)


def test_what_is_missing_or_wrong(tmp_path):
    path = save(tmp_path / "m.onnx")
    with pytest.raises(errors.InvalidArgument, match="needs input_model"):
        quant_pre_process(output_model_path=tmp_path / "o.onnx")
    with pytest.raises(ValueError, match="needs output_model_path"):
        quant_pre_process(path)
    with pytest.raises(TypeError, match="no argument 'skip'"):
        quant_pre_process(path, tmp_path / "o.onnx", skip=True)
    with pytest.raises(errors.InvalidArgument, match="must be a path or a ModelProto, not int"):
        quant_pre_process(5, tmp_path / "o.onnx")
    with pytest.raises(errors.NoSuchFile):
        quant_pre_process(tmp_path / "none.onnx", tmp_path / "o.onnx")
    with pytest.raises(errors.Fail, match="Saving the model"):
        quant_pre_process(path, tmp_path / "no" / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_the_command(tmp_path, capsys):
    path, out = save(tmp_path / "m.onnx"), tmp_path / "o.onnx"
    command = [sys.executable, "-m", "sardonyx.quantization.preprocess", "--input", path, "--output", str(out)]
    subprocess.run([*command, "--skip_optimization", "False", "--auto_merge"], check=True)
    assert onnx.load(out).graph.node[1].op_type == "Gelu"
    given = ["--input", path, "--output", str(out)]
    for more in (["--skip_optimization", "True"], ["--skip_optimization"]):
        assert main([*given, *more]) == 0
        assert onnx.load(out).graph.node[1].op_type == "BatchNormalization"
    everything = ["--skip_onnx_shape", "true", "--skip_symbolic_shape", "1", "--int_max", "5", "--guess_output_rank"]
    external = ["--save_as_external_data", "--all_tensors_to_one_file", "--external_data_location", "w.bin"]
    assert main([*given, *everything, *external, "--external_data_size_threshold", "0", "--verbose", "1"]) == 0
    assert set(locations(onnx.load(out, load_external_data=False)).values()) == {"w.bin"}
    assert main(["--input", str(tmp_path / "none.onnx"), "--output", str(out)]) == 1
    assert "none.onnx failed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*given, "--skip_optimization", "perhaps"])
