"""JSON that ends in a ValueError, however it is wrong."""

from __future__ import annotations

import pytest

from sardonyx.runtime.json_text import parsed


def test_values_are_those_of_the_text() -> None:
    assert parsed(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_what_is_no_value_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are those of Python
        parsed(text)
