"""What a process does that compiles for another one (`compiler_process`): texts come in, object code goes out.

It imports little, so that it needs little more than LLVM does. Every message has its length in front of it, in eight
bytes. A request is a pickle of what `codegen.generate_here` takes. An answer is a byte and what it says follows: object
code, or what is wrong with the text.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
from typing import IO

LENGTH = struct.Struct("<Q")
MADE, REFUSED = b"+", b"-"
UNABLE = 3  # exit code where LLVM cannot be loaded


def send(to: IO[bytes], message: bytes) -> None:
    to.write(LENGTH.pack(len(message)) + message)
    to.flush()


def received(source: IO[bytes]) -> bytes | None:
    """A message; None where the other side has ended."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (count,) = LENGTH.unpack(head)
    message = source.read(count)
    return message if len(message) == count else None


def main() -> None:
    """Serve until the other side ends."""
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's is for the process that asks
    source, to = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    try:
        from sardonyx.compiler.llvm import codegen

        codegen.binding()
    except (ImportError, OSError, MemoryError):
        os._exit(UNABLE)
    while (request := received(source)) is not None:
        text, target, as_object = pickle.loads(request)
        try:
            answer = MADE + codegen.generate_here(text, target, as_object=as_object)
        except ValueError as error:
            answer = REFUSED + str(error).encode()
        send(to, answer)
