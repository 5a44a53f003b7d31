"""The names of the package, and where they come from."""

from __future__ import annotations

import importlib
import sys

import sardonyx
import sardonyx.quantization.quantize
from sardonyx import quantization


def test_the_function_hides_the_module_of_its_name() -> None:
    """Whoever imported the module before."""
    from sardonyx.quantization import quantize

    assert callable(quantize)
    assert quantization.quantize is quantize
    module = importlib.import_module("sardonyx.quantization.quantize")
    assert module.quantize is quantize
    assert sys.modules["sardonyx.quantization.quantize"] is module


def test_all_names_are_there() -> None:
    for name in quantization.__all__:
        assert getattr(quantization, name) is not None, name
        assert name in dir(quantization)


def test_modules_are_attributes() -> None:
    assert sardonyx.quantization.registry.QDQRegistry["Conv"]
    assert quantization.calibrate.CalibrationMethod.MinMax.name == "MinMax"
