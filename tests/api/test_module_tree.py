import subprocess
import sys

import pytest

import sardonyx
from sardonyx.capi import _pybind_state, onnxruntime_pybind11_state

# What onnxruntime has and Sardonyx does not, each with the reason in docs/compatibility.md.
ABSENT_AT_C_LEVEL = {
    "ModelCompiler",
    "SessionObjectInitializer",
    "get_all_operator_schema",
    "get_all_opkernel_def",
    "get_registered_ep_kernel_defs",
    "get_session_initializer",
    "opkernel",
    "pack_fp4_weights_for_cuda_moe_gemm",
    "schemadef",
}


def public(module):
    return {name for name in dir(module) if not name.startswith("_")}


def test_top_level_names_are_those_of_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    from_submodules = {"backend", "quantization", "tools", "transformers", "datasets"}
    missing = public(ort) - set(dir(sardonyx)) - from_submodules - {"contextlib"}
    assert missing == set()


def test_c_level_names_are_those_of_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    theirs = public(ort.capi.onnxruntime_pybind11_state)
    assert theirs - set(onnxruntime_pybind11_state.__all__) == ABSENT_AT_C_LEVEL


@pytest.mark.parametrize("name", sorted(sardonyx.__all__))
def test_every_public_name_exists(name):
    assert getattr(sardonyx, name, "nothing") != "nothing"
    assert name in dir(sardonyx)


@pytest.mark.parametrize("name", sorted(onnxruntime_pybind11_state.__all__))
def test_every_name_of_the_c_level_exists(name):
    assert getattr(_pybind_state, name) is getattr(onnxruntime_pybind11_state, name)


def test_unknown_names_raise_attribute_errors():
    for module in (sardonyx, sardonyx.capi, onnxruntime_pybind11_state):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = module.nonsense


def test_the_import_is_light_and_the_exceptions_are_attributes():
    program = (
        "import sys, sardonyx as ort\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'llvmlite', 'ml_dtypes'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert issubclass(ort.capi.onnxruntime_pybind11_state.Fail, Exception)\n"
        "assert not issubclass(ort.capi.onnxruntime_pybind11_state.InvalidProtobuf, RuntimeError)\n"
        "assert ort.GraphOptimizationLevel.ORT_ENABLE_ALL.value == 99\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_versions():
    from sardonyx.capi import build_and_package_info, onnxruntime_validation

    assert sardonyx.version == sardonyx.get_version_string() == build_and_package_info.__version__
    assert sardonyx.__version__ != sardonyx.version
    assert onnxruntime_validation.check_training_module()[:2] == (None, False)
    assert sardonyx.preload_dlls() is None
    assert sardonyx.preload_dlls(directory="/nope") is None
    with pytest.raises(RuntimeError, match="does not exist"):
        sardonyx.preload_dlls(cuda=False, cudnn=False, directory="/nope")


def test_the_report_for_bug_reports(capsys):
    sardonyx.print_debug_info()
    assert f"Sardonyx: {sardonyx.__version__}" in capsys.readouterr().out


def test_values_for_callers():
    argument = sardonyx.NodeArg("x", "tensor(float)", ["n", None, 3])
    assert str(argument) == "NodeArg(name='x', type='tensor(float)', shape=['n', None, 3])"
    assert "object at" in repr(argument)
    metadata = sardonyx.ModelMetadata()
    assert (metadata.producer_name, metadata.version, metadata.custom_metadata_map) == ("", 9223372036854775807, {})
