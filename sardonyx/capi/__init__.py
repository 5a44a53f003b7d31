"""The module paths of onnxruntime below `capi`, where callers find exceptions and the C level."""

from __future__ import annotations

import importlib
from typing import Any

_SUBMODULES = (
    "_pybind_state",
    "build_and_package_info",
    "onnxruntime_inference_collection",
    "onnxruntime_pybind11_state",
    "onnxruntime_validation",
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
