"""The readers of engines: those that are passed on, also as models of strangers, and those that are kept."""

from __future__ import annotations

import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import compiled_engine
from sardonyx.api.engines.compiled_engine import WEIGHTS
from sardonyx.api.engines.engine_store import EngineStore, package_state
from sardonyx.api.options.run_settings import run_settings
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files import engine_file
from sardonyx.runtime.files.cache_folder import VARIABLE
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.engine_file import DamagedError, Engine
from sardonyx.runtime.files.opening import open_file
from sardonyx.runtime.settings import RunSettings
from tests.robustness.guided.json_values import changed_value, text_of
from tests.robustness.guided.target import Target, with_other_bytes, write_private

_BEGINNING = len(engine_file._MAGIC)
_KEY = "a model and its options"
_ENTRY = "a stranger's entry"
Check = Callable[[np.ndarray[Any, Any]], Any]


# Files with right checksums


def engine_bytes(head: Any, rest: bytes) -> bytes:
    """A file with this head, whose digest is right, and what follows it at the next page."""
    text = text_of(head)
    start = engine_file._MAGIC + len(text).to_bytes(8, "little") + sha256(text).digest() + text
    return start + bytes(-len(start) % engine_file._PAGE) + rest


def parts_of(data: bytes) -> tuple[Any, bytes]:
    """The head of a file and what follows it; ValueError where it has no head."""
    length = int.from_bytes(data[_BEGINNING : _BEGINNING + 8], "little")
    end = engine_file._HEAD + length
    if end > len(data):
        raise ValueError("no head")
    return json.loads(data[engine_file._HEAD : end]), data[-(-end // engine_file._PAGE) * engine_file._PAGE :]


def _change(data: bytes, choice: random.Random, block: int, check: Check) -> bytes:
    """A file with another head, or other contents of a section, whose checks are right."""
    head, rest = parts_of(data)
    if choice.random() < 0.6:
        return engine_bytes(changed_value(head, choice), rest)
    place, named = 0, choice.randrange(len(head["sections"]))
    for number, (_, size, checks) in enumerate(head["sections"]):
        place = -(-place // engine_file._PAGE) * engine_file._PAGE
        if number == named and place + size <= len(rest):
            section = with_other_bytes(rest[place : place + size], choice)[:size].ljust(size, b"\0")
            rest = rest[:place] + section + rest[place + size :]
            content = np.frombuffer(section, np.uint8)
            checks[:] = [check(content[start : start + block]) for start in range(0, size, block)]
        place += size
    return engine_bytes(head, rest)


def _change_sealed(data: bytes, choice: random.Random) -> bytes:
    return _change(data, choice, engine_file._SEALED_BLOCK, engine_file._seal)


def _change_kept(data: bytes, choice: random.Random) -> bytes:
    return _change(data, choice, engine_file._BLOCK, engine_file._sums)


# Engines that are passed on


@functools.cache
def sealed_seed() -> bytes:
    """An engine of two sections."""
    numbers = np.arange(40, dtype=np.uint8)
    return _sealed({"options": {"config": {"key": "value"}}}, {"tables": [numbers], WEIGHTS: [numbers[:8], numbers]})


def _sealed(content: dict[str, Any], sections: dict[str, list[np.ndarray[Any, Any]]]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine"
        engine_file.write_sealed(path, content, sections)
        return path.read_bytes()


@functools.cache
def _strangers_seed() -> bytes:
    """An engine with a small model, for this machine and package: that nobody vouches for it is all that keeps its
    plans, which are none, from being used."""
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info("y", 1, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    content = {name: kind() for name, kind in compiled_engine._FORM.items()}
    content |= {
        "options": {"config": {_ENTRY: "a stranger's"}, "settings": {}},
        "package": package_state(),
        "machine": host_target("").key,
        "settings": compiled_engine.plan_settings(run_settings(ort.SessionOptions())),
    }
    sections = {name: [np.arange(16, dtype=np.uint8)] for name in (*compiled_engine._SECTIONS, WEIGHTS)}
    sections["model"] = [np.frombuffer(model, np.uint8)]
    return _sealed(content, sections)


def _check_sealed(data: bytes, folder: Path) -> bool:
    """An engine whose every byte its digest tells, or DamagedError; the same from a file and from memory."""
    path = write_private(folder / "engine", data)
    try:
        found = engine_file.sealed_engine(memoryview(data), None)
        found.verify()
    except DamagedError:
        found = None
    try:
        with open_file(path) as file:
            mapped = engine_file.map_sealed(file, path)
            mapped.verify()
    except DamagedError:
        mapped = None
    assert (found is None) == (mapped is None)
    if found is None or mapped is None:
        return False
    assert found.digest == mapped.digest
    head, rest = parts_of(data)
    ends = {name: size for name, size, _ in head["sections"]}
    for name, section in found.engine.sections.items():
        assert section.size == ends[name]
        assert section.tobytes() == mapped.engine.sections[name].tobytes()
        assert section.tobytes() in rest
    assert json.dumps(found.engine.content) == json.dumps(head["content"])
    return True


# Engines of strangers


def _check_untrusted(data: bytes, folder: Path) -> bool:
    """A session of the model in it, or a typed error; nothing else of the file is used, above all no code."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        patch.setattr(compiled_engine, "opened", _refuse)
        try:
            session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except errors.OnnxRuntimeError:
            return False
    assert _ENTRY not in session.get_session_options()._config
    return True


def _refuse(*_: object) -> None:
    raise AssertionError("plans or code of an engine that nobody trusts were used")


# Engines that are kept


@functools.cache
def _kept_seed() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        model.write_bytes(b"")
        content = {"key": _KEY, "files": {}, "plans": []}
        sections = {"tables": [np.arange(24, dtype=np.uint8)], "image": [np.zeros(8, np.uint8)], "nodes": []}
        path = Path(name) / "cache" / "engines" / "engine"
        assert engine_file.write_engine(path, content, sections)
        return path.read_bytes()


def _check_kept(data: bytes, folder: Path) -> bool:
    """The engine, which is that of its model, or nothing; who keeps another one is not held up by it."""
    model = folder / "model"
    if not model.exists():
        model.write_bytes(b"a model")
    cache = folder / "cache"
    store = EngineStore(str(cache), _KEY, str(model), RunSettings())
    (cache / "engines").mkdir(parents=True, exist_ok=True, mode=0o700)
    path = write_private(store._path, data)
    described = engine_file.read_content(path)
    try:
        whole = engine_file.read_engine(path)
    except DamagedError:
        whole = None
    found = store.find()
    if found is None:
        assert whole is None or not store._is_current(whole.content)
    else:
        assert isinstance(found, Engine)
        assert whole is not None
        assert described is not None
        assert {name: part.tobytes() for name, part in found.sections.items()} == {
            name: part.tobytes() for name, part in whole.sections.items()
        }
        write_private(path, data)
    kept = store._kept()
    assert kept is None or (described is not None and len(kept.keys) <= len(described["plans"]))
    return found is not None


def _found(seed: bytes) -> list[bytes]:
    """Right digests over a section that is there twice, sizes that are none, and checks of another form."""
    found = []
    for place, value in ((0, "tables"), (1, 1.5), (1, 1 << 40), (1, 1 << 70), (2, [5])):
        head, rest = parts_of(seed)
        head["sections"][-1][place] = value
        found.append(engine_bytes(head, rest))
    head, rest = parts_of(seed)
    head["content"]["files"] = {"a\0name": None, "\ud800": None}
    head["content"]["plans"] = [{"segment": [], "shapes": [5], "contents": ["no number"]}]
    return [*found, engine_bytes(head, rest), engine_bytes({**head, "content": []}, rest)]


SEALED = Target("sealed", lambda: [sealed_seed()], _check_sealed, _change_sealed, lambda: _found(sealed_seed()))
UNTRUSTED = Target("untrusted", lambda: [_strangers_seed()], _check_untrusted, _change_sealed)
KEPT = Target("kept", lambda: [_kept_seed()], _check_kept, _change_kept, lambda: _found(_kept_seed()))
