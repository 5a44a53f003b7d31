"""What tells one state of a file from another, and since when it shows every change.

Writing to a file sets the time of its last change, which programs cannot set back. Times are coarse, though: a file
that changed just now may change once more and show the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

# Size, times of modification and of change in nanoseconds, inode and device.
FileState = Sequence[int]

# A file that has not changed for so long shows other times after its next change.
SETTLED_SECONDS = 2.0


def state_of(status: os.stat_result) -> list[int]:
    """Size, times of modification and of change in nanoseconds, inode and device of a file."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def file_state(path: str | os.PathLike[str]) -> list[int] | None:
    """The state of the file of that name; None where it is gone, or no file can be called so."""
    try:
        return state_of(os.stat(path))
    except (OSError, ValueError):
        return None


def is_settled(state: FileState, at: float) -> bool:
    """Whether a file of this state showed every change that came after `at`, in seconds since the epoch."""
    return max(state[1:3]) <= (at - SETTLED_SECONDS) * 1e9
