"""The small JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sardonyx import errors


def read_json(path: Path, default: Any = None) -> Any:
    """What a file holds; the default where there is no such file. `errors.Fail` for a file that is no JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return default
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Fail(f"{path} cannot be read: {error}") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.Fail(f"{path} is no whole JSON ({error}); get the file again") from None


def read_object(path: Path) -> dict[str, Any]:
    """The dictionary that a file holds; an empty one where there is no such file. `errors.Fail` for anything else."""
    found = read_json(path, {})
    if not isinstance(found, dict):
        raise errors.Fail(f"{path} is no JSON object; get the file again")
    return found
