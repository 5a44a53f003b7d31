"""The operators that each form of quantization knows."""

from __future__ import annotations

import importlib.util

import pytest

from sardonyx.quantization import integer, qlinear
from sardonyx.quantization.registry import (
    CommonOpsRegistry,
    IntegerOpsRegistry,
    QDQRegistry,
    QLinearOpsRegistry,
)


def test_keys_are_those_of_the_known_tool() -> None:
    from onnxruntime.quantization import registry

    assert CommonOpsRegistry.keys() == registry.CommonOpsRegistry.keys()
    assert IntegerOpsRegistry.keys() == registry.IntegerOpsRegistry.keys()
    assert QLinearOpsRegistry.keys() == registry.QLinearOpsRegistry.keys()
    assert QDQRegistry.keys() == registry.QDQRegistry.keys()


@pytest.mark.parametrize(
    ("registry", "handlers"), [(IntegerOpsRegistry, integer.HANDLERS), (QLinearOpsRegistry, qlinear.HANDLERS)]
)
def test_every_operator_is_done(registry: dict[str, str], handlers: dict) -> None:
    done = {operator for _, operator in handlers}
    assert registry.keys() <= done
    # A Gemm is a MatMul and an Add in dynamic quantization.
    assert done - registry.keys() <= {"Gemm"}


@pytest.mark.parametrize(
    ("registry", "packages"),
    [
        (IntegerOpsRegistry, ["integer"]),
        (QLinearOpsRegistry, ["qlinear", "integer"]),
        (QDQRegistry, ["qdq"]),
    ],
)
def test_values_name_files(registry: dict[str, str], packages: list[str]) -> None:
    for operator, family in registry.items():
        found = [
            name
            for package in packages
            if importlib.util.find_spec(name := f"sardonyx.quantization.{package}.{family}") is not None
        ]
        assert found, operator
