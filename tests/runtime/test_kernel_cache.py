"""The kernel cache: whatever lies in its folder, sessions give the right result."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.compiler.llvm import generator_version as generator
from sardonyx.compiler.llvm import library as libraries
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.kernels.engine.executor import emit_executor
from sardonyx.compiler.llvm.library import KernelLibrary, LibraryCounts, library
from sardonyx.compiler.llvm.target import Caches, aarch64_targets, host_target, x86_64_targets
from sardonyx.runtime.files import kernel_cache, machine_file, opening
from sardonyx.runtime.files.cache_folder import default_folder
from sardonyx.runtime.files.kernel_cache import KernelCache
from tests.api.models import add_and_multiply

X = np.arange(6, dtype=np.float32).reshape(2, 3)
POSIX = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache for libraries that are made in the test."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sardonyx" / "kernels"


def run_session(monkeypatch: pytest.MonkeyPatch) -> LibraryCounts:
    """What a process would compile that ran a session now; the result is checked."""
    monkeypatch.setattr(libraries, "_LIBRARIES", {})
    session = ort.InferenceSession(add_and_multiply(), providers=["CPUExecutionProvider"])
    total, product = session.run(None, {"x": X})
    np.testing.assert_array_equal(total, X + X)
    np.testing.assert_array_equal(product, X * X)
    counts = [one.counts for one in libraries._LIBRARIES.values()]
    return LibraryCounts(sum(one.compiled for one in counts), sum(one.from_cache for one in counts))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.o"))


def test_a_second_process_compiles_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    first = run_session(monkeypatch)
    assert first.compiled == len(entries(folder)) > 0
    assert first.from_cache == 0
    second = run_session(monkeypatch)
    assert (second.compiled, second.from_cache) == (0, first.compiled)


def flip_a_byte(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1 :]


@pytest.mark.parametrize(
    "change",
    [flip_a_byte, lambda text: text[:-10], lambda text: text[:20], lambda _: b"", lambda text: b"X" + text[1:]],
    ids=["a byte", "cut short", "hardly begun", "empty", "another format"],
)
def test_a_damaged_entry_is_compiled_again(
    change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    whole = run_session(monkeypatch).compiled
    good = {path: path.read_bytes() for path in entries(folder)}
    for path, text in good.items():
        path.write_bytes(change(text))
    counts = run_session(monkeypatch)
    assert (counts.compiled, counts.from_cache) == (whole, 0)
    assert {path: path.read_bytes() for path in entries(folder)} == good


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.store("key", b"code")
    (path,) = entries(tmp_path)
    text = path.read_bytes()
    assert cache.find("key") == b"code"
    for index in range(len(text)):
        path.write_bytes(text[:index] + bytes([text[index] ^ 0x10]) + text[index + 1 :])
        assert cache.find("key") is None


def test_an_entry_of_another_key_is_not_taken(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Each entry is whole, but lies where that of another kernel should."""
    whole = run_session(monkeypatch).compiled
    paths = entries(folder)
    texts = [path.read_bytes() for path in paths]
    for path, text in zip(paths, [*texts[1:], texts[0]], strict=True):
        path.write_bytes(text)
    assert run_session(monkeypatch).compiled == whole


@POSIX
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_is_not_taken(mode: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    whole = run_session(monkeypatch).compiled
    for path in entries(folder):
        path.chmod(mode)
    assert run_session(monkeypatch).compiled == whole
    assert all(not path.stat().st_mode & 0o077 for path in entries(folder))


@POSIX
def test_what_belongs_to_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.store("key", b"code")
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert cache.find("key") is None
    stranger = KernelCache(tmp_path)
    assert stranger.folder is None
    assert "another user" in stranger.problem


@POSIX
def test_the_folder_is_closed_to_others(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    whole = run_session(monkeypatch).compiled
    folder.chmod(0o2775)  # as a volume's permissions are set for a group
    assert run_session(monkeypatch).from_cache == whole
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_a_torn_write_left_is_no_entry_and_goes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    whole = run_session(monkeypatch).compiled
    first = entries(folder)[0]
    old, young = folder / f".new-{0:032x}", folder / f".new-{1:032x}"
    for left in (old, young):
        left.write_bytes(first.read_bytes()[:100])
    os.utime(old, (time.time() - 1e6,) * 2)
    first.unlink()
    counts = run_session(monkeypatch)
    assert (counts.compiled, counts.from_cache) == (1, whole - 1)
    assert not old.exists()
    assert young.exists()  # its writer may still be at work


CONCURRENT = """
import sys
from pathlib import Path
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.kernel_cache import KernelCache
print("ready", flush=True)
sys.stdin.readline()
kernels = KernelLibrary(host_target(), KernelCache(Path(sys.argv[1])))
code = executor_code(kernels)
assert code.run and code.work and code.stop
print(kernels.counts.compiled + kernels.counts.from_cache)
"""


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path / "new")]
    processes = [subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, complaint = process.communicate(timeout=120)
        assert (process.returncode, out.strip()) == (0, "3"), complaint
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path / "new"))
    for part in ("run", "work", "stop"):
        assert kernels.address(emit_executor, (part,))
    assert (kernels.counts.compiled, kernels.counts.from_cache) == (0, 3)
    assert len(list((tmp_path / "new").iterdir())) == 3 + 1  # the folder's tag, and no temporary file is left


def test_a_folder_that_cannot_be_written_is_only_read(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As root writes anywhere, the system's refusal is simulated."""
    whole = run_session(monkeypatch).compiled
    entries(folder)[0].unlink()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(kernel_cache, "replacing", refuse)
    counts = run_session(monkeypatch)
    assert (counts.compiled, counts.from_cache) == (1, whole - 1)
    assert len(entries(folder)) == whole - 1


@pytest.mark.parametrize("reason", [errno.EACCES, errno.ENOENT])  # the latter below /proc, though the parent is there
def test_a_folder_that_cannot_be_made(reason: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert run_session(monkeypatch).compiled > 0
    assert "cannot be used" in library().cache.problem


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_where_the_folder_should_be(inside: bool, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("not a folder")
    if inside:
        monkeypatch.setenv("SARDONYX_CACHE", str(folder / "deeper"))
    assert run_session(monkeypatch).compiled > 0
    assert "cannot be used" in library().cache.problem
    assert folder.read_text() == "not a folder"


def test_a_full_disk_keeps_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    class Full(FileIO):
        def write(self, text: Any) -> int:
            super().write(text[: len(text) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(opening, "FileIO", Full)
        whole = run_session(full).compiled
    assert list(folder.iterdir()) == []
    assert run_session(monkeypatch).compiled == whole


@pytest.mark.parametrize("word", ["off", "OFF", "", " "])
def test_the_cache_can_be_switched_off(
    word: str, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", word)
    monkeypatch.chdir(tmp_path)
    assert default_folder() is None
    assert run_session(monkeypatch).compiled == run_session(monkeypatch).compiled > 0
    assert library().cache.folder is None
    assert machine_file.write_section("machine", "section", {"a": 1}) is None
    assert machine_file.read_sections("machine") == {}
    assert list(tmp_path.iterdir()) == []


def test_the_system_has_a_place_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SARDONYX_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / "sardonyx" / "kernels")


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that run under a number that no user has."""
    monkeypatch.delenv("SARDONYX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert default_folder() is None
    assert run_session(monkeypatch).compiled > 0


def objects_of_others() -> dict[str, bytes]:
    """Object code that is right in itself but not for this machine, and what is no object code."""
    neon = aarch64_targets(Caches())["neon"]
    portable = x86_64_targets(frozenset(), Caches())["portable"]
    foreign = portable if "neon" in host_target().name else neon
    return {
        "another machine": compile_object(emit_executor(foreign, ("stop",)), foreign),
        "no object": b"nothing of the kind" * 40,
        "nothing": b"",
        "without the kernel": compile_object(
            emit_executor(host_target(), ("stop",)).replace("@kernel(", "@other("), host_target()
        ),
    }


@pytest.mark.parametrize("kind", list(objects_of_others()))
def test_an_entry_that_cannot_be_linked_is_compiled_again(
    kind: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """It is whole and private, its key and checksum are right, but what it holds is not."""
    whole = run_session(monkeypatch).compiled
    bad = objects_of_others()[kind]
    cache = KernelCache(folder)
    keys = [_key(path.read_bytes()) for path in entries(folder)]
    for key in keys:
        cache.store(key, bad)
    counts = run_session(monkeypatch)
    assert (counts.compiled, counts.from_cache) == (whole, 0)
    assert all(cache.find(key) not in (None, bad) for key in keys)


def _key(text: bytes) -> str:
    """The key that an entry says it belongs to."""
    start = text.index(b"\n") + 1
    length = int.from_bytes(text[start : start + 4], "little")
    return text[start + 4 : start + 4 + length].decode()


# The folder's size


def fill(folder: Path, count: int, nbytes: int) -> list[str]:
    """Entries of about `nbytes`, the first used longest ago."""
    cache = KernelCache(folder)
    cache._is_bounded = True
    for index in range(count):
        cache.store(f"key {index}", bytes(nbytes))
    for index in range(count):
        (path,) = [path for path in entries(folder) if _key(path.read_bytes()) == f"key {index}"]
        os.utime(path, (time.time() - 1e6 + 1000 * index,) * 2)
    return [f"key {index}" for index in range(count)]


def test_what_was_used_longest_ago_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = fill(tmp_path, 10, 1000)
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 8000)
    (tmp_path / "machine-1234.json").write_text("figures" * 1000)
    cache = KernelCache(tmp_path)
    assert cache.find(keys[0]) == bytes(1000)  # used again: young from now on
    cache.store("new", bytes(1000))
    left = [key for key in [*keys, "new"] if cache.find(key) is not None]
    assert left == [keys[0], *keys[7:], "new"]
    assert (tmp_path / "machine-1234.json").exists()


def test_nothing_goes_below_the_bound_and_later_stores_do_not_look_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = fill(tmp_path, 10, 1000)
    cache = KernelCache(tmp_path)
    cache.store("new", bytes(1000))
    assert len(entries(tmp_path)) == len(keys) + 1
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 100)
    cache.store("another", bytes(1000))
    assert len(entries(tmp_path)) == len(keys) + 2


def test_entries_that_vanish_while_the_folder_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fill(tmp_path, 6, 1000)
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 2000)
    real = os.unlink

    def unlink_twice(path: str) -> None:
        real(path)  # another process was quicker
        real(path)

    monkeypatch.setattr(os, "unlink", unlink_twice)
    cache = KernelCache(tmp_path)
    cache.store("new", bytes(1000))
    assert cache.find("new") == bytes(1000)
    assert len(entries(tmp_path)) == 1


# What an entry belongs to


def test_code_belongs_to_the_source_that_generates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to tables whose layout kernels know, though they are written elsewhere."""
    version = generator.generator_version.__wrapped__
    before = version()
    assert version() == before
    for name in ("builder.py", "arguments.py", "executor.py", "execution_contexts.py", "native_plan.py", "expr.py"):

        def changed(path: str, mode: str, buffering: int, name: str = name) -> BytesIO:
            return BytesIO(Path(path).read_bytes() + (b"#" if Path(path).name == name else b""))

        monkeypatch.setattr(generator, "open", changed, raising=False)
        assert version() != before
    monkeypatch.undo()
    assert version() == before
