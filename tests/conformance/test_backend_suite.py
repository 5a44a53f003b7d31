"""ONNX's backend suite as one test, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.skips import SKIPS

ROOT = Path(__file__).resolve().parents[2]


def test_whole_suite(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--workers", "2", "--json", str(report)],
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=240,
        stdout=subprocess.DEVNULL,
    )
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    assert len(outcomes) > 1900
    bad = {item["name"]: f"{item['status']}: {item['reason']}" for item in outcomes if item["status"] != "passed"}
    assert {name: reason for name, reason in bad.items() if name not in SKIPS} == {}


def test_every_skip_names_a_test_of_the_suite() -> None:
    from tests.conformance import suite

    assert set(SKIPS) <= set(suite.tests())
    assert all(len(reason) > 20 for reason in SKIPS.values())
