"""What onnxruntime keeps in its native module: the exceptions, the C level's classes and functions, enumerations.

The classes of the C level carry other names inside Sardonyx (`CoreValue` for this module's `OrtValue`). What needs a
session or a model is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.api.build_info import get_version_string, has_collective_ops
from sardonyx.api.enums import (
    ArenaExtendStrategy,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from sardonyx.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)

if TYPE_CHECKING:
    from sardonyx.api.core_value import CoreValue as OrtValue
    from sardonyx.api.core_value import copy_tensors
    from sardonyx.api.device import CoreDevice as OrtDevice
    from sardonyx.api.dlpack import is_dlpack_uint8_tensor
    from sardonyx.api.environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from sardonyx.api.ep_context import OrtEpContextData, OrtEpContextDataBuffer, OrtExternalInitializerInfo
    from sardonyx.api.ep_devices import (
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpDevice,
        OrtHardwareDevice,
        OrtSyncStream,
        get_ep_devices,
        get_hardware_device_ep_incompatibility_details,
        get_hardware_devices,
        get_model_compatibility_for_ep_devices,
        register_execution_provider_library,
        unregister_execution_provider_library,
    )
    from sardonyx.api.io_binding import SessionIOBinding
    from sardonyx.api.lora import CoreAdapterFormat as AdapterFormat
    from sardonyx.api.lora import LoraAdapter
    from sardonyx.api.memory_info import (
        OrtArenaCfg,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from sardonyx.api.model_metadata import ModelMetadata
    from sardonyx.api.native_session import NativeSession as InferenceSession
    from sardonyx.api.node_arg import NodeArg
    from sardonyx.api.ort_value_vector import OrtValueVector
    from sardonyx.api.run_options import RunOptions
    from sardonyx.api.session_options import SessionOptions
    from sardonyx.api.sparse_tensor import CoreSparseTensor as SparseTensor
    from sardonyx.api.sparse_tensor import SparseBlockSparseView, SparseCooView, SparseCsrView
    from sardonyx.api.weight_quantization import (
        quantize_matmul_2bits,
        quantize_matmul_4bits,
        quantize_matmul_8bits,
        quantize_matmul_bnb4,
    )

kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo  # noqa: N816 - the names that callers use
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested  # noqa: N816

# Names imported on first use, by the module of `sardonyx.api` that has them.
_NAMES: dict[str, tuple[str, ...]] = {
    "core_value": ("copy_tensors",),
    "dlpack": ("is_dlpack_uint8_tensor",),
    "environment": (
        "disable_telemetry_events",
        "enable_telemetry_events",
        "get_all_providers",
        "get_available_providers",
        "get_build_info",
        "get_device",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
        "set_global_thread_pool_sizes",
        "set_seed",
    ),
    "ep_context": ("OrtEpContextData", "OrtEpContextDataBuffer", "OrtExternalInitializerInfo"),
    "ep_devices": (
        "OrtEpAssignedNode",
        "OrtEpAssignedSubgraph",
        "OrtEpDevice",
        "OrtHardwareDevice",
        "OrtSyncStream",
        "get_ep_devices",
        "get_hardware_device_ep_incompatibility_details",
        "get_hardware_devices",
        "get_model_compatibility_for_ep_devices",
        "register_execution_provider_library",
        "unregister_execution_provider_library",
    ),
    "io_binding": ("SessionIOBinding",),
    "lora": ("LoraAdapter",),
    "memory_info": (
        "OrtArenaCfg",
        "OrtMemoryInfo",
        "create_and_register_allocator",
        "create_and_register_allocator_v2",
    ),
    "model_metadata": ("ModelMetadata",),
    "node_arg": ("NodeArg",),
    "ort_value_vector": ("OrtValueVector",),
    "run_options": ("RunOptions",),
    "session_options": ("SessionOptions",),
    "sparse_tensor": ("SparseBlockSparseView", "SparseCooView", "SparseCsrView"),
    "weight_quantization": (
        "quantize_matmul_2bits",
        "quantize_matmul_4bits",
        "quantize_matmul_8bits",
        "quantize_matmul_bnb4",
    ),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES |= {
    "AdapterFormat": ("lora", "CoreAdapterFormat"),
    "InferenceSession": ("native_session", "NativeSession"),
    "OrtDevice": ("device", "CoreDevice"),
    "OrtValue": ("core_value", "CoreValue"),
    "SparseTensor": ("sparse_tensor", "CoreSparseTensor"),
}
__all__ = [
    "AdapterFormat",
    "ArenaExtendStrategy",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "LoraAdapter",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtCompiledModelCompatibility",
    "OrtDevice",
    "OrtDeviceEpIncompatibilityReason",
    "OrtDeviceMemoryType",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "SparseBlockSparseView",
    "SparseCooView",
    "SparseCsrView",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_default_session_options",
    "get_device",
    "get_ep_devices",
    "get_hardware_device_ep_incompatibility_details",
    "get_hardware_devices",
    "get_model_compatibility_for_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "is_dlpack_uint8_tensor",
    "kNextPowerOfTwo",
    "kSameAsRequested",
    "quantize_matmul_2bits",
    "quantize_matmul_4bits",
    "quantize_matmul_8bits",
    "quantize_matmul_bnb4",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]


def get_default_session_options() -> SessionOptions:
    """New options with all defaults."""
    from sardonyx.api.session_options import SessionOptions

    return SessionOptions()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(f"sardonyx.api.{module}"), attribute)
    globals()[name] = value
    return value
