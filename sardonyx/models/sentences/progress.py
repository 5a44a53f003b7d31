"""A bar that shows how many texts are done, by the package tqdm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sardonyx.models.requirements import require


@contextmanager
def progress_bar(count: int, shown: bool) -> Iterator[Callable[[int], object] | None]:
    """What is told of texts as they are done; None if no bar is shown."""
    if not shown:
        yield None
        return
    with require("tqdm", "show_progress_bar=True").tqdm(total=count, desc="Texts") as bar:
        yield bar.update
