"""Code belongs to what its text depends on: the side of a kernel's file that writes it, not the one that binds it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from sardonyx.compiler import kernels
from sardonyx.compiler.llvm.generator_version import text_side

MODULES = [one.name for one in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.") if not one.ispkg]


def source_of(module: str) -> str:
    file = importlib.import_module(module).__file__
    assert file is not None
    return Path(file).read_text(encoding="utf-8")


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    return {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}


def test_only_definitions_that_bind_are_left_out() -> None:
    source = b"X = 1\n\n\n@kernel(A)\ndef emit(k, a, spec):\n    pass\n\n\n@template('a')\nclass A:\n"
    binds = b"    def bind(self, binder: Binder) -> None:\n        pass\n\n\n"
    assert text_side(source + binds + b"Y = 2\n") == source.split(b"@template")[0] + b"Y = 2\n"


@pytest.mark.parametrize("module", MODULES)
def test_all_that_a_text_depends_on_is_hashed(module: str) -> None:
    """Whatever definitions of the file a kernel's code names, and those that these name, are on the text's side."""
    source = source_of(module)
    tree = ast.parse(source)
    definitions = defined(tree)
    hashed = defined(ast.parse(text_side(source.encode())))
    waiting = [
        name
        for name, one in definitions.items()
        if any(isinstance(mark, ast.Call) and ast.unparse(mark.func) == "kernel" for mark in one.decorator_list)
    ]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            names = [node for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
            own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
            waiting += ({node.id for node in names} - own) & definitions.keys()
    assert reached - hashed.keys() == set()
