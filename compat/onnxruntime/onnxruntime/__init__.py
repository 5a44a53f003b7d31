"""The names of onnxruntime, served by Sardonyx.

Every attribute of this module is Sardonyx's, and every module below it is Sardonyx's module of the same path.
"""

from __future__ import annotations

from typing import Any

import sardonyx
from sardonyx import absent_modules

from . import _aliases

_aliases.install(__name__, sardonyx.__name__)
absent_modules.install(__name__)

__version__ = version = sardonyx.version
__author__ = "Microsoft"
__all__ = list(sardonyx.__all__)


def __getattr__(name: str) -> Any:
    try:
        value = getattr(sardonyx, name)
    except AttributeError:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(sardonyx)})
