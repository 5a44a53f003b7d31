"""Which kernels sessions ask for on machines of other kinds: models are planned for them, and nothing is computed.

A recorder stands in for the library of kernels. It notes what is asked for and gives the address of a function that
does nothing, so that a session runs all of its steps on any machine, with results that mean nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.library import KERNEL, Kernel, KernelLibrary, key_of
from sardonyx.compiler.llvm.target import Target, host_target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.runtime.files.kernel_cache import KernelCache


class Recorder(KernelLibrary):
    """The kernels that were asked for by their keys: the functions that write them and their specifications."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, KernelCache(None))
        self.asked: dict[str, tuple[Any, Any]] = {}
        self._nothing = _library_here().kernel(_emit_nothing, ())

    def kernel(self, emit: Any, spec: Any) -> Kernel:
        """Note what is asked for; a kernel that does nothing."""
        self.asked.setdefault(key_of(emit.__module__, emit.__qualname__, spec), (emit, spec))
        return self._nothing

    def run(self, emit: Any, spec: Any, arguments: Sequence[Any], chunks: int, threads: int = 1) -> None:
        """Note what is asked for."""
        self.kernel(emit, spec)


@functools.cache
def _library_here() -> KernelLibrary:
    """What has the function that does nothing, as long as the process lives: sessions may outlive their recorder."""
    return KernelLibrary(host_target(), KernelCache(None))


def _emit_nothing(target: Target, spec: tuple[()]) -> str:
    del spec
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    return k.finish()
