"""Log lines in the form that users of onnxruntime read and grep for.

A line goes to file descriptor 2 itself, not to ``sys.stderr``, as the native logger of onnxruntime does; warnings
are yellow, errors bold red, also when stderr is a file. ``-1`` as a session's severity means the process default.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time


class Severity(enum.IntEnum):
    """Severities by their numbers in ``log_severity_level``."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


_LETTERS = {
    Severity.VERBOSE: "V",
    Severity.INFO: "I",
    Severity.WARNING: "W",
    Severity.ERROR: "E",
    Severity.FATAL: "F",
}
_COLOURS = {Severity.WARNING: "\x1b[0;93m", Severity.ERROR: "\x1b[1;31m", Severity.FATAL: "\x1b[1;31m"}
_RESET = "\x1b[m"

_default_severity = int(Severity.WARNING)


def set_default_severity(severity: int) -> None:
    """Set the threshold of every logger that has none of its own; 0 (verbose) to 4 (fatal), else RuntimeError."""
    global _default_severity
    if severity not in range(5):
        raise RuntimeError(f"Invalid logging severity. {severity}: it must be 0 (verbose) to 4 (fatal)")
    _default_severity = int(severity)


def default_severity() -> int:
    return _default_severity


class Logger:
    """A logger with an id and a threshold; threshold -1 follows the process default."""

    def __init__(self, identity: str = "", threshold: int = -1) -> None:
        self.identity = identity
        self.threshold = threshold

    def is_enabled(self, severity: Severity) -> bool:
        return severity >= (_default_severity if self.threshold < 0 else self.threshold)

    def without_warnings(self) -> Logger:
        """The same for errors alone."""
        return Logger(self.identity, Severity.ERROR if self.is_enabled(Severity.ERROR) else Severity.FATAL)

    def verbose(self, message: str, origin: str = "session") -> None:
        self.write(Severity.VERBOSE, message, origin)

    def info(self, message: str, origin: str = "session") -> None:
        self.write(Severity.INFO, message, origin)

    def warning(self, message: str, origin: str = "session") -> None:
        self.write(Severity.WARNING, message, origin)

    def error(self, message: str, origin: str = "session") -> None:
        self.write(Severity.ERROR, message, origin)

    def write(self, severity: Severity, message: str, origin: str) -> None:
        """Write one line; `origin` names the part of the engine that speaks."""
        if not self.is_enabled(severity):
            return
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now // 1_000_000_000))
        colour = _COLOURS.get(severity, "")
        head = f"{stamp}.{now % 1_000_000_000:09d} [{_LETTERS[severity]}:onnxruntime:{self.identity}, {origin}]"
        _put(f"{colour}{head} {message}{_RESET if colour else ''}\n")

    def notice(self, message: str) -> None:
        """Write one line as it is, for somebody who waits; a threshold above warnings silences it."""
        if self.is_enabled(Severity.WARNING):
            _put(f"{message}\n")


def _put(line: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, line.encode("utf-8", "replace"))


DEFAULT = Logger("Default")
