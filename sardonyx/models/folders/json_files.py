"""JSON files of models: read whole, if they are not larger or deeper than such files are, and what they say by kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.models.folders.wholeness import check_whole
from sardonyx.runtime.files.opening import open_file

_LARGEST = 64 << 20
# transformers writes such a number where a tokenizer has no limit.
_NO_LIMIT = 10**9
# Objects and lists inside of each other, beyond which code that walks through them by calls would not come to an end.
_DEEPEST = 64


class Section(dict[str, Any]):
    """An object of a JSON file, or one inside of it. `where` names it in errors.

    What is asked for by its kind is None where it is missing or null, and `errors.Fail` where it is of another kind.
    """

    def __init__(self, content: dict[str, Any], where: str) -> None:
        super().__init__(content)
        self.where = where

    def text(self, name: str) -> str | None:
        """A text."""
        found: str | None = self._of_kind(name, str, "a text")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        found = self._of_kind(name, bool, "true or false")
        return default if found is None else found

    def number(self, name: str) -> float | None:
        """A number, whole or not."""
        value = self.get(name)
        if isinstance(value, bool):
            raise self._wrong(name, "a number")
        found: float | None = self._of_kind(name, (int, float), "a number")
        return found

    def whole(self, name: str) -> int | None:
        """A whole number."""
        value = self.number(name)
        if value is not None and not isinstance(value, int):
            raise self._wrong(name, "a whole number")
        return value

    def count(self, name: str) -> int | None:
        """A whole number of 1 or more."""
        value = self.whole(name)
        if value is not None and value < 1:
            raise self._wrong(name, "a whole number of 1 or more")
        return value

    def limit(self, name: str) -> int | None:
        """A number of tokens; None also for numbers that stand for no limit: 0 and less, 1e30, NaN."""
        value = self.number(name)
        return int(value) if value is not None and 1 <= value < _NO_LIMIT else None

    def section(self, name: str) -> Section:
        """An object; an empty one where it is missing."""
        return Section(self._of_kind(name, dict, "an object") or {}, f"{name} of {self.where}")

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts, "" for null; an empty one where it is missing."""
        section = self.section(name)
        return {key: section.text(key) or "" for key in section}

    def _of_kind(self, name: str, kind: Any, said: str) -> Any:
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            raise self._wrong(name, said)
        return value

    def _wrong(self, name: str, said: str) -> errors.Fail:
        shown = repr(self[name])
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        return errors.Fail(f"{name} of {self.where} is {shown}; expected {said}. Get the file again, or mend it")


def read_json(path: Path) -> Any:
    """What a JSON file holds; `errors.Fail` for one that is no JSON, there by half, too large or deep for a config."""
    check_whole(path)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST:
                raise errors.Fail(f"{path} is too large for a config: it has {size} bytes, of at most {_LARGEST}")
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise errors.Fail(f"{path} cannot be read as JSON: {error}") from None
    if _is_deep(found):
        raise errors.Fail(f"{path} is no config: it has objects inside of each other more than {_DEEPEST} times")
    return found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
