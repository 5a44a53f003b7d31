"""Tests of the suite that are not run, each with its reason. The list only gets shorter."""

from __future__ import annotations

# Name of the test: why a right implementation cannot pass it.
SKIPS: dict[str, str] = {}
