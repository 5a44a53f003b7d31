"""`sardonyx run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Command

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)
WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def test_shows_names_types_shapes_values_and_times(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--input", "ids=2", "--input", "shift=0.5", "--repeat", 2)
    assert (outcome.code, outcome.err) == (0, "")
    heading, row, times = outcome.out.splitlines()
    assert heading.split() == ["output", "type", "shape", "values"]
    assert row.split()[:7] == ["result", "float32", "1", "x", "1", "x", "3"]
    expected = TABLE[2] @ WEIGHT + 0.5
    np.testing.assert_allclose([float(text.strip(",")) for text in row.split()[7:]], expected, rtol=1e-5)
    assert "first run" in times
    assert "of 2 on CPUExecutionProvider" in times


def test_json_has_stable_keys(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--dim", "batch=2", "--dim", "length=3", "--json")
    report = json.loads(outcome.out)
    assert sorted(report) == ["inputs", "model", "outputs", "providers", "saved", "seconds", "trace"]
    assert sorted(report["seconds"]) == ["first", "load", "median", "runs"]
    assert report["inputs"][0] == {"name": "ids", "dtype": "int64", "shape": [2, 3]}
    (result,) = report["outputs"]
    assert (result["name"], result["dtype"], result["shape"]) == ("result", "float32", [2, 3, 3])
    assert len(result["values"]) == 6
    assert report["seconds"]["runs"] == 4


def test_random_indices_stay_inside_the_table_and_use_all_of_it(
    command: Command, embedding: Path, tmp_path: Path
) -> None:
    arguments = ["run", embedding, "--dim", "length=200", "--input", "shift=zeros", "--save", tmp_path / "out"]
    assert command(*arguments).code == 0
    rows = np.load(tmp_path / "out" / "0_result.npy")[0]
    assert {int(np.abs(TABLE @ WEIGHT - row).sum(1).argmin()) for row in rows} == set(range(5))


def test_the_seed_decides_random_inputs(command: Command, embedding: Path) -> None:
    def values(seed: int) -> list[float]:
        out = command("run", embedding, "--dim", "length=2", "--seed", seed, "--json").out
        return json.loads(out)["outputs"][0]["values"]

    assert values(1) == values(1)
    assert values(1) != values(2)


def test_files_give_values_and_sizes(command: Command, embedding: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([[4, 0]], np.int64))
    outcome = command(
        "run", embedding, "--input", f"ids={tmp_path / 'ids.npy'}", "--input", "shift=ones", "--save", tmp_path
    )
    assert outcome.code == 0
    np.testing.assert_allclose(np.load(tmp_path / "0_result.npy"), TABLE[[[4, 0]]] @ WEIGHT + 1, rtol=1e-6)


def test_a_named_size_sets_sums_of_names(command: Command, tmp_path: Path) -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["past"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["past + new"]),
    ]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["mask"], ["z"])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    model = helper.make_model(helper.make_graph(nodes, "sum", inputs, outputs), ir_version=8)
    onnx.save(model, tmp_path / "sum.onnx")
    report = json.loads(command("run", tmp_path / "sum.onnx", "--dim", "past=4", "--json").out)
    assert [output["shape"] for output in report["outputs"]] == [[4], [5]]


def test_profile_names_the_trace(
    command: Command, embedding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = json.loads(command("run", embedding, "--profile", "--json").out)
    events = json.loads(Path(report["trace"]).read_text())
    assert any("project" in event["name"] for event in events)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dim", "width=3"], "batch, length"),
        (["--dim", "batch=-1"], "whole number"),
        (["--input", "nothing=1"], "no such input; it has ids, shift"),
        (["--input", "ids"], "expected NAME=VALUE"),
        (["--input", "shift=many"], "expected a file that ends in .npy"),
        (["--input", "ids=absent.npy"], "cannot read it"),
        (["--output", "logits"], "no such output; it has result"),
        (["--provider", "FastExecutionProvider"], "cannot run here"),
        (["--input", "ids=99"], "lookup"),
    ],
)
def test_errors_are_one_line(command: Command, embedding: Path, arguments: list[str], said: str) -> None:
    outcome = command("run", embedding, *arguments)
    assert outcome.code == 1
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("sardonyx: error: ")
    assert said in line


def test_a_missing_and_a_broken_file_are_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    for name, said in (("absent.onnx", "File doesn't exist"), ("broken.onnx", "Protobuf parsing failed")):
        outcome = command("run", tmp_path / name)
        assert outcome.code == 1
        (line,) = outcome.err.splitlines()
        assert said in line


def test_without_the_extra_one_line_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    outcome = command("info", "model.onnx")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "sardonyx: error: the command line needs typer: install it with pip install 'sardonyx[cli]'\n"
