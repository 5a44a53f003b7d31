"""From the text of a kernel to object code, and from object code to an address in this process."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from sardonyx import errors
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.threads.interrupts import WORDS_SYMBOL, words_address

# LLVM keeps global state; one compilation at a time.
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


@functools.cache
def _machine(target: Target, level: int = 2) -> Any:
    """The code generator; at level 0 it is quick, and its code slow."""
    llvm = _binding()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu="x86-64" if target.architecture == "x86_64" else "generic",
        features=target.feature_string,
        opt=level,
        reloc="pic",
        codemodel="small",
        jit=False,
    )


def _module(text: str, target: Target) -> Any:
    llvm = _binding()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise ValueError(f"the kernel is not valid LLVM IR: {error}\n{text}") from error
    builder = llvm.create_pass_builder(_machine(target), llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()  # variables into registers; kernels are written as they should run
    passes.run(module, builder)
    return module


@contextlib.contextmanager
def _addresses_as_written() -> Iterator[None]:
    """Let LLVM keep a loop's arithmetic of addresses: choosing another takes two fifths of all, and gains nothing.

    The option is the process's, and others may use LLVM as well: they find it as it was.
    """
    llvm = _binding()
    llvm.set_option("", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm.set_option("", "-disable-lsr=false")


def compile_object(text: str, target: Target) -> bytes:
    """The object file of a module for a target (ELF, or what its system uses)."""
    with _LOCK, _addresses_as_written():
        return bytes(_machine(target).emit_object(_module(text, target)))


def compile_assembly(text: str, target: Target) -> str:
    """The assembly of a module, for people."""
    with _LOCK, _addresses_as_written():
        return str(_machine(target).emit_assembly(_module(text, target)))


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
