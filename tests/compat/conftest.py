"""Programs that import `onnxruntime`, run as they are on the compat distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_client(tmp_path):
    """Run a Python program (text, or arguments for ``python``) whose `onnxruntime` is Sardonyx; its output."""

    def run(program: str | list[str]) -> str:
        arguments = ["-c", program] if isinstance(program, str) else program
        path = os.pathsep.join([str(ROOT / "compat" / "onnxruntime"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
