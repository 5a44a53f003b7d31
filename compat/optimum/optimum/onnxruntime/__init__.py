"""The classes of Optimum for ONNX models, with Sardonyx behind them, for packages that ask for `optimum.onnxruntime`.

Optimum's own package refuses transformers 5. What is here are the names of `sardonyx.models`, nothing else: Optimum's
exporter, optimizer and quantizer are not.
"""

from typing import Any

from sardonyx import models

ONNX_WEIGHTS_NAME = "model.onnx"


def __getattr__(name: str) -> Any:
    if name.startswith("ORTModel"):
        return getattr(models, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return ["ONNX_WEIGHTS_NAME", *(name for name in dir(models) if name.startswith("ORTModel"))]
