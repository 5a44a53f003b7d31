"""The panels of filters that a chunk of a convolution of bytes goes through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.types import I32, U8
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Panel:
    """A panel of filters: its number, its words, where its sums start from, its column in the result, and how many
    exist.

    `image` begins with the channels that they read.
    """

    number: Value
    image: Pointer
    words: Pointer
    init: Pointer
    column: Value
    left: Value


@contextlib.contextmanager
def each_panel(
    k: Function, given: Mapping[str, Value], number: Value, width: int, words: Value | None = None
) -> Iterator[Panel]:
    """Emit a loop over the panels, of `width` filters, of the chunk `number`, which counts groups of panels fastest.

    A filter has so many `words`, if not those of all its runs.
    """
    panels = (given["filters"] + (width - 1)) // width
    group, first = number // given["panel_groups"], number % given["panel_groups"] * given["panels"]
    image = k.pointer(given["image"], U8).offset(group * given["group_step"])
    weights = k.pointer(given["weights"], I32).offset(group * given["weights_step"])
    words = given["taps"] * given["words"] if words is None else words
    with k.loop(first, minimum(k, panels, first + given["panels"])) as panel:
        column = panel * width
        yield Panel(
            number=group * panels + panel,
            image=image,
            words=weights.offset(column * words),
            init=k.pointer(given["init"], I32).offset((group * panels + panel) * width),
            column=group * given["filters"] + column,
            left=given["filters"] - column,
        )
