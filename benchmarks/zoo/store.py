"""Where built models are kept: one folder each, complete or absent, shared by processes that run at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.zoo import registry


def default_folder() -> Path:
    """Where models are kept that are built here."""
    return cache_folder("zoo", "SARDONYX_ZOO")


def cache_folder(name: str, variable: str) -> Path:
    """The folder of an environment variable, else one in the user's cache."""
    chosen = os.environ.get(variable)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(cache) / "sardonyx" / name


def is_built(name: str, folder: Path) -> bool:
    return (folder / name / "info.json").exists()


def ensure(name: str, folder: Path) -> Path:
    """The folder of a model, which is built first if it is missing; another process that builds it is waited for."""
    model = registry.get(name)
    if not is_built(name, folder):
        if model.source:
            ensure(model.source, folder)
        with locked(name, folder):
            if not is_built(name, folder):
                from benchmarks.zoo import build

                partial = folder / f".{name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                build.make(model, folder, partial)
                shutil.rmtree(folder / name, ignore_errors=True)
                partial.rename(folder / name)
    return folder / name


def free(name: str, folder: Path) -> None:
    """Delete a built model."""
    with locked(name, folder):
        shutil.rmtree(folder / name, ignore_errors=True)


@contextlib.contextmanager
def locked(name: str, folder: Path) -> Iterator[None]:
    """Keep other processes from the model while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
