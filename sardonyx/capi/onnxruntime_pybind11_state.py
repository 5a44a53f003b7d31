"""What onnxruntime keeps in its native module: the exceptions, the C level's classes and functions, enumerations.

The classes of the C level carry other names inside Sardonyx (`CoreValue` for this module's `OrtValue`). What needs a
session or a model is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.api.build_info import get_version_string, has_collective_ops
from sardonyx.api.device_enums import (
    ArenaExtendStrategy,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
    OrtDeviceMemoryType,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from sardonyx.api.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
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
    from sardonyx.api.building.ep_devices import (
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpDevice,
        OrtHardwareDevice,
        OrtSyncStream,
        get_compatibility_info_from_model,
        get_compatibility_info_from_model_bytes,
        get_ep_devices,
        get_hardware_device_ep_incompatibility_details,
        get_hardware_devices,
        get_model_compatibility_for_ep_devices,
        register_execution_provider_library,
        unregister_execution_provider_library,
    )
    from sardonyx.api.building.model_metadata import ModelMetadata
    from sardonyx.api.building.node_arg import NodeArg
    from sardonyx.api.building.weight_quantization import (
        quantize_matmul_2bits,
        quantize_matmul_4bits,
        quantize_matmul_8bits,
        quantize_matmul_bnb4,
        quantize_qdq_matmul_2bits,
        quantize_qdq_matmul_4bits,
    )
    from sardonyx.api.native_session import NativeSession as InferenceSession
    from sardonyx.api.options.environment import (
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
    from sardonyx.api.options.ep_context import OrtEpContextData, OrtEpContextDataBuffer, OrtExternalInitializerInfo
    from sardonyx.api.options.lora import CoreAdapterFormat as AdapterFormat
    from sardonyx.api.options.lora import LoraAdapter
    from sardonyx.api.options.run_options import RunOptions
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.running.io_binding import SessionIOBinding
    from sardonyx.api.values.core_value import CoreValue as OrtValue
    from sardonyx.api.values.core_value import copy_tensors
    from sardonyx.api.values.device import CoreDevice as OrtDevice
    from sardonyx.api.values.dlpack import is_dlpack_uint8_tensor
    from sardonyx.api.values.memory_info import (
        OrtArenaCfg,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from sardonyx.api.values.ort_value_vector import OrtValueVector
    from sardonyx.api.values.sparse_tensor import CoreSparseTensor as SparseTensor
    from sardonyx.api.values.sparse_tensor import SparseBlockSparseView, SparseCooView, SparseCsrView

kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo  # noqa: N816 - the names that callers use
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested  # noqa: N816

# Names imported on first use, by the module of `sardonyx.api` that has them.
_NAMES: dict[str, tuple[str, ...]] = {
    "values.core_value": ("copy_tensors",),
    "values.dlpack": ("is_dlpack_uint8_tensor",),
    "options.environment": (
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
    "options.ep_context": ("OrtEpContextData", "OrtEpContextDataBuffer", "OrtExternalInitializerInfo"),
    "building.ep_devices": (
        "OrtEpAssignedNode",
        "OrtEpAssignedSubgraph",
        "OrtEpDevice",
        "OrtHardwareDevice",
        "OrtSyncStream",
        "get_compatibility_info_from_model",
        "get_compatibility_info_from_model_bytes",
        "get_ep_devices",
        "get_hardware_device_ep_incompatibility_details",
        "get_hardware_devices",
        "get_model_compatibility_for_ep_devices",
        "register_execution_provider_library",
        "unregister_execution_provider_library",
    ),
    "running.io_binding": ("SessionIOBinding",),
    "options.lora": ("LoraAdapter",),
    "values.memory_info": (
        "OrtArenaCfg",
        "OrtMemoryInfo",
        "create_and_register_allocator",
        "create_and_register_allocator_v2",
    ),
    "building.model_metadata": ("ModelMetadata",),
    "building.node_arg": ("NodeArg",),
    "values.ort_value_vector": ("OrtValueVector",),
    "options.run_options": ("RunOptions",),
    "options.session_options": ("SessionOptions",),
    "values.sparse_tensor": ("SparseBlockSparseView", "SparseCooView", "SparseCsrView"),
    "building.weight_quantization": (
        "quantize_matmul_2bits",
        "quantize_matmul_4bits",
        "quantize_matmul_8bits",
        "quantize_matmul_bnb4",
        "quantize_qdq_matmul_2bits",
        "quantize_qdq_matmul_4bits",
    ),
}
_HOMES = {name: (module, name) for module, names in _NAMES.items() for name in names}
_HOMES |= {
    "AdapterFormat": ("options.lora", "CoreAdapterFormat"),
    "InferenceSession": ("native_session", "NativeSession"),
    "OrtDevice": ("values.device", "CoreDevice"),
    "OrtValue": ("values.core_value", "CoreValue"),
    "SparseTensor": ("values.sparse_tensor", "CoreSparseTensor"),
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
    "get_compatibility_info_from_model",
    "get_compatibility_info_from_model_bytes",
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
    "quantize_qdq_matmul_2bits",
    "quantize_qdq_matmul_4bits",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]


def get_default_session_options() -> SessionOptions:
    """New options with all defaults."""
    from sardonyx.api.options.session_options import SessionOptions

    return SessionOptions()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(f"sardonyx.api.{module}"), attribute)
    globals()[name] = value
    return value
