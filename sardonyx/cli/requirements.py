"""How to install what the command line needs, wherever this package came from."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata

# Where nothing says which versions: the package is not installed, but on the path.
_PACKAGES = ("typer", "rich")
_EXTRA = re.compile(r"extra\s*==\s*['\"]cli['\"]")


def install_command() -> str:
    """A command for pip that needs no index with this package on it, as an extra does."""
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *_required()])


def _required() -> list[str]:
    """What the extra `cli` names, with its versions."""
    try:
        named = metadata.requires("sardonyx") or []
    except metadata.PackageNotFoundError:
        named = []
    found = [text.partition(";")[0].strip() for text in named if _EXTRA.search(text)]
    return found or list(_PACKAGES)
