"""Emitters that are imported when they have a text to write.

A session whose kernels are all found in the cache writes no text. What describes its kernels it needs, and what writes
them it does not: that takes as long to import as some models take to load.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from sardonyx.compiler.llvm.target import Target


class Emitter:
    """A function of a module that writes the text of a kernel, by its name: known by what it is called, as the function
    itself is, and imported when it is called."""

    def __init__(self, module: str, name: str, arguments: Any = None) -> None:
        self.__module__ = module
        self.__name__ = self.__qualname__ = name
        self.arguments = arguments

    @property
    def function(self) -> Any:
        return getattr(importlib.import_module(self.__module__), self.__qualname__)

    def __call__(self, target: Target, spec: Any) -> str:
        text: str = self.function(target, spec)
        return text


@cache
def emitter(module: str, name: str) -> Emitter:
    """The function `name` of a module below `kernels`: one object, however often it is asked for."""
    return Emitter(f"sardonyx.compiler.llvm.kernels.{module}", name)
