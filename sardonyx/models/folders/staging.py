"""A folder that gets all files of a model, or none: what was there before stays until they are whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sardonyx import errors
from sardonyx.runtime.files.opening import TEMPORARY, scratch_folder


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


def final_place(path: Path) -> Path:
    """Where a file of a stage will lie; a path that is in no stage is its own."""
    return Path(*(part for part in path.parts if not part.startswith(TEMPORARY)))


def publish(files: Sequence[Path], stage: Path, folder: Path) -> list[Path]:
    """Move files of a stage to their places in the folder, in their order; their new paths.

    Each replaces the one of its name at once, and Ctrl-C waits until all have done so. `errors.Fail` where one cannot
    be written.
    """
    moved = []
    with _undisturbed():
        for path in files:
            target = folder / path.relative_to(stage)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
            except OSError as error:
                raise errors.Fail(f"{target} cannot be written: {error.strerror or error}") from error
            moved.append(target)
    return moved


def publish_all(stage: Path, folder: Path) -> None:
    """`publish` everything in a stage, in an order in which what is read by another file comes before it: weights, then
    graphs, then configs, by which folders of models are known."""
    files = [path for path in stage.rglob("*") if path.is_file()]
    publish(sorted(files, key=lambda path: (_rank(path), path)), stage, folder)


def _rank(path: Path) -> int:
    return {".onnx": 1, ".json": 2}.get(path.suffix, 0)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C inside comes at the end of the block. Other threads than the first one get none anyway."""
    came: list[tuple[int, Any]] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or left to the system
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    except ValueError:  # not in the main thread, which alone may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])
