import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from sardonyx._version import API_VERSION

COMPAT = Path(__file__).parents[2] / "compat" / "onnxruntime"


def test_the_version_is_that_of_the_api():
    project = tomllib.loads((COMPAT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"], project["dependencies"]) == ("onnxruntime", API_VERSION, ["sardonyx"])


def test_the_wheel_carries_the_module_and_its_metadata(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*command, str(COMPAT)], check=True)
    (wheel,) = tmp_path.glob("onnxruntime-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "onnxruntime/__init__.py" in names
    assert f"onnxruntime-{API_VERSION}.dist-info/METADATA" in names


def test_every_module_is_the_one_of_sardonyx(run_client):
    run_client("""
import importlib, importlib.util, sys
import onnxruntime, sardonyx
assert onnxruntime.__version__ == "1.31.1" != sardonyx.__version__
assert onnxruntime.__path__[0] in onnxruntime.__file__
assert "numpy" not in sys.modules
for name in ("capi", "capi._pybind_state", "capi.onnxruntime_pybind11_state", "capi.onnxruntime_inference_collection",
             "capi.onnxruntime_validation", "capi.build_and_package_info", "tools", "tools.onnx_model_utils",
             "tools.make_dynamic_shape_fixed", "tools.remove_initializer_from_input",
             "tools.symbolic_shape_infer", "tools.onnxruntime_test", "backend", "backend.backend",
             "transformers", "transformers.io_binding_helper"):
    spec = importlib.util.find_spec("onnxruntime." + name)
    assert spec is not None, name
    alias, real = importlib.import_module("onnxruntime." + name), importlib.import_module("sardonyx." + name)
    assert alias is real and alias.__spec__.name == real.__name__ == "sardonyx." + name, name
for name in sardonyx.__all__:
    if name not in ("__version__",):
        assert getattr(onnxruntime, name) is getattr(sardonyx, name), name
assert set(sardonyx.__all__) <= set(dir(onnxruntime))
""")


def test_what_sardonyx_lacks_is_absent(run_client):
    run_client("""
import importlib.util
import onnxruntime
for name in ("training", "nonsense", "capi.training"):
    assert importlib.util.find_spec("onnxruntime." + name) is None, name
    try:
        __import__("onnxruntime." + name)
    except ModuleNotFoundError as error:
        assert "onnxruntime" in str(error)
    else:
        raise AssertionError(name)
try:
    onnxruntime.nonsense
except AttributeError as error:
    assert str(error) == "module 'onnxruntime' has no attribute 'nonsense'"
else:
    raise AssertionError("nonsense")
""")


def test_exceptions_are_attributes_after_one_import(run_client):
    run_client("""
import onnxruntime as ort
try:
    ort.InferenceSession(b"garbage", providers=["CPUExecutionProvider"])
except ort.capi.onnxruntime_pybind11_state.InvalidProtobuf as error:
    assert "INVALID_PROTOBUF" in str(error)
else:
    raise AssertionError("a garbage model was loaded")
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException
from onnxruntime.capi import _pybind_state as C
assert C.Fail is Fail and C.get_available_providers() == ort.get_available_providers()
""")


def test_modules_run_as_commands(run_client):
    assert "--dim_param" in run_client(["-m", "onnxruntime.tools.make_dynamic_shape_fixed", "--help"])
