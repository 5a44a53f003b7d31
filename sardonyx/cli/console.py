"""How commands print: tables as wide as the terminal, or wide enough for a file."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 240


def console() -> Console:
    """Standard output without guesses about markup; a file or a pipe gets lines that are never broken."""
    return Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False, markup=False, soft_wrap=True)


def plain_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
