"""What each operator of com.microsoft declares against onnxruntime's own schemas."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from sardonyx.ops.framework.operator import registered
from sardonyx.ops.framework.registry import load_families

load_families()
CLASSES = [cls for (domain, _), found in registered().items() if domain.startswith("com.microsoft") for cls in found]


@pytest.fixture(scope="module")
def schemas() -> dict[tuple[str, str], Any]:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    return {(schema.domain, schema.name): schema for schema in state.get_all_operator_schema()}


def declared(parameters: Any) -> str:
    marks = {"Single": "", "Optional": "?", "Variadic": "*"}
    return ", ".join(value.name + marks[str(value.option).rsplit(".", 1)[-1]] for value in parameters)


def default_of(attribute: Any) -> Any:
    if not attribute._default_value:
        return None
    value = onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(attribute._default_value))
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.domain}:{cls.op_type}")
def test_declaration(cls: Any, schemas: dict[tuple[str, str], Any]) -> None:
    schema = schemas[cls.domain, cls.op_type]
    assert cls.inputs == declared(schema.inputs)
    assert cls.outputs == declared(schema.outputs)
    assert set(schema.attributes) <= set(cls.fields)
    for name, attribute in schema.attributes.items():
        if attribute.required:
            assert not hasattr(cls, name), name
        elif (default := default_of(attribute)) is not None:
            assert getattr(cls, name) == (pytest.approx(default) if isinstance(default, float) else default), name
