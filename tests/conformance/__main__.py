"""Run ONNX's backend suite: ``python -m tests.conformance``; ``--help`` tells the options."""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx

from tests.conformance import suite
from tests.conformance.engine import Engine
from tests.conformance.skips import SKIPS
from tests.conformance.workers import Outcome, run_all

STATUSES = ("passed", "failed", "crashed", "timeout", "skipped")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 0 where nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Run ONNX's backend suite.")
    parser.add_argument("--report", action="store_true", help="print the reason of every test that did not pass")
    parser.add_argument("--match", default="", metavar="REGEX", help="only tests whose name it is found in")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for each test (default: 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes there")
    parser.add_argument("--kernels", default="", metavar="NAME", help="instruction set of native code; numpy: none")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads of a session")
    parser.add_argument(
        "--constants",
        action="store_true",
        help="make all inputs but the first part of the model: tests of several inputs alone",
    )
    parser.add_argument("--native", action="store_true", help="tell how many numeric tests run in native code alone")
    options = parser.parse_args(arguments)
    engine = Engine(options.kernels, options.threads, options.constants, options.native)
    wanted = [name for name in suite.tests() if re.search(options.match, name)]
    if options.constants:  # tests with one input are the same as ever
        wanted = [name for name in wanted if suite.inputs_at_most(name) > 1]
    ran = {
        outcome.name: outcome
        for outcome in run_all([name for name in wanted if name not in SKIPS], options.workers, options.timeout, engine)
    }
    outcomes = [
        ran[name] if name in ran else Outcome(suite.tests()[name][0], name, "skipped", SKIPS[name]) for name in wanted
    ]
    print(table(outcomes))
    if options.native:
        print(native_share(outcomes, options.report))
    if options.report:
        print(reasons(outcomes))
    if options.json:
        counts = collections.Counter(outcome.status for outcome in outcomes)
        report = {"onnx": onnx.__version__, "counts": counts, "outcomes": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts by kind and status."""
    lines = [f"{'kind':<20}" + "".join(f"{status:>9}" for status in (*STATUSES, "all"))]
    for kind in (*suite.KINDS, "all"):
        chosen = [outcome for outcome in outcomes if kind in ("all", outcome.kind)]
        counts = collections.Counter(outcome.status for outcome in chosen)
        lines.append(f"{kind:<20}" + "".join(f"{counts[status]:>9}" for status in STATUSES) + f"{len(chosen):>9}")
    return "\n".join(lines)


def native_share(outcomes: Sequence[Outcome], with_names: bool) -> str:
    """How many numeric node tests have no host step, and what the host steps of the others are, the most first."""
    numeric = [outcome for outcome in outcomes if outcome.kind == "node" and outcome.host_steps is not None]
    native = [outcome for outcome in numeric if not outcome.host_steps]
    lines = [f"native: {len(native)} of {len(numeric)} numeric node tests ({len(native) / max(1, len(numeric)):.1%})"]
    tests: dict[str, list[str]] = collections.defaultdict(list)
    for outcome in numeric:
        for step in dict.fromkeys(outcome.host_steps or ()):
            tests[step].append(outcome.name)
    for step, names in sorted(tests.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(names):5}  {step}" + (f"  [{', '.join(names)}]" if with_names else ""))
    return "\n".join(lines)


def reasons(outcomes: Sequence[Outcome]) -> str:
    """A line for every test that did not pass."""
    return "\n".join(
        f"{outcome.status:<8} {outcome.name}: {outcome.reason}" for outcome in outcomes if outcome.status != "passed"
    )


if __name__ == "__main__":
    sys.exit(main())
