"""Compiling in processes of its own, where address space is scarce: LLVM ends the process in which it gets no memory.

Each thread that compiles has a process for itself, which others use after it. They end when nobody compiles any more
(`held`), so none is left behind when a session is made.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator

from sardonyx import errors
from sardonyx.compiler.llvm.compiler_child import MADE, UNABLE, received, send
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.forks import around_forks
from sardonyx.runtime.memory import address_space

# Address space of such a process: 14 MiB of Python's, 160 of LLVM's library, and what a large kernel takes.
CHILD_BYTES = 230 << 20

_PROGRAM = "import sys; sys.path[:] = {path!r}; from sardonyx.compiler.llvm.compiler_child import main; main()"


class _DiedError(Exception):
    """The process ended before it answered; the message says how."""


class _Process:
    """One of them, for one thread at a time."""

    def __init__(self) -> None:
        if not sys.executable:
            raise _failure("this program does not know its interpreter, which would compile in a process of its own")
        import subprocess  # where it is needed: other processes do without

        own = os.path.realpath(__file__)
        for _ in range(4):  # up to where this package lies
            own = os.path.dirname(own)
        program = _PROGRAM.format(path=[own, *(path for path in sys.path if path)])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, MemoryError) as error:
            raise _failure(f"no process could be started for it ({error})") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self.is_new = True

    def compiled(self, request: bytes) -> bytes:
        """The answer; `_DiedError` where the process ended without one."""
        try:
            send(self._to, request)
            answer = received(self._from)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise _DiedError(self._end())
        self.is_new = False
        return answer

    def close(self) -> None:
        """Let it end, and wait until it has."""
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()

    def kill(self) -> None:
        """End it in whatever it does."""
        self._process.kill()
        self.close()

    def _end(self) -> str:
        self.close()
        code = self._process.returncode
        if code == UNABLE:
            return "LLVM could not be loaded there"
        return f"it died of signal {-code}" if code < 0 else f"it ended with exit code {code}"


class _Processes:
    """Those of this process that nobody uses now, and how many might soon."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle: list[_Process] = []
        self._holders = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, idle processes are kept for what is compiled next."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                ended = [] if self._holders else self._idle
                if ended:
                    self._idle = []
            for one in ended:
                one.close()

    def compiled(self, request: bytes) -> bytes:
        with self.held():
            while True:
                with self._lock:
                    process = self._idle.pop() if self._idle else None
                process = process or _Process()
                was_new = process.is_new
                try:
                    answer = process.compiled(request)
                except _DiedError as error:
                    if was_new:
                        raise _failure(str(error)) from None
                    continue  # others have left it little room
                except BaseException:  # an answer to this would be taken for one to the next
                    process.kill()
                    raise
                with self._lock:
                    self._idle.append(process)
                return answer

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        self._lock.release()


_PROCESSES = _Processes()

around_forks(_PROCESSES.before_fork, _PROCESSES.after_fork)

held = _PROCESSES.held


def generate_apart(text: str, target: Target, *, as_object: bool) -> bytes:
    """What `codegen.generate_here` gives, made in another process.

    ValueError where the text is no valid module; `errors.Fail` where the process ended, as it does where the limit
    leaves it too little room.
    """
    answer = _PROCESSES.compiled(pickle.dumps((text, target, as_object)))
    if answer[:1] == MADE:
        return answer[1:]
    raise ValueError(answer[1:].decode(errors="replace"))


def _failure(reason: str) -> errors.Fail:
    return address_space.shortage(
        f"Compiling a kernel failed, {reason}: the process that compiles",
        CHILD_BYTES,
        ", or make the session from an engine ('sardonyx compile') or with the kernel cache of one that had more",
    )
