"""Ranges of tensors: what calibration finds, as values that can be edited, saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file, replacing

_ARRAY = "numpy.array"


class RangesNotFoundError(errors.NoSuchFile, FileNotFoundError):
    """There is no file of ranges at a path. Also a FileNotFoundError."""


class TensorData:
    """What is known of one tensor, as attributes of these names:

    - `lowest`, `highest`: the range, numbers of float32 or float16, or arrays [channels] of them;
    - `avg`, `std`: mean and standard deviation, of the same types;
    - `hist`, with `hist_edges` or `bins`: counts [n] of the values between each two of the edges [n + 1].

    ValueError for another name, or a number without such a type.
    """

    _allowed: ClassVar[frozenset[str]] = frozenset({"avg", "std", "lowest", "highest", "hist", "hist_edges", "bins"})
    _floats: ClassVar[frozenset[str]] = frozenset({"avg", "std", "lowest", "highest", "hist_edges"})

    lowest: Any
    highest: Any
    avg: Any
    std: Any
    hist: Any
    hist_edges: Any
    bins: Any

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            if name not in self._allowed:
                known = ", ".join(sorted(self._allowed))
                raise ValueError(f"A tensor's data has no {name!r}: the names are {known}")
            if name in self._floats:
                dtype = getattr(value, "dtype", None)
                if dtype is None or dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
                    kind = type(value).__name__ if dtype is None else dtype
                    raise ValueError(f"{name} must be a NumPy number or array of float32 or float16, not {kind}")
            setattr(self, name, value)
        self._names = list(values)

    def __repr__(self) -> str:
        return f"TensorData({', '.join(f'{name}={getattr(self, name)!r}' for name in self._names)})"

    @property
    def range_value(self) -> tuple[Any, Any]:
        """(lowest, highest); AttributeError where they are not known."""
        return self._pair("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """(avg, std); AttributeError where they are not known."""
        return self._pair("avg", "std")

    def _pair(self, first: str, second: str) -> tuple[Any, Any]:
        missing = [name for name in (first, second) if name not in self._names]
        if missing:
            held = ", ".join(self._names) or "nothing"
            raise AttributeError(f"The tensor's data lack {' and '.join(missing)}: they hold {held}")
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """The values by their names, and the name of the class."""
        return {**{name: getattr(self, name) for name in self._names}, "CLS": type(self).__name__}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorData:
        """The data that `to_dict` gave, also after a way through JSON; plain numbers become float32."""
        values = {name: _read(value) for name, value in d.items() if name != "CLS"}
        for name in cls._floats & values.keys():
            if _is_number(values[name]):
                values[name] = np.array(values[name], np.float32)
        return cls(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool | np.generic)


def _read(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("CLS") == _ARRAY:
        return np.array(value["data"], np.dtype(value["dtype"]))
    return value


class TensorsData:
    """The data of tensors by their names: a mapping in which data can be replaced, but no tensor added.

    A pair in place of a TensorData is its range, four values are range, counts and edges.
    """

    def __init__(self, calibration_method: CalibrationMethod, data: Mapping[str, TensorData | tuple[Any, ...]]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"Names of tensors must be strings, not {type(name).__name__}")
            self.data[name] = self._one(name, value)

    def _one(self, name: str, value: TensorData | tuple[Any, ...]) -> TensorData:
        if isinstance(value, TensorData):
            return value
        if isinstance(value, tuple) and len(value) == 2 and self.calibration_method == CalibrationMethod.MinMax:
            return TensorData(lowest=value[0], highest=value[1])
        if isinstance(value, tuple) and len(value) == 4:
            return TensorData(lowest=value[0], highest=value[1], hist=value[2], bins=value[3])
        raise TypeError(
            f"The data of {name} must be a TensorData, or a tuple of lowest and highest (MinMax only), or of lowest, "
            f"highest, counts and edges, not {type(value).__name__}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData | tuple[Any, ...]) -> None:
        if key not in self.data:
            raise RuntimeError(f"Only the data of a tensor that is there can be replaced: {key!r} is not")
        self.data[key] = self._one(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """The data of a tensor, or `default` where there is none."""
        return self.data.get(key, default)

    def keys(self) -> KeysView[str]:
        """The names of the tensors."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """The data of the tensors."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """The names and the data of the tensors."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """All of it as a dictionary that `CalibrationCacheEncoder` writes."""
        return {"CLS": type(self).__name__, "data": self.data, "calibration_method": self.calibration_method}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorsData:
        """The data that `to_dict` gave, also after a way through JSON."""
        method = d["calibration_method"]
        if isinstance(method, Mapping):
            method = CalibrationMethod[str(method["value"]).rpartition(".")[2]]
        return cls(method, {name: _tensor_data(one) for name, one in d["data"].items()})


def _tensor_data(one: Any) -> TensorData:
    return one if isinstance(one, TensorData) else TensorData.from_dict(one)


class CalibrationCacheEncoder(json.JSONEncoder):
    """Writes ranges, methods, NumPy arrays and NumPy numbers as JSON; arrays keep their types."""

    def default(self, o: Any) -> Any:
        """A form of `o` that JSON has."""
        if isinstance(o, TensorData | TensorsData):
            return o.to_dict()
        if isinstance(o, CalibrationMethod):
            return {"CLS": type(o).__name__, "value": str(o)}
        if isinstance(o, np.ndarray):
            return {"data": o.tolist(), "dtype": str(o.dtype), "CLS": _ARRAY}
        if isinstance(o, np.generic):
            return o.item()
        return super().default(o)


def save_tensors_data(tensors_data: TensorsData, path: str | os.PathLike[str], *, smooth_quant: bool = False) -> None:
    """Write ranges to a JSON file, whole or not at all; folders that are missing are made.

    `smooth_quant` is written too: ranges that were found with it do not fit a run without it. `errors.Fail` where the
    file cannot be written.
    """
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(json.dumps(content, cls=CalibrationCacheEncoder).encode())
    except OSError as error:
        raise errors.Fail(f"Saving the ranges to {target} failed: {error.strerror or error}") from error


def load_tensors_data(path: str | os.PathLike[str]) -> TensorsData:
    """The ranges in a file that `save_tensors_data`, here or of onnxruntime, wrote.

    `errors.NoSuchFile`, also a FileNotFoundError, where there is none; `errors.InvalidArgument`, also a ValueError,
    for something else than such a file.
    """
    source = Path(path)
    try:
        with open_file(source) as file:
            content = file.read()
    except FileNotFoundError:
        raise RangesNotFoundError(f"There is no file of ranges at {source}: calibrate first") from None
    except OSError as error:
        raise InvalidQuantization(f"The ranges in {source} cannot be read: {error.strerror or error}") from error
    try:
        return TensorsData.from_dict(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidQuantization(
            f"{source} holds no ranges of tensors ({type(error).__name__}: {error}): calibrate again, or name a file "
            "that save_tensors_data wrote"
        ) from error
