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


def results(script: Path, packages: list[str], folder: Path) -> dict[str, Any]:
    """The `models` of the JSON that a script prints for a folder; skips the test where a package is not installed.

    SARDONYX_CLIENTS_PYTHON names the interpreter; otherwise it is the one that runs the tests. The script finds
    modules beside itself, this project, and the compat distribution in the place of onnxruntime.
    """
    python = os.environ.get("SARDONYX_CLIENTS_PYTHON", sys.executable)
    path = os.pathsep.join([str(ROOT / "compat" / "onnxruntime"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    asked = (
        "import importlib.util, sys\n"
        "def there(name):\n"
        "    parts = name.split('.')\n"
        "    return all(importlib.util.find_spec('.'.join(parts[:at + 1])) for at in range(len(parts)))\n"
        f"sys.exit(not all(map(there, {packages})))"
    )
    if subprocess.run([python, "-c", asked], env=environment, check=False).returncode:
        pytest.skip(f"{' or '.join(packages)} is not installed (SARDONYX_CLIENTS_PYTHON names an interpreter)")
    done = subprocess.run(
        [python, str(script), str(folder)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["onnxruntime"].startswith(str(ROOT / "compat"))
    return dict(found["models"])
