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


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_nothing_to_split(shape: tuple[int, ...]) -> None:
    peer.compare("Tokenizer", [np.empty(shape, object)], 1, attributes(separators=[" "]))


def test_everything_removed() -> None:
    (found,) = peer.compare("Tokenizer", [np.array(["  ", " "], object)], 1, attributes(separators=[" "]))
    assert found.shape == (2, 0)


def test_bad_attributes_are_named() -> None:
    with pytest.raises(Exception, match="either attribute 'separators' or attribute 'tokenexp'"):
        peer.run("Tokenizer", [TEXTS], 1, attributes())
    with pytest.raises(Exception, match=r"'\(' cannot be read"):
        peer.run("Tokenizer", [TEXTS], 1, attributes(tokenexp="("))
