"""From the text of a kernel to object code, and from object code to an address in this process."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from typing import Any

from sardonyx import errors
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.unlocked import generated
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.threads.interrupts import WORDS_SYMBOL, words_address

# Of loading; one at a time.
_LOCK = threading.RLock()

around_forks(_LOCK.acquire, _LOCK.release)  # no fork in the middle of one: the child could never compile


@functools.cache
def _binding() -> Any:
    """llvmlite's binding with the code generators ready; imported where code is generated or loaded."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def llvm_version() -> str:
    import llvmlite

    return f"llvmlite {llvmlite.__version__}"


# At level 0 LLVM is quick, and its code slow.
_LEVEL = 2

_MACHINES: dict[tuple[Target, int], list[Any]] = {}  # code generators that nobody uses


def _machine(target: Target) -> Any:
    """A code generator, for one thread."""
    llvm = _binding()
    return llvm.Target.from_triple(target.triple).create_target_machine(
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


def _generated(text: str, target: Target, *, as_object: bool) -> bytes:
    with _GENERATING:
        idle = _MACHINES.setdefault((target, _LEVEL), [])
        try:
            machine = idle.pop()
        except IndexError:
            machine = _machine(target)
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
                _binding().set_option("", "-disable-lsr=true")

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            if not self._inside:
                _binding().set_option("", "-disable-lsr=false")
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


def _machine_of(code: bytes) -> bytes:
    """What the head of an object file says of the machine it is for; empty for what is no object file."""
    if code[:4] == b"\x7fELF":
        return code[:6] + code[18:20]  # width, byte order, processor
    if code[:4] == b"\xcf\xfa\xed\xfe":  # Mach-O of 64 bits
        return code[:8]
    return code[:2]  # COFF begins with the processor


@functools.cache
def _expected_machine(target: Target) -> bytes:
    return _machine_of(compile_object(f'target triple = "{target.triple}"\n', target))


# Kernels of one loader. Each takes about two mappings of memory, of which Linux grants a process 65,530.
MOST_KERNELS = 20_000


class Loader:
    """Puts object code into this process; what it loaded stays as long as the loader."""

    def __init__(self, target: Target) -> None:
        self._expected = _expected_machine(target)
        with _LOCK:
            llvm = _binding()
            self._llvm = llvm
            # LLVM's older linker maps code and constants apart, perhaps further than an instruction reaches.
            self._jit = llvm.create_lljit_compiler(_machine(target), use_jit_link=True)
            self._kept: list[Any] = []
            self._attempts = itertools.count()

    def load(self, name: str, code: bytes) -> int:
        """The address of the function `name` of an object file; ValueError where the linker refuses it.

        errors.Fail where no more kernels fit into the process.
        """
        if _machine_of(code) != self._expected:  # the linker would take the code of another machine
            raise ValueError(f"object code of {name} is not for this machine")
        if len(self._kept) >= MOST_KERNELS:  # LLVM ends the process where the system has no more mappings
            raise errors.Fail(
                f"this process has loaded {MOST_KERNELS} kernels, as many as fit: let go of sessions that are not used"
            )
        with _LOCK:
            builder = self._llvm.JITLibraryBuilder()
            builder.add_object_img(code).export_symbol(name).add_current_process()
            if WORDS_SYMBOL.encode() in code:
                builder.import_symbol(WORDS_SYMBOL, words_address())
            try:
                tracker = builder.link(self._jit, f"{name}.{next(self._attempts)}")
                address = int(tracker[name])
            except Exception as error:
                raise ValueError(f"object code of {name} cannot be loaded: {error}") from error
            self._kept.append(tracker)
            return address
