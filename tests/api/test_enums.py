import pickle

import pytest

import sardonyx
from sardonyx.api import device_enums
from sardonyx.capi import onnxruntime_pybind11_state as core

NAMES = [
    "ArenaExtendStrategy",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtCompiledModelCompatibility",
    "OrtDeviceEpIncompatibilityReason",
    "OrtDeviceMemoryType",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
]


@pytest.mark.parametrize("name", NAMES)
def test_members_and_texts_are_those_of_onnxruntime(name):
    ort = pytest.importorskip("onnxruntime")
    theirs = getattr(ort.capi.onnxruntime_pybind11_state, name)
    ours = getattr(core, name)
    assert {key: int(value) for key, value in ours.__members__.items()} == {
        key: int(value) for key, value in theirs.__members__.items()
    }
    for key, member in theirs.__members__.items():
        mine = ours.__members__[key]
        assert (repr(mine), str(mine), mine.name, mine.value) == (repr(member), str(member), member.name, member.value)


@pytest.mark.parametrize("name", ["GraphOptimizationLevel", "ExecutionMode", "OrtHardwareDeviceType", "OrtMemType"])
@pytest.mark.parametrize("other", [0, 0.0, None, "0", False, 1])
def test_equality_is_that_of_onnxruntime(name, other):
    ort = pytest.importorskip("onnxruntime")
    mine, theirs = getattr(sardonyx, name)(0), getattr(ort, name)(0)
    assert (mine == other, mine != other) == (theirs == other, theirs != other)
    assert hash(mine) == hash(theirs)


def test_levels_are_made_from_numbers():
    level = sardonyx.GraphOptimizationLevel(99)
    assert level is sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert int(level) == 99
    others = (99, 99.0, "99", None, 0, sardonyx.ExecutionMode(0))
    assert [level == other for other in others] == [True, True, False, False, False, False]
    assert {99: "all"}[level] == "all"
    with pytest.raises(TypeError):
        sardonyx.SessionOptions().graph_optimization_level = 99
    assert [10, 20][sardonyx.ExecutionMode.ORT_PARALLEL] == 20
    assert pickle.loads(pickle.dumps(level)) is level
    with pytest.raises(ValueError, match="5 is not a valid GraphOptimizationLevel"):
        sardonyx.GraphOptimizationLevel(5)


def test_flags_combine():
    flags = device_enums.OrtCompileApiFlags
    assert int(flags.ERROR_IF_NO_NODES_COMPILED | flags.ERROR_IF_OUTPUT_FILE_EXISTS) == 3


def test_vendor_numbers_are_those_of_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    assert dict(sardonyx.OrtDeviceVendorId.__members__) == dict(ort.OrtDeviceVendorId.__members__)
