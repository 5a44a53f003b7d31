"""LoRA adapters: files of tensors that replace overridable initializers for single runs."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.api.options import adapter_file
from sardonyx.api.values.core_value import CoreValue
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.runtime.files.opening import map_file, replacing

Array = np.ndarray[Any, Any]


class CoreAdapterFormat:
    """An adapter's versions and parameters at the C level, where they are properties."""

    def __init__(self) -> None:
        self.format_version = adapter_file.FORMAT_VERSION
        self._adapter_version = 0
        self._model_version = 0
        self.parameters: dict[str, CoreValue] = {}

    @property
    def adapter_version(self) -> int:
        return self._adapter_version

    @adapter_version.setter
    def adapter_version(self, version: int) -> None:
        self._adapter_version = operator.index(version)

    @property
    def model_version(self) -> int:
        return self._model_version

    @model_version.setter
    def model_version(self, version: int) -> None:
        self._model_version = operator.index(version)

    def export_adapter(self, path: str) -> None:
        """Write the adapter to a file; RuntimeError where that is impossible."""
        arrays = {name: value.array() for name, value in self.parameters.items()}
        content = adapter_file.write(
            adapter_file.Adapter(self.format_version, self.adapter_version, self.model_version, arrays)
        )
        try:
            with replacing(path) as file:
                file.write(content)
        except OSError as error:
            raise RuntimeError(f'Failed to open file:"{path}" for writing. {error.strerror}') from error

    @staticmethod
    def read_adapter(path: str) -> CoreAdapterFormat:
        """Read a file; RuntimeError where it is missing or no adapter."""
        content = _read(path)
        found = CoreAdapterFormat()
        found.adapter_version, found.model_version = content.adapter_version, content.model_version
        found.parameters = {name: CoreValue(array) for name, array in content.parameters.items()}
        return found


class AdapterFormat:
    """Read and write adapter files; they are those of onnxruntime."""

    def __init__(self, adapter: CoreAdapterFormat | None = None) -> None:
        self._adapter = CoreAdapterFormat() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Read a file; RuntimeError where it is missing or no adapter."""
        return AdapterFormat(CoreAdapterFormat.read_adapter(os.fspath(file_path)))

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write the adapter to a file; RuntimeError where that is impossible."""
        self._adapter.export_adapter(os.fspath(file_path))

    def get_format_version(self) -> int:
        """The version of the file format."""
        return self._adapter.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        """Set the version of the adapter, which its maker counts; TypeError for what is no integer."""
        self._adapter.adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        """The version of the adapter, 0 until it is set."""
        return self._adapter.adapter_version

    def set_model_version(self, model_version: int) -> None:
        """Set the version of the model that it is for; TypeError for what is no integer."""
        self._adapter.model_version = model_version

    def get_model_version(self) -> int:
        """The version of the model that it is for, 0 until it is set."""
        return self._adapter.model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Set the tensors, by the name of the initializer that each replaces."""
        self._adapter.parameters = {name: value._ortvalue for name, value in params.items()}

    def get_parameters(self) -> dict[str, OrtValue]:
        """The tensors by the name of the initializer that each replaces."""
        return {name: OrtValue(value) for name, value in self._adapter.parameters.items()}


class LoraAdapter:
    """An adapter's tensors, mapped from its file, for `RunOptions.add_active_adapter`."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Array] = {}

    def Load(self, file_path: str | os.PathLike[str]) -> None:  # noqa: N802 - the name that callers use
        """Map a file; RuntimeError where it is missing or no adapter."""
        self._parameters = _read(os.fspath(file_path)).parameters

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The tensors by the name of the initializer that they replace; empty before `Load`."""
        return self._parameters


def _read(path: str) -> adapter_file.Adapter:
    try:
        content = map_file(path)
    except OSError as error:
        raise RuntimeError(f"Cannot read the adapter file {path}: {error.strerror}") from error
    return adapter_file.read(content)
