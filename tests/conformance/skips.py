"""Tests of the suite that are not run, each with its reason. The list only gets shorter."""

from __future__ import annotations

_DRAWN = "its expected output was drawn from NumPy's global generator; tests/ops/test_random.py checks the distribution"

# Name of the test: why a right implementation cannot pass it.
SKIPS: dict[str, str] = {
    "test_bernoulli": _DRAWN,
    "test_bernoulli_double": _DRAWN,
    "test_bernoulli_double_expanded": _DRAWN,
    "test_bernoulli_expanded": _DRAWN,
    "test_bernoulli_seed": _DRAWN,
    "test_bernoulli_seed_expanded": _DRAWN,
}
