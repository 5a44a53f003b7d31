import pickle

import pytest

import sardonyx
from sardonyx.api import enums
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


def test_levels_are_made_from_numbers_and_are_no_numbers():
    level = sardonyx.GraphOptimizationLevel(99)
    assert level is sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert int(level) == 99
    assert level != 99
    assert [10, 20][sardonyx.ExecutionMode.ORT_PARALLEL] == 20
    assert pickle.loads(pickle.dumps(level)) is level
    with pytest.raises(ValueError, match="5 is not a valid GraphOptimizationLevel"):
        sardonyx.GraphOptimizationLevel(5)


def test_flags_combine():
    flags = enums.OrtCompileApiFlags
    assert int(flags.ERROR_IF_NO_NODES_COMPILED | flags.ERROR_IF_OUTPUT_FILE_EXISTS) == 3


def test_vendor_numbers_are_those_of_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    assert dict(sardonyx.OrtDeviceVendorId.__members__) == dict(ort.OrtDeviceVendorId.__members__)
