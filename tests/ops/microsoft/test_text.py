"""Tokenizer against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

TEXTS = np.array(["Hello World", "I love computer  science !", "", " a,b;c ", "Größe 漢字"], object)


def attributes(**given: Any) -> dict[str, Any]:
    return {"mark": 0, "mincharnum": 1, "pad_value": "<pad>", **given}


@pytest.mark.parametrize(
    "given",
    [
        {"separators": [" "]},
        {"separators": [" ", "[,;]"]},
        {"separators": [" "], "mark": 1},
        {"separators": [" "], "mincharnum": 3},
        {"separators": [" +"], "mincharnum": 2, "mark": 1},
        {"separators": [""]},
        {"tokenexp": "."},
        {"tokenexp": "[a-zA-Z]+"},
        {"tokenexp": "[a-z]+", "mincharnum": 2},
        {"tokenexp": "o[a-z]", "mark": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(5,), (5, 1), (1, 5)])
def test_tokenizer(given: dict[str, Any], shape: tuple[int, ...]) -> None:
    peer.compare("Tokenizer", [TEXTS.reshape(shape)], 1, attributes(**given))


WORDS = np.array(["aab ab 12ab", "über straße x-9", "a--b---c[1]", "日本 語 λόγος", "[a]^b-c"], object)


@pytest.mark.parametrize(
    "pattern",
    [
        "a|ab",
        "a+?b?",
        "(ab|a)(b|)",
        r"\w+",
        r"\d",
        r"[\p{L}]+",
        r"\pL+",
        r"\P{L}",
        r"\p{Lu}|\p{^L}",
        "[^[:alpha:][:space:]]+",
        "[[:^digit:]]+",
        "[]a]+",
        "[^]a]+",
        "[a[]",
        r"\Qa--\E",
        r"[\]\-]",
        "(?i)STRASSE|B",
        r"b\z",
        "[^ ]+",
        r"\x{65e5}|\x41",
    ],
)
@pytest.mark.parametrize("separate", [True, False])
def test_the_syntax_of_re2(pattern: str, separate: bool) -> None:
    given = {"separators": [pattern]} if separate else {"tokenexp": pattern}
    peer.compare("Tokenizer", [WORDS], 1, attributes(**given))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_nothing_to_split(shape: tuple[int, ...]) -> None:
    peer.compare("Tokenizer", [np.empty(shape, object)], 1, attributes(separators=[" "]))


def test_matches_of_nothing_are_no_tokens_and_separate_nothing() -> None:
    peer.compare("Tokenizer", [WORDS], 1, attributes(tokenexp="a*"))
    # onnxruntime drops every character where a separator matches nothing.
    (found,) = peer.run("Tokenizer", [np.array(["baab"], object)], 1, attributes(separators=["a*"]))
    assert found.tolist() == [["b", "b"]]


def test_everything_removed() -> None:
    (found,) = peer.compare("Tokenizer", [np.array(["  ", " "], object)], 1, attributes(separators=[" "]))
    assert found.shape == (2, 0)


def test_bad_attributes_are_named() -> None:
    with pytest.raises(Exception, match="either attribute 'separators' or attribute 'tokenexp'"):
        peer.run("Tokenizer", [TEXTS], 1, attributes())
    with pytest.raises(Exception, match=r"'\(' cannot be read"):
        peer.run("Tokenizer", [TEXTS], 1, attributes(tokenexp="("))
    with pytest.raises(Exception, match="no general category"):
        peer.run("Tokenizer", [TEXTS], 1, attributes(tokenexp=r"\p{Klingon}"))
    with pytest.raises(Exception, match="no class of characters"):
        peer.run("Tokenizer", [TEXTS], 1, attributes(tokenexp="[[:vowel:]]"))
