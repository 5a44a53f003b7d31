"""What a run may be given: conversion and checks of the values that a caller feeds.

Everything is checked before anything runs, and the messages name the input, what was expected and what came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sardonyx import errors, log
from sardonyx.api.building.signature import ValueKind
from sardonyx.api.values import element_types
from sardonyx.api.values.core_value import CoreValue
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.api.values.sparse_tensor import CoreSparseTensor, SparseTensor

Array = np.ndarray[Any, Any]

_TEXT = frozenset({str})
_NUMBERS = (int, float, np.number, np.bool_, np.ndarray)
_ADVICE = "Please fix either the inputs/outputs or the model."


class InputSpec:
    """An input of the model and how values for it are checked; `raw` is all that a run calls."""

    def __init__(self, name: str, kind: ValueKind, dims: Sequence[int | None] | None, logger: log.Logger) -> None:
        """`dims` holds None for dimensions of any size, and is None itself where any rank is fine."""
        self.name = name
        self.kind = kind
        self.optional = kind.form == "optional"
        self._logger = logger
        self._inner = kind.item if self.optional and kind.item is not None else kind
        self._dtype = self._inner.dtype if self._inner.form == "tensor" else None
        # Texts are looked at one by one; arrays of every other type that have this dtype are taken as they are.
        self._plain_dtype = None if self._dtype is None or self._dtype.kind == "O" else self._dtype
        self._rank = -1 if dims is None else len(dims)
        self._fixed = [(axis, dim) for axis, dim in enumerate(dims or ()) if dim is not None]

    def raw(self, value: Any) -> Any:
        """The runtime value for what a caller gives.

        An array that fits is passed on as it is; others are converted where nothing is lost (lists, foreign byte
        order, any strides, texts). InvalidArgument for a wrong type, rank or dimension, RuntimeError for an object
        that is no value at all.
        """
        if type(value) is not np.ndarray or value.dtype is not self._plain_dtype or not value.flags.c_contiguous:
            value = self._convert(value)
            if not isinstance(value, np.ndarray):
                return value
        elif not value.flags.aligned:
            value = value.copy()
        if self._rank >= 0:
            shape = value.shape
            if len(shape) != self._rank:
                self._wrong_rank(shape)
            else:
                for axis, size in self._fixed:
                    if shape[axis] != size:
                        raise self._wrong_dimensions(shape)
        return value

    def _convert(self, value: Any) -> Any:
        if isinstance(value, OrtValue):
            value = value._ortvalue
        if isinstance(value, CoreValue):
            value = value.raw
        if value is None:
            return None  # an absent value; the node that needs it says so
        if self._dtype is not None:
            return self._tensor(value, self._dtype)
        if self._inner.form == "sequence":
            return self._sequence(value, self._inner.item)
        if self._inner.form == "map":
            if not isinstance(value, dict):
                raise self._wrong_type(value)
            if not value:
                raise RuntimeError(
                    "Size of dictionary is empty, unable to run the prediction. "
                    f"Input '{self.name}' needs a {self._inner.name}."
                )
            return self._map(value, self._inner)
        return self._sparse(value)

    def _tensor(self, value: Any, dtype: np.dtype[Any]) -> Array:
        if isinstance(value, list):
            return self._array_of_list(value, dtype)
        if isinstance(value, tuple):
            raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{self.name}'.")
        if isinstance(value, (dict, SparseTensor, CoreSparseTensor)):
            raise self._wrong_type(value)
        if not isinstance(value, np.ndarray):
            raise RuntimeError(f"Unable to handle object of type {type(value)} for input '{self.name}': give an array")
        return self._native(value, dtype)

    def _native(self, value: Array, dtype: np.dtype[Any]) -> Array:
        """An array in native byte order, contiguous and aligned; InvalidArgument for elements of another type."""
        if dtype.kind == "O":
            if value.dtype.kind not in "OUST" and not _is_raw(value.dtype):
                raise self._wrong_type(value)
            return _texts(value)
        if value.dtype.newbyteorder("=") != dtype:
            raise self._wrong_type(value)
        return np.require(np.asarray(value, dtype), dtype, ["C", "A"]).reshape(value.shape)

    def _array_of_list(self, value: list[Any], dtype: np.dtype[Any]) -> Array:
        try:
            return _texts(np.asarray(value, object)) if dtype.kind == "O" else np.asarray(value, dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise RuntimeError(
                f"Could not create tensor from given input list for input '{self.name}' of type "
                f"{self.kind.name}: {error}"
            ) from error

    def _sequence(self, value: Any, item: ValueKind | None) -> list[Any]:
        if isinstance(value, np.ndarray):
            raise errors.InvalidArgument(
                f"input with name: '{self.name}' expected to be of type: 3 but received a tensor; "
                f"give a list of values for {self.kind.name}"
            )
        if not isinstance(value, list):
            raise RuntimeError(f"Iterable of {type(value)} should be given as array for input '{self.name}'.")
        if item is None or item.dtype is None:
            if item is None or not all(isinstance(one, dict) for one in value):
                raise self._wrong_type(value)
            return [self._map(one, item) for one in value]
        return [self._item(one, item.dtype) for one in value]

    def _map(self, value: dict[Any, Any], kind: ValueKind) -> dict[Any, Any]:
        """A dict with keys and values of the map's types, to which numbers are converted.

        RuntimeError for a key or value that is neither text nor number, as the map's type asks.
        """
        assert kind.key is not None
        assert kind.item is not None
        assert kind.item.dtype is not None
        texts, values = (str,), kind.item.dtype
        keys, key = (texts, str) if kind.key.kind == "O" else ((int, np.integer), int)
        self._check_all("key", value.keys(), keys, kind)
        self._check_all("value", value.values(), texts if values.kind == "O" else _NUMBERS, kind)
        convert = str if values.kind == "O" else values.type
        return {key(name): convert(item) for name, item in value.items()}

    def _check_all(self, part: str, items: Iterable[Any], types: tuple[type, ...], kind: ValueKind) -> None:
        for item in items:
            if not isinstance(item, types):
                expected = "string" if types == (str,) else "int64_t" if part == "key" else "float"
                raise RuntimeError(
                    f"Unexpected {part} type  {type(item)}, it cannot be linked to C type {expected} for input "
                    f"'{self.name}' of type {kind.name}."
                )

    def _item(self, item: Any, dtype: np.dtype[Any]) -> Array:
        if not isinstance(item, np.ndarray):
            raise RuntimeError(
                f"CreateSequenceOfTensors: Input is not a tensor: input '{self.name}' got an item of {type(item)}"
            )
        given = element_types.by_dtype(item.dtype).dtype if item.dtype.kind != "S" else np.dtype(object)
        if given != dtype:
            raise RuntimeError(
                f"TensorSeq: tensor to be added has a different data type: input '{self.name}' of "
                f"{self.kind.name} got an item of {_actual(item)}"
            )
        return self._native(item, dtype)

    def _sparse(self, value: Any) -> Any:
        if isinstance(value, SparseTensor):
            value = value._get_c_tensor()
        if not isinstance(value, CoreSparseTensor):
            raise self._wrong_type(value)
        return value

    def _wrong_type(self, value: Any) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"Unexpected input data type. Actual: ({_actual(value)}) , expected: ({self._inner.name}) "
            f"for input: {self.name}"
        )

    def _wrong_rank(self, shape: tuple[int, ...]) -> None:
        if self._rank == 0 and shape == (1,):
            self._logger.warning(f"Input {self.name} is a scalar but was given the shape {{1}}", "feeds")
            return
        raise errors.InvalidArgument(
            f"Invalid rank for input: {self.name} Got: {len(shape)} Expected: {self._rank} {_ADVICE}"
        )

    def _wrong_dimensions(self, shape: tuple[int, ...]) -> errors.InvalidArgument:
        wrong = [
            f"\n index: {axis} Got: {shape[axis]} Expected: {size}" for axis, size in self._fixed if shape[axis] != size
        ]
        return errors.InvalidArgument(
            f"Got invalid dimensions for input: {self.name} for the following indices{''.join(wrong)}\n {_ADVICE}"
        )


def _texts(array: Array) -> Array:
    """Texts as an object array of str: bytes in NumPy's own form are UTF-8, raw ones (`np.void`) with the zeros at
    their end, other objects are turned into texts."""
    flat = array.reshape(-1)
    if array.dtype.kind == "O" and array.flags.c_contiguous and are_texts(array):
        return array
    texts = np.empty(array.shape, object)
    if _is_raw(array.dtype):
        texts.reshape(-1)[:] = [item.tobytes().decode("utf-8") for item in flat]
    elif array.dtype.kind == "S":
        texts.reshape(-1)[:] = [item.decode("utf-8") for item in flat]
    else:
        texts.reshape(-1)[:] = [str(item) for item in flat]
    return texts


def are_texts(array: Array) -> bool:
    """Whether all objects of an array are texts, and none is of a class that only derives from them."""
    return _TEXT.issuperset(map(type, array.ravel().tolist()))


def _is_raw(dtype: np.dtype[Any]) -> bool:
    """Whether elements are bytes without any meaning."""
    return type(dtype) is np.dtypes.VoidDType and dtype.names is None and dtype.subdtype is None


def _actual(value: Any) -> str:
    """The type of a value as messages show it."""
    if isinstance(value, np.ndarray):
        return "tensor(string)" if value.dtype.kind == "S" else f"tensor({element_types.by_dtype(value.dtype).name})"
    return CoreValue(value).data_type() if isinstance(value, (list, dict)) and value else type(value).__name__
