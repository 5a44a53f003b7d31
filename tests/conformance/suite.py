"""ONNX's backend suite as it lies in the installed package: models, inputs and expected outputs, without a network."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


class UnavailableError(Exception):
    """The package does not hold what this test needs."""


@dataclass(frozen=True)
class DataSet:
    """Inputs by name and the expected outputs in order."""

    feeds: dict[str, Any]
    expected: Sequence[Any]


@functools.cache
def tests() -> dict[str, tuple[str, TestCase]]:
    """Every test by its name, with its kind; node tests are computed here, some from infinities."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {test.name: (kind, test) for kind in KINDS for test in load_model_tests(kind=kind)}


def load(test: TestCase) -> tuple[onnx.ModelProto, Iterator[DataSet]]:
    """The model of a test and its data; UnavailableError where it would have to be downloaded."""
    if test.model is not None:
        return test.model, (_data_set(test.model, *pair) for pair in test.data_sets or ())
    if test.model_dir is not None:
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        return model, (_stored(model, data) for data in sorted(folder.glob("test_data_set_*")))
    light = Path(onnx.__file__).parent.parent / (test.url or "")
    if not light.is_file():
        raise UnavailableError(f"its model is not in the package ({Path(test.url or '').name})")
    model = onnx.load(light)
    return model, iter([_light(model, light)])


def inputs_at_most(name: str) -> float:
    """How many inputs the model of a test has; infinitely many where it is yet to be read."""
    _, test = tests()[name]
    return math.inf if test.model is None else len(test.model.graph.input)


def is_numeric(model: onnx.ModelProto) -> bool:
    """Whether all inputs and outputs are tensors, and not of strings."""
    values = [value.type for value in (*model.graph.input, *model.graph.output)]
    return all(one.HasField("tensor_type") and one.tensor_type.elem_type != onnx.TensorProto.STRING for one in values)


def _data_set(model: onnx.ModelProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> DataSet:
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    if len(inputs) != len(names):
        names = [name for name in names if name not in weights]
    feeds = {name: _value(item) for name, item in zip(names, inputs, strict=False)}
    return DataSet(feeds, [_value(item) for item in outputs])


def _value(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def _stored(model: onnx.ModelProto, folder: Path) -> DataSet:
    count = len(list(folder.glob("input_*.pb")))
    inputs = [_read(folder / f"input_{i}.pb", value.type) for i, value in enumerate(model.graph.input[:count])]
    outputs = [_read(folder / f"output_{i}.pb", value.type) for i, value in enumerate(model.graph.output)]
    return _data_set(model, inputs, outputs)


def _light(model: onnx.ModelProto, path: Path) -> DataSet:
    """A known network with made-up weights: ramps as inputs; the expected outputs lie beside it."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(value) for value in model.graph.input if value.name not in weights]
    outputs = [
        _read(path.with_name(f"{path.stem}_output_{i}.pb"), value.type) for i, value in enumerate(model.graph.output)
    ]
    return _data_set(model, inputs, outputs)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def compare(expected: Sequence[Any], actual: Sequence[Any], test: TestCase) -> None:
    """AssertionError where shapes, types or values differ by ONNX's own comparison; sequences item by item."""
    assert len(expected) == len(actual), f"{len(actual)} outputs, expected {len(expected)}"
    for wanted, found in zip(expected, actual, strict=True):
        if isinstance(wanted, list | tuple):
            assert isinstance(found, list), f"a sequence is expected, not {type(found).__name__}"
            compare(wanted, found, test)
        else:
            Runner.assert_similar_outputs([wanted], [found], rtol=test.rtol, atol=test.atol)
