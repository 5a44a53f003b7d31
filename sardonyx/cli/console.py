"""How commands print: tables and lines as wide as the terminal, or wide enough for a file."""

from __future__ import annotations

import re
import sys
import textwrap

from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 240
_LABEL = re.compile(r"\S*\s{2,}")


def console() -> Console:
    """Standard output without guesses about markup; a file or a pipe is as wide as tables need."""
    return Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False, markup=False)


def plain_table(*headings: str) -> Table:
    """A table of texts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def number_table(heading: str, *numbers: str) -> Table:
    """A table of names, each with numbers."""
    table = plain_table(heading)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def say(out: Console, text: str) -> None:
    """Lines; a terminal gets them broken at words, what follows below the text behind a label and two blanks.

    A file or a pipe gets lines that are never broken.
    """
    if out.is_terminal:
        text = "\n".join(_broken(line, out.width) for line in text.split("\n"))
    out.print(text, soft_wrap=True)


def _broken(line: str, width: int) -> str:
    label = _LABEL.match(line)
    below = min(label.end() if label else 2, width // 3)
    return textwrap.fill(line, max(width, 2), subsequent_indent=" " * below, break_on_hyphens=False)
