"""What each way of quantising costs in accuracy, with our tool and with onnxruntime's, on the same data.

    python -m benchmarks.accuracy [--tasks digits,…] [--tools sardonyx,onnxruntime] [--json FILE]

Each task is a model that learnt something and data that is real (README.md lists them). All models run in
Sardonyx, whose integers are exact on every machine, so that the tools alone differ. `float` is the model as it was.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sardonyx
from benchmarks import options, report
from benchmarks.accuracy.methods import TOOLS, Method, all_methods
from benchmarks.accuracy.task import Array, Data, Task, default_folder
from benchmarks.tables import Column, Table

_MODULES = {"digits": "digits", "subjects": "subjects", "minilm": "embeddings", "letters": "letters"}

TABLE = Table(
    (
        Column("task", "task", width=9),
        Column("method", "method", width=26),
        *(Column(tool, tool, ".4f", 11) for tool in TOOLS),
        *(Column(f"{tool} MB", f"{tool}_mb", ".2f", 14) for tool in TOOLS),
        Column("failed", "failed", width=8),
    )
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options.parser("accuracy", __doc__)
    parser.add_argument("--tasks", type=options.names, default=tuple(_MODULES), help="comma-separated; default: all")
    parser.add_argument("--tools", type=options.names, default=TOOLS, help="comma-separated; default: both")
    options.add_json(parser)
    given = parser.parse_args(arguments)
    report.Report(given.json).put("accuracy", _rows(given.tasks, given.tools))


def _rows(tasks: Sequence[str], tools: Sequence[str]) -> Iterator[dict[str, Any]]:
    print(TABLE.head(), flush=True)
    for name in tasks:
        for row in measure(_task(name), tools):
            print(TABLE.line(row), flush=True)
            yield row


def measure(task: Task, tools: Sequence[str], methods: Sequence[Method] = ()) -> Iterator[dict[str, Any]]:
    """A row for the float model and one for each method."""
    model = task.model(default_folder())
    data = task.data()
    reference = _answers(model, data)
    own = task.judge(reference, reference, data.labels)
    yield {"task": task.name, "method": "float", "sardonyx": own, "measure": task.measure}
    with tempfile.TemporaryDirectory() as scratch:
        for method in methods or all_methods():
            row: dict[str, Any] = {"task": task.name, "method": method.name}
            for tool in tools:
                target = Path(scratch) / f"{tool}.onnx"
                try:
                    method.apply(tool, model, target, data.calibration)
                    row[tool] = task.judge(_answers(target, data), reference, data.labels)
                    row[f"{tool}_mb"] = target.stat().st_size / 1e6
                except Exception as error:  # a method that a tool does not know is a gap in the table, not its end
                    row["failed"] = f"{row.get('failed', '')} {tool}: {error}".strip()
            yield row


def _answers(model: Path, data: Data) -> list[Array]:
    session = sardonyx.InferenceSession(str(model))
    return [session.run(None, dict(feeds))[0] for feeds in data.test]


def _task(name: str) -> Task:
    task: Task = importlib.import_module(f"benchmarks.accuracy.{_MODULES[name]}").TASK
    return task


if __name__ == "__main__":
    main()
