"""Sardonyx: an inference engine for ONNX models with the API of onnxruntime.

``import sardonyx as ort`` serves programs written for onnxruntime. Every name below is imported when it is first used,
so that the import itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx import _late_modules, absent_modules
from sardonyx._version import API_VERSION, __version__

if TYPE_CHECKING:
    from sardonyx import capi, quantization
    from sardonyx.api.build_info import (
        cuda_version,
        get_version_string,
        has_collective_ops,
        package_name,
        preload_dlls,
        print_debug_info,
    )
    from sardonyx.api.building.ep_devices import (
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpDevice,
        OrtHardwareDevice,
        OrtSyncStream,
        get_ep_devices,
        register_execution_provider_library,
        unregister_execution_provider_library,
    )
    from sardonyx.api.building.model_metadata import ModelMetadata
    from sardonyx.api.building.node_arg import NodeArg
    from sardonyx.api.device_enums import (
        OrtAllocatorType,
        OrtCompileApiFlags,
        OrtDeviceMemoryType,
        OrtHardwareDeviceType,
        OrtMemoryInfoDeviceType,
        OrtMemType,
    )
    from sardonyx.api.enums import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtDeviceVendorId,
        OrtExecutionProviderDevicePolicy,
        OrtSparseFormat,
    )
    from sardonyx.api.model_compiler import ModelCompiler
    from sardonyx.api.options.environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_custom_create_thread_fn,
        set_global_custom_join_thread_fn,
        set_global_custom_thread_creation_options,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from sardonyx.api.options.ep_context import OrtEpContextData, OrtEpContextDataBuffer, OrtExternalInitializerInfo
    from sardonyx.api.options.lora import AdapterFormat, LoraAdapter
    from sardonyx.api.options.run_options import RunOptions
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.api.running.io_binding import IOBinding, SessionIOBinding
    from sardonyx.api.session import InferenceSession
    from sardonyx.api.values.device import OrtDevice
    from sardonyx.api.values.memory_info import (
        OrtArenaCfg,
        OrtMemoryInfo,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from sardonyx.api.values.ort_value import OrtValue, copy_tensors
    from sardonyx.api.values.sparse_tensor import SparseTensor
    from sardonyx.capi import onnxruntime_validation

# The version of onnxruntime whose API this is.
version = API_VERSION
__author__ = "The Sardonyx developers"

# What went wrong when the native part was imported: there is none.
import_capi_exception = None

# Where the public names live, relative to this package.
_NAMES = {
    "api.build_info": [
        "cuda_version",
        "get_version_string",
        "has_collective_ops",
        "package_name",
        "preload_dlls",
        "print_debug_info",
    ],
    "api.values.device": ["OrtDevice"],
    "api.device_enums": [
        "OrtAllocatorType",
        "OrtCompileApiFlags",
        "OrtDeviceMemoryType",
        "OrtHardwareDeviceType",
        "OrtMemType",
        "OrtMemoryInfoDeviceType",
    ],
    "api.enums": [
        "ExecutionMode",
        "ExecutionOrder",
        "GraphOptimizationLevel",
        "OrtDeviceVendorId",
        "OrtExecutionProviderDevicePolicy",
        "OrtSparseFormat",
    ],
    "api.options.environment": [
        "disable_telemetry_events",
        "enable_telemetry_events",
        "get_all_providers",
        "get_available_providers",
        "get_build_info",
        "get_device",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
        "set_global_custom_create_thread_fn",
        "set_global_custom_join_thread_fn",
        "set_global_custom_thread_creation_options",
        "set_global_thread_pool_sizes",
        "set_seed",
    ],
    "api.options.ep_context": ["OrtEpContextData", "OrtEpContextDataBuffer", "OrtExternalInitializerInfo"],
    "api.building.ep_devices": [
        "OrtEpAssignedNode",
        "OrtEpAssignedSubgraph",
        "OrtEpDevice",
        "OrtHardwareDevice",
        "OrtSyncStream",
        "get_ep_devices",
        "register_execution_provider_library",
        "unregister_execution_provider_library",
    ],
    "api.running.io_binding": ["IOBinding", "SessionIOBinding"],
    "api.options.lora": ["AdapterFormat", "LoraAdapter"],
    "api.values.memory_info": [
        "OrtArenaCfg",
        "OrtMemoryInfo",
        "create_and_register_allocator",
        "create_and_register_allocator_v2",
    ],
    "api.model_compiler": ["ModelCompiler"],
    "api.building.model_metadata": ["ModelMetadata"],
    "api.building.node_arg": ["NodeArg"],
    "api.values.ort_value": ["OrtValue", "copy_tensors"],
    "api.options.run_options": ["RunOptions"],
    "api.session": ["InferenceSession"],
    "api.options.session_options": ["SessionOptions"],
    "api.values.sparse_tensor": ["SparseTensor"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_SUBMODULES = {
    "capi": "capi",
    "onnxruntime_validation": "capi.onnxruntime_validation",
    "quantization": "quantization",
}

__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
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
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_custom_create_thread_fn",
    "set_global_custom_join_thread_fn",
    "set_global_custom_thread_creation_options",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
    "__version__",
    "capi",
    "import_capi_exception",
    "onnxruntime_validation",
    "quantization",
    "version",
]


_late_modules.install()
absent_modules.install(__name__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _SUBMODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from sardonyx.runtime.forks import whole
    from sardonyx.runtime.native.collector import paused

    with whole(), paused():
        module = _imported(f"{__name__}.{_HOMES.get(name) or _SUBMODULES[name]}")
    value: Any = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def _imported(name: str) -> Any:
    """A module; `errors.Fail` where there is too little address space for it, or for NumPy, which it may need."""
    from sardonyx.runtime.memory import address_space

    address_space.require_numpy()
    return address_space.typed(f"Importing {name}")(importlib.import_module)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
