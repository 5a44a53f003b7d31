"""Tables line up and the means under them are right."""

from __future__ import annotations

import math

import pytest

from benchmarks.tables import Column, Table, geomean

TABLE = Table((Column("name", "name", width=6), Column("ms", "ms", ".2f", 7), Column("runs", "runs", "d", 4)))


def test_rows_line_up_with_the_head() -> None:
    lines = TABLE.text([{"name": "a", "ms": 1.234, "runs": 3}, {"name": "b", "ms": 1000.0, "runs": 12}]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0] == "| name   |      ms | runs |"
    assert lines[1] == "|--------|--------:|-----:|"
    assert lines[2] == "| a      |    1.23 |    3 |"


@pytest.mark.parametrize("nothing", [None, 0.0, math.nan])
def test_a_figure_that_is_not_there_is_blank(nothing: float | None) -> None:
    assert TABLE.line({"name": "a", "ms": nothing, "runs": 3}) == "| a      |         |    3 |"


def test_a_missing_field_is_blank() -> None:
    assert TABLE.line({"name": "a"}) == "| a      |         |      |"


def test_an_error_takes_the_place_of_figures() -> None:
    line = TABLE.line({"name": "a", "ms": 0.0, "runs": 0, "error": "ValueError: no"})
    assert "ValueError: no" in line
    assert line.count("|") == 4


def test_geometric_mean() -> None:
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([2.0, 0.0, 8.0]) == pytest.approx(4.0)
    assert geomean([]) == 0.0
