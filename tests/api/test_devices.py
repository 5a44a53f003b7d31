import onnx
import pytest

import sardonyx
from sardonyx import errors
from sardonyx.capi import onnxruntime_pybind11_state as core

DEVICES = ["cpu", "cuda", "cann", "dml", "webgpu", "gpu", "npu"]
MEMORIES = [
    "Cpu",
    "Cuda",
    "CudaPinned",
    "Hip",
    "HipPinned",
    "DML",
    "WebGPU_Buf",
    "OpenVINO_GPU",
    "OpenVINO_RT_NPU",
    "QnnHtpShared",
]


def described(device):
    return device.device_id(), device.device_type(), device.device_vendor_id(), device.device_mem_type()


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("vendor", [-1, 0x1002])
def test_devices_are_those_of_onnxruntime(name, vendor):
    ort = pytest.importorskip("onnxruntime")
    assert described(sardonyx.OrtDevice.make(name, 3, vendor)) == described(ort.OrtDevice.make(name, 3, vendor))


def test_numbers_of_kinds():
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.capi.onnxruntime_pybind11_state.OrtDevice
    for name in ("cpu", "gpu", "cuda", "cann", "dml", "webgpu", "fpga", "npu", "default_memory"):
        assert getattr(core.OrtDevice, name)() == getattr(theirs, name)()
    ours = core.OrtDevice(1, 0, 0x1414, 3)
    assert (ours.device_type(), ours.device_id(), ours.vendor_id(), ours.mem_type()) == (1, 3, 0x1414, 0)


@pytest.mark.parametrize("name", ["CPU", "tpu", "fpga", "hip"])
def test_unknown_devices(name):
    with pytest.raises(Exception, match=f"Unsupported device type: {name}"):
        sardonyx.OrtDevice.make(name, 0)


def memory(info):
    return (
        info.name,
        info.device_id,
        info.mem_type.name,
        info.allocator_type.name,
        info.device_mem_type.name,
        info.device_vendor_id,
    )


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_descriptions_are_those_of_onnxruntime(name):
    ort = pytest.importorskip("onnxruntime")
    made = [
        module.OrtMemoryInfo(name, module.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, module.OrtMemType.DEFAULT)
        for module in (sardonyx, ort)
    ]
    assert memory(made[0]) == memory(made[1])


def test_memory_of_any_device():
    ort = pytest.importorskip("onnxruntime")
    made = [
        module.OrtMemoryInfo.create_v2(
            "Test",
            module.OrtMemoryInfoDeviceType.GPU,
            0x10DE,
            1,
            module.OrtDeviceMemoryType.HOST_ACCESSIBLE,
            256,
            module.OrtAllocatorType.ORT_DEVICE_ALLOCATOR,
        )
        for module in (sardonyx, ort)
    ]
    assert memory(made[0]) == memory(made[1])


def test_memory_of_unknown_names_is_refused():
    with pytest.raises(RuntimeError, match="Specified device is not supported"):
        sardonyx.OrtMemoryInfo("Foo", sardonyx.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, sardonyx.OrtMemType.DEFAULT)
    with pytest.raises(TypeError):
        sardonyx.OrtMemoryInfo("Cpu", 1, 0, 0)


def test_arena_settings():
    default = sardonyx.OrtArenaCfg({})
    assert [getattr(default, key) for key in sardonyx.OrtArenaCfg.KEYS] == [0, -1, -1, -1, -1, -1]
    assert sardonyx.OrtArenaCfg({"max_mem": 5, "arena_extend_strategy": 1}).arena_extend_strategy == 1
    assert sardonyx.OrtArenaCfg(1, 0, 2, 3).max_dead_bytes_per_chunk == 3
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg option: foo"):
        sardonyx.OrtArenaCfg({"foo": 1})
    with pytest.raises(RuntimeError, match="must be a whole number"):
        sardonyx.OrtArenaCfg({"max_mem": "5"})


def test_allocators_are_accepted_for_the_host_only():
    kinds = sardonyx.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, sardonyx.OrtMemType.DEFAULT
    host, device = sardonyx.OrtMemoryInfo("Cpu", *kinds), sardonyx.OrtMemoryInfo("Cuda", *kinds)
    for _ in range(2):
        assert sardonyx.create_and_register_allocator(host, None) is None
        assert sardonyx.create_and_register_allocator_v2("CPUExecutionProvider", host, {}, None) is None
    with pytest.raises(RuntimeError, match="Only CPU devices are supported"):
        sardonyx.create_and_register_allocator(device, None)
    with pytest.raises(RuntimeError, match="FooExecutionProvider is not implemented"):
        sardonyx.create_and_register_allocator_v2("FooExecutionProvider", host, {}, None)


def test_the_processor_is_the_one_that_onnxruntime_sees():
    ort = pytest.importorskip("onnxruntime")

    def hardware(device):
        return int(device.type), device.vendor, device.vendor_id, device.device_id

    def facts(module):
        return [
            (item.ep_vendor, dict(item.ep_metadata), dict(item.ep_options), *hardware(item.device))
            for item in module.get_ep_devices()
            if item.ep_name == "CPUExecutionProvider"
        ]

    assert facts(sardonyx) == facts(ort)
    assert sardonyx.get_ep_devices()[0].memory_info(sardonyx.OrtDeviceMemoryType.DEFAULT) is None
    with pytest.raises(RuntimeError, match="non-CPU device"):
        sardonyx.get_ep_devices()[0].create_sync_stream()


def test_native_provider_libraries_are_refused():
    with pytest.raises(errors.Fail, match=r"Failed to load library /nope.so with error"):
        sardonyx.register_execution_provider_library("x", "/nope.so")
    with pytest.raises(errors.Fail, match="x was not registered"):
        sardonyx.unregister_execution_provider_library("x")


def test_models_say_which_devices_they_were_compiled_for(tmp_path):
    proto = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []), ir_version=8)
    onnx.helper.set_model_props(proto, {"ep_compatibility_info.SomeProvider": "driver 1"})
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    path = str(tmp_path / "m.onnx")
    assert core.get_compatibility_info_from_model(path, "SomeProvider") == "driver 1"
    assert core.get_compatibility_info_from_model_bytes(data, "SomeProvider") == "driver 1"
    assert core.get_compatibility_info_from_model_bytes(data, "OtherProvider") is None
    for wrong in (b"", b"no model"):
        with pytest.raises(RuntimeError):
            core.get_compatibility_info_from_model_bytes(wrong, "SomeProvider")
    for wrong in ("", str(tmp_path / "missing.onnx")):
        with pytest.raises(RuntimeError, match="failed"):
            core.get_compatibility_info_from_model(wrong, "SomeProvider")
    with pytest.raises(RuntimeError):
        core.get_compatibility_info_from_model(path, "")
    with pytest.raises(TypeError):
        core.get_compatibility_info_from_model_bytes("text", "SomeProvider")


def test_only_providers_that_exist_fit_a_device():
    (device,) = core.get_hardware_devices()
    details = core.get_hardware_device_ep_incompatibility_details("CPUExecutionProvider", device)
    assert details["reasons_bitmask"] == details["error_code"] == 0
    with pytest.raises(errors.InvalidArgument, match="No valid factory found"):
        core.get_hardware_device_ep_incompatibility_details("", device)
    with pytest.raises(RuntimeError, match="at least one device"):
        core.get_model_compatibility_for_ep_devices([], "info")
    with pytest.raises(TypeError):
        core.get_model_compatibility_for_ep_devices(sardonyx.get_ep_devices(), None)
