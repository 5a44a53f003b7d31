"""How far a long run has come: a bar where standard error is a terminal, or a function of the caller."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

# Told after each sample: how many are done, and how many there are, None where that is not known.
Callback: TypeAlias = Callable[[int, int | None], None]

_WIDTH = 30
_SECONDS = 0.1  # between two drawings


class Progress:
    """A context in which `step` is called after each sample."""

    def __init__(self, label: str, total: int | None, callback: Callback | None = None) -> None:
        self._label, self._total, self._callback = label, total, callback
        self._done = 0
        self._draws = callback is None and sys.stderr is not None and sys.stderr.isatty()
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def step(self) -> None:
        """One sample more is done."""
        self._done += 1
        if self._callback is not None:
            self._callback(self._done, self._total)
        elif self._draws and time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        text = f"{self._done} samples"
        if self._total:
            full = min(_WIDTH, _WIDTH * self._done // self._total)
            text = f"[{'#' * full}{' ' * (_WIDTH - full)}] {self._done}/{self._total}"
        sys.stderr.write(f"\r{self._label} {text}")
        sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draws and self._done:
            self._draw()
            sys.stderr.write("\n")
