"""`sardonyx info`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command


def test_json_describes_the_model(command: Command, embedding: Path) -> None:
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    assert report["ir_version"] == 8
    assert report["opsets"] == {"ai.onnx": 17}
    assert report["producer"] == {"name": "maker", "version": "2"}
    assert report["inputs"] == [
        {"name": "ids", "type": "tensor(int64)", "shape": ["batch", "length"]},
        {"name": "shift", "type": "tensor(float)", "shape": []},
    ]
    assert report["outputs"] == [{"name": "result", "type": "tensor(float)", "shape": ["batch", "length", 3]}]
    assert report["operators"] == {"Gather": 1, "MatMul": 1, "Add": 1}
    assert report["parameters"] == {"count": 32, "bytes": 128}


def test_a_multiply_add_counts_two(command: Command, embedding: Path) -> None:
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    by_operator = report["cost"]["by_operator"]
    assert by_operator["MatMul"] == 2 * (2 * 3) * 4 * 3
    assert by_operator["Add"] == 2 * 3 * 3
    assert report["cost"]["flops"] == sum(by_operator.values())
    assert report["cost"]["unknown"] == {}


def test_placement_names_providers_and_reasons(command: Command, embedding: Path) -> None:
    placement = json.loads(command("info", embedding, "--json").out)["placement"]
    assert placement["providers"] == {"CPUExecutionProvider": {"Gather": 1, "MatMul": 1, "Add": 1}}
    assert sum(placement["steps"].values()) == 3
    assert all(entry["reason"] for entry in placement["host"])


def test_the_text_says_it_in_lines(command: Command, embedding: Path) -> None:
    outcome = command("info", embedding)
    assert (outcome.code, outcome.err) == (0, "")
    assert "opset ai.onnx 17, producer maker 2" in outcome.out
    assert "batch x length x 3" in outcome.out
    assert "parameters  32" in outcome.out
    assert "Gather 1, MatMul 1, Add 1" in outcome.out


def test_errors_are_one_line(command: Command, embedding: Path, tmp_path: Path) -> None:
    for arguments in ([tmp_path / "absent.onnx"], [embedding, "--dim", "batch=x"]):
        outcome = command("info", *arguments)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1


def test_memory_of_intermediate_values(command: Command, embedding: Path) -> None:
    """The looked-up rows (6 x 4 floats) and their product (6 x 3) live at once, each from a multiple of 64 on."""
    report = json.loads(command("info", embedding, "--dim", "batch=2", "--dim", "length=3", "--json").out)
    assert report["memory"] == {"arena_bytes": 256, "without_reuse_bytes": 96 + 72, "values_of_unknown_size": 0}
