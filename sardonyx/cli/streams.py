"""The standard streams of a process that was started without some of them."""

from __future__ import annotations

import os
import sys


def replace_closed() -> None:
    """Let each standard stream that is closed lead to nowhere.

    Else a file that is opened later would get its number, and what is printed would be written into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
