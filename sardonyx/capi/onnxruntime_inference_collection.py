"""The classes of the Python level under the module name that tracebacks and imports of onnxruntime show."""

from sardonyx.api.building.provider_choice import normalize as check_and_normalize_provider_args
from sardonyx.api.enums import OrtDeviceVendorId
from sardonyx.api.model_compiler import ModelCompiler, make_get_initializer_location_func_wrapper
from sardonyx.api.options.lora import AdapterFormat
from sardonyx.api.running.io_binding import IOBinding
from sardonyx.api.session import InferenceSession
from sardonyx.api.values.device import OrtDevice, get_ort_device_type, get_vendor_id_for_device_type
from sardonyx.api.values.ort_value import OrtValue, copy_tensors
from sardonyx.api.values.sparse_tensor import SparseTensor

Session = InferenceSession  # onnxruntime's base class of it, which annotations and checks of types name

__all__ = [
    "AdapterFormat",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "check_and_normalize_provider_args",
    "copy_tensors",
    "get_ort_device_type",
    "get_vendor_id_for_device_type",
    "make_get_initializer_location_func_wrapper",
]
