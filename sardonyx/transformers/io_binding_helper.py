"""The types of a session's inputs and outputs in NumPy, ONNX and PyTorch; torch is imported where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.api.values import element_types

if TYPE_CHECKING:
    from sardonyx.api.session import InferenceSession

# Names of element types whose name in torch is another one.
_TORCH_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
_NUMPY_TYPES = [
    "int64",
    "int32",
    "float",
    "float16",
    "bool",
    "uint8",
    "int8",
    "double",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
]


class TypeHelper:
    """Types by the texts that sessions show, such as ``tensor(float)``."""

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        """The type of an input; ValueError where the model has none of that name."""
        return _type_of(ort_session.get_inputs(), name, "input")

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        """The type of an output; ValueError where the model has none of that name."""
        return _type_of(ort_session.get_outputs(), name, "output")

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """The NumPy type; ValueError for texts, types that NumPy lacks and non-tensors."""
        name = _element_name(ort_type)
        if name not in _NUMPY_TYPES:
            raise ValueError(f"{ort_type} is not supported: NumPy has no type for it")
        return element_types.by_name(name).dtype.type

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """The number in ``onnx.TensorProto.DataType``."""
        try:
            return element_types.by_name(_element_name(ort_type)).number
        except RuntimeError as error:
            raise ValueError(f"{ort_type} is not supported: {error}") from error

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """The torch dtype; ValueError where torch has none."""
        import torch

        name = _element_name(ort_type)
        found = getattr(torch, _TORCH_NAMES.get(name, name), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{ort_type} is not supported: torch has no type for it")
        return found

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """The torch dtype of a NumPy type."""
        return TypeHelper.ort_type_to_torch_type(f"tensor({_numpy_element(numpy_type)})")

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        """The NumPy type of a torch dtype; ValueError where NumPy has none."""
        name = str(torch_type).removeprefix("torch.")
        if name not in {_TORCH_NAMES.get(known, known) for known in _NUMPY_TYPES}:
            raise ValueError(f"{torch_type} is not supported: NumPy has no type for it")
        return np.dtype(name).type

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """The NumPy type of every input and output."""
        return {item.name: TypeHelper.ort_type_to_numpy_type(item.type) for item in _arguments(ort_session)}

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        """The ONNX number of every input and output."""
        return {item.name: TypeHelper.ort_type_to_onnx_type(item.type) for item in _arguments(ort_session)}

    @staticmethod
    def get_io_torch_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """The torch dtype of every input and output."""
        return {item.name: TypeHelper.ort_type_to_torch_type(item.type) for item in _arguments(ort_session)}


def _arguments(session: InferenceSession) -> list[Any]:
    return [*session.get_inputs(), *session.get_outputs()]


def _type_of(arguments: list[Any], name: str, what: str) -> str:
    for item in arguments:
        if item.name == name:
            return str(item.type)
    raise ValueError(f"{what} name {name} not found; the model has {', '.join(item.name for item in arguments)}")


def _element_name(ort_type: str) -> str:
    if not (ort_type.startswith("tensor(") and ort_type.endswith(")")):
        raise ValueError(f"{ort_type} is not supported: it is not the type of a tensor")
    return ort_type[len("tensor(") : -1]


def _numpy_element(numpy_type: Any) -> str:
    try:
        return element_types.by_dtype(np.dtype(numpy_type)).name
    except RuntimeError as error:
        raise ValueError(str(error)) from error
