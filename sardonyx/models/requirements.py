"""Packages that `sardonyx.models` uses where they are there."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sardonyx import errors

_EXTRA = "pip install 'sardonyx[models-hf]'"
# What installs a package that is none of the extra's.
_OTHERS = {"torch": "pip install torch", "sentence_transformers": "pip install sentence-transformers"}


def require(module: str, purpose: str) -> ModuleType:
    """A module by its full name, such as ``transformers``; `purpose` says what needs it, as in ``Reading config.json``.

    Raises `errors.NotFound`, which names the package and what installs it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        remedy = _OTHERS.get(package, _EXTRA)
        raise errors.NotFound(f"{purpose} needs the package {package}, which is not installed: {remedy}") from None


def installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None
