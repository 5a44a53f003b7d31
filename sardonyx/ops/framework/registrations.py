"""Which files of a package register what, so that only those are imported that a model needs.

A file registers by a decorator with a literal name, `@operator("Gelu", since=20)`. The names are read from the files'
source, which takes a few milliseconds, where importing all of them takes more than a hundred; so a new file needs no
entry in any list. A file that also registers under names that it computes is imported at the first question.
"""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType

from sardonyx.runtime.files.source_files import source_files
from sardonyx.runtime.forks import cached_property


class Registrations:
    """The files of `package` and its subpackages in which `decorator` registers; `without` is a subpackage's name."""

    def __init__(self, package: ModuleType, decorator: str, without: str = "") -> None:
        self._package = package
        word = re.escape(decorator).encode()
        # What must not stand before the word is asked after it: so the search is for fixed bytes, ten times as fast.
        self._call = re.compile(word + rb"(?<!\w" + word + rb")\(\s*(?:\"(\w+)\")?([^)]*)")
        self._without = f"{package.__name__}.{without}." if without else None
        self._loaded: set[tuple[str, bool]] = set()

    def load(self, name: str, *, domains: bool = True) -> None:
        """Import what registers `name`, in whatever domain; without `domains`, only what names none."""
        if (name, domains) not in self._loaded:
            files = self._files
            for module, is_plain in (*files.get(name, {}).items(), *files.get("", {}).items()):
                if is_plain or domains:
                    importlib.import_module(module)
            self._loaded.add((name, domains))

    def load_all(self) -> None:
        """Import every file, whatever its source says."""
        import pkgutil  # which sessions do without

        for module in pkgutil.walk_packages(self._package.__path__, f"{self._package.__name__}."):
            if self._is_wanted(module.name):
                importlib.import_module(module.name)

    def _is_wanted(self, module: str) -> bool:
        return self._without is None or not f"{module}.".startswith(self._without)

    @cached_property
    def _files(self) -> dict[str, dict[str, bool]]:
        """The modules that register a name; under "" those of which not all names can be read. Of each, whether it does
        so without a `domain`."""
        found: dict[str, dict[str, bool]] = {}
        folder = self._package.__path__[0]
        files = source_files(folder)
        if not files:  # the package came without its source
            self.load_all()
        for place in files:
            *parts, name = place.removeprefix(folder + os.sep).split(os.sep)
            stem = name.removesuffix(".py")
            module = ".".join([self._package.__name__, *parts, *([] if stem == "__init__" else [stem])])
            if self._is_wanted(module):
                with open(place, "rb", buffering=0) as file:
                    text = file.read()
                for given, others in set(self._call.findall(text)):
                    modules = found.setdefault(given.decode(), {})
                    modules[module] = modules.get(module, False) or b"domain" not in others
        return found
