"""The control groups of Linux that this process belongs to: limits of each, up to the root, hold for it."""

from __future__ import annotations

import os
from typing import NamedTuple

_ROOT = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"


class GroupFolders(NamedTuple):
    """Folders of the files of groups, the process's own first and the root's last.

    `unified` are those of version 2, `older` those of one controller in version 1. Not all of them need to be there: in
    a container the own group may be shown as the root.
    """

    unified: list[str]
    older: list[str]


def group_folders(controller: str) -> GroupFolders:
    """The folders for ``cpu`` or ``memory``."""
    unified = older = ""
    try:
        with open(_OWN, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if not names:
            unified = path
        elif controller in names.split(","):
            older = path
    return GroupFolders(_upwards(_ROOT, unified), _upwards(f"{_ROOT}/{controller}", older))


def _upwards(root: str, path: str) -> list[str]:
    """The folders from that of a group to the root; the latter alone for a group outside of what this process sees."""
    parts = [part for part in path.split("/") if part]
    if os.pardir in parts:
        parts = []
    return ["/".join([root, *parts[:count]]) for count in range(len(parts), -1, -1)]
