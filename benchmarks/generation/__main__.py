"""Generation: tokens a second over Optimum on onnxruntime and over PyTorch, the cost of a token, memory.

    python -m benchmarks.generation [--rows gpt2,…] [--peers PYTHON] [--turns 3] [--threads 2] [--json FILE]

Weights are random and sizes real; the models are built when they are first needed. Each engine is a process that holds
its model; they take turns, one call each, and the figures are medians. Optimum refuses today's transformers, so that it
may have to live in an environment of its own: `--peers` is the Python of one with optimum-onnx, onnxruntime and torch.
A row whose model or peer is not there is named with the reason.

`native` is the time in runs of the model, `python` what a token costs beside them. `memory` is what the process has at
most above what it has behind its imports, over the bytes of the model and of one cache.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, options
from benchmarks.generation import models
from benchmarks.generation.worker import Job

OURS = "sardonyx"


@dataclass(frozen=True)
class Row:
    """A line of the table: the engines with the ratios to reach; `missing` says why it cannot be measured yet."""

    name: str
    what: str
    prompt: int = 32
    new: int = 128
    beams: int = 1
    goals: tuple[tuple[str, float], ...] = ()
    missing: str = ""


_NO_ENCODER_DECODER = "no builder for this model at its real size yet"
ROWS = (
    Row("gpt2", "GPT-2 124M, greedy", goals=(("optimum", 2.0), ("torch", 2.5))),
    Row("gpt2-beams", "GPT-2 124M, 5 beams", beams=5, goals=(("optimum", 2.5), ("torch", 0))),
    Row("gpt2-memory", "GPT-2 124M at 1,024 positions", prompt=1000, new=25),
    Row("t5-small", "T5-small, lengths 8, 32, 128, 512, greedy and 5 beams", missing=_NO_ENCODER_DECODER),
    Row("m2m100", "M2M100-418M, lengths 8, 32, 128, 512, greedy and 5 beams", missing=_NO_ENCODER_DECODER),
    Row("llama-int4", "Llama-shaped 0.5B in int4, over onnxruntime-genai", missing="no builder for this model yet"),
    Row("whisper-small", "Whisper-small, 30 s of sound", missing=_NO_ENCODER_DECODER),
    Row("minilm", "MiniLM, 1,000 sentences", missing="no peers for sentences here yet"),
)


class Worker:
    """A process with one engine."""

    def __init__(self, python: str, job: Job) -> None:
        command = [python, "-m", "benchmarks.generation.worker", json.dumps(asdict(job))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._answer()

    def run(self) -> dict[str, Any]:
        """One call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        assert self._process.stderr is not None
        told = self._process.stderr.read().strip().splitlines()
        raise RuntimeError(told[-1] if told else "the process ended without a word")


def measure(row: Row, folder: Path, pythons: Mapping[str, str], threads: int, turns: int) -> dict[str, Any]:
    """The figures of a row: seconds by engine, our native share, memory, and what is missing with its reason."""
    engines = [OURS, *(name for name, _ in row.goals)]
    found: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in engines:
            job = Job(name, str(folder), row.prompt, row.new, row.beams, threads)
            try:
                workers[name] = stack.enter_context(Worker(pythons[name], job))
                workers[name].run()  # binds, and fills caches
                found[name] = []
            except RuntimeError as error:
                missing[name] = str(error)[:160]
        for _ in range(turns):
            for name in found:
                found[name].append(workers[name].run())
    return {"row": asdict(row), "runs": found, "missing": missing, "model_bytes": _size(folder)}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("model.onnx*"))


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures of a row in words."""
    row, runs = figures["row"], figures["runs"]
    told = [f"{row['what']}: {row['new']} tokens behind {row['prompt']}"]
    medians = {name: statistics.median(one["seconds"] for one in each) for name, each in runs.items()}
    goals = dict(row["goals"])
    for name, seconds in medians.items():
        line = f"  {name:10} {row['new'] / seconds:8.1f} tokens/s"
        if name != OURS and OURS in medians:
            same = runs[name][0]["tokens"] == runs[OURS][0]["tokens"]
            line += f"   ours {seconds / medians[OURS]:.2f} times as fast"
            line += f" (goal {goals[name]})" if goals.get(name) else ""
            line += ", equal tokens" if same else ", OTHER TOKENS"
        told.append(line)
    if runs.get(OURS):
        best = min(runs[OURS], key=lambda one: one["seconds"])
        native = best["native"] / row["new"]
        python = (best["seconds"] - best["native"]) / row["new"]
        told.append(f"  a token: {native * 1e3:.2f} ms native, {python * 1e6:.0f} µs python")
        cache = 12 * 2 * 768 * 4 * (row["prompt"] + row["new"]) * row["beams"]
        memory = (best["peak"] - best["before"]) / (figures["model_bytes"] + cache)
        told.append(f"  memory over model and cache: {memory:.2f}")
    told.extend(f"  {name}: {reason}" for name, reason in figures["missing"].items())
    return told


def main() -> None:
    parser = options.parser("generation", __doc__)
    options.add_zoo(parser)
    options.add_json(parser)
    parser.add_argument("--rows", type=options.names, default=(), help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="the interpreter of Optimum")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=models.default_folder(), help="default: %(default)s")
    chosen = parser.parse_args()
    print(machine.line())
    wanted: Sequence[str] = chosen.rows or [row.name for row in ROWS]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    folder = models.gpt2(chosen.folder, chosen.zoo)
    pythons = {OURS: sys.executable, "torch": sys.executable, "optimum": chosen.peers}
    results = []
    for row in ROWS:
        if row.name not in wanted:
            continue
        if row.missing:
            print(f"{row.what}: not measured, {row.missing}")
            continue
        results.append(measure(row, folder, pythons, chosen.threads, chosen.turns))
        print("\n".join(lines(results[-1])), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine.facts(), "generation": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
