"""JSON from files and models, which may hold anything."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """The value of a text; ValueError where it is none, or lists and objects in it nest deeper than Python follows."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects nest too deeply") from None
