"""The packs of kernels that are installed beside this package: which of them a machine's kernels may be in.

They are the distribution `sardonyx-kernels`, whose package is a folder of files; or another folder that the environment
names. A pack is named after its target, and after what tells that target from others of the same name.
"""

from __future__ import annotations

import os

from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.kernel_pack import SUFFIX, KernelPack

VARIABLE = "SARDONYX_KERNELS"
OFF = "off"
PACKAGE = "sardonyx_kernels"


def installed_pack(target: Target) -> KernelPack | None:
    """The pack for a target; None where there is none, or ``SARDONYX_KERNELS`` is ``off``."""
    folder = packs_folder()
    if folder is None:
        return None
    path = os.path.join(folder, pack_name(target))
    return KernelPack(path) if os.path.exists(path) else None


def pack_name(target: Target) -> str:
    """The name of the file with a target's kernels."""
    return f"{target.name}-{sha256(target.code_key.encode()).hexdigest()[:12]}{SUFFIX}"


def packs_folder() -> str | None:
    """Where packs lie: the folder that ``SARDONYX_KERNELS`` names, or else that of the installed package."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return None if chosen.strip().lower() == OFF else chosen
    from importlib.machinery import PathFinder  # which finds a package without importing it

    found = PathFinder.find_spec(PACKAGE)
    return None if found is None or found.origin is None else os.path.dirname(found.origin)
