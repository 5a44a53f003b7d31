"""Phases of a process until its first result."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from benchmarks import phases, startup
from benchmarks.zoo import registry, test_data


def test_phases_are_functions_that_there_are() -> None:
    for found in phases.FUNCTIONS.values():
        for file, name in found:
            tree = ast.parse((Path(sardonyx.__file__).parent / file).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, name)


@pytest.mark.parametrize("cache", ["empty", "kernels"])
def test_a_process_tells_its_phases(tmp_path: Path, cache: str) -> None:
    startup.write_tiny(tmp_path).rename(tmp_path / "model.onnx")
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    model = registry.get("one-add")
    test_data.save(data, {one.name: np.ones(one.sized({}), np.float32) for one in model.inputs}, {})
    found = phases.measured(tmp_path, tmp_path, 1, cache, 1)
    assert set(found) == {*phases.PHASES, "whole"}
    assert found["Sardonyx"] > 0
    assert sum(found[phase] for phase in phases.PHASES) < found["whole"]
