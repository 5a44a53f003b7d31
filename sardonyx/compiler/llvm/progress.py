"""A word to the person who waits while a session compiles its kernels for the first time."""

from __future__ import annotations

from sardonyx import log

PATIENCE = 2.0  # seconds of compiling that nobody needs to hear of


class Progress:
    """Adds up what compiling took since the session began; beyond `PATIENCE` it says so, once a session."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A session is being made."""
        self._seconds = 0.0
        self._until = float("-inf")  # the time up to which it is added up
        self._kernels = 0
        self._told = False

    def next(self, kept: bool) -> None:
        """Another kernel is about to be compiled; `kept` tells whether the next process will find it."""
        if self._told or self._seconds < PATIENCE:
            return
        self._told = True
        later = "kept for the next time" if kept else "not kept: SARDONYX_CACHE names no folder that can be written"
        log.DEFAULT.notice(
            f"sardonyx: compiling kernels for this machine, {self._kernels} in {self._seconds:.1f} s so far ({later})"
        )

    def done(self, began: float, ended: float) -> None:
        """One was compiled from then to then; time that several take side by side counts once."""
        self._seconds += max(0.0, ended - max(began, self._until))
        self._until = max(ended, self._until)
        self._kernels += 1
