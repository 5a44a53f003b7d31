"""Options of the form NAME=VALUE that several commands take."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.cli.failure import CommandError


def assignments(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b=x"]` as a mapping; CommandError for a text without a name, or a name that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise CommandError(f"{option} {text}: expected NAME=VALUE")
        if name in found:
            raise CommandError(f"{option}: {name} is given twice")
        found[name] = value
    return found


def dimensions(texts: Iterable[str]) -> dict[str, int]:
    """Sizes of symbolic dimensions; CommandError for one that is not a whole number from 0 on."""
    sizes = {}
    for name, value in assignments("--dim", texts).items():
        if not value.isdecimal():
            raise CommandError(f"--dim {name}={value}: the size must be a whole number, 0 or more")
        sizes[name] = int(value)
    return sizes
