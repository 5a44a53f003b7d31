"""Descriptions of memory and of arenas, which callers pass around and compare."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from sardonyx.api.device_enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemoryInfoDeviceType, OrtMemType
from sardonyx.api.enums import OrtDeviceVendorId
from sardonyx.api.values.device import CPU, GPU, NPU, CoreDevice
from sardonyx.runtime.memory import shared_arena
from sardonyx.runtime.memory.memory import MemoryLimit
from sardonyx.runtime.memory.shared_arena import MOST_DOUBLED, ArenaGrowth

# How an arena is extended.
_DEFAULT, _POWERS_OF_TWO, _SAME_AS_REQUESTED = -1, 0, 1

# Names that stand for a device: its kind, vendor, and whether the memory is the host's, visible to the device.
_NAMED: dict[str, tuple[int, OrtDeviceVendorId, bool]] = {
    "Cpu": (CPU, OrtDeviceVendorId.NONE, False),
    "Cuda": (GPU, OrtDeviceVendorId.NVIDIA, False),
    "CudaPinned": (GPU, OrtDeviceVendorId.NVIDIA, True),
    "Hip": (GPU, OrtDeviceVendorId.AMD, False),
    "HipPinned": (GPU, OrtDeviceVendorId.AMD, True),
    "DML": (GPU, OrtDeviceVendorId.MICROSOFT, False),
    "WebGPU_Buf": (GPU, OrtDeviceVendorId.NONE, False),
    "OpenVINO_GPU": (GPU, OrtDeviceVendorId.INTEL, False),
    "OpenVINO_RT_NPU": (NPU, OrtDeviceVendorId.INTEL, False),
    "QnnHtpShared": (CPU, OrtDeviceVendorId.QUALCOMM, True),
}


class OrtMemoryInfo:
    """Memory of a device by the name of its allocator."""

    def __init__(self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType) -> None:
        """Describe memory by a known name (``Cpu``, ``Cuda``, ``CudaPinned``…); RuntimeError for another name."""
        if not isinstance(allocator_type, OrtAllocatorType) or not isinstance(mem_type, OrtMemType):
            raise TypeError(
                "OrtMemoryInfo takes a name, an OrtAllocatorType, a device number and an OrtMemType; got "
                f"{allocator_type!r} and {mem_type!r}"
            )
        if name not in _NAMED:
            raise RuntimeError(
                f"Specified device is not supported. Try CreateMemoryInfo_V2. '{name}' is none of {', '.join(_NAMED)}"
            )
        kind, vendor, pinned = _NAMED[name]
        memory = OrtDeviceMemoryType.HOST_ACCESSIBLE if pinned else OrtDeviceMemoryType.DEFAULT
        self._set(name, CoreDevice(kind, int(memory), int(vendor), device_id), mem_type, allocator_type)

    def _set(self, name: str, device: CoreDevice, mem_type: OrtMemType, allocator_type: OrtAllocatorType) -> None:
        self._name = name
        self._device = device
        self._mem_type = mem_type
        self._allocator_type = allocator_type

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Describe memory of any device under any name."""
        info = OrtMemoryInfo.__new__(OrtMemoryInfo)
        device = CoreDevice(int(device_type), int(device_mem_type), vendor_id, device_id)
        host = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        info._set(name, device, OrtMemType.CPU_OUTPUT if host else OrtMemType.DEFAULT, allocator_type)
        return info

    def core_device(self) -> CoreDevice:
        """The device that the memory belongs to; the host's where the device only sees it."""
        return self._device

    @property
    def name(self) -> str:
        return self._name

    @property
    def device_id(self) -> int:
        return self._device.device_id()

    @property
    def mem_type(self) -> OrtMemType:
        return self._mem_type

    @property
    def allocator_type(self) -> OrtAllocatorType:
        return self._allocator_type

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        return OrtDeviceMemoryType(self._device.mem_type())

    @property
    def device_vendor_id(self) -> int:
        return self._device.vendor_id()


class OrtArenaCfg:
    """How an arena grows; -1 leaves a value to the arena, and a `max_mem` of 0 sets no limit."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    def __init__(self, *values: Any) -> None:
        """Take the first four values of `KEYS` in order, or one dict with any of the keys; RuntimeError otherwise."""
        if len(values) == 1 and isinstance(values[0], dict):
            given = values[0]
        elif len(values) == 4:
            given = dict(zip(self.KEYS, values, strict=False))
        else:
            raise TypeError(f"OrtArenaCfg takes a dict or the four numbers {', '.join(self.KEYS[:4])}")
        for key in self.KEYS:
            setattr(self, key, 0 if key == "max_mem" else -1)
        for key, value in given.items():
            if key not in self.KEYS:
                raise RuntimeError(f"Invalid OrtArenaCfg option: {key}; known are {', '.join(self.KEYS)}")
            try:
                setattr(self, key, operator.index(value))
            except TypeError:
                raise RuntimeError(f"OrtArenaCfg option {key} must be a whole number, not {value!r}") from None
        if self.max_mem < 0:
            raise RuntimeError(
                f"OrtArenaCfg option max_mem must be a number of bytes, or 0 for any, not {self.max_mem}"
            )

    def growth(self) -> ArenaGrowth:
        """How arenas of these values grow; RuntimeError for an unknown strategy."""
        if self.arena_extend_strategy not in (_DEFAULT, _POWERS_OF_TWO, _SAME_AS_REQUESTED):
            raise RuntimeError(
                f"Received invalid value of arena_extend_strategy {self.arena_extend_strategy}; it is 0 for sizes that "
                "are powers of two, or 1 for those that are requested"
            )
        most = self.max_power_of_two_extend_bytes
        return ArenaGrowth(
            doubles=self.arena_extend_strategy != _SAME_AS_REQUESTED,
            first=max(0, self.initial_chunk_size_bytes),
            second=max(0, self.initial_growth_chunk_size_bytes),
            most_doubled=most if most >= 0 else MOST_DOUBLED,
        )

    def limit(self) -> MemoryLimit | None:
        """The limit of `max_mem`."""
        return MemoryLimit(self.max_mem, "max_mem of OrtArenaCfg") if self.max_mem > 0 else None


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Let sessions with the config ``session.use_env_allocators`` = 1, made from now on, run in one arena.

    Memory by a device allocator is no arena: such sessions keep memory of their own then. RuntimeError for memory
    of other devices than the host.
    """
    if not isinstance(mem_info, OrtMemoryInfo) or not isinstance(arena_cfg, OrtArenaCfg | None):
        raise TypeError(f"expected an OrtMemoryInfo and an OrtArenaCfg or None, not {mem_info!r} and {arena_cfg!r}")
    if mem_info.core_device().device_type() != CPU:
        raise RuntimeError(
            "Error when creating and registering allocator: Only CPU devices are supported. Please call "
            "CreateAndRegisterAllocatorV2() for other device."
        )
    if mem_info.allocator_type == OrtAllocatorType.ORT_ARENA_ALLOCATOR:
        config = OrtArenaCfg({}) if arena_cfg is None else arena_cfg
        shared_arena.register(config.growth(), config.limit())
    else:
        shared_arena.unregister()


def create_and_register_allocator_v2(
    provider_type: str,
    mem_info: OrtMemoryInfo,
    options: dict[str, str],
    arena_cfg: OrtArenaCfg | None = None,
) -> None:
    """As `create_and_register_allocator`, for a provider by name; RuntimeError for one without its own memory."""
    if provider_type != "CPUExecutionProvider":
        raise RuntimeError(
            "Error when creating and registering allocator in create_and_register_allocator_v2: "
            f"{provider_type} is not implemented in CreateAndRegisterAllocatorV2()"
        )
    create_and_register_allocator(mem_info, arena_cfg)
