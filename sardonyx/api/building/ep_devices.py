"""Which execution provider can use which hardware here."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx._version import API_VERSION
from sardonyx.api.arguments import as_text, wrong_argument
from sardonyx.api.device_enums import OrtCompiledModelCompatibility, OrtDeviceMemoryType, OrtHardwareDeviceType
from sardonyx.api.values.memory_info import OrtMemoryInfo
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.opening import open_file

# Processor vendors by what the operating system calls them: the name shown and the PCI vendor number.
_VENDORS = {
    "GenuineIntel": ("Intel", 0x8086),
    "AuthenticAMD": ("AMD", 0x1022),
    "0x41": ("ARM", 0x13B5),
    "0x51": ("Qualcomm", 0x5143),
    "Apple": ("Apple", 0x106B),
}


@dataclass(frozen=True, eq=False, repr=False)
class OrtHardwareDevice:
    """A processor or accelerator."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


class OrtSyncStream:
    """A queue of work on a device."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def get_handle(self) -> int:
        """The address of the device's stream."""
        return self._handle


@dataclass(frozen=True, eq=False, repr=False)
class OrtEpDevice:
    """A provider together with hardware that it runs on."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: Mapping[str, str] = field(default_factory=dict)
    ep_options: Mapping[str, str] = field(default_factory=dict)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """The device's own memory; None where it uses the host's."""
        return None

    def create_sync_stream(self) -> OrtSyncStream:
        """RuntimeError: the host's processor works without streams."""
        raise RuntimeError("ep_device does not use DEFAULT memory of a non-CPU device.")


@dataclass(frozen=True, eq=False, repr=False)
class OrtEpAssignedNode:
    """A node of a session's graph as `get_provider_graph_assignment_info` reports it."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, eq=False, repr=False)
class OrtEpAssignedSubgraph:
    """Nodes that one provider runs."""

    ep_name: str
    nodes: Sequence[OrtEpAssignedNode] = ()

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """The nodes that the provider runs."""
        return list(self.nodes)


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The processor of this machine; accelerators appear with a provider that uses them."""
    vendor, vendor_id = _VENDORS.get(_processor_vendor(), (_processor_vendor(), 0))
    return [OrtHardwareDevice(OrtHardwareDeviceType.CPU, vendor, vendor_id)]


def get_ep_devices() -> list[OrtEpDevice]:
    """Every pair of provider and device that sessions can run on."""
    return [
        OrtEpDevice("CPUExecutionProvider", "Microsoft", device, {"version": API_VERSION})
        for device in get_hardware_devices()
    ]


def get_hardware_device_ep_incompatibility_details(ep_name: str, device: OrtHardwareDevice) -> dict[str, Any]:
    """Why a provider does not work with a device: `reasons_bitmask` is 0 where nothing stands in its way.

    errors.InvalidArgument for a provider that no device of this machine has.
    """
    name = as_text("get_hardware_device_ep_incompatibility_details", ep_name)
    if all(name != known.ep_name for known in get_ep_devices()):
        raise errors.InvalidArgument(f"No valid factory found for execution provider '{name}'.")
    return {"reasons_bitmask": 0, "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(
    devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """Whether a model compiled ahead of time suits devices; no provider here loads such models."""
    as_text("get_model_compatibility_for_ep_devices", compatibility_info)
    if not devices:
        raise RuntimeError("get_model_compatibility_for_ep_devices needs at least one device")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE


def get_compatibility_info_from_model(model_path: str, ep_type: str) -> str | None:
    """What a compiled model in a file says of the devices that it is for; None where it says nothing."""
    path = as_text("get_compatibility_info_from_model", model_path)
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise RuntimeError(f"Load model {path} failed. {error.strerror}") from error
    return _compatibility_info("get_compatibility_info_from_model", data, ep_type)


def get_compatibility_info_from_model_bytes(model_data: bytes, ep_type: str) -> str | None:
    """The same for the bytes of a model."""
    return _compatibility_info("get_compatibility_info_from_model_bytes", model_data, ep_type)


def _compatibility_info(where: str, data: bytes, ep_type: str) -> str | None:
    import onnx
    from google.protobuf.message import DecodeError

    provider = as_text(where, ep_type)
    try:
        content = bytes(memoryview(data))
    except TypeError:
        raise wrong_argument(where, "bytes", data) from None
    if not content or not provider:
        raise RuntimeError(f"{where} needs a model and the name of a provider")
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError:
        raise RuntimeError("Protobuf parsing failed.") from None
    key = f"ep_compatibility_info.{provider}"
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """`Fail`: native provider libraries are not loaded; providers here are Python packages with an entry point."""
    reason = (
        "providers are Python packages with an entry point in 'sardonyx.execution_providers', not native libraries"
        if Path(library_path).exists()
        else "cannot open shared object file: No such file or directory"
    )
    raise errors.Fail(f"Failed to load library {library_path} with error: {library_path}: {reason}")


def unregister_execution_provider_library(registration_name: str) -> None:
    """`Fail` for a library that was not registered, as none can be."""
    raise errors.Fail(f"Execution provider library: {registration_name} was not registered.")


def _processor_vendor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("vendor_id", "CPU implementer"):
                return value.strip()
    except OSError:
        pass
    name = platform.processor()
    return next((vendor for vendor in _VENDORS if vendor in name), "Apple" if platform.system() == "Darwin" else name)
