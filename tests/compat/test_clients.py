"""What widely used programs do with `onnxruntime`, unmodified."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.models import add_and_multiply

ROOT = Path(__file__).parents[2]
FILES = ["README.md", "pyproject.toml", ".gitignore", "sardonyx/errors.py", "sardonyx/_version.py", "tests/__init__.py"]

MAGIKA = f"""
import json, pathlib
import magika, onnxruntime
client = magika.Magika()
files = {[str(ROOT / name) for name in FILES]!r}
results = [client.identify_path(pathlib.Path(name)) for name in files]
answers = [[result.dl.label, result.output.label, round(float(result.score), 3)] for result in results]
print(json.dumps([onnxruntime.__file__, answers]))
"""


def test_magika_finds_what_it_finds_on_onnxruntime(run_client):
    pytest.importorskip("magika")
    pytest.importorskip("onnxruntime")
    ours_file, ours = json.loads(run_client(MAGIKA).splitlines()[-1])
    theirs_file, theirs = json.loads(
        subprocess.check_output([sys.executable, "-c", MAGIKA], text=True).splitlines()[-1]
    )
    assert Path(ours_file).is_relative_to(ROOT / "compat")
    assert not Path(theirs_file).is_relative_to(ROOT / "compat")
    assert ours == theirs


def test_the_command_of_magika(run_client):
    pytest.importorskip("magika")
    output = run_client(
        ["-m", "magika.cli.magika_client", str(ROOT / "pyproject.toml"), str(ROOT / "sardonyx/errors.py")]
    )
    assert "Tom's obvious, minimal language" in output
    assert "Python" in output


def test_a_subclass_that_pickles_itself(run_client, tmp_path):
    (tmp_path / "m.onnx").write_bytes(add_and_multiply())
    run_client("""
import pickle
import numpy as np, onnxruntime

class PickableInferenceSession(onnxruntime.InferenceSession):
    def __init__(self, model_path, **kwargs):
        super().__init__(model_path, **kwargs)
        self.model_path = model_path

    def __getstate__(self):
        return {"model_path": self.model_path}

    def __setstate__(self, values):
        self.__init__(values["model_path"])

    def __reduce__(self):
        return _again, (self.__getstate__(),)

def _again(state):
    return PickableInferenceSession(state["model_path"])

onnxruntime.set_default_logger_severity(3)
session = PickableInferenceSession("m.onnx", providers=["CPUExecutionProvider"])
again = pickle.loads(pickle.dumps(session))
x = np.ones((1, 3), np.float32)
assert np.array_equal(again.run(None, {"x": x})[0], x + x)
session.set_providers(["CPUExecutionProvider"])
assert isinstance(session, onnxruntime.InferenceSession) and session.get_providers() == ["CPUExecutionProvider"]
assert session.run(["z"], {"x": x})[0].tolist() == [[1, 1, 1]]
""")


def test_options_as_rapidocr_sets_them(run_client, tmp_path):
    (tmp_path / "m.onnx").write_bytes(add_and_multiply())
    run_client("""
import onnxruntime
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions, get_available_providers, get_device

options = SessionOptions()
options.log_severity_level = 4
options.enable_cpu_mem_arena = False
options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = 1
options.inter_op_num_threads = 1
assert get_device() != "GPU" and "CPUExecutionProvider" in get_available_providers()
providers = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
session = InferenceSession("m.onnx", sess_options=options, providers=providers)
assert session.get_providers()[0] == providers[0][0]
assert "character" not in session.get_modelmeta().custom_metadata_map.keys()
assert isinstance(session.get_inputs()[0].shape[0], str)
assert "float16" not in session.get_inputs()[0].type
""")


def test_a_binding_as_optimum_makes_it(run_client, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "m.onnx").write_bytes(add_and_multiply())
    run_client("""
from pathlib import Path
import torch
from onnxruntime import InferenceSession, IOBinding
from onnxruntime.transformers.io_binding_helper import TypeHelper

session = InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
binding = IOBinding(session)
assert Path(session._model_path).name == "m.onnx"
source, target = torch.ones(2, 3), torch.empty(2, 3)
kind = TypeHelper.ort_type_to_numpy_type(TypeHelper.get_input_type(session, "x"))
binding.bind_input("x", source.device.type, 0, kind, source.shape, source.data_ptr())
binding.bind_output("y", target.device.type, 0, kind, target.shape, target.data_ptr())
binding.synchronize_inputs()
session.run_with_iobinding(binding)
binding.synchronize_outputs()
assert target.tolist() == [[2, 2, 2], [2, 2, 2]]
""")


def test_the_base_class_that_annotations_and_patches_name(run_client, tmp_path):
    (tmp_path / "m.onnx").write_bytes(add_and_multiply())
    run_client("""
import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import Session

original = Session.set_providers

def host_alone(self, providers=None, provider_options=None):
    original(self, ["CPUExecutionProvider"])

onnxruntime.capi.onnxruntime_inference_collection.Session.set_providers = host_alone
session = onnxruntime.InferenceSession("m.onnx")
session.set_providers(["CUDAExecutionProvider"])
assert isinstance(session, Session) and issubclass(onnxruntime.InferenceSession, Session)
assert session.get_providers() == ["CPUExecutionProvider"]
""")
