"""Scripts of other packages' users, run on the compat distribution by an interpreter that has those packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def results(script: Path, packages: list[str], folder: Path, stand_ins: tuple[str, ...] = ()) -> dict[str, Any]:
    """The `models` of the JSON that a script prints for a folder; skips the test where a package is not installed.

    SARDONYX_CLIENTS_PYTHON names the interpreter; otherwise it is the one that runs the tests. The script finds
    modules beside itself, this project, and the compat distribution in the place of onnxruntime; `stand_ins` are
    packages whose compat distributions are found where they themselves are not there.
    """
    python = os.environ.get("SARDONYX_CLIENTS_PYTHON", sys.executable)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if not all(_there(python, name) for name in packages):
        pytest.skip(f"{' or '.join(packages)} is not installed (SARDONYX_CLIENTS_PYTHON names an interpreter)")
    others = [str(ROOT / "compat" / name) for name in stand_ins if not _there(python, name)]
    environment["PYTHONPATH"] = os.pathsep.join([*others, str(ROOT / "compat" / "onnxruntime"), str(ROOT)])
    done = subprocess.run(
        [python, str(script), str(folder)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["onnxruntime"].startswith(str(ROOT / "compat"))
    return dict(found["models"])


def _there(python: str, name: str) -> bool:
    """Whether an interpreter finds a module."""
    asked = (
        "import importlib.util\n"
        f"parts = {name.split('.')}\n"
        "names = ['.'.join(parts[: at + 1]) for at in range(len(parts))]\n"
        "raise SystemExit(not all(map(importlib.util.find_spec, names)))"
    )
    return not subprocess.run([python, "-c", asked], cwd="/", check=False).returncode
