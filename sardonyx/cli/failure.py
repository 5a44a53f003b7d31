"""What a user did that a command cannot take, and how it is told."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import NoReturn

FAILED = 1
WRONG_USAGE = 2


class CommandError(Exception):
    """Ends a command with one line on standard error and exit code 1."""

    code = FAILED


class UsageError(CommandError):
    """The same for an argument that is wrong, whatever the files say that it is used with: exit code 2."""

    code = WRONG_USAGE


def fail(message: str, code: int = FAILED) -> NoReturn:
    """End the process with one line on standard error, broken at words where that is a terminal."""
    print(_broken(f"sardonyx: error: {' '.join(message.split())}"), file=sys.stderr)
    sys.exit(code)


def note(message: str) -> None:
    """One line on standard error on something that is no error."""
    print(_broken(f"sardonyx: {message}"), file=sys.stderr)


def _broken(line: str) -> str:
    if not sys.stderr.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
