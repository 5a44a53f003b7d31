"""From the text of a kernel to object code."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.unlocked import generated
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.memory import address_space


@functools.cache
def binding() -> Any:
    """llvmlite's binding, ready to generate code for this machine; imported where code is generated or loaded."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _code_of(triple: str) -> Any:
    """LLVM's part for a kind of machine."""
    llvm = binding()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError:  # another kind than this machine; all of them take 10 MB
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        return llvm.Target.from_triple(triple)


def llvm_version() -> str:
    import llvmlite

    return f"llvmlite {llvmlite.__version__}"


# At level 0 LLVM is quick, and its code slow.
_LEVEL = 2

_MACHINES: dict[tuple[Target, int], list[Any]] = {}  # code generators that nobody uses


def target_machine(target: Target) -> Any:
    """A code generator, for one thread."""
    return _code_of(target.triple).create_target_machine(
        cpu="x86-64" if target.architecture == "x86_64" else "generic",
        features=target.feature_string,
        opt=_LEVEL,
        reloc="pic",
        codemodel="small",
        jit=False,
    )


def compile_object(text: str, target: Target) -> bytes:
    """The object file of a module for a target (ELF, or what its system uses). Several threads may compile at once."""
    return _generated(text, target, as_object=True)


def compile_assembly(text: str, target: Target) -> str:
    """The assembly of a module, for people."""
    return _generated(text, target, as_object=False).decode()


def load() -> None:
    """Load LLVM now, rather than with the first kernel; not where address space is scarce, as processes compile then"""
    if not address_space.is_scarce():
        binding()


def _generated(text: str, target: Target, *, as_object: bool) -> bytes:
    if address_space.is_scarce():  # LLVM ends the process in which it gets no memory
        from sardonyx.compiler.llvm.compiler_process import generate_apart

        return generate_apart(text, target, as_object=as_object)
    return generate_here(text, target, as_object=as_object)


def generate_here(text: str, target: Target, *, as_object: bool) -> bytes:
    """The object file of a module, or its assembly, made in this process. ValueError where the text is no module."""
    with _GENERATING:
        idle = _MACHINES.setdefault((target, _LEVEL), [])
        try:
            machine = idle.pop()
        except IndexError:
            machine = target_machine(target)
        made = generated(text, ctypes.cast(machine._ptr, ctypes.c_void_p), as_object=as_object)
        idle.append(machine)
        return made


class _Generating:
    """The threads that generate code. While there are any, LLVM keeps a loop's arithmetic of addresses: choosing
    another takes two fifths of all, and gains nothing.

    The option is the process's, and others may use LLVM as well: they find it as it was. Nobody forks in the midst of
    it, as locks that other threads hold in LLVM stay locked in a child.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._inside: list[int] = []  # the threads
        self._forking = 0

    def __enter__(self) -> None:
        with self._changed:
            own = threading.get_ident()
            while self._forking and own not in self._inside:
                self._changed.wait()
            self._inside.append(own)
            if len(self._inside) == 1:
                binding().set_option("", "-disable-lsr=true")

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            if not self._inside:
                binding().set_option("", "-disable-lsr=false")
            self._changed.notify_all()

    def hold(self) -> None:
        """Wait until no other thread is inside, and let none in."""
        self._changed.acquire()
        self._forking += 1
        own = threading.get_ident()
        while any(thread != own for thread in self._inside):
            self._changed.wait()

    def release(self) -> None:
        self._forking -= 1
        self._changed.notify_all()
        self._changed.release()


_GENERATING = _Generating()

around_forks(_GENERATING.hold, _GENERATING.release)
