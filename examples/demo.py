"""An unmodified program on Sardonyx: Magika's command-line client names the content of this repository's files.

    python examples/demo.py --compat DIR

DIR holds the distribution of `compat/onnxruntime`, whose module `onnxruntime` is Sardonyx. The client runs once with
that folder in front of its path and once without, on the real onnxruntime; then `sardonyx run` runs Magika's model.
`make demo` prepares everything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "README.md",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
    ".ci/run",
    "sardonyx/errors.py",
    "sardonyx/cli/main.py",
)
# Printed by the client's own process before it starts: the module that its `import onnxruntime` gives.
WHO = (
    "import onnxruntime as ort; session = ort.InferenceSession.__module__;"
    "print(session.split('.')[0], f'(sessions from {session}, API {ort.__version__})')"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compat", type=Path, required=True, metavar="DIR")
    compat = parser.parse_args().compat.resolve()

    print("Magika's Python client, unmodified, on", len(FILES), "files of this repository")
    ours = Side(compat)
    theirs = Side(None)
    print(f"  A: onnxruntime is {ours.engine}, {ours.seconds:.1f} s")
    print(f"  B: onnxruntime is {theirs.engine}, {theirs.seconds:.1f} s")
    print(f"  {'file':<24}{'A':<12}{'score':>6}   {'B':<12}{'score':>6}")
    for name, (label, score), (other, other_score) in zip(FILES, ours.verdicts, theirs.verdicts, strict=True):
        print(f"  {name:<24}{label:<12}{score:>6.3f}   {other:<12}{other_score:>6.3f}")
    agreed = sum(a[0] == b[0] for a, b in zip(ours.verdicts, theirs.verdicts, strict=True))
    print(f"  {agreed} of {len(FILES)} verdicts agree\n")

    model = magika_model()
    print(f"sardonyx run {model.name}  (Magika's model, random input)")
    command = [sys.executable, "-m", "sardonyx.cli.main", "run", str(model)]
    print(output(command, None), end="")
    if agreed != len(FILES) or not ours.engine.startswith("sardonyx") or theirs.engine.startswith("sardonyx"):
        sys.exit("the two runs differ, or were not run by the two engines")


class Side:
    """One run of the client: who answered for `onnxruntime`, its verdicts and the time."""

    def __init__(self, compat: Path | None) -> None:
        self.engine = output([sys.executable, "-c", WHO], compat).strip()
        start = time.perf_counter()
        command = [sys.executable, "-m", "magika.cli.magika_client", "--jsonl", "--no-colors", *FILES]
        answers = [json.loads(line) for line in output(command, compat).splitlines()]
        self.seconds = time.perf_counter() - start
        self.verdicts = [verdict(answer) for answer in answers]


def verdict(answer: dict) -> tuple[str, float]:
    """The label and the score in one line of the client's output."""
    if answer["status"] != "ok":
        return answer["status"], 0.0
    return answer["prediction"]["output"]["label"], float(answer["prediction"]["score"])


def output(command: list[str], compat: Path | None) -> str:
    """What a command prints; it must succeed, and its errors are shown in one line."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if compat is not None:
        environment["PYTHONPATH"] = str(compat)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"{' '.join(command[1:4])} failed: {last}")
    return done.stdout


def magika_model() -> Path:
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        sys.exit("magika is not installed: run `make demo`")
    return sorted(Path(spec.origin).parent.glob("models/*/model.onnx"))[-1]


if __name__ == "__main__":
    main()
