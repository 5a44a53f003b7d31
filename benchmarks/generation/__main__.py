"""Generation: tokens a second over Optimum on onnxruntime, PyTorch and onnxruntime-genai, the cost of a token, memory.

    python -m benchmarks.generation [--rows gpt2,…] [--optimum PYTHON] [--genai PYTHON] [--sentences PYTHON]
                                    [--cells N] [--turns 3] [--threads 2] [--tiny] [--json FILE]

Weights are random and sizes real; the models are built when they are first needed, which takes minutes and 8 GB for
those of half a billion weights (`--build` does that alone). Each engine is a process that holds its model; they take
turns, one call each behind one that does not count, and the figures are medians. Optimum refuses today's transformers,
so that the peers may have to live in environments of their own: the options name their Python. `--sentences` is one
with sentence-transformers and with what we need, too. A row whose model or peer is not there is named with the reason.

`native` is the time in runs of the model, `python` what a token costs beside them, both of the quickest call. `memory`
is what the process has at most above what it has behind its imports, over the bytes of the model and of one cache.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import machine, options
from benchmarks.generation import models
from benchmarks.generation.engines import Job
from benchmarks.generation.rows import GENAI, NAMES, OPTIMUM, OURS, ROWS, SENTENCES, TORCH, Cell, Row, shrunk


class Worker:
    """A process with one engine."""

    def __init__(self, python: str, job: Job) -> None:
        # A pipe that nobody reads would hold up a process that says much.
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        command = [python, "-m", "benchmarks.generation.worker", json.dumps(asdict(job))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._told, text=True
        )
        self._answer()

    def run(self, cell: Cell) -> dict[str, Any]:
        """One call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(cell)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._told.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._process.wait()
        self._told.seek(0)
        told = self._told.read().strip().splitlines()
        raise RuntimeError(told[-1] if told else "the process ended without a word")


def measure(row: Row, folder: Path, pythons: Mapping[str, str], threads: int, turns: int) -> dict[str, Any]:
    """The figures of a row: of each cell the runs by engine, and what is missing with its reason."""
    found: list[dict[str, list[dict[str, Any]]]] = [{} for _ in row.cells]
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in (OURS, *(name for name, _ in row.goals)):
            job = Job(name, row.kind, str(folder), threads)
            try:
                workers[name] = stack.enter_context(Worker(pythons[name], job))
            except RuntimeError as error:
                missing[name] = str(error)[:160]
        for cell, runs in zip(row.cells, found, strict=True):
            for name, worker in list(workers.items()):
                try:
                    worker.run(cell)  # binds, and fills caches
                    runs[name] = []
                except RuntimeError as error:
                    missing[name] = f"{cell.words}: {str(error)[:160]}"
                    del workers[name]
            for _ in range(turns):
                for name in runs:
                    runs[name].append(workers[name].run(cell))
    figures = {"row": asdict(row), "cells": found, "missing": missing, "model_bytes": models.model_bytes(folder)}
    if row.memory:
        figures["cache_bytes"] = models.cache_bytes(folder, row.cells[-1].prompt + row.cells[-1].new)
    return figures


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures of a row in words."""
    row, missing = figures["row"], figures["missing"]
    told: list[str] = []
    ratios: dict[str, list[float]] = {}
    for given, runs in zip(row["cells"], figures["cells"], strict=True):
        told.append(f"{row['what']}: {Cell(**given).words}")
        told += _cell(row, given["new"], runs, ratios)
    for name, each in ratios.items():
        if len(each) > 1:
            told.append(f"  over {name}: geometric mean {statistics.geometric_mean(each):.2f}, least {min(each):.2f}")
    if row["memory"] and figures["cells"][-1].get(OURS):
        last = figures["cells"][-1][OURS][-1]
        memory = (last["peak"] - last["before"]) / (figures["model_bytes"] + figures["cache_bytes"])
        told.append(f"  memory over model and cache: {memory:.2f} (goal {row['memory']})")
    told.extend(f"  {name}: {reason}" for name, reason in missing.items())
    return told


def _cell(row: Mapping[str, Any], new: int, runs: Mapping[str, Any], ratios: dict[str, list[float]]) -> list[str]:
    told = []
    goals = dict(row["goals"])
    medians = {name: statistics.median(one["seconds"] for one in each) for name, each in runs.items()}
    firsts = {name: statistics.median(one["first"] for one in each) for name, each in runs.items() if each[0]["first"]}
    for name, seconds in medians.items():
        line = f"  {name:10} {new / seconds:8.1f} tokens/s"
        line += f", the first after {firsts[name] * 1e3:.0f} ms" if name in firsts else ""
        if name != OURS and OURS in medians:
            ratio = seconds / medians[OURS]
            ratios.setdefault(name, []).append(ratio)
            line += f"   ours {ratio:.2f} times as fast"
            line += f" (goal {goals[name]})" if goals.get(name) else ""
            if row["first"] and name in firsts and OURS in firsts:
                line += f", the first {firsts[name] / firsts[OURS]:.2f} (goal {row['first']})"
                line += f", behind it {_behind(runs, firsts, name, new) / _behind(runs, firsts, OURS, new):.2f}"
            line += _equal(runs[name][0]["tokens"], runs[OURS][0]["tokens"])
        told.append(line)
    if runs.get(OURS) and runs[OURS][0]["native"] is not None:
        best = min(runs[OURS], key=lambda one: one["seconds"])
        python = (best["seconds"] - best["native"]) / new
        told.append(f"  a token: {best['native'] / new * 1e3:.2f} ms native, {python * 1e6:.0f} µs python")
    return told


def _behind(runs: Mapping[str, Any], firsts: Mapping[str, float], name: str, new: int) -> float:
    """Seconds of a token behind the first."""
    return (statistics.median(one["seconds"] for one in runs[name]) - firsts[name]) / max(1, new - 1)


def _equal(found: list[int], ours: list[int]) -> str:
    if found == ours:
        return ", equal tokens"
    same = next((at for at, (one, other) in enumerate(zip(found, ours, strict=False)) if one != other), len(ours))
    return f", OTHER TOKENS from {same} of {len(ours)} on"


def measure_sentences(python: str, threads: int, turns: int) -> dict[str, Any]:
    """`benchmarks.sentences` in the environment of its peers; prints its table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [python, "-m", "benchmarks.sentences", "--threads", str(threads), "--rounds", str(turns)]
        subprocess.run([*command, "--json", str(file)], check=True)
        return json.loads(file.read_text())


def main() -> None:
    parser = options.parser("generation", __doc__)
    options.add_zoo(parser)
    options.add_json(parser)
    parser.add_argument("--rows", type=options.names, default=NAMES, help=f"of {', '.join(NAMES)}; default: all")
    for name, what in ((OPTIMUM, "Optimum"), (GENAI, "onnxruntime-genai"), (SENTENCES, "sentence-transformers")):
        option = "--sentences" if name == SENTENCES else f"--{name}"
        parser.add_argument(option, default=sys.executable, metavar="PYTHON", help=f"the interpreter of {what}")
    parser.add_argument("--cells", type=options.names, default=(), help="only these prompts of a row, as 8,32")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=models.default_folder(), help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="tiny models: whether the command works, no figures")
    parser.add_argument("--build", action="store_true", help="only build the models of the rows")
    chosen = parser.parse_args()
    unknown = set(chosen.rows) - set(NAMES)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    print(machine.line(), flush=True)
    pythons = {OURS: sys.executable, TORCH: sys.executable, OPTIMUM: chosen.optimum, GENAI: chosen.genai}
    places = models.Places(chosen.folder, chosen.zoo, pythons, chosen.tiny)
    results: list[dict[str, Any]] = []
    for row in ROWS:
        if row.name not in chosen.rows:
            continue
        try:
            folder = models.ensure(row.model, places)
        except RuntimeError as error:
            print(f"{row.what}: not measured, {error}", flush=True)
            continue
        if chosen.build:
            print(f"{row.what}: {folder}", flush=True)
            continue
        asked = _asked(shrunk(row) if chosen.tiny else row, chosen.cells)
        results.append(measure(asked, folder, pythons, chosen.threads, chosen.turns))
        print("\n".join(lines(results[-1])), flush=True)
    figures: dict[str, Any] = {"machine": machine.facts(), "generation": results}
    if SENTENCES in chosen.rows and not chosen.build:
        figures["sentences"] = measure_sentences(chosen.sentences, chosen.threads, chosen.turns)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


def _asked(row: Row, prompts: tuple[str, ...]) -> Row:
    cells = tuple(cell for cell in row.cells if str(cell.prompt) in prompts)
    return replace(row, cells=cells) if cells else row


if __name__ == "__main__":
    main()
