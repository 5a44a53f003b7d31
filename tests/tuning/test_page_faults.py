"""The price of fresh memory is a positive number, and found once."""

from __future__ import annotations

import pytest

from sardonyx.tuning import page_faults


def test_the_least_of_several_attempts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([3.0, 1.0, 2.0])
    page_faults.fault_nanoseconds.cache_clear()
    monkeypatch.setattr(page_faults, "_touch", lambda: next(found))
    assert page_faults.fault_nanoseconds() == page_faults.fault_nanoseconds() == 1.0
    page_faults.fault_nanoseconds.cache_clear()


def test_fresh_memory_takes_time() -> None:
    assert 0 < page_faults._touch() < 1e6
