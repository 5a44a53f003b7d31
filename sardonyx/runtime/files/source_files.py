"""The Python files of this package, which tell what generated code and registrations depend on."""

from __future__ import annotations

import os


def source_files(folder: str) -> list[str]:
    """The paths of all Python files in a folder and those below it, sorted part by part.

    A process looks for them more than once before it has its first result: `pathlib` takes twice as long.
    """
    found: list[str] = []
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return sorted(found, key=lambda path: path.split(os.sep))
