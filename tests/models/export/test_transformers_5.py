"""One architecture of each kind once more, with transformers 5 in the place of the environment's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.models.test_transformers_5 import INSTALLED, ROOT

pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxscript", reason="the extra `models` is not installed")

# A decoder with windows, one with states, two graphs of a decoder, and an encoder.
CHOSEN = "gemma3 or lfm2 or bart or modernbert"


def test_the_same_with_transformers_5() -> None:
    if not (INSTALLED / "transformers").is_dir():
        pytest.skip(f"transformers 5 is not installed in {INSTALLED}: `make test` does that")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INSTALLED), str(ROOT)])}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "-k", CHOSEN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/models/export/test_architectures.py"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith("4 passed")
