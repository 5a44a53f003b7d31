"""Operators on strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours


def text(*values: str) -> Any:
    return np.array(values, object)


@pytest.mark.parametrize("action", ["LOWER", "UPPER"])
def test_normalizer_changes_cases_without_a_locale(action: str) -> None:
    (found,) = ours(
        "StringNormalizer", [text("Monday", "ÉTÉ", "straße")], opset=10, case_change_action=action, locale="xx_YY"
    )
    expected = ["monday", "été", "straße"] if action == "LOWER" else ["MONDAY", "ÉTÉ", "STRAßE"]
    assert found.tolist() == expected


@pytest.mark.parametrize(("sensitive", "left"), [(0, ["tuesday"]), (1, ["Monday", "tuesday"])])
def test_normalizer_drops_stop_words(sensitive: int, left: list[str]) -> None:
    data = text("monday", "Monday", "tuesday").reshape(1, 3)
    (found,) = ours("StringNormalizer", [data], opset=10, is_case_sensitive=sensitive, stopwords=["monday"])
    assert found.tolist() == [left]


def test_normalizer_keeps_one_empty_string() -> None:
    compare("StringNormalizer", [text("a")], opset=10, is_case_sensitive=1, stopwords=["a"])
    compare("StringNormalizer", [text("a", "b")], opset=10, is_case_sensitive=1, stopwords=["a"])


def test_concat() -> None:
    compare("StringConcat", [text("a", "b"), text("x")], opset=20)
    compare("StringConcat", [np.array("q", object), np.array("z", object)], opset=20)
    compare("StringConcat", [np.empty((0, 2), object), text("x", "y")], opset=20)


@pytest.mark.parametrize("delimiter", [None, "", ",", ", "])
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_split(delimiter: str | None, limit: int | None) -> None:
    given = {"delimiter": delimiter, "maxsplit": limit}
    attributes = {name: value for name, value in given.items() if value is not None}
    for data in (text("a,b,,c", "", "x", ",", "a, b"), np.empty((0, 3), object), np.array("a b c", object)):
        compare("StringSplit", [data], 2, opset=20, **attributes)


@pytest.mark.parametrize("pattern", [r"www\.[\w.-]+\.com", "a.c", "(?i)ABC", r"\d+", "a|ab", "[[:alpha:]]+"])
def test_full_match(pattern: str) -> None:
    compare("RegexFullMatch", [text("www.a.com", "a\nc", "abc", "12", "ab", "")], opset=20, pattern=pattern)


def test_full_match_refuses_a_broken_expression() -> None:
    with pytest.raises(errors.OnnxRuntimeError, match="cannot be read"):
        ours("RegexFullMatch", [text("a")], opset=20, pattern="(a")
