"""Measure inference engines on the models of the zoo, side by side.

    python -m benchmarks.compare [--zoo DIR] [--models …] [--engines …] [--threads 1,2] [--seconds S | --runs N]
                          [--static] [--memory] [--json FILE]

How a figure comes about. A fresh process takes one model at one number of threads and makes a session of every
engine in it. Then the engines take turns: one run that does not count (it wakes the threads and fills the
caches), then timed runs for a quarter of a second. So slow changes of the machine hit all of them alike; another
process on the same cores does not, see benchmarks/README.md.
Between turns everybody sleeps, until the last engine's threads have stopped spinning. `ratio` is the median of
onnxruntime over that of the engine: above 1 is faster than onnxruntime. `max abs` and `max rel` compare the
outputs with those of onnxruntime (rel: largest difference over largest magnitude).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks import isolated
from benchmarks.engines import BASELINE, ENGINES, UnsupportedError
from benchmarks.zoo import registry, store, test_data

TURN_SECONDS = 0.25
PAUSE_SECONDS = 0.1
MINIMUM_RUNS = 3
LOADS = 2  # sessions made of each engine; the quicker one counts (the first one also reads the file from disk)

Result = TypeVar("Result")


@dataclass
class Timing:
    model: str
    engine: str
    threads: int
    error: str = ""  # why there are no figures
    load_s: float = 0.0
    first_run_s: float = 0.0
    median_ms: float = 0.0
    min_ms: float = 0.0
    runs: int = 0
    gflops: float = 0.0
    ratio: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0


@dataclass
class Memory:
    model: str
    engine: str
    threads: int
    error: str = ""
    base_mb: float = 0.0  # resident after the import
    peak_mb: float = 0.0  # the most above that, from loading to the third run
    steady_mb: float = 0.0  # above the base after the third run


@dataclass(frozen=True)
class Settings:
    zoo: Path
    engines: tuple[str, ...]
    seconds: float
    runs: int
    static: bool


def main() -> None:
    options = arguments()
    print(f"{machine()['cpu']}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    found = versions(options.engines)
    print(", ".join(f"{engine} {version}" for engine, version in found.items()))
    settings = Settings(options.zoo, tuple(found), options.seconds, options.runs, options.static)
    rows: list[Timing] | list[Memory]
    if options.memory:
        rows = list(measure_all_memory(options.models, options.threads, settings))
    else:
        rows = list(measure_all(options.models, options.threads, settings))
        print_geomeans(rows)
    if options.json:
        report = {
            "machine": machine(),
            "versions": found,
            "settings": {"seconds": options.seconds, "runs": options.runs, "static": options.static},
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    def listed(text: str) -> tuple[str, ...]:
        return tuple(part for part in text.replace(",", " ").split() if part)

    def known_engines(text: str) -> tuple[str, ...]:
        names = listed(text)
        for name in names:
            if name not in ENGINES:
                raise argparse.ArgumentTypeError(f"no engine {name!r}; there are {', '.join(ENGINES)}")
        return names

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--zoo", type=Path, default=store.default_folder(), metavar="DIR", help="built models; default: %(default)s"
    )
    parser.add_argument("--models", type=listed, default=(), help="comma-separated; default: all that are built")
    parser.add_argument("--engines", type=known_engines, default=(BASELINE, "torch", "openvino", "sardonyx"))
    parser.add_argument("--threads", type=lambda text: tuple(map(int, listed(text))), default=(1,), metavar="1,2")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed seconds for each engine")
    parser.add_argument("--runs", type=int, default=0, help="at least so many timed runs, in place of --seconds")
    parser.add_argument("--static", action="store_true", help="fix symbolic dimensions when loading, in all engines")
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    built = [name for name in registry.names() if store.is_built(name, options.zoo)]
    missing = [name for name in options.models if name not in built]
    if missing:
        parser.error(f"not built in {options.zoo}: {', '.join(missing)}; `python -m benchmarks.zoo` builds them")
    options.models = options.models or tuple(built)
    return options


def machine() -> dict[str, str | int]:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(": ")[1] for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {"cpu": cpu, "cores": os.cpu_count() or 0, "system": platform.platform()}


def versions(engines: Iterable[str]) -> dict[str, str]:
    """The version of every engine that is installed; a line tells about each of the others."""
    found = {}
    for engine in engines:
        try:
            found[engine] = isolated.call(_version, engine)
        except isolated.DiedError as error:
            print(f"{engine} is left out: {error}")
        else:
            if not found[engine]:
                print(f"{engine} is left out: it is not installed")
                del found[engine]
    return found


def _version(engine: str) -> str:
    """The version of an engine; empty where it is not installed."""
    try:
        return ENGINES[engine].warm_import()
    except UnsupportedError:
        return ""


# Time


def measure_all(models: Iterable[str], threads: Iterable[int], settings: Settings) -> Iterable[Timing]:
    """Rows of all models, each printed when it is there."""
    heading = f"{'model':<27}{'thr':>4} {'engine':<14}{'median ms':>11}{'min ms':>10}{'GFLOP/s':>9}{'ratio':>7}"
    print(heading + f"{'load s':>8}{'first s':>8}{'max abs':>10}{'max rel':>10}{'runs':>8}")
    for name in models:
        for count in threads:
            try:
                rows = isolated.call(measure, name, count, settings)
            except isolated.DiedError as error:
                rows = [Timing(name, engine, count, error=str(error)) for engine in settings.engines]
            for row in rows:
                print(format_timing(row), flush=True)
                yield row


def measure(name: str, threads: int, settings: Settings) -> list[Timing]:
    """All engines on one model, in this process."""
    model = registry.get(name)
    folder = settings.zoo / name
    inputs, _ = test_data.load(folder / "test_data_set_0")
    macs = json.loads((folder / "info.json").read_text())["macs"]
    rows = []
    runners: dict[str, Callable[[], list[np.ndarray]]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for engine in settings.engines:
        row = Timing(name, engine, threads)
        rows.append(row)
        load = partial(ENGINES[engine].load, model, folder / "model.onnx", threads, settings.static)
        try:
            ENGINES[engine].warm_import()
            loads = [timed(load) for _ in range(LOADS)]
            run = partial(loads[-1][1], inputs)
            row.load_s = min(seconds for seconds, _ in loads)
            row.first_run_s, first = timed(run)
        except Exception as error:  # an engine that fails on a model is a result, not the end of the benchmark
            row.error = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            continue
        runners[engine] = run
        outputs[engine] = [np.array(value) for value in first]

    samples = take_turns(runners, settings)
    for row in rows:
        if row.engine not in samples:
            continue
        taken = samples[row.engine]
        row.runs, row.median_ms, row.min_ms = len(taken), statistics.median(taken) * 1e3, min(taken) * 1e3
        row.gflops = 2 * macs / row.median_ms / 1e6
        if BASELINE in samples:
            row.ratio = statistics.median(samples[BASELINE]) / statistics.median(taken)
            row.max_abs, row.max_rel = difference(outputs[row.engine], outputs[BASELINE])
    return rows


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def take_turns(runners: Mapping[str, Callable[[], object]], settings: Settings) -> dict[str, list[float]]:
    """Seconds of every timed run of every runner."""
    samples: dict[str, list[float]] = {engine: [] for engine in runners}

    def finished(engine: str) -> bool:
        taken = samples[engine]
        if settings.runs:
            return len(taken) >= settings.runs
        return sum(taken) >= settings.seconds and len(taken) >= MINIMUM_RUNS

    while not all(map(finished, runners)):
        for engine, runner in runners.items():
            if finished(engine):
                continue
            time.sleep(PAUSE_SECONDS)
            runner()
            turn_end = time.perf_counter() + TURN_SECONDS
            while time.perf_counter() < turn_end:
                samples[engine].append(timed(runner)[0])
    return samples


def difference(outputs: list[np.ndarray], reference: list[np.ndarray]) -> tuple[float, float]:
    """Largest absolute difference, and the largest one relative to the output's largest magnitude."""
    absolute = relative = 0.0
    for found, wanted in zip(outputs, reference, strict=True):
        if found.shape != wanted.shape:
            return float("inf"), float("inf")
        gap = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max())
        gap = gap if np.isfinite(gap) else float("inf")
        absolute = max(absolute, gap)
        relative = max(relative, gap / (float(np.abs(wanted).max()) or 1.0))
    return absolute, relative


def format_timing(row: Timing) -> str:
    start = f"{row.model:<27}{row.threads:>4} {row.engine:<14}"
    if row.error:
        return f"{start}  {row.error}"
    return (
        f"{start}{row.median_ms:>11.3f}{row.min_ms:>10.3f}{row.gflops:>9.1f}{row.ratio:>7.2f}"
        f"{row.load_s:>8.2f}{row.first_run_s:>8.3f}{row.max_abs:>10.1e}{row.max_rel:>10.1e}{row.runs:>8}"
    )


def print_geomeans(rows: list[Timing]) -> None:
    print("\nGeometric mean of the ratios to onnxruntime (where both ran, without the models that only add)")
    for threads in sorted({row.threads for row in rows}):
        for engine in dict.fromkeys(row.engine for row in rows):
            chosen = [row for row in rows if (row.engine, row.threads) == (engine, threads)]
            ratios = [row.ratio for row in chosen if row.ratio and row.gflops]
            if ratios:
                mean = statistics.geometric_mean(ratios)
                print(f"{engine:<14}{threads:>2} threads{mean:>7.2f} over {len(ratios)} models")


# Memory


def measure_all_memory(models: Iterable[str], threads: Iterable[int], settings: Settings) -> Iterable[Memory]:
    """Rows of all models, each printed when it is there."""
    print(f"{'model':<27}{'thr':>4} {'engine':<14}{'base MB':>10}{'peak MB':>10}{'steady MB':>10}")
    for name in models:
        for count in threads:
            for engine in settings.engines:
                try:
                    row = isolated.call(measure_memory, name, engine, count, settings)
                except isolated.DiedError as error:
                    row = Memory(name, engine, count, error=str(error))
                figures = f"{row.base_mb:>10.1f}{row.peak_mb:>10.1f}{row.steady_mb:>10.1f}"
                print(f"{name:<27}{count:>4} {engine:<14}{'  ' + row.error if row.error else figures}", flush=True)
                yield row


def measure_memory(name: str, engine: str, threads: int, settings: Settings) -> Memory:
    """One engine on one model, in this process; Linux only."""
    model = registry.get(name)
    folder = settings.zoo / name
    inputs, _ = test_data.load(folder / "test_data_set_0")
    row = Memory(name, engine, threads)
    try:
        ENGINES[engine].warm_import()
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        row.base_mb = resident_mb("VmRSS")
        runner = ENGINES[engine].load(model, folder / "model.onnx", threads, settings.static)
        for _ in range(3):
            runner(inputs)
        row.peak_mb = resident_mb("VmHWM") - row.base_mb
        row.steady_mb = resident_mb("VmRSS") - row.base_mb
    except Exception as error:  # see `measure`
        row.error = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return row


def resident_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
