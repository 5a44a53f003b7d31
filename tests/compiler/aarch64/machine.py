"""An AArch64 machine for tests: kernels linked for it one by one, and a process of the emulator that calls them.

The process lives as long as the tests. It shares a piece of memory with them, at another address: arrays are copied
there before a kernel is called, and back afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.library import Emit, KernelLibrary
from sardonyx.compiler.llvm.target import Caches, Target, aarch64_targets, host_targets
from sardonyx.runtime.files.cache_folder import default_folder
from sardonyx.runtime.files.kernel_cache import KernelCache
from tests.compiler.aarch64.driver import BASE, MATHEMATICS, modules

Array = np.ndarray[Any, Any]

EMULATOR = "qemu-aarch64"
# The first AArch64 processors: newer instructions than every such machine has are refused.
PROCESSOR = "cortex-a57"

_CODE_BYTES = 256 << 20
_SHARED_BYTES = 1 << 30
_PAGE = 4096
_SECONDS = 120  # of a call, before it counts as hanging


def neon() -> Target:
    """The variant that is emulated."""
    return aarch64_targets(Caches(l1=32 << 10, l2=512 << 10, l3=8 << 20))["neon"]


@functools.cache
def missing() -> str:
    """Why AArch64 is not emulated here; empty where it is."""
    if "neon" in host_targets():
        return "this machine is AArch64 itself"
    if sys.platform != "linux":
        return "the emulator needs Linux"
    if shutil.which(EMULATOR) is None:
        return f"{EMULATOR} is not installed (Debian: qemu-user)"
    if _linker() is None:
        return "ziglang is not installed (pip install ziglang)"
    return ""


@functools.cache
def _linker() -> list[str] | None:
    """The command of a linker for AArch64."""
    try:
        import ziglang
    except ImportError:
        return None
    return [str(Path(ziglang.__file__).with_name("zig")), "ld.lld"]


def _link(folder: Path, name: str, objects: list[bytes], *options: str) -> Path:
    """An executable of object files; ValueError with the linker's words where it refuses."""
    paths = []
    for index, code in enumerate(objects):
        paths.append(folder / f"{name}.{index}.o")
        paths[-1].write_bytes(code)
    linker = _linker()
    assert linker is not None
    command = [*linker, "-static", "-z", f"max-page-size={_PAGE}", "-o", str(folder / name), *options, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"the linker refuses {name}: {done.stderr.strip()}")
    return folder / name


class Machine:
    """Loads object code as a `Loader` does, and calls it."""

    def __init__(self, target: Target) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aarch64-")
        folder = Path(self._folder.name)
        texts = modules(target, _SHARED_BYTES)
        self._driver = _link(folder, "driver", [compile_object(text, target) for text in texts], "-e", "_start")
        descriptor = os.memfd_create("aarch64")
        os.ftruncate(descriptor, _SHARED_BYTES)
        self._shared = np.frombuffer(mmap.mmap(descriptor, _SHARED_BYTES), np.uint8)
        self._code_end = 0
        self._kernels = 0
        self._process = subprocess.Popen(
            [EMULATOR, "-cpu", PROCESSOR, str(self._driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[descriptor],
        )
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<q", descriptor))
        os.close(descriptor)
        atexit.register(self.close)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def load(self, name: str, code: bytes) -> int:
        """The address of a function of an object file inside the machine."""
        at = BASE + self._code_end
        kernel = f"kernel{self._kernels}"
        self._kernels += 1
        options = (f"--just-symbols={self._driver}", f"--image-base={at:#x}", "-e", name)
        program = _link(Path(self._folder.name), kernel, [code], *options).read_bytes()
        (entry,) = struct.unpack_from("<Q", program, 24)
        for start, place, filled, size in _segments(program):
            first = place - BASE
            self._shared[first : first + filled] = np.frombuffer(program, np.uint8, filled, start)
            self._code_end = max(self._code_end, -(-(first + size) // _PAGE) * _PAGE)
        if self._code_end > _CODE_BYTES:
            raise ValueError(f"more than {_CODE_BYTES} bytes of code are loaded")
        return int(entry)

    def visit(self) -> Visit:
        """Room for the arrays of some calls, which ends the room of the visit before."""
        return Visit(self)

    def call(self, function: int, *arguments: int) -> int:
        """Call a function with up to six integers; its result, which of a kernel means nothing.

        AssertionError where it crashes or hangs.
        """
        self._send("<7q", function, *arguments, *[0] * (6 - len(arguments)))
        while (request := self._answer())[0]:
            name, count, _ = MATHEMATICS[request[0] - 1]
            numbers = struct.unpack(f"<{count}d", struct.pack(f"<{count}q", *request[1 : 1 + count]))
            with np.errstate(all="ignore"):
                self._send("<d", getattr(np, name.removesuffix("f"))(*numbers))
        return request[1]

    def _send(self, layout: str, *words: float) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            self._process.stdin.write(struct.pack(layout, *words))

    def _answer(self) -> tuple[int, int, int]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _SECONDS)
        answer = self._process.stdout.read(24) if ready else b""
        if len(answer) == 24:
            return struct.unpack("<3q", answer)
        _machine.cache_clear()  # the next test gets a machine that works
        emulated.cache_clear()
        if not ready:
            self.close()
            raise AssertionError(f"a kernel hangs: no answer in {_SECONDS} seconds")
        status = self._process.wait()
        raise AssertionError(f"the emulator ended: {signal.Signals(-status).name if status < 0 else status}")


def _segments(program: bytes) -> list[tuple[int, int, int, int]]:
    """What an ELF file asks to be loaded: (offset in the file, address, bytes in the file, bytes in memory)."""
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    found = []
    for index in range(count):
        kind, _, offset, address, _, filled, room, _ = struct.unpack_from("<IIQQQQQQ", program, table + index * size)
        if kind == 1:  # PT_LOAD
            found.append((offset, address, filled, room))
    return found


class Visit:
    """Arrays in the machine's memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._memory = machine._shared
        self._end = _CODE_BYTES
        self._places: dict[int, tuple[Array, int, int, int]] = {}  # owner, its first byte, its bytes, its place here

    def address(self, array: Array) -> int:
        """Where an array lies in the machine; its memory is copied there when it is first seen."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in self._places:
            low, high = np.lib.array_utils.byte_bounds(owner)
            # As far from a multiple of the cache line as in the process itself.
            place = self._end + low % 64
            self._end = -(-(place + high - low) // 64) * 64 + 64
            assert self._end <= _SHARED_BYTES, "the arrays of a test do not fit the machine's memory"
            self._memory[place : place + high - low] = _bytes_at(low, high - low)
            self._places[id(owner)] = owner, low, high - low, place
        _, low, _, place = self._places[id(owner)]
        return BASE + place + int(array.__array_interface__["data"][0]) - low

    def call(self, function: int, words: Array, begin: int, end: int, scratch: Array) -> None:
        """Call a kernel; arguments and scratch memory are arrays as well."""
        self._machine.call(function, self.address(words), begin, end, self.address(scratch))

    def fetch(self, array: Array) -> None:
        """Copy back what kernels made of an array."""
        at = self.address(array) - BASE
        low, high = np.lib.array_utils.byte_bounds(array)
        _bytes_at(low, high - low)[...] = self._memory[at : at + high - low]


def _bytes_at(address: int, nbytes: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@functools.cache
def _machine() -> Machine:
    return Machine(neon())


class EmulatedLibrary(KernelLibrary):
    """The kernels of the machine."""

    machine: Machine

    def run(self, emit: Emit, spec: Any, arguments: Sequence[int | Array], chunks: int, threads: int = 1) -> None:
        visit = self.machine.visit()
        arrays = [one for one in arguments if not isinstance(one, int)]
        words = np.array([one if isinstance(one, int) else visit.address(one) for one in arguments], np.int64)
        visit.call(self.address(emit, spec), words, 0, chunks, np.zeros(0, np.uint8))
        for array in arrays:
            if array.flags.writeable:
                visit.fetch(array)


@functools.cache
def emulated() -> EmulatedLibrary:
    """The machine's library; its object code is kept where that of real machines is."""
    library = EmulatedLibrary(neon(), KernelCache(default_folder()))
    library.machine = _machine()
    library._loader = library.machine  # type: ignore[assignment]
    return library
