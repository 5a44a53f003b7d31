"""`examples/quantize.py` runs, and its models are what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_model_is_quantised_in_two_ways() -> None:
    command = [sys.executable, str(ROOT / "examples/quantize.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=True)
    rows = re.findall(r"^(\w+) +([\d.]+) kB +signal to noise +([\d.]+) dB$", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["float", "dynamic", "static"]
    sizes = [float(size) for _, size, _ in rows]
    assert max(sizes[1:]) < 0.3 * sizes[0]
    assert all(25 < float(ratio) < 60 for _, _, ratio in rows[1:])
