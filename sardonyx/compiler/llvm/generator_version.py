"""The version of generated code: what a kernel's text depends on besides its specification."""

from __future__ import annotations

import functools
import os

from sardonyx._version import __version__
from sardonyx.compiler.llvm.codegen import llvm_version
from sardonyx.runtime.files.source_files import source_files

# What begins a definition at the top level of a module.
_DEFINITIONS = (b"def ", b"class ", b"@")

# The type of what binds, in the signature of every function and method that does.
_BINDS = b": Binder"


@functools.cache
def generator_version() -> str:
    """The versions, and a hash of the source of what generates code.

    The source is that of the kernel language, of the kernels, of the expressions that they evaluate, and of the tables
    of the runtime that they read. How kernels bind to shapes is left out: no text depends on it.
    """
    import hashlib  # OpenSSL's, for all of the source

    digest = hashlib.sha256()
    here = os.path.dirname(__file__)
    compiler = os.path.dirname(here)
    package = os.path.dirname(compiler)
    kernels = os.path.join(compiler, "kernels")
    folders = (here, kernels, os.path.join(package, "kernel"), os.path.join(package, "runtime"))
    paths = [path for folder in folders for path in source_files(folder)]
    for path in (os.path.join(compiler, "arguments.py"), *paths):
        with open(path, "rb", buffering=0) as file:
            source = file.read()
        digest.update(os.path.basename(path).encode() + (text_side(source) if path.startswith(kernels) else source))
    return f"{__version__}|{llvm_version()}|{digest.hexdigest()}"


def text_side(source: bytes) -> bytes:
    """The source of a kernel's file without the definitions at its top level that take a `Binder`.

    Two empty lines stand before each definition, and nowhere within one.
    """
    parts = source.split(b"\n\n\n")
    return b"\n\n\n".join([part for part in parts if not (part.startswith(_DEFINITIONS) and _BINDS in part)])
