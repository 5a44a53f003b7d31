"""ONNX's backend suite as one test for each way to run it, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.compiler.llvm.target import host_target
from tests.conformance.skips import SKIPS

ROOT = Path(__file__).resolve().parents[2]


WAYS = {
    "as it comes": [],
    "constants": ["--constants"],
    "avx2": ["--kernels", "avx2"],
    "portable": ["--kernels", "portable", "--threads", "1"],
}


@pytest.mark.parametrize("way", WAYS)
def test_whole_suite(way: str, tmp_path: Path) -> None:
    if way == "avx2" and not can_run("avx2"):
        pytest.skip("this machine has no AVX2")
    report = tmp_path / "report.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--workers", "2", "--json", str(report), *WAYS[way]],
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=1500,
        stdout=subprocess.DEVNULL,
    )
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    assert len(outcomes) > (1400 if way == "constants" else 1900)
    bad = {item["name"]: f"{item['status']}: {item['reason']}" for item in outcomes if item["status"] != "passed"}
    assert {name: reason for name, reason in bad.items() if name not in SKIPS} == {}


def can_run(kernels: str) -> bool:
    """Whether this machine has an instruction set."""
    try:
        host_target(kernels)
    except ValueError:
        return False
    return True


def test_every_skip_names_a_test_of_the_suite() -> None:
    from tests.conformance import suite

    assert set(SKIPS) <= set(suite.tests())
    assert all(len(reason) > 20 for reason in SKIPS.values())
