"""Runs the targets of guided fuzzing with atheris, one after the other, each in a process of its own.

`python -m tests.robustness.guided --seconds 600` shares the time among all targets; `--target NAME` takes one. Inputs
that reach new code are kept in `build/guided/NAME`, and the next run begins with them. An input that ends badly is kept
as well: `--target NAME --input FILE` shows its error, without atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.robustness.guided.target import Target
from tests.robustness.guided.targets import TARGETS

_SECONDS_EACH = 20  # an input that takes longer is a hang
_MEMORY_MB = 3072
_MOST_BYTES = 100_000

NO_ATHERIS = (
    "guided fuzzing needs atheris, which has builds for CPython on Linux (x86-64) alone: install the extra 'fuzz' "
    "there, as `make fuzz-guided` does; `make fuzz` and the tests do without it"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="this one; once for each")
    parser.add_argument("--corpus", type=Path, default=Path("build", "guided"), help="where inputs are kept")
    parser.add_argument("--input", type=Path, help="check this input of the target in this process")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.input is not None:
        if len(names) != 1:
            parser.error("--input needs one --target")
        with tempfile.TemporaryDirectory() as folder:
            taken = TARGETS[names[0]].check(options.input.read_bytes(), Path(folder))
        print("taken" if taken else "refused")
        return 0
    if importlib.util.find_spec("atheris") is None:
        print(NO_ATHERIS, file=sys.stderr)
        return 2
    seconds = max(1, round(options.seconds / len(names)))
    results = [run(TARGETS[name], seconds, options.corpus / name) for name in names]
    return 0 if all(results) else 1


def run(target: Target, seconds: int, corpus: Path) -> bool:
    """Run one target for a while and print what came of it; whether all went well."""
    corpus.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds(), *target.found()):
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    bad = corpus.parent / f"{target.name}-"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.robustness.guided.driver", target.name),
            f"-max_total_time={seconds}",
            f"-max_len={_MOST_BYTES}",
            f"-timeout={_SECONDS_EACH}",
            f"-rss_limit_mb={_MEMORY_MB}",
            f"-artifact_prefix={bad}",
            "-print_final_stats=1",
            os.fspath(corpus),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    inputs, covered = _last(r"number_of_executed_units: (\d+)", done.stdout), _last(r"cov: (\d+)", done.stdout)
    print(f"{target.name}: {inputs} inputs, {covered} places reached", flush=True)
    if done.returncode == 0:
        return True
    said = done.stdout.splitlines()
    starts = [number for number, line in enumerate(said) if "Uncaught Python exception" in line]
    print("\n".join(said[starts[-1] if starts else -30 :][:60]))
    if kept := _last(r"Test unit written to (\S+)", done.stdout):
        print(f"again: {sys.executable} -m tests.robustness.guided --target {target.name} --input {kept}", flush=True)
    return False


def _last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    return found[-1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
