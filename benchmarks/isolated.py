"""Call a function in a fresh process, so that a crash, a leak or a global setting stays there."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


class DiedError(Exception):
    """The process ended without a result; the message says how."""


def call(function: Callable[..., Result], *arguments: object, environment: Mapping[str, str] | None = None) -> Result:
    """`function(*arguments)` from a new process; what it raises is raised here.

    Function, arguments, result and exceptions must be picklable. `environment` adds variables to the process's own.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, function, arguments))
    with variables(environment or {}):
        process.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        process.join()
        raise DiedError(how_it_ended(process.exitcode)) from None
    finally:
        receiver.close()
        process.join()
    if error is not None:
        raise error
    return result


def reason(error: Exception) -> str:
    """What went wrong, in a line for a table."""
    text = str(error) if isinstance(error, DiedError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:160]


def _serve(sender: Connection, function: Callable[..., object], arguments: tuple) -> None:
    try:
        answer: tuple[object, Exception | None] = (function(*arguments), None)
    except Exception as error:  # goes to the caller
        answer = (None, error)
    sender.send(answer)
    sender.close()


@contextlib.contextmanager
def variables(added: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def how_it_ended(exit_code: int | None) -> str:
    """The end of a process in words."""
    if exit_code is not None and exit_code < 0:
        return f"the process died of {signal.Signals(-exit_code).name}"
    return f"the process ended with exit code {exit_code}"
