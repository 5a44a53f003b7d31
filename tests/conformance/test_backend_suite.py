"""ONNX's backend suite as one test for each way to run it, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sardonyx.compiler.llvm.target import host_target
from tests.conformance.__main__ import main
from tests.conformance.skips import SKIPS

# They share the suite, which takes long to load.
pytestmark = pytest.mark.xdist_group("conformance")

# Operators as such: functions written out as graphs of other operators are the same on every machine.
OPERATORS = ["--match", "^(?!.*_expanded)"]
# Options, and how many tests there are at least.
WAYS = {
    "as it comes": ([], 1900),
    "constants": (["--constants"], 1400),
    "avx2": (["--kernels", "avx2", *OPERATORS], 1500),
    "portable": (["--kernels", "portable", "--threads", "1", *OPERATORS], 1500),
}


@pytest.mark.parametrize("way", WAYS)
def test_whole_suite(way: str, tmp_path: Path) -> None:
    if way == "avx2" and not can_run("avx2"):
        pytest.skip("this machine has no AVX2")
    report = tmp_path / "report.json"
    options, least = WAYS[way]
    main(["--workers", "1", "--timeout", "300", "--json", str(report), *options])
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    assert len(outcomes) > least
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
