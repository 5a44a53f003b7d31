"""Lets onnx-ir be imported without sympy, which is imported once a dimension is computed with.

onnx-ir takes 15 ms to import, sympy, which it imports for expressions of dimensions, 150: a third of a short process
that runs a model of fixed shapes. Two modules of onnx-ir import it at their top. While these two are executed, their
`import sympy` gives a stand-in, which imports the real one when a function of it is called or a class of it is asked
for. Nobody else sees the stand-in: it is not in `sys.modules`, and other modules import sympy as ever.

Where onnx-ir was imported before, where sympy is there already, and where a module cannot be executed with the
stand-in, everything is as it would be without this file.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # at run time it brings a dozen modules that nothing else here needs
    from importlib.abc import Loader

_PACKAGE = "sympy"
_IMPORTERS = frozenset({"onnx_ir._core", "onnx_ir._symbolic_shapes"})


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


class _Finder:
    """Finds the modules of onnx-ir that import sympy at their top."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _IMPORTERS or _PACKAGE in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", LateLoader(spec.loader, _PACKAGE))
        return spec


def install() -> None:
    """From now on, onnx-ir is imported without sympy."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
