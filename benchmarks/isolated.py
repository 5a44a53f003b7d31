"""Call a function in a fresh process, so that a crash, a leak or a global setting stays there."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


class DiedError(Exception):
    """The process ended without a result; the message says how."""


def call(function: Callable[..., Result], *arguments: object) -> Result:
    """`function(*arguments)` from a new process. Function, arguments and result must be picklable."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        raise DiedError(how_it_ended(process.exitcode)) from None
    finally:
        receiver.close()
        process.join()


def _serve(sender: Connection, function: Callable[..., object], arguments: tuple) -> None:
    sender.send(function(*arguments))
    sender.close()


def how_it_ended(exit_code: int | None) -> str:
    """The end of a process in words."""
    if exit_code is not None and exit_code < 0:
        return f"the process died of {signal.Signals(-exit_code).name}"
    return f"the process ended with exit code {exit_code}"
