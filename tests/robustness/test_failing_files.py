"""Each operation on files fails once, in turn: the answer is right or one typed error, and nothing is lost or left."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.engines.engine_store import MOST_MISSES, EngineStore
from sardonyx.graph.load import load_model
from sardonyx.graph.saving import save_model
from sardonyx.runtime.files import kernel_cache
from sardonyx.runtime.files.cache_folder import prepare_folder
from sardonyx.runtime.files.engine_file import DamagedError, only_writer, read_engine, write_engine
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.files.kernel_pack import KernelPack, write_pack
from sardonyx.runtime.files.machine_file import drop, read_sections, write_section
from sardonyx.runtime.files.own_files import ENGINE, own_files, remove_own_files
from sardonyx.runtime.files.trust_records import TrustRecords
from sardonyx.runtime.settings import RunSettings
from tests.api.engine_models import IDS, engines_in, expected, is_stored, keeps_every_engine, wait, write_model
from tests.robustness.failing_files import ERRORS, SHORT, Faults, each_fault

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the cache is shared by the means of POSIX")

EVERY = pytest.mark.parametrize("error", [*ERRORS, SHORT], ids=lambda error: errno.errorcode.get(error, "short"))
CODE = bytes(range(256)) * 200
KEY = "a key"
DIGEST = "0123456789abcdef" * 4


class Scratch:
    """A folder in which a cache lies, beside and among what is not of this package."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.cache = folder / "cache" / "sardonyx" / "kernels"
        self.engines = engines_in(folder / "cache")
        self.others = [
            folder / "cache" / "program.o",
            self.cache / "program.o",
            self.cache / f"{'0' * 40}.o",
            self.engines / f"{'0' * 40}.engine",
            self.engines / f"{'0' * 40}.missed",
            self.cache / f".new-{'0' * 32}",
        ]
        assert not prepare_folder(str(self.engines))
        for path in self.others:
            path.write_bytes(b"of somebody else " * 100)
            os.utime(path, (1e9, 1e9))
            path.chmod(0o664)
        (folder / "cache").chmod(0o1777)
        self.before = self._others()

    def _others(self) -> list[Any]:
        found: list[Any] = [os.stat(self.root / "cache").st_mode]
        for path in self.others:
            status = os.stat(path)
            found.append((path.read_bytes(), status.st_mode, status.st_mtime_ns, status.st_ino))
        return found

    def check(self, *, whole: bool = False) -> None:
        """What is not of this package is as it was, and nothing is left that was not finished; with `whole` not even a
        lock, which the next process takes over."""
        assert self._others() == self.before
        left = [path for path in self.root.rglob(".new-*") if path not in self.others]
        assert all(path.suffix == ".lock" for path in left), left
        assert not (whole and left), left


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here ends the power supply, and a disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


def try_each(scratch: Scratch, error: int, attempt: Callable[[], None], check: Callable[[], None]) -> None:
    """`attempt` with each operation failing once: it says itself what may come out. Then `check` finds all whole."""
    for faults in each_fault(scratch.root, error):
        with faults.at_work():
            attempt()
        scratch.check()
        check()
        scratch.check(whole=True)


@EVERY
def test_kernels(error: int, scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 3 * len(CODE))
    folder = str(scratch.cache)

    def attempt() -> None:
        cache = KernelCache(folder)
        for name in "abcde":
            cache.store(name, name.encode() + CODE)
            assert cache.find(name) in (None, name.encode() + CODE)
        cache.drop("e")

    def check() -> None:
        cache = KernelCache(folder)
        assert not cache.problem
        cache.store(KEY, CODE)
        assert cache.find(KEY) == CODE

    try_each(scratch, error, attempt, check)


@EVERY
def test_a_pack_of_kernels(error: int, scratch: Scratch) -> None:
    path = scratch.cache / "some.pack"
    write_pack(path, {"a": CODE, "b": CODE + b"b"}, {})

    def attempt() -> None:
        with contextlib.suppress(OSError):
            write_pack(path, {"a": CODE, "b": CODE + b"b"}, {})
        pack = KernelPack(path)
        assert pack.find("a") in (None, CODE)
        assert pack.find("b") in (None, CODE + b"b")

    def check() -> None:
        assert KernelPack(path).find("b") == CODE + b"b"

    try_each(scratch, error, attempt, check)


@EVERY
def test_a_folder_that_is_made(error: int, tmp_path: Path) -> None:
    for number, faults in enumerate(each_fault(tmp_path, error if error != SHORT else errno.EIO)):
        folder = str(tmp_path / str(number) / "deep" / "cache" / "engines")
        with faults.at_work():
            problem = prepare_folder(folder)
        assert not problem or folder.removesuffix("/engines") in problem
        assert not prepare_folder(folder)
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert not list(tmp_path.rglob(".new-*"))


@EVERY
def test_figures_of_the_machine(error: int, scratch: Scratch) -> None:
    folder = str(scratch.cache)
    section = {"number": 1.5, "text": "x" * 20000}

    def attempt() -> None:
        written = write_section(KEY, "one", section, folder)
        assert read_sections(KEY, folder) in ({}, {"one": section}) or written is None
        drop(KEY, folder)

    def check() -> None:
        assert write_section(KEY, "one", section, folder) is not None
        assert read_sections(KEY, folder)["one"] == section

    try_each(scratch, error, attempt, check)


@EVERY
def test_trust_records(error: int, scratch: Scratch) -> None:
    trust_records = TrustRecords(str(scratch.cache))
    state = [1, 2, 3, 4, 5]

    def attempt() -> None:
        trust_records.note_made(DIGEST)
        trust_records.note_whole(DIGEST, state)
        assert trust_records.was_whole(DIGEST, state) in (False, True)
        assert not trust_records.was_whole("f" * 64, state)

    def check() -> None:
        trust_records.note_made(DIGEST)
        trust_records.note_whole(DIGEST, state)
        assert trust_records.find(DIGEST).made
        assert trust_records.was_whole(DIGEST, state)

    try_each(scratch, error, attempt, check)


@EVERY
def test_kept_engines(error: int, scratch: Scratch) -> None:
    path = str(scratch.engines / f"{'1' * 40}{ENGINE}")
    array = np.arange(3 << 18, dtype=np.uint8)
    known = TrustRecords(str(scratch.cache))

    def is_right() -> bool:
        found = read_engine(path, known=known)
        return found is not None and found.content == {"a": 1} and bool((found.sections["s"] == array).all())

    def attempt() -> None:
        with only_writer(path) as alone:
            if alone:
                write_engine(path, {"a": 1}, {"s": [array[:1000], array[1000:]]})
        for _ in range(2):  # read, then mapped
            try:
                found = read_engine(path, known=known)
            except DamagedError:
                continue
            assert found is None or bool((found.sections["s"] == array).all())

    def check() -> None:
        with only_writer(path) as alone:
            assert alone
            assert write_engine(path, {"a": 1}, {"s": [array[:1000], array[1000:]]})
        assert is_right()
        os.unlink(path)

    try_each(scratch, error, attempt, check)


@EVERY
def test_notes_of_misses(error: int, scratch: Scratch) -> None:
    model = scratch.root / "model.onnx"
    model.write_bytes(b"model")
    os.utime(model, (1e9, 1e9))
    store = EngineStore(str(scratch.cache), KEY, str(model), RunSettings())

    def attempt() -> None:
        for _ in range(3):
            store.note_missed()
        assert not store._is_given_up()
        store.note_served()

    def check() -> None:
        store.note_served()
        for _ in range(MOST_MISSES):
            assert not store._is_given_up()
            store.note_missed()
        store.note_served()
        assert not store._is_given_up()

    try_each(scratch, error, attempt, check)


@EVERY
def test_lists_of_files_and_their_removal(error: int, scratch: Scratch) -> None:
    folder = str(scratch.cache)

    def fill() -> None:
        cache = KernelCache(folder)
        for name in "abc":
            cache.store(name, CODE)

    def attempt() -> None:
        fill()
        try:
            found = own_files(folder)
        except OSError as problem:
            assert problem.errno == error  # noqa: PT017
            return
        remove_own_files(found)

    def check() -> None:
        fill()
        assert {one.kind for one in own_files(folder)} >= {"kernel"}
        remove_own_files(own_files(folder))
        assert own_files(folder) == []

    try_each(scratch, error, attempt, check)


def model_of(value: float) -> ir.Model:
    weight = ir.tensor(np.full(5000, value, np.float32), name="w")
    constant = ir.Value(name="w", shape=ir.Shape([5000]), type=ir.TensorType(ir.DataType.FLOAT), const_value=weight)
    x = ir.Value(name="x", shape=ir.Shape([5000]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Add", [x, constant])
    node.outputs[0].name, node.outputs[0].type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[constant], opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=9)


@EVERY
@pytest.mark.parametrize("external", [None, "weights.bin"])
def test_saved_models(error: int, external: str | None, scratch: Scratch) -> None:
    """Whoever has the older files mapped still has them; in their place are the older ones or the newer ones."""
    path = scratch.root / "model.onnx"
    save_model(model_of(1), path, external)
    older = load_model(path).model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]

    def value() -> float:
        found = load_model(path).model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
        assert np.unique(found).size == 1
        return float(found[0])

    def attempt() -> None:
        try:
            save_model(model_of(2), path, external)
            assert value() == 2
        except (errors.Fail, errors.NoSuchFile):
            pass

    def check() -> None:
        assert value() in (1, 2)
        assert np.unique(older).tolist() == [1]
        save_model(model_of(1), path, external)
        assert value() == 1

    try_each(scratch, error, attempt, check)


@pytest.fixture
def thread_errors(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads ended with."""
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    return found


def sessions_are_right(constants: dict[str, np.ndarray], path: Path, failing: bool) -> bool:
    """Make a session and run it; whether it began from an engine. With `failing` a typed error is right, too."""
    try:
        made = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        y, most = made.run(None, {"ids": IDS[:7]})
    except errors.OnnxRuntimeError:
        assert failing
        return False
    finally:
        wait()
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    assert most == y.max()
    return is_stored(made)


@pytest.mark.parametrize("external", ["", "weights.bin"])
@pytest.mark.parametrize("warm", [False, True])
def test_sessions(
    external: str,
    warm: bool,
    scratch: Scratch,
    monkeypatch: pytest.MonkeyPatch,
    thread_errors: list[Any],
) -> None:
    """The errors take turns: with each of them every second or third operation fails."""
    keeps_every_engine(scratch.root / "cache", monkeypatch)
    path = scratch.root / "model.onnx"
    constants = write_model(path, external=external)
    for _ in range(2):
        sessions_are_right(constants, path, False)
    for number in count(1):
        error = [*ERRORS, SHORT][number % (len(ERRORS) + 1)]
        faults = Faults(scratch.root, number, error)
        if not warm:
            for left in (*scratch.engines.glob("*.engine"), *scratch.engines.glob("*.trust")):
                if left not in scratch.others:
                    left.unlink()
        with faults.at_work():
            sessions_are_right(constants, path, True)
        scratch.check()
        sessions_are_right(constants, path, False)
        assert sessions_are_right(constants, path, False)
        scratch.check()
        assert not thread_errors
        if not faults.happened and error != SHORT:
            break
    assert number > 20


def test_engine_files(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled ahead, and beside the model that names it: whole or not there, and used or refused."""
    keeps_every_engine(scratch.root / "cache", monkeypatch)
    constants = write_model(scratch.root / "model.onnx")
    engine = scratch.root / "made" / "model.engine"
    engine.parent.mkdir()
    compile_engine(str(scratch.root / "model.onnx"), engine)
    whole = engine.read_bytes()
    for number, faults in enumerate(each_fault(scratch.root, errno.EIO)):
        with faults.at_work():
            try:
                compile_engine(str(scratch.root / "model.onnx"), engine)
            except errors.OnnxRuntimeError:
                assert engine.read_bytes() == whole
        whole = engine.read_bytes()
        scratch.check()
        if number % 4 == 0:
            sessions_are_right(constants, engine, False)
    for faults in each_fault(scratch.root, errno.EMFILE):
        with faults.at_work():
            sessions_are_right(constants, engine, True)
        scratch.check()
        assert sessions_are_right(constants, engine, False)
