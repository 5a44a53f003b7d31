"""The enumerations of the API, with the numbers that onnxruntime gives them.

They behave like onnxruntime's: `name`, `value`, `int()`, usable as an index, made from a number and equal to that
number. A setting never takes a number in place of an enumeration.
"""

from __future__ import annotations

import enum


class _Number(enum.Enum):
    """A named number, equal to any number or named number of the same value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float | enum.Enum) and bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


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


class GraphOptimizationLevel(_Number):
    """How much of the graph a session rewrites."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Number):
    """Whether independent nodes may run at the same time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Number):
    """The order in which a session lines up its nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Number):
    """Whether memory comes from the device directly or through an arena."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Number):
    """The use of memory from a provider's point of view."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtSparseFormat(_Number):
    """How a sparse tensor states where its values lie."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtDeviceMemoryType(_Number):
    """Memory of a device: its own, or memory that the host can address too."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtCompileApiFlags(_Flags):
    """What `ModelCompiler` treats as an error."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtExecutionProviderDevicePolicy(_Number):
    """A preference by which a session picks devices itself."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtHardwareDeviceType(_Number):
    """Kinds of hardware that `get_ep_devices` lists."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemoryInfoDeviceType(_Number):
    """Kinds of hardware in a memory description."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtCompiledModelCompatibility(_Number):
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


class OrtDeviceVendorId(enum.IntEnum):
    """PCI vendor numbers of devices."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
