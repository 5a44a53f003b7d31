"""How evenly runs come, on an idle machine and while another program keeps one of its cores busy.

    python -m benchmarks.spread [--zoo DIR] [--model minilm-l6] [--engines …] [--threads 2] [--blocks 0,4]
                                [--rounds 6] [--seconds 1] [--json FILE]

A fresh process for each engine and each ``session.dynamic_block_base`` (`blocks`; 0: off) holds one session. Rounds
follow each other: runs for some time while nobody else works, then as many seconds while a program that only counts,
bound to the last of the processors, is let go on. `spread` is the 99th percentile of the runs over their median, `busy`
the median with that program over the median without it. The first runs of a round wake the threads and do not count.

The row `arithmetic` is what the machine itself does: as many threads multiply and add in registers for as long as a
small model takes, each its equal share, and nobody waits but for the last of them. What it spreads, no engine can avoid
whose threads share their work evenly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS, OnnxRuntime
from benchmarks.tables import Column, Table
from benchmarks.turns import timed
from benchmarks.zoo import inputs, registry
from sardonyx.tuning import ceilings

BLOCKS = (0, 4)
BLOCK_BASE = "session.dynamic_block_base"
FLOOR = "arithmetic"
FLOOR_SECONDS = 0.006
WAKING_RUNS = 5
PAUSE_SECONDS = 0.05
_COUNTING = "import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"

TABLE = Table(
    (
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("blocks", "blocks", "d", 6),
        Column("idle ms", "idle_ms", ".2f", 8),
        Column("spread", "idle_spread", ".2f", 6),
        Column("one core busy ms", "busy_ms", ".2f", 16),
        Column("busy", "busy_ratio", ".2f", 5),
        Column("spread", "busy_spread", ".2f", 6),
        Column("runs", "runs", "d", 6),
    )
)


@dataclass
class Spread:
    """One engine with one base of blocks."""

    engine: str
    threads: int
    blocks: int
    error: str = ""
    idle_ms: float = 0.0
    idle_spread: float = 0.0
    busy_ms: float = 0.0
    busy_ratio: float = 0.0
    busy_spread: float = 0.0
    runs: int = 0


def main() -> None:
    parser = options.parser("spread", __doc__)
    options.add_zoo(parser)
    parser.add_argument("--model", default="minilm-l6", help="default: %(default)s")
    options.add_engines(parser, (BASELINE, OURS))
    options.add_threads(parser, options.default_threads()[-1:])
    parser.add_argument("--blocks", type=options.names, default=BLOCKS, metavar="0,4")
    parser.add_argument("--rounds", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each half of a round; default: %(default)s")
    options.add_json(parser)
    chosen = parser.parse_args()
    (model,) = options.built_models(parser, [chosen.model], chosen.zoo)
    print(machine.line())
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    bases = tuple(int(base) for base in chosen.blocks)
    rows = measure_all(model, engines, chosen.threads, chosen.zoo, bases, chosen.rounds, chosen.seconds)
    kept.put("spread", rows, {"model": model, "rounds": chosen.rounds, "seconds": chosen.seconds})


def measure_all(
    model: str,
    engines: Iterable[str],
    threads: Iterable[int],
    zoo: Path,
    bases: Iterable[int] = BLOCKS,
    rounds: int = 6,
    seconds: float = 1.0,
) -> Iterator[Spread]:
    """Rows of all engines with each base of blocks, each printed when it is there."""
    print(f"\nSpread\n\n{TABLE.head()}")
    for count in threads:
        for engine in (FLOOR, *engines):
            for base in bases if isinstance(ENGINES.get(engine), OnnxRuntime) else (0,):
                try:
                    row = isolated.call(measure, model, engine, count, zoo, base, rounds, seconds)
                except Exception as error:  # a failure is a result, not the end of the benchmark
                    row = Spread(engine, count, base, isolated.reason(error))
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure(name: str, engine: str, threads: int, zoo: Path, base: int, rounds: int, seconds: float) -> Spread:
    """One engine, in this process."""
    sample = arithmetic(threads) if engine == FLOOR else runs(name, engine, threads, zoo, base)
    idle: list[float] = []
    busy: list[float] = []
    with busy_core() as let_go_on:
        for _ in range(rounds):
            for samples, is_busy in ((idle, False), (busy, True)):
                let_go_on(is_busy)
                time.sleep(PAUSE_SECONDS)
                samples += taken(sample, seconds)
    row = Spread(engine, threads, base, runs=len(idle) + len(busy))
    (row.idle_ms, row.idle_spread), (row.busy_ms, row.busy_spread) = spread(idle), spread(busy)
    row.busy_ratio = row.busy_ms / row.idle_ms
    return row


def runs(name: str, engine: str, threads: int, zoo: Path, base: int) -> Callable[[], float]:
    """Runs a session of the model and says what one run took."""
    model = registry.get(name)
    feeds = inputs.make_inputs(model)
    used = ENGINES[engine]
    if base and isinstance(used, OnnxRuntime):
        used = replace(used, config={**used.config, BLOCK_BASE: str(base)})
    used.warm_import()
    session = used.load(model, zoo / name / "model.onnx", threads, False)
    return lambda: timed(partial(session, feeds))[0]


def arithmetic(threads: int) -> Callable[[], float]:
    """Multiplies and adds on so many threads and says what the slowest of them took, from the first one's start."""
    calls = ceilings.multiplying("f32", threads)

    def measured(turns: int) -> tuple[float, list[float]]:
        return ceilings.together([partial(call, turns) for call in calls], time.thread_time)

    turns = ceilings.enough(lambda turns: max(measured(turns)[1]), FLOOR_SECONDS)
    return lambda: measured(turns)[0]


def taken(sample: Callable[[], float], seconds: float) -> list[float]:
    """What runs took, one after the other, for so many seconds."""
    for _ in range(WAKING_RUNS):
        sample()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        samples.append(sample())
    return samples


def spread(samples: list[float]) -> tuple[float, float]:
    """The median in milliseconds, and the 99th percentile over it."""
    median, late = np.percentile(samples, [50, 99])
    return float(median * 1e3), float(late / median)


@contextmanager
def busy_core() -> Iterator[Callable[[bool], None]]:
    """A program that keeps the last processor busy while it is told to; at first it stands still."""
    processor = max(os.sched_getaffinity(0))
    program = subprocess.Popen([sys.executable, "-c", _COUNTING.format(processor=processor)])

    def let_go_on(goes_on: bool) -> None:
        program.send_signal(signal.SIGCONT if goes_on else signal.SIGSTOP)

    try:
        time.sleep(10 * PAUSE_SECONDS)  # until it counts
        let_go_on(False)
        yield let_go_on
    finally:
        program.kill()
        program.wait()


if __name__ == "__main__":
    main()
