"""Whether anything is kept between processes: compiled kernels, engines, the machine's figures."""

from __future__ import annotations

import os

from sardonyx.runtime.files.cache_folder import VARIABLE, default_folder, prepare_folder


def why_nothing_is_kept() -> str:
    """The reason, with what to do; empty where the folder of the user's caches can be used."""
    folder = default_folder()
    if folder is None:
        why = f"{VARIABLE} turns it off" if VARIABLE in os.environ else f"no home folder; set {VARIABLE}"
    else:
        why = prepare_folder(folder)
        if not why and not os.access(folder, os.W_OK | os.X_OK):
            why = f"{folder} cannot be written"
        if why:
            why += f"; set {VARIABLE} to a folder of your own"
    return f"nothing is kept: {why}" if why else ""


def is_off() -> bool:
    """Whether the user wants nothing kept."""
    return default_folder() is None and VARIABLE in os.environ
