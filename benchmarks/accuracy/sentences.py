"""English sentences that come with Python: those of its reference, and those of its library's documentation.

They are real text that every machine has; another version of Python has a few others.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from pathlib import Path

_SENTENCE = re.compile(r"[A-Z][^.!?]{30,240}[.!?](?=\s|$)")
# Parts of the library that speak of different things: the classes of the text task.
SUBJECTS = ("asyncio", "email", "unittest", "tkinter", "multiprocessing", "http", "importlib", "xml")


def reference() -> list[str]:
    """Sentences of Python's language reference, in their order."""
    from pydoc_data import topics

    found: list[str] = []
    for text in topics.topics.values():
        plain = re.sub(r"[`*\"]|\s+", lambda part: " " if part.group().isspace() else "", text)
        found += _SENTENCE.findall(plain)
    return list(dict.fromkeys(found))


def by_subject() -> dict[str, list[str]]:
    """Sentences of the documentation strings of a few packages of the library."""
    library = Path(sysconfig.get_path("stdlib"))
    return {name: _documentation(library / name) for name in SUBJECTS}


def _documentation(folder: Path) -> list[str]:
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                found += _SENTENCE.findall(re.sub(r"\s+", " ", text))
    return list(dict.fromkeys(found))
