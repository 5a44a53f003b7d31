"""From object code to an address in this process.

Object code in ELF for x86-64 is joined here into an image of its own (`linker`), which takes neither LLVM nor its
memory: a process whose kernels are all kept never loads it. That of other machines and systems is loaded by LLVM.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

from sardonyx import errors
from sardonyx.compiler.llvm.codegen import binding, compile_object, target_machine
from sardonyx.compiler.llvm.linker import NotLinkableError, link
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.native.native_image import ImageError, NativeImage
from sardonyx.runtime.threads.interrupts import WORDS_SYMBOL, words_address

# Of loading; one at a time.
_LOCK = threading.RLock()

around_forks(_LOCK.acquire, _LOCK.release)  # no fork in the middle of one: the child could never compile

# Kernels of one loader. Each takes up to two mappings of memory, of which Linux grants a process 65,530.
MOST_KERNELS = 20_000


class Loader:
    """Puts object code into this process; what it loaded stays as long as the loader."""

    def __init__(self, target: Target) -> None:
        is_linked = target.architecture == "x86_64" and "linux" in target.triple
        self._load: Callable[[str, bytes], tuple[int, Any]] = _linked if is_linked else _LoadedByLLVM(target)
        self._kept: list[Any] = []

    def load(self, name: str, code: bytes) -> int:
        """The address of the function `name` of an object file; ValueError where the linker refuses it.

        errors.Fail where no more kernels fit into the process.
        """
        if len(self._kept) >= MOST_KERNELS:  # LLVM ends the process where the system has no more mappings
            raise errors.Fail(
                f"this process has loaded {MOST_KERNELS} kernels, as many as fit: let go of sessions that are not used"
            )
        address, owner = self._load(name, code)
        self._kept.append(owner)
        return address


def _linked(name: str, code: bytes) -> tuple[int, NativeImage]:
    """The address of a function of an object file, and the image that it became."""
    try:
        joined = link({name: code}, name)
    except NotLinkableError as error:
        raise ValueError(f"object code of {name} cannot be loaded: {error}") from error
    try:
        image = NativeImage(joined.code, joined.slots)
    except ImageError as error:
        raise errors.Fail(f"the code of a kernel cannot be loaded: {error}") from error
    return image.address + joined.entries[name], image


class _LoadedByLLVM:
    """LLVM's linker."""

    def __init__(self, target: Target) -> None:
        self._expected = _expected_machine(target)
        with _LOCK:
            # LLVM's older linker maps code and constants apart, perhaps further than an instruction reaches.
            self._jit = binding().create_lljit_compiler(target_machine(target), use_jit_link=True)
            self._attempts = itertools.count()

    def __call__(self, name: str, code: bytes) -> tuple[int, Any]:
        """The address of a function of an object file, and what keeps it."""
        if _machine_of(code) != self._expected:  # the linker would take the code of another machine
            raise ValueError(f"object code of {name} is not for this machine")
        with _LOCK:
            builder = binding().JITLibraryBuilder()
            builder.add_object_img(code).export_symbol(name).add_current_process()
            if WORDS_SYMBOL.encode() in code:
                builder.import_symbol(WORDS_SYMBOL, words_address())
            try:
                tracker = builder.link(self._jit, f"{name}.{next(self._attempts)}")
                return int(tracker[name]), tracker
            except Exception as error:
                raise ValueError(f"object code of {name} cannot be loaded: {error}") from error


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
