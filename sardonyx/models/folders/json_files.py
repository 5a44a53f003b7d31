"""JSON files of models: read whole, if they are not larger than such files are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.models.folders.wholeness import check_whole
from sardonyx.runtime.files.opening import open_file

_LARGEST = 64 << 20


def read_json(path: Path) -> Any:
    """What a JSON file holds; `errors.Fail` for one that is no JSON, there by half, or too large to be a config."""
    check_whole(path)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST:
                raise errors.Fail(f"{path} is too large for a config: it has {size} bytes, of at most {_LARGEST}")
            return json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise errors.Fail(f"{path} cannot be read as JSON: {error}") from None
