"""Lets one package's modules be imported under another package's name, as the same module objects."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType


class _AliasLoader(importlib.abc.InspectLoader):
    """Hands out the module of the real name; `get_code` serves ``python -m``."""

    def __init__(self, real: importlib.machinery.ModuleSpec) -> None:
        self._real = real
        self._spec = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real.name)
        self._spec = module.__spec__ or self._real
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module ran when it was imported under its own name; it keeps the spec of that name."""
        module.__spec__ = self._spec

    def is_package(self, fullname: str) -> bool:
        return self._real.submodule_search_locations is not None

    def get_source(self, fullname: str) -> str | None:
        loader = self._real.loader
        return loader.get_source(self._real.name) if isinstance(loader, importlib.abc.InspectLoader) else None

    def get_code(self, fullname: str) -> CodeType | None:
        loader = self._real.loader
        return loader.get_code(self._real.name) if isinstance(loader, importlib.abc.InspectLoader) else None


class _AliasFinder(importlib.abc.MetaPathFinder):
    """Finds ``alias.X.Y`` as ``real.X.Y``."""

    def __init__(self, alias: str, real: str) -> None:
        self.alias = alias
        self.real = real

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{self.alias}."):
            return None
        name = self.real + fullname[len(self.alias) :]
        try:
            real = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        if real is None:
            return None
        package = real.submodule_search_locations is not None
        spec = importlib.machinery.ModuleSpec(fullname, _AliasLoader(real), origin=real.origin, is_package=package)
        spec.has_location = real.has_location
        if package:
            spec.submodule_search_locations = list(real.submodule_search_locations or ())
        return spec


def install(alias: str, real: str) -> None:
    """Serve the modules below the package `alias` from the package `real`, once."""
    if not any(isinstance(finder, _AliasFinder) and finder.alias == alias for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder(alias, real))
