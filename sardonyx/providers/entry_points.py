"""The entry points of a group that installed packages declare.

`importlib.metadata` finds them, and takes longer to import than all of a small session that needs nothing else of it.
So the places where it would look are looked at first: few installations have a package that adds to the group.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_FOLDERS = (".dist-info", ".egg-info")


def entry_points(group: str, own: str) -> Iterable[EntryPoint]:
    """Those of a group, without the one called `own`, which this package declares itself.

    Where no other package can have some, what finds them is not imported.
    """
    if not any(_may_declare(folder or os.curdir, group, own) for folder in sys.path) and not _has_other_finders():
        return ()
    from importlib import metadata

    return [entry for entry in metadata.entry_points(group=group) if entry.name != own]


def _has_other_finders() -> bool:
    """Whether distributions may lie elsewhere than on the path."""
    return any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder)


def _may_declare(folder: str, group: str, own: str) -> bool:
    """Whether a package in an entry of the path may declare others of the group."""
    try:
        with os.scandir(folder) as found:
            names = [item.name for item in found if item.name.endswith((*_FOLDERS, ".egg"))]
    except NotADirectoryError:  # an archive
        return True
    except OSError:
        return False
    for name in names:
        if name.endswith(".egg"):
            return True
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        if group in text and any(entry != own for entry in _names(text, group)):
            return True
    return False


def _names(text: str, group: str) -> Iterator[str]:
    """The names that the file of a package declares in a group."""
    is_inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            is_inside = line == f"[{group}]"
        elif is_inside and "=" in line:
            yield line.partition("=")[0].strip()
