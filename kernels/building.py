"""Packs of kernels, compiled from the list of specifications for one target each."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kernels import machines, spelling
from sardonyx._version import __version__
from sardonyx.compiler.llvm.codegen import compile_object, llvm_version
from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.installed_packs import pack_name
from sardonyx.compiler.llvm.library import full_key, key_of
from sardonyx.compiler.llvm.runtime_functions import emitters
from sardonyx.compiler.llvm.target import Target, host_target
from sardonyx.runtime.files.kernel_pack import write_pack

LIST = Path(__file__).parent / "list.jsonl"


class Listed(NamedTuple):
    """A kernel: the function that writes its text, its specification, and the targets whose sessions ask for it."""

    emit: Any
    spec: Any
    names: Collection[str]

    @property
    def key(self) -> str:
        return key_of(self.emit.__module__, self.emit.__qualname__, self.spec)


class Pack(NamedTuple):
    """A pack that was written: the target's name, the file, its bytes, and its kernels."""

    name: str
    path: Path
    nbytes: int
    kernels: int


def read_list(path: Path = LIST) -> list[Listed]:
    """The kernels that packs are made of; `spelling.SpellingError` where the package has changed since."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Listed(*spelling.read(line), tuple(line["for"])) for line in lines]


def write_list(kernels: Iterable[Listed], path: Path = LIST) -> None:
    """Write the list, a kernel a line, in an order that does not depend on how they were found."""
    lines = [
        json.dumps({"for": sorted(one.names), **spelling.spelled(one.emit, one.spec)}, separators=(",", ":"))
        for one in sorted(kernels, key=lambda one: one.key)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def wanted(words: Iterable[str]) -> dict[str, Target]:
    """The targets that a builder asks for, by their names: ``host`` is this machine's best, ``x86_64`` and ``aarch64``
    are all of an architecture."""
    known = machines.targets(platform.system().lower())
    found: dict[str, Target] = {}
    for word in words:
        if word == "host":
            found |= _of_host(known)
        elif word in known:
            found[word] = known[word]
        else:
            some = {name: one for name, one in known.items() if one.architecture == word}
            if not some:
                raise ValueError(f"no target {word!r}: there are host, x86_64, aarch64, {', '.join(known)}")
            found |= some
    return found


def _of_host(known: dict[str, Target]) -> dict[str, Target]:
    """This machine's best target, by the name of the nearest one that kernels are listed for."""
    host = host_target()
    same = [name for name, one in known.items() if one.code_key == host.code_key]
    near = [name for name, one in known.items() if one.name == host.name]
    return {(same or near)[0]: host}


def build(folder: Path, targets: dict[str, Target], kernels: Iterable[Listed] | None = None) -> list[Pack]:
    """Write the packs of targets to a folder, and say how much is in each."""
    listed = list(read_list() if kernels is None else kernels)
    folder.mkdir(parents=True, exist_ok=True)
    return [_built(folder, name, target, listed) for name, target in targets.items()]


def _built(folder: Path, name: str, target: Target, listed: Iterable[Listed]) -> Pack:
    asked = [(one.emit, one.spec) for one in listed if name in one.names]
    asked += emitters()

    def compiled(one: tuple[Any, Any]) -> tuple[str, bytes]:
        emit, spec = one
        key = full_key(key_of(emit.__module__, emit.__qualname__, spec), target)
        return key, compile_object(emit(target, spec), target)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = dict(threads.map(compiled, asked))
    path = folder / pack_name(target)
    note = {"target": target.code_key, "version": __version__, "llvm": llvm_version()}
    note["generator"] = generator_version()
    return Pack(name, path, write_pack(path, found, note), len(found))
