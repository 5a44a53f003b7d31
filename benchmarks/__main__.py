"""Measure everything: the models of the zoo and all that surrounds a run, against other engines.

    python -m benchmarks [--zoo DIR] [--models …] [--engines …] [--threads 1,2] [--parts …] [--quick]
                         [--json build/bench/results.json] [--plot build/bench/speed.png]

Models that are not there are built first; what fails costs its own figures and none of the others. Each part is also a
command of its own, with more options: `python -m benchmarks.floors`, `compare` (models), `startup` (sessions and
processes), `memory`, `small`, `lengths`, `gemm_shapes`, `ablation`. The figures of a part that is not measured again
stay in the file. benchmarks/README.md says how to read them.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    ablation,
    compare,
    gemm_shapes,
    isolated,
    lengths,
    machine,
    memory,
    options,
    plot,
    report,
    small,
    startup,
)
from benchmarks import summary as summaries
from benchmarks.engines import BASELINE, BEST_OF, OURS
from benchmarks.turns import Budget
from benchmarks.zoo import registry, store

RESULTS = Path("build/bench/results.json")
PICTURE = Path("build/bench/speed.png")


@dataclass(frozen=True)
class Request:
    """What is measured, and where the figures go."""

    zoo: Path
    models: tuple[str, ...]
    engines: tuple[str, ...]
    threads: tuple[int, ...]
    quick: bool
    kept: report.Report

    @property
    def few(self) -> tuple[str, ...]:
        """The engines whose start-up and memory are of interest: ours and the best peers."""
        return tuple(engine for engine in self.engines if engine in (*BEST_OF, OURS))

    @property
    def most(self) -> tuple[int, ...]:
        """The largest number of threads."""
        return self.threads[-1:]

    @property
    def length_model(self) -> str | None:
        """The model whose sequence length varies."""
        return "minilm-l6" if store.is_built("minilm-l6", self.zoo) else None


def main() -> None:
    parser = options.parser("", __doc__)
    options.add_zoo(parser)
    parser.add_argument("--models", type=options.names, default=registry.names(), help="default: all of the zoo")
    options.add_engines(parser)
    options.add_threads(parser)
    parser.add_argument("--parts", type=options.names, default=tuple(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few runs: for trying out, not for figures")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--plot", type=Path, default=PICTURE, metavar="FILE", help="default: %(default)s")
    chosen = parser.parse_args()
    for name in chosen.parts:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    for name in chosen.models:
        if name not in registry.names():
            parser.error(f"there is no model {name!r}; there are {', '.join(registry.names())}")
    sys.exit(1 if measure(chosen) else 0)


def measure(chosen: argparse.Namespace) -> list[str]:
    """Measure the parts, print the tables and draw the picture; what failed as a whole, and why."""
    print(machine.line())
    began = time.monotonic()
    needs_models = not {"small", "gemm"}.issuperset(chosen.parts)
    models, failures = build(chosen.models, chosen.zoo) if needs_models else ((), [])
    kept = report.Report(chosen.json)
    kept.data["versions"] = report.versions(chosen.engines)
    print(", ".join(f"{engine} {version}" for engine, version in kept.data["versions"].items()))
    request = Request(chosen.zoo, models, tuple(kept.data["versions"]), chosen.threads, chosen.quick, kept)
    for number, name in enumerate(chosen.parts, 1):
        print(f"\nPart {number} of {len(chosen.parts)}, {name}, {since(began)}", flush=True)
        try:
            PARTS[name](request)
        except Exception as error:  # the other parts are still to come
            traceback.print_exc()
            failures.append(f"{name}: {isolated.reason(error)}")
    print(
        f"\n{summaries.render(kept.data)}\n\nkept in {chosen.json} after {(time.monotonic() - began) / 60:.0f} minutes"
    )
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed")
    elif any(row["ratio"] and row["gflops"] for row in kept.rows("models")):
        chosen.plot.parent.mkdir(parents=True, exist_ok=True)
        plot.draw(kept.data, chosen.plot)
        print(f"drawn in {chosen.plot}")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return failures


def since(began: float) -> str:
    """How long after the start it is."""
    return f"{(time.monotonic() - began) / 60:.1f} minutes after the start"


def build(models: Sequence[str], zoo: Path) -> tuple[tuple[str, ...], list[str]]:
    """Build what is missing of some models: those that are there then, and why others are not."""
    missing = [name for name in models if not store.is_built(name, zoo)]
    failures = []
    for number, name in enumerate(missing, 1):
        print(f"building {name}, model {number} of {len(missing)} that are not in {zoo}", flush=True)
        try:
            isolated.call(store.ensure, name, zoo)
        except Exception as error:  # a model that cannot be built is left out
            failures.append(f"{name} was not built: {isolated.reason(error)}")
            print(failures[-1], flush=True)
    return tuple(name for name in models if store.is_built(name, zoo)), failures


def measure_models(request: Request) -> None:
    budget = Budget(runs=3) if request.quick else Budget()
    settings = compare.Settings(request.zoo, request.engines, budget)
    rows = compare.measure_all(
        request.models, request.threads, settings, report.ceilings(request.kept, request.threads)
    )
    request.kept.put("models", rows, {"seconds": budget.seconds, "runs": budget.runs})


def measure_sessions(request: Request) -> None:
    repeats = 1 if request.quick else 3
    rows = startup.sessions(request.models, request.few, request.most, request.zoo, repeats)
    request.kept.put("sessions", rows, {"repeats": repeats})


def measure_processes(request: Request) -> None:
    repeats = 1 if request.quick else 3
    rows = startup.processes(request.models, request.few, request.most, request.zoo, repeats)
    request.kept.put("processes", rows, {"repeats": repeats})


def measure_memory(request: Request) -> None:
    request.kept.put("memory", memory.measure_all(request.models, request.few, request.most, request.zoo))


def measure_small(request: Request) -> None:
    turns = 3 if request.quick else 40
    request.kept.put("small", small.measure_all(request.few, request.threads, turns), {"turns": turns})


def measure_lengths(request: Request) -> None:
    if request.length_model is None:
        print("no lengths: minilm-l6 is not built")
        return
    count = 4 if request.quick else lengths.COUNT
    rows = lengths.measure_all(request.length_model, request.few, request.threads, request.zoo, count)
    request.kept.put("lengths", rows, {"count": count})


def measure_gemm(request: Request) -> None:
    if not {BASELINE, OURS} <= set(request.engines):
        print(f"no matrix products: they are measured with both {BASELINE} and {OURS}")
        return
    count, turns = (6, 3) if request.quick else (200, 7)
    ceilings = report.ceilings(request.kept, request.threads)
    rows = gemm_shapes.measure_all(count, request.threads, False, turns, ceilings)
    request.kept.put("gemm", rows, {"turns": turns, "variable": False})


def measure_ablation(request: Request) -> None:
    budget = Budget(runs=2) if request.quick else Budget(2.0)
    models = [name for name in ablation.MODELS if name in request.models]
    rows = ablation.measure_all(ablation.SWITCHES, models, request.threads[:1], request.zoo, budget)
    request.kept.put("ablation", rows, {"seconds": budget.seconds, "runs": budget.runs})


PARTS: dict[str, Callable[[Request], None]] = {
    "models": measure_models,
    "sessions": measure_sessions,
    "processes": measure_processes,
    "memory": measure_memory,
    "small": measure_small,
    "lengths": measure_lengths,
    "gemm": measure_gemm,
    "ablation": measure_ablation,
}


if __name__ == "__main__":
    main()
