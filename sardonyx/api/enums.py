"""The enumerations of the API that every session needs, with the numbers that onnxruntime gives them.

They behave like onnxruntime's: `name`, `value`, `int()`, usable as an index, made from a number and equal to that
number. A setting never takes a number in place of an enumeration.
"""

from __future__ import annotations

import enum


class Number(enum.Enum):
    """A named number, equal to any number or named number of the same value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float | enum.Enum) and bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class GraphOptimizationLevel(Number):
    """How much of the graph a session rewrites."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(Number):
    """Whether independent nodes may run at the same time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Number):
    """The order in which a session lines up its nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtExecutionProviderDevicePolicy(Number):
    """A preference by which a session picks devices itself."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(Number):
    """How a sparse tensor states where its values lie."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


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
