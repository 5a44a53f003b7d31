"""An unmodified program on Sardonyx: Magika's command-line client names the content of this repository's files.

    python examples/demo.py --compat DIR

DIR holds the distribution of `compat/onnxruntime`, whose module `onnxruntime` is Sardonyx. The client runs with that
folder in front of its path and without, on the real onnxruntime; then `sardonyx run` runs Magika's model.

Each side runs several times, from an empty cache: the first run is cold, the others are warm. In the first one Sardonyx
takes kernels from the distribution `sardonyx-kernels`, which `make demo` builds for this machine, and compiles what is
not in it. It keeps what it makes for later processes. `make demo` prepares everything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
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
WARM = 3  # runs behind the first one
# Printed by the client's own process before it starts: the module that its `import onnxruntime` gives.
WHO = (
    "import onnxruntime as ort; session = ort.InferenceSession.__module__;"
    "print(session.split('.')[0], f'(sessions from {session}, API {ort.__version__})')"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compat", type=Path, required=True, metavar="DIR")
    compat = parser.parse_args().compat.resolve()

    print("Magika's Python client, unmodified, on", len(FILES), "files of this repository", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SARDONYX_CACHE"] = cache + "/counted"
        origin = origin_of_kernels()
        os.environ["SARDONYX_CACHE"] = cache + "/client"  # an empty one: the first run is that of a new user
        show(Side(compat), Side(None), origin)


def origin_of_kernels() -> str:
    """Where the kernels of Magika's model come from in a process with an empty cache."""
    model = str(magika_model())
    about = json.loads(output([sys.executable, "-m", "sardonyx", "info", model, "--json"], None))
    sizes = [f"--dim={dim}={len(FILES)}" for value in about["inputs"] for dim in value["shape"] if isinstance(dim, str)]
    (counts,) = json.loads(output([sys.executable, "-m", "sardonyx", "warm", model, "--json", *sizes], None))
    return (
        f"{counts['from_pack']} of its kernels come ready from sardonyx-kernels, {counts['compiled']} are compiled, "
        "and what is made is kept for the later runs"
    )


def show(ours: Side, theirs: Side, origin: str) -> None:
    """Print what both sides say and what they took, and run the model by itself; end with 1 where they differ."""
    print(f"  A: onnxruntime is {ours.engine}\n     {ours.times}")
    print(f"     (the first run has an empty cache: {origin})")
    print(f"  B: onnxruntime is {theirs.engine}\n     {theirs.times}")
    print(f"  {'file':<24}{'A':<12}{'score':>6}   {'B':<12}{'score':>6}")
    for name, (label, score), (other, other_score) in zip(FILES, ours.verdicts, theirs.verdicts, strict=True):
        print(f"  {name:<24}{label:<12}{score:>6.3f}   {other:<12}{other_score:>6.3f}")
    agreed = sum(a[0] == b[0] for a, b in zip(ours.verdicts, theirs.verdicts, strict=True))
    print(f"  {agreed} of {len(FILES)} verdicts agree\n")

    model = magika_model()
    print(
        f"sardonyx run {model.name}  (Magika's model, random input; load is quick, as its engine was kept)", flush=True
    )
    command = [sys.executable, "-m", "sardonyx", "run", str(model)]
    output(command, None)  # leaves the engine
    print(output(command, None), end="")
    if agreed != len(FILES) or not ours.engine.startswith("sardonyx") or theirs.engine.startswith("sardonyx"):
        sys.exit("the two runs differ, or were not run by the two engines")


class Side:
    """Runs of the client: who answered for `onnxruntime`, its verdicts, what a cold run and warm ones took."""

    def __init__(self, compat: Path | None) -> None:
        self.engine = output([sys.executable, "-c", WHO], compat).strip()
        command = [sys.executable, "-m", "magika.cli.magika_client", "--jsonl", "--no-colors", *FILES]
        self.seconds = []
        for _ in range(1 + WARM):
            start = time.perf_counter()
            answers = [json.loads(line) for line in output(command, compat).splitlines()]
            self.seconds.append(time.perf_counter() - start)
        self.verdicts = [verdict(answer) for answer in answers]

    @property
    def times(self) -> str:
        """What the first process took, cold, and the quickest of the later ones, warm."""
        cold, *warm = self.seconds
        return f"cold {cold:.1f} s, warm {min(warm):.1f} s for a whole process"


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
