"""When a row ends: a token that ends it, a text, the time, or what a caller says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.generation.settings import Settings

Array = np.ndarray[Any, Any]

# Takes the tokens so far (rows, length); tells which rows end here.
Criterion = Callable[[Array], Array]


class Stops:
    """What ends rows, but for the length."""

    def __init__(self, settings: Settings, tokenizer: Any = None, given: Criterion | None = None) -> None:
        self._ends = np.array(settings.eos_token_id, np.int64)
        self._deadline = None if settings.max_time is None else time.monotonic() + settings.max_time
        self._texts = None
        if settings.stop_strings:
            if not hasattr(tokenizer, "decode"):
                raise errors.InvalidArgument("stop_strings need the model's tokenizer: pass tokenizer=")
            self._texts = _StopTexts(settings.stop_strings, tokenizer)
        self._given = given
        # Without these, a row ends with the tokens that end it and with no others.
        self._end_set = frozenset(settings.eos_token_id)
        self._looks_further = bool(settings.stop_strings) or settings.max_time is not None or given is not None

    @property
    def has_ends(self) -> bool:
        """Whether any token ends a row."""
        return len(self._ends) > 0

    def may_end(self, chosen: Sequence[int]) -> bool:
        """Whether `ended` has to be asked where these are the last tokens of the rows: else none ends."""
        return self._looks_further or not self._end_set.isdisjoint(chosen)

    def ended(self, tokens: Array) -> Array:
        """Which rows of tokens (rows, length) end with their last token."""
        ended: Array = (tokens[:, -1:] == self._ends).any(axis=1)
        if self._texts is not None:
            ended |= self._texts.ended(tokens)
        if self._deadline is not None and time.monotonic() > self._deadline:
            ended |= True
        if self._given is not None:
            ended |= self._given(tokens)
        return ended


class _StopTexts:
    """Whether the last token of a row completes one of some texts."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        # A token has one character or more, or is part of one, which has four bytes at most.
        self._reach = 4 * max(map(len, texts)) + 4

    def ended(self, tokens: Array) -> Array:
        return np.array([self._is_complete(row) for row in tokens[:, -self._reach :].tolist()])

    def _is_complete(self, tokens: list[int]) -> bool:
        text, before = self._text(tokens), len(self._text(tokens[:-1]).rstrip("\ufffd"))
        # The text must end within what the last token adds.
        return any(text.find(one, max(before - len(one) + 1, 0)) >= 0 for one in self._texts)

    def _text(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def require_tokenizer(tokenizer: Any, vocabulary: int | None) -> None:
    """`errors.InvalidArgument` for a tokenizer with more tokens than the model knows."""
    size = len(tokenizer) if tokenizer is not None and hasattr(tokenizer, "__len__") else 0
    if vocabulary is not None and size > vocabulary:
        raise errors.InvalidArgument(
            f"The tokenizer has {size} tokens, the model's vocabulary {vocabulary}: it is that of another model"
        )
