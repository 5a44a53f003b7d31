"""`sardonyx run`."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.cli.requirements import install_command
from tests.cli.conftest import Command

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)
WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def test_shows_names_types_shapes_values_and_times(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--input", "ids=2", "--input", "shift=0.5", "--repeat", 2)
    assert (outcome.code, outcome.err) == (0, "")
    heading, row, sizes, times = outcome.out.splitlines()
    assert heading.split() == ["output", "type", "shape", "values"]
    assert row.split()[:7] == ["result", "float32", "1", "x", "1", "x", "3"]
    expected = TABLE[2] @ WEIGHT + 0.5
    np.testing.assert_allclose([float(text.strip(",")) for text in row.split()[7:]], expected, rtol=1e-5)
    assert sizes == "sizes  batch = 1, length = 1: not given; --dim length=128 sets one"
    assert "first run" in times
    assert "of 2 on CPUExecutionProvider" in times


def test_json_has_stable_keys(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--dim", "batch=2", "--dim", "length=3", "--json")
    report = json.loads(outcome.out)
    assert sorted(report) == ["assumed", "inputs", "model", "outputs", "providers", "saved", "seconds", "trace"]
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
    ("code", "arguments", "said"),
    [
        (2, ["--dim", "width=3"], "batch, length"),
        (2, ["--dim", "batch=-1"], "whole number"),
        (2, ["--input", "nothing=1"], "no such input; it has ids, shift"),
        (2, ["--input", "ids"], "expected NAME=VALUE"),
        (2, ["--input", "shift=many"], "expected a file that ends in .npy"),
        (1, ["--input", "ids=absent.npy"], "cannot read it"),
        (2, ["--output", "logits"], "no value logits"),
        (2, ["--output", "logits"], "Its outputs are result"),
        (2, ["--output", "project"], "project is a node, not a value; it makes product"),
        (2, ["--provider", "FastExecutionProvider"], "cannot run here"),
        (2, ["--level", "fast"], "expected one of disable, basic"),
        (2, ["--threads", "-1"], "See sardonyx run --help"),
        (2, ["--output", ""], "no value ''"),
        (2, ["--seed", "-1"], "See sardonyx run --help"),
        (2, ["--dim", f"batch={'9' * 5000}"], "not one of 5000 digits"),
        (2, ["--dim", f"batch={2**63}"], "up to 9223372036854775807"),
        (1, ["--dim", f"batch={2**63 - 1}"], "input ids of 9223372036854775807 x 1 is too large"),
        (1, ["--dim", f"batch={2**63 - 1}", "--input", "ids=2"], "input ids of 9223372036854775807 x 1 is too large"),
        (1, ["--save", os.devnull], f"--save {os.devnull}: 0_result.npy cannot be written"),
        (2, ["--html"], "No such option"),
        (2, ["--option", "sardonyx.engine_cahce=0"], "did you mean sardonyx.engine_cache?"),
        (2, ["--option", "foo=1"], "no such session config key"),
        (2, ["--option", "sardonyx.cpu.winograd=yes"], "expected 0 or 1"),
        (1, ["--input", "ids=99"], "lookup"),
    ],
)
def test_errors_are_one_line(command: Command, embedding: Path, code: int, arguments: list[str], said: str) -> None:
    outcome = command("run", embedding, *arguments)
    assert outcome.code == code
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


def test_values_inside_of_the_model_are_outputs_where_they_are_asked_for(
    command: Command, embedding: Path, tmp_path: Path
) -> None:
    """The sum keeps its kernel for itself, the product is an output as well."""
    arguments = ("--input", "ids=2", "--input", "shift=0.5", "--output", "product", "--output", "result")
    outcome = command("run", embedding, *arguments, "--save", tmp_path, "--json")
    assert outcome.code == 0
    assert [output["shape"] for output in json.loads(outcome.out)["outputs"]] == [[1, 1, 3], [1, 1, 3]]
    np.testing.assert_allclose(np.load(tmp_path / "0_product.npy")[0, 0], TABLE[2] @ WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "1_result.npy")[0, 0], TABLE[2] @ WEIGHT + 0.5, rtol=1e-6)


def _saved(tmp_path: Path, nodes: list[onnx.NodeProto], opset: int = 21) -> Path:
    """A model of these nodes, from two floats `x` to two floats `y`."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_values_of_every_kind_are_shown(command: Command, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["few"], to=TensorProto.UINT4),
        helper.make_node("SequenceConstruct", ["x", "x"], ["both"]),
        helper.make_node("Neg", ["x"], ["y"]),
    ]
    arguments = ("run", _saved(tmp_path, nodes), "--input", "x=3", "--output", "few", "--output", "both")
    shown = command(*arguments)
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()[1:3]] == [
        ["few", "uint4", "2", "3,", "3"],
        ["both", "list", "2"],
    ]
    few, both = json.loads(command(*arguments, "--json").out)["outputs"]
    assert (few["values"], list(map(type, few["values"]))) == ([3, 3], [int, int])
    assert (both["dtype"], both["shape"], both["values"]) == ("list", [2], [])


def test_long_names_are_cut_in_those_of_files(command: Command, tmp_path: Path) -> None:
    name = "layer/" * 100
    model = _saved(tmp_path, [helper.make_node("Neg", ["x"], [name]), helper.make_node("Neg", [name], ["y"])])
    outcome = command("run", model, "--input", "x=3", "--output", name, "--save", tmp_path / "saved", "--json")
    assert outcome.code == 0
    (file,) = json.loads(outcome.out)["saved"]
    np.testing.assert_array_equal(np.load(file), [-3, -3])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (TensorProto.BFLOAT16, "its elements are |V2, the input is of type tensor(float)"),
        (TensorProto.FLOAT8E5M2, "Unexpected input data type. Actual: (tensor(uint8)) , expected: (tensor(float))"),
    ],
)
def test_saved_values_of_types_that_numpy_lacks_can_be_given(
    kind: int, says: str, command: Command, tmp_path: Path
) -> None:
    """A file does not say of which type its bytes are, but the input does."""
    writer = _saved(
        tmp_path,
        [helper.make_node("Cast", ["x"], ["half"], to=kind), helper.make_node("Neg", ["x"], ["y"])],
    )
    saved = command("run", writer, "--input", "x=1.5", "--output", "half", "--save", tmp_path, "--json")
    (file,) = json.loads(saved.out)["saved"]
    refused = command("run", writer, "--input", f"x={file}")
    assert refused.code == 1
    assert says in refused.err
    assert refused.err.count("\n") == 1
    graph = helper.make_graph(
        [helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT)],
        "graph",
        [helper.make_tensor_value_info("half", kind, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    reader = tmp_path / "reader.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), reader)
    given = command("run", reader, "--input", f"half={file}", "--json")
    assert json.loads(given.out)["outputs"][0]["values"] == [1.5, 1.5]


def test_an_engine_has_the_outputs_that_it_was_compiled_for(command: Command, embedding: Path, tmp_path: Path) -> None:
    assert command("compile", embedding, "-o", tmp_path / "one.engine").code == 0
    outcome = command("run", tmp_path / "one.engine", "--output", "product")
    assert outcome.code == 1
    assert "make the session from the ONNX model" in outcome.err


def test_options_of_the_session_are_taken(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--level", "disable", "--option", "sardonyx.cpu.kernels=numpy", "--json")
    assert outcome.code == 0


def test_without_the_extra_one_line_says_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that works wherever the package came from: no extra of a package that no index may have."""
    monkeypatch.setitem(sys.modules, "typer", None)
    outcome = command("info", "model.onnx")
    assert (outcome.code, outcome.out) == (1, "")
    said = "sardonyx: error: the command line needs typer: install it with "
    assert outcome.err.startswith(said)
    words = shlex.split(outcome.err.removeprefix(said))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert sorted(re.match("[a-z]+", word)[0] for word in words[4:]) == ["rich", "typer"]


def test_what_to_install_is_known_without_the_package_s_own_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert shlex.split(install_command())[4:] == ["typer", "rich"]
