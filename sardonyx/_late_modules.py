"""Lets onnx and onnx-ir be imported without what they import and a session does not need.

onnx-ir imports sympy, for expressions of dimensions, which takes ten times as long as onnx-ir itself: a third of a
short process that runs a model of fixed shapes. Two of its modules do so at their top. While these two are executed,
their `import sympy` gives a stand-in, which imports the real one when a function of it is called or a class of it is
asked for. Nobody else sees the stand-in: it is not in `sys.modules`, and other modules import sympy as ever.

onnx takes as long as a small session, half of it for the number of its own version, which it asks `importlib.metadata`
for, and for modules that it names and does not use: text formats, tools. The number is read from the file that
`importlib.metadata` reads, and those modules are executed when something of them is asked for.

Where onnx or onnx-ir were imported before, where sympy is there already, and where a module cannot be executed with the
stand-in, everything is as it would be without this file.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from _thread import RLock
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # at run time it brings a dozen modules that nothing else here needs
    from importlib.abc import Loader

_PACKAGE = "sympy"
_IMPORTERS = frozenset({"onnx_ir._core", "onnx_ir._symbolic_shapes"})
# Modules that onnx and onnx-ir import for those who ask them for more than messages, schemas and the graph.
_LATE = frozenset(
    {
        "google.protobuf.internal.python_message",  # messages in Python, where there are none in C
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.parser",
        "onnx.printer",
        "onnx.utils",
        "onnx.version_converter",
        "onnx_ir.passes.common",  # all passes, of which each is a module
        "onnx_ir.schemas",
        "packaging.version",
    }
)


class StandIn(ModuleType):
    """A package that is imported when it is needed.

    While `is_loading`, whatever is asked of it is a function that calls the real one of that name.
    """

    is_loading = True

    def __getattr__(self, name: str) -> Any:
        if self.is_loading:
            return _late(self.__name__, name)
        real = importlib.import_module(self.__name__)
        self.__dict__.update({key: value for key, value in vars(real).items() if not key.startswith("__")})
        return getattr(real, name)


def _late(package: str, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(importlib.import_module(package), name)(*arguments, **keywords)

    call.__name__ = call.__qualname__ = name
    return call


class LateLoader:
    """Executes a module whose `import package` gives a stand-in for `package`."""

    def __init__(self, loader: Loader, package: str) -> None:
        self._loader = loader
        self._package = package

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        before = dict(vars(module))
        stand_in = StandIn(self._package)

        def imported(name: str, globals_: Any = None, locals_: Any = None, names: Any = (), level: int = 0) -> Any:
            if name == self._package and not names and not level:
                return stand_in
            return builtins.__import__(name, globals_, locals_, names, level)

        # Code finds its built-in functions, `__import__` among them, in the module that it belongs to.
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": imported}
        try:
            self._loader.exec_module(module)
        except Exception:  # whatever a stand-in cannot do, such as being a base class
            vars(module).clear()
            vars(module).update(before)
            self._loader.exec_module(module)
        stand_in.is_loading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _VersionLoader:
    """Executes onnx, which finds its version without `importlib.metadata`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        folder = os.path.dirname(os.path.dirname(module.__file__ or ""))

        def imported(name: str, globals_: Any = None, locals_: Any = None, names: Any = (), level: int = 0) -> Any:
            if name == "importlib.metadata" and not names and not level:
                return SimpleNamespace(metadata=_Metadata(folder))
            return builtins.__import__(name, globals_, locals_, names, level)

        vars(module)["__builtins__"] = {**vars(builtins), "__import__": imported}
        self._loader.exec_module(module)
        vars(module)["__builtins__"] = builtins
        vars(module)["importlib"] = importlib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class AskedModule(ModuleType):
    """A module that is executed when something of it is asked for.

    `importlib.util.LazyLoader` is the same, but for threads that ask at once: before Python 3.12, the second one finds
    a part of the module.
    """

    def __getattr__(self, name: str) -> Any:
        if not _executed(self):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        # A package is given its submodules as they are imported; onnx-ir marks all that it exports, modules too.
        is_submodule = isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not is_submodule and name != "__module__":
            _executed(self)
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _executed(self)
        ModuleType.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        _executed(self)
        return sorted(self.__dict__)


# One thread at a time executes such modules, as one may ask for another.
_EXECUTING = RLock()
_BEGUN: set[int] = set()


def _renew() -> None:
    """In a child process, in which no other thread goes on."""
    global _EXECUTING
    _EXECUTING = RLock()
    _BEGUN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _executed(module: AskedModule) -> bool:
    """Whether a module is executed, by now; not where it asks for something of itself that is not there yet."""
    with _EXECUTING:
        loader = module.__loader__
        if not isinstance(loader, AskedLoader) or id(module) in _BEGUN:
            return type(module) is not AskedModule
        _BEGUN.add(id(module))
        try:
            loader.execute(module)
        finally:
            _BEGUN.discard(id(module))
        ModuleType.__setattr__(module, "__class__", ModuleType)
        return True


class AskedLoader:
    """Lets a module be executed later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = AskedModule

    def execute(self, module: ModuleType) -> None:
        """Execute it now."""
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Metadata:
    """`importlib.metadata` for the one question after the version of a package in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def version(self, name: str) -> str:
        found = version_below(self._folder, name)
        return importlib.import_module("importlib.metadata").version(name) if found is None else found

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("importlib.metadata"), name)


def version_below(folder: str, package: str) -> str | None:
    """The version of a package that is installed in a folder; None where there is not exactly one that says it."""
    try:
        with os.scandir(folder) as found:
            start = f"{package}-"
            places = [one.path for one in found if one.name.startswith(start) and one.name.endswith(".dist-info")]
        if len(places) != 1:
            return None
        with open(os.path.join(places[0], "METADATA"), encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key == "Version":
                    return value.strip() or None
                if not line.strip():  # the description follows
                    break
    except (OSError, ValueError):
        pass
    return None


class _Finder:
    """Finds the modules of onnx-ir that import sympy at their top, onnx, and what that imports for few."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        make = self._loader_of(fullname)
        if make is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", make(spec.loader))
        return spec

    @staticmethod
    def _loader_of(name: str) -> Callable[[Loader], Any] | None:
        """What makes the loader of a module of its ordinary one; None where that does."""
        if name in _IMPORTERS and _PACKAGE not in sys.modules:
            return lambda loader: LateLoader(loader, _PACKAGE)
        if name == "onnx" and "importlib.metadata" not in sys.modules:
            return _VersionLoader
        return AskedLoader if name in _LATE else None


def install() -> None:
    """From now on, onnx and onnx-ir are imported so."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
