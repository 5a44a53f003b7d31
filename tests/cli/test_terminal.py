"""What commands print on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.conftest import Command

COLUMNS = 80
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _on_terminal(*arguments: object) -> list[str]:
    """The lines that a command writes to a terminal, its errors among them."""
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm"
    command = [sys.executable, "-m", "sardonyx", *map(str, arguments)]
    with subprocess.Popen(command, stdout=side, stderr=side, stdin=side, env=environment):
        os.close(side)
        text = b""
        try:
            while part := os.read(screen, 1 << 16):
                text += part
        except OSError:  # the other side is closed
            pass
    os.close(screen)
    return _COLOURS.sub("", text.decode()).splitlines()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("info", ()),
        ("run", ("--repeat", 1)),
        ("run", ("--output", "nothing_that_the_model_has", "--input", "ids=1", "--input", "shift=1")),
        ("explain", ("--why", "--all", "--option", "sardonyx.engine_cache=0")),
        ("explain", ("--memory", "--option", "sardonyx.engine_cache=0")),
        ("compile", ("--profile", "ids:1x8,1x128,1x512")),
    ],
)
def test_lines_fit_and_words_stay_whole(
    name: str, options: tuple[object, ...], embedding: Path, command: Command
) -> None:
    lines = _on_terminal(name, embedding, *options)
    assert lines
    assert max(map(len, lines)) <= COLUMNS
    outcome = command(name, embedding, *options)
    known, shown = _words(outcome.out + outcome.err), _words(" ".join(lines))
    assert len(known & shown) > 4
    assert not shown - known


def _words(text: str) -> set[str]:
    return {bare for word in text.split() if re.fullmatch(r"[A-Za-z]{3,}", bare := word.strip("(),.:;"))}
