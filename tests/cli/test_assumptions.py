"""What commands say of sizes that nobody gave, or that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.conftest import Command


@pytest.fixture
def positions(tmp_path: Path) -> Path:
    """data (batch, seq) plus the first seq of 512 positions, and where the largest is: 1 to 512 fit."""
    constants = {
        "table": np.arange(512, dtype=np.float32),
        "zero": np.array([0]),
        "place": np.array([1]),
    }
    nodes = [
        helper.make_node("Shape", ["data"], ["shape"]),
        helper.make_node("Gather", ["shape", "place"], ["seq"]),
        helper.make_node("Slice", ["table", "zero", "seq"], ["some"]),
        helper.make_node("Add", ["data", "some"], ["moved"], name="add_positions"),
        helper.make_node("ArgMax", ["moved"], ["result"], axis=1, name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "positions",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", "seq"])],
        [helper.make_tensor_value_info("result", TensorProto.INT64, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path / "positions.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_size_that_is_given_and_does_not_fit_is_named_with_its_input(command: Command, positions: Path) -> None:
    """Nothing is said of the batch, which is 1 without being at fault."""
    outcome = command("run", positions, "--dim", "seq=1000")
    assert outcome.code == 1
    assert "(--dim seq=1000 of data does not fit: seq = 512 does)" in outcome.err
    assert "batch" not in outcome.err


def test_where_only_a_run_tells_that_sizes_do_not_fit_all_are_named(command: Command, positions: Path) -> None:
    outcome = command("run", positions, "--dim", "seq=0")
    assert outcome.code == 1
    assert "(with seq = 0, batch = 1, which was not given)" in outcome.err


def test_sizes_of_a_file_that_do_not_fit_are_named(command: Command, positions: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.zeros((2, 600), np.float32))
    outcome = command("run", positions, "--input", f"data={tmp_path / 'data.npy'}")
    assert outcome.code == 1
    assert "(seq of data is 600 in the given file, which does not fit: 512 does)" in outcome.err


@pytest.mark.parametrize("name", ["run", "info", "explain", "compile"])
def test_sizes_that_nobody_gave_are_told(command: Command, embedding: Path, name: str) -> None:
    outcome = command(name, embedding, "--dim", "batch=2")
    assert outcome.code == 0
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("sizes ")]
    assert line.split("  ", 1)[1].strip() == "length = 1: not given; --dim length=128 sets it"
    outcome = command(name, embedding, "--dim", "batch=2", "--dim", "length=3")
    assert "not given" not in outcome.out


def test_values_that_do_not_fit_are_no_matter_of_sizes(command: Command, embedding: Path) -> None:
    outcome = command("run", embedding, "--input", "ids=99")
    assert outcome.code == 1
    assert "out of data bounds" in outcome.err
    assert "not given" not in outcome.err
