"""Measure everything: the models of the zoo and all that surrounds a run, against other engines.

    python -m benchmarks [--zoo DIR] [--models …] [--engines …] [--threads 1,2] [--parts …]
                         [--quick | --thorough] [--seconds S]
                         [--json build/bench/results.json] [--plot build/bench/speed.png]

Models that are not there are built first; what fails costs its own figures and none of the others. It tells every now
and then on the error output how far it is; the file is written after every row. `--seconds` is what each engine may
spend on a model; `--thorough` measures everything longer (`effort.py`). Each part is also a command of its own, with
more options: `python -m benchmarks.floors`, `compare` (models), `startup` (sessions and processes), `memory`, `small`,
`lengths`, `spread`, `gemm_shapes`, `ablation`, `knobs`. The figures of a part that is not measured again stay in the
file. benchmarks/README.md says how to read them.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import (
    ablation,
    compare,
    gemm_shapes,
    isolated,
    knobs,
    lengths,
    machine,
    memory,
    options,
    plot,
    report,
    small,
    spread,
    startup,
)
from benchmarks import summary as summaries
from benchmarks.effort import QUICK, THOROUGH, USUAL, Effort
from benchmarks.engines import BASELINE, BEST_OF, COMPILED, KEPT, OURS
from benchmarks.progress import Progress
from benchmarks.zoo import registry, store

RESULTS = Path("build/bench/results.json")
PICTURE = Path("build/bench/speed.png")


@dataclass(frozen=True)
class Request:
    """What is measured and how much of it, and where the figures go."""

    zoo: Path
    models: tuple[str, ...]
    engines: tuple[str, ...]
    threads: tuple[int, ...]
    effort: Effort
    kept: report.Report
    progress: Progress

    @property
    def few(self) -> tuple[str, ...]:
        """The engines whose start-up and memory are of interest: ours and the best peers."""
        return tuple(engine for engine in self.engines if engine in (*BEST_OF, OURS))

    @property
    def starting(self) -> tuple[str, ...]:
        """Those, and ours with engines that it keeps, and with files compiled ahead."""
        return (*self.few, KEPT, COMPILED) if OURS in self.few else self.few

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
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="few runs: for trying out, not for figures")
    effort.add_argument("--thorough", action="store_true", help="more runs of everything: hours")
    parser.add_argument("--seconds", type=float, metavar="S", help="timed seconds for each engine on a model")
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
    needs_models = not {"small", "gemm"}.issuperset(chosen.parts)
    models, failures = build(chosen.models, chosen.zoo) if needs_models else ((), [])
    kept = report.Report(chosen.json)
    kept.data["versions"] = report.versions(chosen.engines)
    print(", ".join(f"{engine} {version}" for engine, version in kept.data["versions"].items()))
    effort = effort_of(chosen)
    request = Request(chosen.zoo, models, tuple(kept.data["versions"]), chosen.threads, effort, kept, Progress({}))
    planned = {name: PARTS[name].rows(request) * PARTS[name].row_seconds * effort.pace for name in chosen.parts}
    request = replace(request, progress=Progress(planned))
    for name in chosen.parts:
        request.progress.begin(name)
        try:
            PARTS[name].measure(request)
        except Exception as error:  # the other parts are still to come
            traceback.print_exc()
            failures.append(f"{name}: {isolated.reason(error)}")
    request.progress.end()
    kept.data["minutes"] = {name: round(seconds / 60, 1) for name, seconds in request.progress.spent.items()}
    kept.save()
    print(
        f"\n{summaries.render(kept.data)}\n\nkept in {chosen.json} after {request.progress.minutes:.0f} minutes: ",
        end="",
    )
    print(", ".join(f"{name} {minutes}" for name, minutes in kept.data["minutes"].items()))
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed")
    elif any(row["ratio"] and row["gflops"] for row in kept.rows("models")):
        chosen.plot.parent.mkdir(parents=True, exist_ok=True)
        plot.draw(kept.data, chosen.plot)
        print(f"drawn in {chosen.plot}")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return failures


def effort_of(chosen: argparse.Namespace) -> Effort:
    """How much the options ask for."""
    effort = QUICK if chosen.quick else THOROUGH if chosen.thorough else USUAL
    if chosen.seconds is None:
        return effort
    return replace(effort, models=replace(effort.models, seconds=chosen.seconds, runs=0))


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


@dataclass(frozen=True)
class Part:
    """One part: what measures it, how many rows that gives, and the seconds that a row takes with the usual effort.

    The seconds are those of a machine with two cores (AMD Zen 5); they only serve to tell how long it will take.
    """

    measure: Callable[[Request], None]
    rows: Callable[[Request], int]
    row_seconds: float


def measure_models(request: Request) -> None:
    effort = request.effort
    settings = compare.Settings(
        request.zoo, request.engines, effort.models, one_thread_pool_only=effort.one_thread_pool_only
    )
    ceilings = report.ceilings(request.kept, request.threads)
    rows = compare.measure_all(request.models, request.threads, settings, ceilings)
    keep(request, "models", rows, {"seconds": effort.models.seconds, "runs": effort.models.runs})


def rows_of_models(request: Request) -> int:
    always = [name for name in request.engines if name not in request.effort.one_thread_pool_only]
    return len(request.models) * (len(request.engines) + len(always) * (len(request.threads) - 1))


def measure_sessions(request: Request) -> None:
    repeats = request.effort.repeats
    rows = startup.sessions(request.models, request.starting, request.most, request.zoo, repeats)
    keep(request, "sessions", rows, {"repeats": repeats})


def measure_processes(request: Request) -> None:
    repeats = request.effort.repeats
    rows = startup.processes(request.models, request.starting, request.most, request.zoo, repeats)
    keep(request, "processes", rows, {"repeats": repeats})


def measure_memory(request: Request) -> None:
    keep(request, "memory", memory.measure_all(request.models, request.few, request.most, request.zoo))


def rows_of_starts(request: Request) -> int:
    return len(request.models) * len(request.starting)


def rows_of_memory(request: Request) -> int:
    return len(request.models) * len(request.few)


def measure_small(request: Request) -> None:
    turns = request.effort.turns
    keep(request, "small", small.measure_all(request.few, request.threads, turns), {"turns": turns})


def rows_of_small(request: Request) -> int:
    return len(small.MODELS) * len(request.few) * len(request.threads)


def measure_lengths(request: Request) -> None:
    if request.length_model is None:
        print("no lengths: minilm-l6 is not built")
        return
    count = request.effort.lengths
    rows = lengths.measure_all(request.length_model, request.few, request.threads, request.zoo, count)
    keep(request, "lengths", rows, {"count": count})


def rows_of_lengths(request: Request) -> int:
    return 2 * len(request.few) * len(request.threads)


def measure_spread(request: Request) -> None:
    if request.length_model is None:
        print("no spread: minilm-l6 is not built")
        return
    rounds = request.effort.rounds
    rows = spread.measure_all(request.length_model, spread_engines(request), request.most, request.zoo, rounds=rounds)
    keep(request, "spread", rows, {"rounds": rounds})


def rows_of_spread(request: Request) -> int:
    return (1 + len(spread.BLOCKS) * len(spread_engines(request))) * len(request.most)


def spread_engines(request: Request) -> tuple[str, ...]:
    """The engines that divide loops into blocks."""
    return tuple(engine for engine in (BASELINE, OURS) if engine in request.engines)


def measure_gemm(request: Request) -> None:
    if not {BASELINE, OURS} <= set(request.engines):
        print(f"no matrix products: they are measured with both {BASELINE} and {OURS}")
        return
    count, turns = request.effort.products, request.effort.product_turns
    ceilings = report.ceilings(request.kept, request.threads)
    rows = gemm_shapes.measure_all(count, request.threads, False, turns, ceilings)
    keep(request, "gemm", rows, {"turns": turns, "variable": False})


def rows_of_gemm(request: Request) -> int:
    return request.effort.products * len(request.threads)


def measure_ablation(request: Request) -> None:
    budget = request.effort.techniques
    rows = ablation.measure_all(ablation.SWITCHES, techniques_of(request), request.threads[:1], request.zoo, budget)
    keep(request, "ablation", rows, {"seconds": budget.seconds, "runs": budget.runs})


def rows_of_ablation(request: Request) -> int:
    return len(ablation.SWITCHES) * len(techniques_of(request))


def techniques_of(request: Request) -> list[str]:
    """The models that techniques are measured on."""
    return [name for name in ablation.MODELS if name in request.models]


def measure_knobs(request: Request) -> None:
    budget = request.effort.techniques
    rows = knobs.measure_all(
        knobs.KNOBS, turned_models(request), turned_engines(request), request.most, request.zoo, budget
    )
    keep(request, "knobs", rows, {"seconds": budget.seconds, "runs": budget.runs})


def rows_of_knobs(request: Request) -> int:
    engines = turned_engines(request)
    turned = sum(1 for knob in knobs.KNOBS for engine in engines if engine == OURS or not knob.ours)
    return turned * len(turned_models(request))


def turned_models(request: Request) -> list[str]:
    """The models that knobs are turned on."""
    return [name for name in knobs.MODELS if name in request.models]


def turned_engines(request: Request) -> list[str]:
    """The engines whose knobs are turned."""
    return [engine for engine in request.engines if engine in (BASELINE, OURS)]


def keep(request: Request, name: str, rows: Iterable[Any], settings: Mapping[str, Any] | None = None) -> None:
    """Keep the rows of a part as they come, and tell how far it is."""
    request.kept.put(name, request.progress.over(rows, PARTS[name].rows(request)), settings)


PARTS: dict[str, Part] = {
    "models": Part(measure_models, rows_of_models, 2.3),
    "sessions": Part(measure_sessions, rows_of_starts, 5.4),
    "processes": Part(measure_processes, rows_of_starts, 3.2),
    "memory": Part(measure_memory, rows_of_memory, 1.8),
    "small": Part(measure_small, rows_of_small, 1.7),
    "lengths": Part(measure_lengths, rows_of_lengths, 11.0),
    "spread": Part(measure_spread, rows_of_spread, 15.0),
    "gemm": Part(measure_gemm, rows_of_gemm, 0.75),
    "ablation": Part(measure_ablation, rows_of_ablation, 2.0),
    "knobs": Part(measure_knobs, rows_of_knobs, 5.0),
}


if __name__ == "__main__":
    main()
