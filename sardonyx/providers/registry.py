"""Which providers there are: those registered as entry points, and the names that onnxruntime knows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata

from sardonyx.providers.base import ExecutionProvider
from sardonyx.providers.cpu import CPUExecutionProvider

ENTRY_POINT_GROUP = "sardonyx.execution_providers"

# All providers that onnxruntime 1.31 knows, by priority; most of them are not built here.
KNOWN_PROVIDERS = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "NvTensorRTRTX",
        "Tensorrt",
        "CUDA",
        "MIGraphX",
        "OpenVINO",
        "Dnnl",
        "VitisAI",
        "QNN",
        "Nnapi",
        "VSINPU",
        "Js",
        "CoreML",
        "ACL",
        "Dml",
        "Rknpu",
        "WebNN",
        "WebGpu",
        "Xnnpack",
        "CANN",
        "Azure",
        "CPU",
    )
)


@functools.cache
def _registered() -> Mapping[str, type[ExecutionProvider]]:
    """Providers by name, the CPU provider last: it takes what the others leave."""
    found = {entry.name: entry.load() for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    found.pop(CPUExecutionProvider.name, None)
    return {**found, CPUExecutionProvider.name: CPUExecutionProvider}


def available() -> list[str]:
    """Names of the providers that can run here, in priority order."""
    return [name for name, cls in _registered().items() if cls.is_available() is None]


def create(name: str, options: Mapping[str, str]) -> ExecutionProvider:
    """A provider for one session; KeyError for a name that is not registered."""
    return _registered()[name](options)
