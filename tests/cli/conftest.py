"""The command line as a user meets it: exit code, standard output, standard error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("typer", reason="the extra `cli` is not installed")

from sardonyx import log
from sardonyx.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs `sardonyx` with arguments, as its entry point does."""
    severity = log.default_severity()  # the command silences the log of its process, and has its own handlers
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE)}

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["sardonyx", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        code = end.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    yield call
    log.set_default_severity(severity)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def embedding(tmp_path: Path) -> Path:
    """ids (batch, length) index a table of 5 rows of 4; the rows times a 4 x 3 matrix, plus a scalar `shift`."""
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    weight = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup"),
        helper.make_node("MatMul", ["rows", "weight"], ["product"], name="project"),
        helper.make_node("Add", ["product", "shift"], ["result"], name="move"),
    ]
    graph = helper.make_graph(
        nodes,
        "embedding",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("shift", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["batch", "length", 3])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="maker", producer_version="2"
    )
    path = tmp_path / "embedding.onnx"
    onnx.save(model, path)
    return path
