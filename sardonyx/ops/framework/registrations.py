"""Which files of a package register what, so that only those are imported that a model needs.

A file registers by a decorator with a literal name, `@operator("Gelu", since=20)`. The names are read from the files'
source, which takes a few milliseconds, where importing all of them takes more than a hundred; so a new file needs no
entry in any list. A file that also registers under names that it computes is imported at the first question.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

from sardonyx.runtime.forks import cached_property


class Registrations:
    """The files of `package` and its subpackages in which `decorator` registers; `without` is a subpackage's name."""

    def __init__(self, package: ModuleType, decorator: str, without: str = "") -> None:
        self._package = package
        word = re.escape(decorator).encode()
        # What must not stand before the word is asked after it: so the search is for fixed bytes, ten times as fast.
        self._call = re.compile(word + rb"(?<!\w" + word + rb")\(\s*(?:\"(\w+)\")?")
        self._without = f"{package.__name__}.{without}." if without else None
        self._loaded: set[str] = set()

    def load(self, name: str) -> None:
        """Import what registers `name`."""
        if name not in self._loaded:
            files = self._files
            for module in (*files.get(name, ()), *files.get("", ())):
                importlib.import_module(module)
            self._loaded.add(name)

    def load_all(self) -> None:
        """Import every file, whatever its source says."""
        for module in pkgutil.walk_packages(self._package.__path__, f"{self._package.__name__}."):
            if self._is_wanted(module.name):
                importlib.import_module(module.name)

    def _is_wanted(self, module: str) -> bool:
        return self._without is None or not f"{module}.".startswith(self._without)

    @cached_property
    def _files(self) -> dict[str, list[str]]:
        """The modules that register a name; under "" those of which not all names can be read."""
        found: dict[str, list[str]] = {}
        files = sorted(_files_below(self._package.__path__[0]))
        if not files:  # the package came without its source
            self.load_all()
        for place, parts in files:
            module = ".".join([self._package.__name__, *parts])
            if self._is_wanted(module):
                with open(place, "rb", buffering=0) as file:
                    text = file.read()
                for name in set(self._call.findall(text)):
                    found.setdefault(name.decode(), []).append(module)
        return found


def _files_below(folder: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The Python files in a folder and those below it, each with what its module is called inside the package."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from ((place, (entry.name, *parts)) for place, parts in _files_below(entry.path))
            elif entry.name.endswith(".py"):
                stem = entry.name.removesuffix(".py")
                yield entry.path, () if stem == "__init__" else (stem,)
