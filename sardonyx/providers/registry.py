"""Which providers there are: those registered as entry points, and the names that onnxruntime knows."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from sardonyx import log
from sardonyx.providers.base import ExecutionProvider
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.providers.entry_points import entry_points

ENTRY_POINT_GROUP = "sardonyx.execution_providers"

CPU = CPUExecutionProvider.name

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
    """Providers by name, the CPU provider last: it takes what the others leave.

    A provider whose package cannot be imported is left out with a warning, so that one broken installation does not
    take the others with it.
    """
    found: dict[str, type[ExecutionProvider]] = {}
    for entry in entry_points(ENTRY_POINT_GROUP, CPU):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # whatever the import of a foreign package raises
            log.DEFAULT.warning(f"Failed to load {entry.name} from {entry.value}: {error}", "providers")
    return {**found, CPU: CPUExecutionProvider}


@functools.cache
def _available() -> tuple[str, ...]:
    return tuple(name for name, cls in _registered().items() if cls.is_available() is None)


def available() -> list[str]:
    """Names of the providers that can run here, in priority order."""
    return list(_available())


def known() -> list[str]:
    """Every name that may be asked for without being an error: the registered ones and onnxruntime's."""
    return [*(name for name in _registered() if name not in KNOWN_PROVIDERS), *KNOWN_PROVIDERS]


def why_unavailable(name: str) -> str:
    """Why a known provider cannot run here."""
    cls = _registered().get(name)
    return "it is not installed" if cls is None else cls.is_available() or "it can run here"


def create(name: str, options: Mapping[str, str]) -> ExecutionProvider:
    """A provider for one session; KeyError for a name that is not registered."""
    return _registered()[name](options)
