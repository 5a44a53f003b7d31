"""The enumerations of the API of devices and their memory, and of models that are compiled for them: few processes need
them. They behave like those of `enums`."""

from __future__ import annotations

import enum

from sardonyx.api.enums import Number


def _name(member: enum.Enum) -> str:
    return f"{type(member).__name__}.{member.name}"


class _Arithmetic(enum.IntEnum):
    """A named number that also compares and combines with numbers."""

    def __repr__(self) -> str:
        return f"<{_name(self)}: {int(self)}>"

    def __str__(self) -> str:
        return _name(self)


class _Flags(enum.IntFlag):
    """Named bits: members combine with ``|`` and compare with numbers."""

    def __repr__(self) -> str:
        return f"<{_name(self)}: {int(self)}>"

    def __str__(self) -> str:
        return _name(self)


class OrtAllocatorType(Number):
    """Whether memory comes from the device directly or through an arena."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(Number):
    """The use of memory from a provider's point of view."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(Number):
    """Memory of a device: its own, or memory that the host can address too."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtCompileApiFlags(_Flags):
    """What `ModelCompiler` treats as an error."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtHardwareDeviceType(Number):
    """Kinds of hardware that `get_ep_devices` lists."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemoryInfoDeviceType(Number):
    """Kinds of hardware in a memory description."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtCompiledModelCompatibility(Number):
    """Whether a model compiled ahead of time suits a device."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(_Arithmetic):
    """Why a provider does not work with a device."""

    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -(2**31)


class ArenaExtendStrategy(_Arithmetic):
    """How an arena grows."""

    kNextPowerOfTwo = 0  # noqa: N815 - the names that callers use
    kSameAsRequested = 1  # noqa: N815
