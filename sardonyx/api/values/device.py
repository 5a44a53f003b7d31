"""Devices by name, kind and number."""

from __future__ import annotations

from sardonyx.api.enums import OrtDeviceVendorId

CPU, GPU, FPGA, NPU = 0, 1, 2, 3

# The kind and the vendor behind each name that a caller may use.
_NAMED: dict[str, tuple[int, OrtDeviceVendorId]] = {
    "cpu": (CPU, OrtDeviceVendorId.NONE),
    "cuda": (GPU, OrtDeviceVendorId.NVIDIA),
    "dml": (GPU, OrtDeviceVendorId.MICROSOFT),
    "webgpu": (GPU, OrtDeviceVendorId.NONE),
    "gpu": (GPU, OrtDeviceVendorId.NONE),
    "cann": (NPU, OrtDeviceVendorId.HUAWEI),
    "npu": (NPU, OrtDeviceVendorId.NONE),
}


class CoreDevice:
    """A place for values: kind, vendor, number and kind of memory (the class that the C level calls OrtDevice)."""

    __slots__ = ("_id", "_memory", "_type", "_vendor")

    def __init__(self, device_type: int, memory_type: int, *vendor_and_id: int) -> None:
        """`vendor_and_id` is the device's number, or its vendor and then its number."""
        if not 1 <= len(vendor_and_id) <= 2:
            raise TypeError("OrtDevice takes a kind, a memory type, optionally a vendor, and a device number")
        if memory_type not in (0, 5):
            raise RuntimeError(f"Invalid memory type: {memory_type}; it must be 0 (default) or 5 (host accessible)")
        self._type = int(device_type)
        self._memory = int(memory_type)
        self._vendor = int(vendor_and_id[0]) if len(vendor_and_id) == 2 else 0
        self._id = int(vendor_and_id[-1])

    def device_type(self) -> int:
        return self._type

    def device_id(self) -> int:
        return self._id

    def vendor_id(self) -> int:
        return self._vendor

    def mem_type(self) -> int:
        return self._memory

    @staticmethod
    def cpu() -> int:
        return CPU

    @staticmethod
    def gpu() -> int:
        return GPU

    @staticmethod
    def cuda() -> int:
        return GPU

    @staticmethod
    def webgpu() -> int:
        return GPU

    @staticmethod
    def fpga() -> int:
        return FPGA

    @staticmethod
    def npu() -> int:
        return NPU

    @staticmethod
    def cann() -> int:
        return NPU

    @staticmethod
    def dml() -> int:
        return 4

    @staticmethod
    def default_memory() -> int:
        return 0


def get_ort_device_type(device_type: str) -> int:
    """The number of a kind of device given by name; Exception for an unknown name, as onnxruntime raises."""
    return _named(device_type)[0]


def get_vendor_id_for_device_type(device_type: str) -> OrtDeviceVendorId | None:
    """The vendor that a device's name implies; None where the name implies none."""
    vendor = _NAMED.get(device_type, (CPU, OrtDeviceVendorId.NONE))[1]
    return vendor or None


def _named(name: str) -> tuple[int, OrtDeviceVendorId]:
    found = _NAMED.get(name)
    if found is None:
        raise Exception(f"Unsupported device type: {name}")
    return found


class OrtDevice:
    """A device as callers name it: ``OrtDevice.make("cpu", 0)``."""

    def __init__(self, c_ort_device: CoreDevice) -> None:
        if not isinstance(c_ort_device, CoreDevice):
            raise ValueError("OrtDevice is made from a device of the C level; use OrtDevice.make(name, number)")
        self._ort_device = c_ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """The device called cpu, cuda, cann, dml, webgpu, gpu or npu with a number; Exception for another name."""
        kind, vendor = _named(ort_device_name)
        implied = int(vendor_id) < 0 or ort_device_name == "dml"  # DirectML belongs to one vendor
        chosen = int(vendor) if implied else int(vendor_id)
        return OrtDevice(CoreDevice(kind, CoreDevice.default_memory(), chosen, device_id))

    def _get_c_device(self) -> CoreDevice:
        return self._ort_device

    def device_id(self) -> int:
        """The number of the device among those of its type."""
        return self._ort_device.device_id()

    def device_type(self) -> int:
        """The type as a number: 0 for the CPU."""
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        """The vendor of the device, 0 for the CPU."""
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        """The kind of memory as a number, 0 for the usual one."""
        return self._ort_device.mem_type()


def require_cpu(device: CoreDevice) -> None:
    """RuntimeError unless values can live on `device`."""
    if device.device_type() != CPU:
        raise RuntimeError(
            "Can't allocate memory on the device using this package of OnnxRuntime. Please use the device 'cpu': no "
            f"execution provider here has memory on devices of kind {device.device_type()}."
        )
