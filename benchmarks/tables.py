"""Tables in Markdown that also line up in a terminal, and the means under them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_ERROR = 72


@dataclass(frozen=True)
class Column:
    """A column: its title, the field of a row that it shows, and how (`form`: a format, empty for text)."""

    title: str
    field: str
    form: str = ""
    width: int = 8

    def cell(self, row: Mapping[str, Any]) -> str:
        """The text of a row's field; nothing where the row has no such figure."""
        value = row.get(self.field)
        if value is None or (isinstance(value, float) and (value != value or value == 0.0)):
            return ""
        return format(value, self.form)


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]

    def head(self) -> str:
        titles = self._line([column.title for column in self.columns])
        rule = "|".join("-" * column.width + ("-:" if column.form else "--") for column in self.columns)
        return f"{titles}\n|{rule}|"

    def line(self, row: Mapping[str, Any]) -> str:
        """A row; one with an `error` shows it behind its texts, in place of figures."""
        if row.get("error"):
            texts = [column.cell(row) for column in self.columns if not column.form]
            return self._line([*texts, f"{row['error']}"[:LONGEST_ERROR]], fill=True)
        return self._line([column.cell(row) for column in self.columns])

    def text(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return "\n".join([self.head(), *map(self.line, rows)])

    def _line(self, cells: Sequence[str], fill: bool = False) -> str:
        padded = [
            cell.rjust(column.width) if column.form and not fill else cell.ljust(column.width)
            for cell, column in zip(cells, self.columns, strict=False)
        ]
        empty = [" " * column.width for column in self.columns[len(padded) :]]
        return f"| {' | '.join([*padded, *empty])} |"


def geomean(ratios: Iterable[float]) -> float:
    """The geometric mean of the positive numbers among them; 0 if there is none."""
    known = [ratio for ratio in ratios if ratio > 0]
    return statistics.geometric_mean(known) if known else 0.0
