"""The kernels of this process: found in the cache or a pack, or generated and compiled, and loaded, each once."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.installed_packs import installed_pack
from sardonyx.compiler.llvm.jobs import JOBS, Job
from sardonyx.compiler.llvm.progress import Progress
from sardonyx.compiler.llvm.target import Target, host_target
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.cache_folder import default_folder
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.helpers import Helpers
from sardonyx.runtime.native.native_image import NativeImage

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.loading import Loader
    from sardonyx.runtime.files.kernel_pack import KernelPack

Array = np.ndarray[Any, Any]

# Emits the text of the kernel that a specification describes; the function it defines is called KERNEL.
Emit = Callable[[Target, Any], str]

KERNEL = "kernel"

# Shares of a kernel's chunks for each thread that helps with it: who is late finds less left.
_SHARES = 8

# Specifications whose kernels are found without their text; beyond, all are forgotten.
_MOST_RECENT = 4096

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass
class LibraryCounts:
    """What a library did so far."""

    compiled: int = 0
    from_cache: int = 0
    seconds: float = 0.0
    from_pack: int = 0


class Kernel:
    """A kernel of a library, which may still be compiled. `source` is what writes its text, and the specification."""

    __slots__ = ("_found", "source")

    def __init__(self, found: int | Job) -> None:
        """Its address, or what finds it."""
        self._found = found
        self.source: tuple[Emit, Any] | None = None

    @property
    def address(self) -> int:
        """Where it lies, as soon as it does; ValueError where its text is not valid."""
        return self.wait()

    def wait(self) -> int:
        """The same as a call."""
        found = self._found
        if not isinstance(found, int):
            found = self._found = found.result()
        return found


@dataclass
class KernelLibrary:
    """The kernels for one target. `pack` has some of them ready. `progress` speaks up where a session has to wait for
    many of them.

    So many `compile_threads` work while who asks for kernels goes on, as long as the addresses are not needed.
    """

    target: Target
    cache: KernelCache
    counts: LibraryCounts = field(default_factory=LibraryCounts)
    progress: Progress = field(default_factory=Progress)
    clock: Callable[[], float] = time.perf_counter
    compile_threads: int = 0
    pack: KernelPack | None = None

    def __post_init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._sizes: dict[int, int] = {}  # bytes of the object code by address
        self._keys: dict[int, str] = {}  # of all addresses, where somebody asked for one
        self._pending: dict[str, Kernel] = {}  # whose address is not known yet
        # Spares the text; expressions are told apart by identity.
        self._recent: dict[tuple[Emit, Hashable], Kernel] = {}
        self._codes: dict[str, bytes] = {}  # of all kernels, where no cache keeps them
        self._images: list[NativeImage] = []  # with kernels that came from elsewhere
        self._asking = threading.RLock()  # one thread at a time asks for a new kernel: its text takes long
        self._lock = threading.RLock()  # of all tables; taken for a moment, also by helpers
        self._loader: Loader | None = None
        self._helpers = threading.local()

    def begin(self, compile_threads: int) -> None:
        """A session is being made, for which so many threads may compile beside its own."""
        self.compile_threads = compile_threads
        self.progress.begin()

    def kernel(self, emit: Emit, spec: Any) -> Kernel:
        """The kernel that `emit` writes for `spec`, a value whose ``repr`` says all of it.

        A kernel has the signature ``void kernel(i64 *arguments, i64 begin, i64 end, i8 *scratch)``.
        """
        known = self._recent.get((emit, spec))
        if known is not None:
            return known
        key = key_of(emit.__module__, emit.__qualname__, spec)
        with self._asking:
            found = self._found(key) or self._begun(key, emit, spec)
            found.source = emit, spec
            with self._lock:
                if len(self._recent) >= _MOST_RECENT:
                    self._recent.clear()
                if key in self._addresses or key in self._pending:  # it has not failed meanwhile
                    self._recent[emit, spec] = found
            return found

    def address(self, emit: Emit, spec: Any) -> int:
        """The address of that kernel, as soon as there is one."""
        return self.kernel(emit, spec).address

    def finish(self) -> None:
        """Wait for all kernels that somebody asked for."""
        with self._lock:
            pending = list(self._pending.values())
        for kernel in pending:
            kernel.wait()

    def key_of(self, address: int) -> str | None:
        """What `kept` finds the kernel at an address by, also in another process; None for what is no kernel here."""
        with self._lock:
            if len(self._keys) != len(self._addresses):
                self._keys = {place: key for key, place in self._addresses.items()}
            return self._keys.get(address)

    def known(self, key: str) -> int | None:
        """The address of the kernel of this key, if this process has it."""
        with self._lock:
            return self._addresses.get(key)

    def adopt(self, addresses: Mapping[str, int], image: NativeImage) -> None:
        """Take kernels over that are in an image in this process, by their keys.

        Those that are here already stay as they are.
        """
        with self._lock:
            self._addresses = {**addresses, **self._addresses}
            self._images.append(image)

    def object_code(self, key: str) -> bytes | None:
        """The object code of the kernel of this key; None where nobody has kept it."""
        with self._lock:
            return self._codes.get(key) or self.cache.find(self._full_key(key)) or self._packed(self._full_key(key))

    def kept(self, key: str) -> int | None:
        """The address of the kernel of this key; None where this process, the cache and the pack have it not."""
        found = self._found(key)
        return None if found is None else found.address

    def run(self, emit: Emit, spec: Any, arguments: Sequence[int | Array], chunks: int, threads: int = 1) -> None:
        """Do all chunks of a kernel that needs no scratch memory now; an array as argument stands for its address."""
        kernel = _SIGNATURE(self.address(emit, spec))
        words = np.array([one if isinstance(one, int) else _address(one) for one in arguments], np.int64)
        place = _address(words)
        if threads <= 1:
            kernel(place, 0, chunks, None)
            return
        share = -(-chunks // (threads * _SHARES))
        shares = iter([(begin, min(chunks, begin + share)) for begin in range(0, chunks, share)])

        def work() -> None:
            for begin, end in shares:
                kernel(place, begin, end, None)

        with self.helpers() as helpers:
            helpers.share(work, threads - 1)

    @contextmanager
    def helpers(self) -> Iterator[Helpers]:
        """Threads that help this one with what `run` does: inside, all calls share them, so that they start once."""
        held: Helpers | None = getattr(self._helpers, "held", None)
        if held is not None:
            yield held
            return
        with Helpers(max(1, (os.cpu_count() or 1) - 1), "sardonyx-pack") as helpers:
            self._helpers.held = helpers
            try:
                yield helpers
            finally:
                self._helpers.held = None

    def _found(self, key: str) -> Kernel | None:
        """The kernel of this key, if this process, the cache or the pack has it, or it is about to be there."""
        with self._lock:
            address = self._addresses.get(key)
            if address is not None:
                return Kernel(address)
            if key in self._pending:
                return self._pending[key]
            address = self._cached(key)
            if address is None:
                address = self._ready_made(key)
            if address is None:
                return None
            self._addresses[key] = address
            return Kernel(address)

    def _begun(self, key: str, emit: Emit, spec: Any) -> Kernel:
        """A kernel that nobody has: its text is written here, and compiled when a thread comes to it."""
        text = emit(self.target, spec)
        with self._lock:
            kernel = self._pending[key] = Kernel(JOBS.add(lambda: self._compiled(key, text), self.compile_threads))
            return kernel

    def _compiled(self, key: str, text: str) -> int:
        """The address of a kernel that is compiled, kept and loaded here."""
        with self._lock:
            self.progress.next(kept=self.cache.folder is not None)
        began = self.clock()
        try:
            code = compile_object(text, self.target)
            with self._lock:
                self._note(began, self.clock())
                self.cache.store(self._full_key(key), code)
                if self.cache.folder is None:
                    self._codes[key] = code
                address = self._addresses.setdefault(key, self._loaded(self._linker(), code))
                self._pending.pop(key, None)
                return address
        except Exception:
            with self._lock:  # who asks again tries again
                self._pending.pop(key, None)
                self._recent.clear()
            raise

    def _note(self, began: float, ended: float) -> None:
        self.counts.compiled += 1
        self.counts.seconds += ended - began
        self.progress.done(began, ended)

    def _cached(self, key: str) -> int | None:
        """The address of a kernel that the cache has, loaded here; None where it has none that the linker takes."""
        full_key, loader = self._full_key(key), self._linker()
        code = self.cache.find(full_key)
        if code is None:
            return None
        try:
            address = self._loaded(loader, code)
        except ValueError:
            self.cache.drop(full_key)
            return None
        self.counts.from_cache += 1
        return address

    def _ready_made(self, key: str) -> int | None:
        """The address of a kernel that the pack has, loaded here; None where it has none that the linker takes."""
        code = self._packed(self._full_key(key))
        if code is None:
            return None
        try:
            address = self._loaded(self._linker(), code)
        except ValueError:
            return None
        self.counts.from_pack += 1
        return address

    def _packed(self, full_key: str) -> bytes | None:
        return None if self.pack is None else self.pack.find(full_key)

    def _loaded(self, loader: Loader, code: bytes) -> int:
        address = loader.load(KERNEL, code)
        self._sizes[address] = len(code)
        return address

    def code_bytes(self, addresses: Iterable[int]) -> int:
        """Bytes of object code of the kernels at these addresses; those of an image as a whole where one is in it."""
        given = set(addresses)
        images = [
            image.nbytes
            for image in self._images
            if any(image.address <= address < image.address + image.nbytes for address in given)
        ]
        return sum(images) + sum(self._sizes.get(address, 0) for address in given)

    def _full_key(self, key: str) -> str:
        return full_key(key, self.target)

    def _linker(self) -> Loader:
        if self._loader is None:
            from sardonyx.compiler.llvm.loading import Loader  # which processes that begin from engines do without

            self._loader = Loader(self.target)
        return self._loader


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def key_of(module: str, name: str, spec: Any) -> str:
    """The key of the kernel that the function `name` of a module writes for `spec`."""
    return f"{module}.{name}({spec!r})"


def full_key(key: str, target: Target) -> str:
    """What a kernel is kept under: its key, and all else that its code depends on."""
    return f"{key}|{target.code_key}|{generator_version()}"


def why_not_ready(pack: KernelPack) -> str:
    """Why no kernel of an installed pack is used; empty where they are."""
    count, note = len(pack), pack.note
    if pack.problem:
        return pack.problem
    if count and note.get("generator") != generator_version():
        made_by = f"{note.get('version')} of Sardonyx, {note.get('llvm')}"
        return f"{pack.path} is not used: it is for another state of the package ({made_by}): install it again"
    return ""


_LIBRARIES: dict[tuple[str, str], KernelLibrary] = {}
_LIBRARIES_LOCK = threading.Lock()


Purpose = Literal["models", "runtime"]


def kernels_made() -> int:
    """How many kernels this process has compiled, or taken from the cache one by one."""
    return sum([one.counts.compiled + one.counts.from_cache for one in list(_LIBRARIES.values())])


def library(variant: str = "", purpose: Purpose = "models") -> KernelLibrary:
    """The process's library for this machine, or for the instruction set `variant` of it.

    Functions of the runtime, such as the executor, are apart from the kernels of models: they serve the whole process.
    """
    target = host_target(variant)
    with _LIBRARIES_LOCK:
        known = _LIBRARIES.get((purpose, target.key))
        if known is None:
            cache, pack = KernelCache(default_folder()), installed_pack(target)
            known = _LIBRARIES[purpose, target.key] = KernelLibrary(target, cache, pack=pack)
        return known


def all_counts() -> LibraryCounts:
    """What all libraries of this process did so far."""
    with _LIBRARIES_LOCK:
        counts = [one.counts for one in _LIBRARIES.values()]
    return LibraryCounts(
        sum([one.compiled for one in counts]),
        sum([one.from_cache for one in counts]),
        sum([one.seconds for one in counts]),
        sum([one.from_pack for one in counts]),
    )


@contextmanager
def standing_in(other: KernelLibrary) -> Iterator[None]:
    """Inside, sessions that name no instruction set are made with these kernels, which may be for another machine: for
    who wants to know what they ask for."""
    place: tuple[str, str] = "models", host_target().key
    with _LIBRARIES_LOCK:
        before = _LIBRARIES.get(place)
        _LIBRARIES[place] = other
    try:
        yield
    finally:
        with _LIBRARIES_LOCK:
            del _LIBRARIES[place]
            if before is not None:
                _LIBRARIES[place] = before


def forget_kernels() -> None:
    """Let new sessions load their kernels anew; those of today go with the last session that uses them."""
    with _LIBRARIES_LOCK:
        for key in [key for key in _LIBRARIES if key[0] == "models"]:
            del _LIBRARIES[key]


def _locks() -> list[Any]:
    """The locks of all libraries; that of the code generator, which is taken inside of them, has its own care."""
    return [_LIBRARIES_LOCK, *(lock for one in _LIBRARIES.values() for lock in (one._asking, one._lock))]


def _before_fork() -> None:
    """Wait until no library is making a kernel, so that a child finds all of them whole and unlocked."""
    _LIBRARIES_LOCK.acquire()
    for lock in _locks()[1:]:
        lock.acquire()


def _after_fork() -> None:
    for lock in reversed(_locks()):
        lock.release()


around_forks(_before_fork, _after_fork)
