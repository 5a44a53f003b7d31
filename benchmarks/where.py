"""Where the time of a model goes: onnxruntime's profile by operator and ours by kernel, side by side.

    python -m benchmarks.where MODEL [--zoo DIR] [--threads 1] [--runs 20] [--by kernel|node] [--top 25]

MODEL is a name of the zoo, or a file with a folder `test_data_set_0` beside it. Both sessions are profiled (see
docs/profiling.md), one after the other; runs that warm up do not count. A line holds milliseconds of one run, the
share of all kernels, and how many there are (means over the runs). `between` is what a run takes beside its kernels.
Profiling itself costs a little for each kernel, in both engines; `unprofiled` is the median of runs without it.
"""

from __future__ import annotations

import collections
import itertools
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import isolated, machine, options
from benchmarks.engines import BASELINE, ENGINES, OURS, OnnxRuntime
from benchmarks.turns import timed
from benchmarks.zoo import registry, test_data

WARM_UP = 3
SUFFIX = "_kernel_time"


@dataclass(frozen=True)
class Profile:
    """Milliseconds and calls of one run by name, the sum over kernels, the whole run, and a run without profiling."""

    milliseconds: Mapping[str, float]
    calls: Mapping[str, int]
    run_ms: float
    unprofiled_ms: float

    @property
    def kernels_ms(self) -> float:
        return sum(self.milliseconds.values())


def main() -> None:
    parser = options.parser("where", __doc__)
    parser.add_argument("model", metavar="MODEL")
    options.add_zoo(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--by", choices=("kernel", "node"), default="kernel")
    parser.add_argument("--top", type=int, default=25, help="lines; default: %(default)s")
    parser.add_argument("--engines", type=options.engines, default=(BASELINE, OURS), help="with onnxruntime's API")
    chosen = parser.parse_args()
    if chosen.model in registry.names():
        options.built_models(parser, [chosen.model], chosen.zoo)
        path = chosen.zoo / chosen.model / "model.onnx"
    else:
        path = Path(chosen.model)
    print(machine.line())
    profiles = {
        engine: isolated.call(profile, engine, path, chosen.threads, chosen.runs, chosen.by)
        for engine in chosen.engines
    }
    print(side_by_side(profiles, chosen.top))


def profile(engine: str, path: Path, threads: int, runs: int, by: str) -> Profile:
    """Profile one engine on the model's first test data, in this process."""
    inputs, _ = test_data.load(path.parent / "test_data_set_0")
    found = ENGINES[engine]
    if not isinstance(found, OnnxRuntime):
        raise SystemExit(f"{engine} writes no profile that this reads")
    run = partial(found.session(path, threads).run, None, inputs)
    seconds = [timed(run)[0] for _ in range(WARM_UP + runs)][WARM_UP:]
    del run
    with tempfile.TemporaryDirectory() as folder:
        session = found.session(path, threads, profile=str(Path(folder) / "profile"))
        for _ in range(WARM_UP + runs):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    return aggregate(events, runs, by, statistics.median(seconds) * 1e3)


def aggregate(events: Sequence[Mapping[str, Any]], runs: int, by: str, unprofiled_ms: float) -> Profile:
    """The last `runs` runs of a profile, a kernel's name or a node's name as key."""
    whole = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])[-runs:]
    counted = [event for event in events if event["name"].endswith(SUFFIX) and event["ts"] >= whole[0]["ts"]]
    micros: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in counted:
        key = name_of(event, by)
        micros[key] += event["dur"]
        calls[key] += 1
    return Profile(
        {key: value / runs / 1e3 for key, value in micros.most_common()},
        {key: round(value / runs) for key, value in calls.items()},
        statistics.fmean(event["dur"] for event in whole) / 1e3,
        unprofiled_ms,
    )


def name_of(event: Mapping[str, Any], by: str) -> str:
    """What an event is added up under: its kernel where it says so, else its operator; or its node with that."""
    arguments = event["args"]
    kernel = str(arguments.get("kernel") or arguments.get("op_name", "?"))
    if arguments.get("host_reason"):
        kernel = f"host {kernel}"
    return kernel if by == "kernel" else f"{kernel} {event['name'].removesuffix(SUFFIX)}"


def side_by_side(profiles: Mapping[str, Profile], top: int, width: int = 44) -> str:
    """The profiles as columns, the most expensive lines first."""
    columns = []
    for engine, found in profiles.items():
        lines = [f"{engine:<{width}} {'ms':>8} {'share':>6} {'calls':>5}"]
        total = found.kernels_ms or 1.0
        for key, value in itertools.islice(found.milliseconds.items(), top):
            short = key if len(key) <= width else key[: width - 1] + "…"
            lines.append(f"{short:<{width}} {value:>8.3f} {value / total:>6.1%} {found.calls[key]:>5}")
        rest = found.kernels_ms - sum(itertools.islice(found.milliseconds.values(), top))
        for title, value in (
            ("others", rest),
            ("kernels", found.kernels_ms),
            ("between", found.run_ms - found.kernels_ms),
            ("run", found.run_ms),
            ("unprofiled", found.unprofiled_ms),
        ):
            lines.append(f"{title:<{width}} {value:>8.3f} {value / total:>6.1%} {'':>5}")
        columns.append(lines)
    blank = " " * (width + 22)
    return "\n".join(" | ".join(cells).rstrip() for cells in itertools.zip_longest(*columns, fillvalue=blank))


if __name__ == "__main__":
    main()
