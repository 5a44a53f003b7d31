"""Optimum and Olive, unmodified, on the compat distribution.

They are no requirements of this project: an interpreter that has them is named by SARDONYX_CLIENTS_PYTHON, or is the
one that runs the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def _results(script: str, packages: list[str], folder: Path) -> dict[str, Any]:
    """What a script prints; skips the test where a package is not installed."""
    python = os.environ.get("SARDONYX_CLIENTS_PYTHON", sys.executable)
    path = os.pathsep.join([str(ROOT / "compat" / "onnxruntime"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    asked = f"import importlib.util, sys; sys.exit(any(importlib.util.find_spec(one) is None for one in {packages}))"
    if subprocess.run([python, "-c", asked], env=environment, check=False).returncode:
        pytest.skip(f"{' or '.join(packages)} is not installed (SARDONYX_CLIENTS_PYTHON names an interpreter)")
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script)), str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["onnxruntime"].startswith(str(ROOT / "compat"))
    return dict(found["models"])


def test_optimum(tmp_path: Path) -> None:
    models = _results("optimum_presets.py", ["optimum", "datasets", "transformers"], tmp_path)
    assert len(models) == 22
    for name, found in models.items():
        operators = found["operators"]
        if "dynamic" in name:
            assert found["error"] < 0.02, name
            assert operators["MatMulInteger"] >= 14, name
        else:
            # Logits of a model that was never trained are small differences of large numbers.
            assert found["error"] < 0.2, name
            assert operators["QuantizeLinear"] > 30, name
            assert operators["DequantizeLinear"] >= operators["QuantizeLinear"], name
        if "tensorrt" in name:  # symmetric, weights kept in float
            assert "UINT8" not in found["types"], name


def test_olive(tmp_path: Path) -> None:
    models = _results("olive_passes.py", ["olive", "torch"], tmp_path)
    assert len(models) == 20
    for name, found in models.items():
        operators = found["operators"]
        assert found["error"] < (0.15 if "4 bits" in name else 0.04), name
        expected = {"dynamic": "ConvInteger", "QOperator": "QLinearConv"}.get(name.split()[0], "QuantizeLinear")
        assert ("Transpose" if name == "QNN channels last" else expected) in operators, name
