"""A folder that gets all files of an export, or none: what was there before stays until they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sardonyx import errors
from sardonyx.runtime.files.opening import scratch_folder


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder inside of `folder` to write into; at the end of the block `publish` has moved what is wanted of it.

    It is removed with what is left in it, also behind Ctrl-C, and so is `folder` if it was made here and is empty.
    `errors.Fail` where `folder` cannot be made or written.
    """
    is_new = not folder.exists()
    with ExitStack() as stack:
        if is_new:
            stack.callback(_remove_empty, folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stage = stack.enter_context(scratch_folder(folder))
        except OSError as error:
            raise errors.Fail(
                f"{folder} cannot be written: {error.strerror or error}. Name a folder that you may write to"
            ) from error
        yield Path(stage)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # which it is for a folder with files in it, or one that could not be made
        folder.rmdir()


def publish(files: Sequence[Path], stage: Path, folder: Path) -> list[Path]:
    """Move files of a stage to their places in the folder, in their order; their new paths.

    Each replaces the one of its name at once. `errors.Fail` where one cannot be written.
    """
    moved = []
    for path in files:
        target = folder / path.relative_to(stage)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        except OSError as error:
            raise errors.Fail(f"{target} cannot be written: {error.strerror or error}") from error
        moved.append(target)
    return moved
