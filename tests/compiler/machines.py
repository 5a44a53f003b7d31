"""The machines that tests run kernels on, this one and the emulated ones; and those that choices are made for."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pytest

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.cpu_features import AMX, AVX512
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary, library
from sardonyx.compiler.llvm.loading import Loader
from sardonyx.compiler.llvm.target import Caches, Target, aarch64_targets, x86_64_targets
from tests.compiler.aarch64.machine import EmulatedLibrary, emulated, missing

Array = np.ndarray[Any, Any]

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


# Caches as servers have them: what is chosen must not depend on those of the machine that tests run on.
CACHES = Caches(l1=32 << 10, l2=1 << 20, l3=32 << 20)


def described(caches: Caches = CACHES, *, takes_turns: bool = False) -> dict[str, Target]:
    """Every variant that there is, whether this machine can execute it or not, as `Target`s that choices are made for.

    `takes_turns`: units are half as wide as the registers of AVX-512.
    """
    features = frozenset((*AVX512, "avx512vnni", "avx512bf16", *AMX))
    return {**x86_64_targets(features, caches, takes_turns=takes_turns), **aarch64_targets(caches)}


@functools.cache
def _loader(target: Target) -> Loader:
    return Loader(target)


def load(kernels: KernelLibrary, text: str) -> int:
    """The address of a module's function `kernel` on the machine of a library."""
    loader = kernels.machine if isinstance(kernels, EmulatedLibrary) else _loader(kernels.target)
    return loader.load(KERNEL, compile_object(text, kernels.target))


class Visit(Protocol):
    """The arrays of some calls, as the machine sees them."""

    def address(self, array: Array) -> int:
        """Where an array lies for kernels."""
        ...

    def call(self, function: int, words: Array, begin: int, end: int, scratch: Array) -> None:
        """Do the chunks [begin, end) of a kernel."""
        ...

    def fetch(self, array: Array) -> None:
        """See to it that an array holds what kernels made of it."""
        ...


class HostVisit:
    """This machine, where arrays lie where they are."""

    def address(self, array: Array) -> int:
        return int(array.__array_interface__["data"][0])

    def call(self, function: int, words: Array, begin: int, end: int, scratch: Array) -> None:
        _SIGNATURE(function)(self.address(words), begin, end, self.address(scratch))

    def fetch(self, array: Array) -> None:
        pass


def visit_of(kernels: KernelLibrary) -> Visit:
    """The machine that executes the kernels of a library."""
    return kernels.machine.visit() if isinstance(kernels, EmulatedLibrary) else HostVisit()


def emulated_variants() -> Iterable[Any]:
    """The variants of other machines, as parameters of tests; skipped with the reason where there is no emulator."""
    reason = missing()
    if reason != "this machine is AArch64 itself":
        yield pytest.param("neon", marks=pytest.mark.skipif(bool(reason), reason=f"AArch64 is not emulated: {reason}"))


def kernels_of(variant: str) -> KernelLibrary:
    """The library of a variant, wherever it is executed."""
    if variant == "neon" and not missing():
        return emulated()
    return library(variant)
