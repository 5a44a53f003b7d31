"""The options that the commands of this folder share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engines import DEFAULT_ENGINES, ENGINES
from benchmarks.zoo import registry, store


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for ``python -m benchmarks.<module>``, whose help is the module's own text."""
    program = f"python -m benchmarks.{module}" if module else "python -m benchmarks"
    return argparse.ArgumentParser(prog=program, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_zoo(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--zoo", type=Path, default=store.default_folder(), metavar="DIR", help="built models; default: %(default)s"
    )


def add_models(to: argparse.ArgumentParser) -> None:
    add_zoo(to)
    to.add_argument("--models", type=names, default=(), help="comma-separated; default: all that are built")


def add_engines(to: argparse.ArgumentParser, default: Sequence[str] = DEFAULT_ENGINES) -> None:
    to.add_argument(
        "--engines",
        type=engines,
        default=tuple(default),
        help=f"comma-separated, of {', '.join(ENGINES)}; default: {','.join(default)}",
    )


def add_threads(to: argparse.ArgumentParser, default: Sequence[int] | None = None) -> None:
    to.add_argument(
        "--threads",
        type=counts,
        default=tuple(default or default_threads()),
        metavar="1,2",
        help="default: %(default)s",
    )


def add_json(to: argparse.ArgumentParser) -> None:
    to.add_argument("--json", type=Path, metavar="FILE", help="keep the figures; other parts of the file stay")


def built_models(parser: argparse.ArgumentParser, wanted: Sequence[str], zoo: Path) -> tuple[str, ...]:
    """The models to measure; the parser's error for one that is not built."""
    built = [name for name in registry.names() if store.is_built(name, zoo)]
    missing = [name for name in wanted if name not in built]
    if missing:
        parser.error(f"not built in {zoo}: {', '.join(missing)}; `python -m benchmarks.zoo` builds them")
    return tuple(wanted or built)


def names(text: str) -> tuple[str, ...]:
    """``a,b`` as names."""
    return tuple(part for part in text.replace(",", " ").split() if part)


def engines(text: str) -> tuple[str, ...]:
    """Names of engines."""
    found = names(text)
    for name in found:
        if name not in ENGINES:
            raise argparse.ArgumentTypeError(f"no engine {name!r}; there are {', '.join(ENGINES)}")
    return found


def counts(text: str) -> tuple[int, ...]:
    """``1,2`` as numbers of threads."""
    try:
        found = tuple(map(int, names(text)))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"numbers of threads with commas between them are wanted, not {text!r}")
    return found


def default_threads() -> tuple[int, ...]:
    """One thread, and two where there are two cores."""
    return (1, 2) if (os.cpu_count() or 1) > 1 else (1,)
