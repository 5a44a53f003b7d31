"""What a session notes of its runs: a trace that becomes a profile, and the memory of its nodes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sardonyx import errors
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.running.node_memory import node_memory

if TYPE_CHECKING:
    from sardonyx.runtime.trace import Trace


class SessionProfile:
    """The notes of the session of this number; an owner's end, or that of the process, writes what is not written."""

    def __init__(self, owner: object, number: int, source: Any, options: SessionOptions) -> None:
        """`Fail` where a file cannot be written."""
        self.trace = _started(number, options) if options.enable_profiling else None
        self._ending = None if self.trace is None else weakref.finalize(owner, self.trace.write)
        self.start_ns = 0 if self.trace is None else self.trace.start_ns
        self.node_memory = node_memory(source, options._config, self.trace)

    def end(self) -> Callable[[], str]:
        """Note nothing more in the profile. What is given back writes it and gives its name, or an empty text where
        there is none to write; `Fail` where it cannot be written."""
        ending, self._ending, self.trace = self._ending, None, None
        if self.node_memory is not None and ending is not None:
            self.node_memory.inner = None

        def write() -> str:
            with _saying("profile"):
                return "" if ending is None else ending() or ""

        return write

    def write_node_memory(self) -> None:
        """Write what nodes of the runs so far took, where that is wished for; `Fail` where it cannot be written."""
        if self.node_memory is not None:
            with _saying("memory of the nodes"):
                self.node_memory.write()


@contextlib.contextmanager
def _saying(what: str) -> Iterator[None]:
    """`Fail` where the system refuses a file."""
    try:
        yield
    except OSError as error:
        raise errors.Fail(f"Cannot write the {what}: {error}") from error


def _started(number: int, options: SessionOptions) -> Trace:
    from sardonyx.runtime.trace import Trace

    pool = None if options.intra_op_num_threads == 1 else f"session-{number}-intra-op"
    try:
        return Trace(options.profile_file_prefix, pool)
    except OSError as error:
        raise errors.Fail(
            f"Cannot write the profile: {error}. SessionOptions.profile_file_prefix must name a place that exists."
        ) from error
