"""Quantization of models: the names of ``onnxruntime.quantization``, each imported when it is first used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.quantization.quant_utils import QuantFormat, QuantizationMode, QuantType

# Where the public names live, relative to this package.
_NAMES = {
    "calibrate": [
        "CalibraterBase",
        "CalibrationDataReader",
        "CalibrationMethod",
        "MinMaxCalibrater",
        "TensorData",
        "TensorsData",
        "create_calibrator",
        "load_tensors_data",
        "save_tensors_data",
    ],
    "qdq_quantizer": ["QDQQuantizer"],
    "quant_utils": ["QuantFormat", "QuantType", "QuantizationMode", "write_calibration_table"],
    "quantize": [
        "DynamicQuantConfig",
        "StaticQuantConfig",
        "get_qdq_config",
        "quantize",
        "quantize_dynamic",
        "quantize_static",
    ],
    "shape_inference": ["quant_pre_process"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "MinMaxCalibrater",
    "QDQQuantizer",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "save_tensors_data",
    "write_calibration_table",
]


_MODULES = frozenset(
    {
        "base_quantizer",
        "calibrate",
        "onnx_model",
        "onnx_quantizer",
        "qdq_quantizer",
        "quant_utils",
        "registry",
        "shape_inference",
        "tensor_quant_overrides",
    }
)


class _Package(ModuleType):
    """A package whose function `quantize` hides the module of that name, whoever imports that."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "quantize" and isinstance(value, ModuleType):
            value = value.quantize
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: Any = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
