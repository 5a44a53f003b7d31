"""What a user did that a command cannot take."""

from __future__ import annotations


class CommandError(Exception):
    """Ends a command with one line on standard error and exit code 1."""
