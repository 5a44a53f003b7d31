"""Kernels that come ready from a pack: where packs are looked for, and that they are as good as those compiled here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.compiler.llvm import library as libraries
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.cpu_features import AVX2, AVX512, BASELINE_X86
from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.installed_packs import PACKAGE, VARIABLE, installed_pack, pack_name, packs_folder
from sardonyx.compiler.llvm.kernels.engine.executor import emit_executor
from sardonyx.compiler.llvm.library import KernelLibrary, LibraryCounts, full_key, key_of
from sardonyx.compiler.llvm.target import Caches, host_target, x86_64_targets
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.files.kernel_pack import KernelPack, write_pack
from tests.api.models import add_and_multiply

pytestmark = pytest.mark.machine_neutral

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    monkeypatch.setattr(libraries, "_LIBRARIES", {})


@pytest.fixture
def kernels() -> dict[str, bytes]:
    """The object code of all kernels of a session, by their whole keys."""
    counts, _ = run_session()
    found = {
        full_key(key, one.target): code for one in libraries._LIBRARIES.values() for key, code in one._codes.items()
    }
    assert len(found) == counts.compiled > 5
    return found


def run_session() -> tuple[LibraryCounts, list[np.ndarray]]:
    session = ort.InferenceSession(add_and_multiply(), providers=["CPUExecutionProvider"])
    results = session.run(None, {"x": X})
    counts = [one.counts for one in libraries._LIBRARIES.values()]
    return LibraryCounts(*(sum(getattr(one, name) for one in counts) for name in vars(LibraryCounts()))), results


def packed(folder: Path, kernels: dict[str, bytes]) -> Path:
    path = folder / pack_name(host_target())
    write_pack(path, kernels, {})
    return path


def new_process(monkeypatch: pytest.MonkeyPatch, packs: str) -> tuple[LibraryCounts, list[np.ndarray]]:
    """What a session does in a process that begins now, with packs from there."""
    monkeypatch.setattr(libraries, "_LIBRARIES", {})
    monkeypatch.setenv(VARIABLE, packs)
    return run_session()


def test_a_session_whose_kernels_are_ready_compiles_none(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed(tmp_path, kernels)
    counts, results = new_process(monkeypatch, str(tmp_path))
    assert (counts.compiled, counts.from_cache, counts.from_pack) == (0, 0, len(kernels))
    np.testing.assert_array_equal(results, [X + X, X * X])


def test_what_the_pack_lacks_is_compiled(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    some = dict(sorted(kernels.items())[::2])
    packed(tmp_path, some)
    counts, results = new_process(monkeypatch, str(tmp_path))
    assert (counts.compiled, counts.from_pack) == (len(kernels) - len(some), len(some))
    np.testing.assert_array_equal(results, [X + X, X * X])


def test_a_kernel_that_cannot_be_linked_is_compiled(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed(tmp_path, dict.fromkeys(kernels, b"no object code"))
    counts, results = new_process(monkeypatch, str(tmp_path))
    assert (counts.compiled, counts.from_pack) == (len(kernels), 0)
    np.testing.assert_array_equal(results, [X + X, X * X])


def test_a_damaged_pack_costs_its_kernels_alone(
    kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = packed(tmp_path, kernels)
    path.write_bytes(path.read_bytes()[:-4000])
    counts, results = new_process(monkeypatch, str(tmp_path))
    assert counts.compiled + counts.from_pack == len(kernels)
    assert counts.compiled > 0
    np.testing.assert_array_equal(results, [X + X, X * X])


def test_packs_can_be_switched_off(kernels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('nobody imports it')\n")
    packed(package, kernels)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for word in ("off", " OFF "):
        assert new_process(monkeypatch, word)[0].from_pack == 0
    assert new_process(monkeypatch, "")[0].from_pack == len(kernels)
    assert packs_folder() == str(package)
    assert PACKAGE not in sys.modules


def test_the_log_tells_of_a_pack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    options = ort.SessionOptions()
    options.log_severity_level = 1
    for note, words in (({"generator": generator_version()}, "1 kernels come ready in"), ({}, "install it again")):
        write_pack(tmp_path / pack_name(host_target()), {"key": b"code"}, note)
        ort.InferenceSession(add_and_multiply(), options, providers=["CPUExecutionProvider"])
        assert words in capfd.readouterr().err


def test_a_folder_without_a_package_in_it_is_not_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A namespace package: any folder of that name in the working directory."""
    (tmp_path / PACKAGE).mkdir()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packs_folder() is None
    assert installed_pack(host_target()) is None


def test_the_cache_comes_before_the_pack(tmp_path: Path) -> None:
    target = host_target()
    key = key_of(emit_executor.__module__, emit_executor.__qualname__, ("stop",))
    code = compile_object(emit_executor(target, ("stop",)), target)
    path = tmp_path / "a.pack"
    write_pack(path, {full_key(key, target): code}, {})
    first = KernelLibrary(target, KernelCache(tmp_path / "cache"), pack=KernelPack(path))
    first.address(emit_executor, ("stop",))
    assert (first.counts.from_pack, first.object_code(key)) == (1, code)
    assert not list((tmp_path / "cache").glob("*.o"))  # what is ready needs no place there
    first.cache.store(full_key(key, target), code)
    again = KernelLibrary(target, KernelCache(tmp_path / "cache"), pack=KernelPack(path))
    again.address(emit_executor, ("stop",))
    assert (again.counts.from_cache, again.counts.from_pack) == (1, 0)


@pytest.mark.names_targets
def test_packs_are_told_apart_by_instruction_sets_and_not_by_caches() -> None:
    everything = frozenset({*BASELINE_X86, *AVX2, *AVX512, "avx512vnni", "avx512bf16"})
    found = [one for turns in (False, True) for one in x86_64_targets(everything, Caches(), takes_turns=turns).values()]
    keys = {one.code_key for one in found}
    assert {pack_name(one) for one in found} == {pack_name(replace(one, caches=Caches(1, 2, 3))) for one in found}
    assert len({pack_name(one) for one in found}) == len(keys) == 6  # AVX-512 with and without turns, twice
    other = replace(found[0], caches=Caches(1, 2, 3))
    assert other.key != found[0].key
    assert full_key("kernel", other) == full_key("kernel", found[0])
