"""Links, pipes and exchanged files that somebody else put where sessions and their tools read and write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import engine_source
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.engines.held_files import HeldFiles
from sardonyx.runtime.file_state import file_state
from sardonyx.runtime.files import engine_file
from sardonyx.runtime.files.own_files import LOCK
from sardonyx.runtime.memory import mapped_pages
from sardonyx.runtime.trace import Trace
from sardonyx.tools import remove_initializer_from_input
from sardonyx.transformers.large_weights import write_model as write_large
from tests.api.engine_models import (
    IDS,
    engines_in,
    expected,
    is_stored,
    keeps_every_engine,
    wait,
    write_model,
)

pytestmark = [
    pytest.mark.machine_neutral,
    pytest.mark.skipif(os.name != "posix", reason="links and pipes are those of POSIX"),
]

TEXT = b"of somebody else"


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    return engines_in(tmp_path / "cache")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """A file of somebody else, which stays as it is."""
    path = tmp_path / "other"
    path.write_bytes(TEXT)
    yield path
    assert path.read_bytes() == TEXT


@pytest.fixture
def constants(tmp_path: Path) -> dict[str, np.ndarray]:
    return write_model(tmp_path / "model.onnx")


def session(path: Path | bytes, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(path: Path, constants: dict[str, np.ndarray]) -> bool:
    """A right result; whether it is that of an engine."""
    made = session(path)
    y, _ = made.run(None, {"ids": IDS[:7]})
    wait()
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    return is_stored(made)


def plant_link(place: Path, other: Path) -> None:
    place.symlink_to(other)


def plant_pipe(place: Path, other: Path) -> None:
    os.mkfifo(place)


# The cache


@pytest.mark.parametrize("plant", [plant_link, plant_pipe])
@pytest.mark.parametrize("kind", [".engine", ".trust", ".missed", LOCK])
def test_in_place_of_files_of_the_cache(
    kind: str,
    plant: Callable[[Path, Path], None],
    other: Path,
    constants: dict[str, np.ndarray],
    tmp_path: Path,
    engines: Path,
) -> None:
    path = tmp_path / "model.onnx"
    assert not check(path, constants)
    assert check(path, constants)
    (engine,) = engines.glob("*.engine")
    (trust_record,) = engines.glob("*.trust")
    place = {
        ".engine": engine,
        ".trust": trust_record,
        ".missed": engine.with_suffix(".missed"),
        LOCK: engine.with_name(f".new-{engine.stem}{LOCK}"),
    }[kind]
    place.unlink(missing_ok=True)
    if kind == LOCK:
        engine.unlink()
    plant(place, other)
    check(path, constants)
    session(path).run(None, {"ids": IDS[:9]})  # a size that the engine has not
    wait()
    check(path, constants)


@pytest.mark.parametrize("plant", [plant_link, plant_pipe])
def test_in_place_of_kernels(plant: Callable[[Path, Path], None], other: Path, tmp_path: Path) -> None:
    from sardonyx.runtime.files.kernel_cache import KernelCache

    cache = KernelCache(tmp_path / "kernels")
    cache.store("key", b"code")
    (entry,) = (tmp_path / "kernels").glob("*.o")
    entry.unlink()
    plant(entry, other)
    assert cache.find("key") is None
    cache.store("key", b"code")
    assert cache.find("key") == (b"code" if plant == plant_link else None)  # what is no file is not taken away


# What is written


def saved(path: Path, source: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def saved_beside(path: Path, source: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_name("saved.onnx"))
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", path.name)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def compiled(path: Path, source: Path) -> None:
    compile_engine(str(source), path)


def exported(path: Path, source: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    ort.ModelCompiler(options, str(source), embed_compiled_data_into_model=True).compile_to_file(str(path))


def exported_beside(path: Path, source: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    model = path.with_name(f"{path.stem}.onnx")
    ort.ModelCompiler(options, str(source)).compile_to_file(str(model))


def checked(path: Path, source: Path) -> None:
    ort.ModelCompiler(ort.SessionOptions(), str(source)).compile_to_file(str(path))


def memory_of_nodes(path: Path, source: Path) -> None:
    session(source, session__collect_node_memory_stats_to_file=str(path)).run(None, {"ids": IDS[:7]})


def large(path: Path, source: Path) -> None:
    write_large(onnx.load(source), path)


def large_beside(path: Path, source: Path) -> None:
    write_large(onnx.load(source), path.with_name(path.stem), external=True, least=1)


def adapted(path: Path, source: Path) -> None:
    made = ort.AdapterFormat()
    made.set_parameters({"a": ort.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32))})
    made.export_adapter(str(path))


def by_a_tool(path: Path, source: Path) -> None:
    remove_initializer_from_input.main(["--input", str(source), "--output", str(path)])


WRITERS = [
    (saved, "out.onnx"),
    (saved_beside, "weights.bin"),
    (compiled, "out.engine"),
    (exported, "out.onnx"),
    (exported_beside, "out.engine"),
    (checked, "out.onnx"),
    (memory_of_nodes, "out.csv"),
    (large, "out.onnx"),
    (large_beside, "out.onnx.data"),
    (adapted, "out.adapter"),
    (by_a_tool, "out.onnx"),
]


@pytest.mark.usefixtures("constants")
@pytest.mark.parametrize(("write", "name"), WRITERS, ids=[one.__name__ for one, _ in WRITERS])
def test_what_is_written_is_a_new_file(write: Any, name: str, other: Path, tmp_path: Path) -> None:
    """It takes the place of a planted link, not of a pipe, and has had a name that nobody can foresee."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for draft in (f".{name}.{os.getpid()}.draft", f".{name}.{os.getpid()}-{threading.get_ident()}.draft"):
        (folder / draft).symlink_to(other)
    planted = sorted(folder.iterdir())
    (folder / name).symlink_to(other)
    write(folder / name, tmp_path / "model.onnx")
    assert not (folder / name).is_symlink()
    assert (folder / name).stat().st_size > 0
    assert not (folder / name).stat().st_mode & 0o002
    assert all(path.is_symlink() for path in planted)
    assert [path for path in folder.iterdir() if path.name.startswith(".") and path not in planted] == []
    (folder / name).unlink()
    os.mkfifo(folder / name)
    error = {adapted: RuntimeError, by_a_tool: OSError}.get(write, errors.OnnxRuntimeError)
    with pytest.raises(error, match=r"regular file|exists"):
        write(folder / name, tmp_path / "model.onnx")
    assert [path for path in folder.iterdir() if path.name.startswith(".") and path not in planted] == []


def test_profiles_are_new_files(other: Path, tmp_path: Path) -> None:
    """Also where the name of this moment is taken, and where a link takes the name meanwhile."""
    first = Trace(str(tmp_path / "profile"))
    names = {first.path}
    for _ in range(50):
        names.add(Trace(str(tmp_path / "profile")).path)
    assert len(names) == 51
    os.unlink(first.path)
    os.symlink(other, first.path)
    first.write()
    assert not os.path.islink(first.path)


@pytest.mark.parametrize("embeds", [True, False])
def test_what_is_compiled_is_trusted_whatever_the_mask(
    embeds: bool, constants: dict[str, np.ndarray], tmp_path: Path
) -> None:
    before = os.umask(0o002)
    try:
        compile_engine(str(tmp_path / "model.onnx"), tmp_path / "model.engine")
        options = ort.SessionOptions()
        options.add_session_config_entry("ep.context_enable", "1")
        made = ort.ModelCompiler(options, str(tmp_path / "model.onnx"), embed_compiled_data_into_model=embeds)
        made.compile_to_file(str(tmp_path / "context.onnx"))
        check(tmp_path / "model.onnx", constants)
        assert check(tmp_path / "model.onnx", constants)
    finally:
        os.umask(before)
    assert check(tmp_path / "model.engine", constants)
    assert check(tmp_path / "context.onnx", constants)


def test_a_profile_that_cannot_be_written_at_its_end(tmp_path: Path, constants: dict[str, np.ndarray]) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    made = ort.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    (path,) = tmp_path.glob("profile*.json")
    path.unlink()
    path.mkdir()
    with pytest.raises(errors.Fail, match="Cannot write the profile"):
        made.end_profiling()


# What is checked is what is used


def exchanging(monkeypatch: pytest.MonkeyPatch, path: Path, by: Path, real: Any, module: Any) -> list[bool]:
    """Exchange a file once its first handle has been looked at, before it is mapped."""
    done: list[bool] = []

    def exchange(*given: Any) -> Any:
        if not done:
            done.append(True)
            os.replace(by, path)
        return real(*given)

    monkeypatch.setattr(module, real.__name__, exchange)
    return done


@pytest.mark.parametrize("kind", ["an engine", "a model with an engine", "an engine beside a model"])
def test_an_engine_that_is_exchanged_once_it_is_open(
    kind: str, constants: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_engine(str(tmp_path / "model.onnx"), tmp_path / "model.engine")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    for name, embeds in (("inside.onnx", True), ("outside.onnx", False)):
        made = ort.ModelCompiler(options, str(tmp_path / "model.onnx"), embed_compiled_data_into_model=embeds)
        made.compile_to_file(str(tmp_path / name))
    given, path = {
        "an engine": ("model.engine", "model.engine"),
        "a model with an engine": ("inside.onnx", "inside.onnx"),
        "an engine beside a model": ("outside.onnx", "outside.engine"),
    }[kind]
    (tmp_path / "planted").write_bytes(b"SARDONYX ENGINE of somebody else")
    opened: list[int] = []
    real = mapped_pages.map_open_file

    def exchange(handle: int, name: Any) -> memoryview:
        if os.path.samestat(os.fstat(handle), os.stat(tmp_path / path)):
            os.replace(tmp_path / "planted", tmp_path / path)
            opened.append(handle)
        return real(handle, name)

    for module in (engine_source, engine_file):
        monkeypatch.setattr(module, "map_open_file", exchange)
    assert check(tmp_path / given, constants)
    assert len(opened) == 1


def test_weights_that_are_exchanged_once_they_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = write_model(tmp_path / "model.onnx", external="weights.bin")
    (tmp_path / "planted").write_bytes(bytes((tmp_path / "weights.bin").stat().st_size))
    from sardonyx.graph import external_data

    real = mapped_pages.map_open_file
    done = exchanging(monkeypatch, tmp_path / "weights.bin", tmp_path / "planted", real, external_data)
    y, _ = session(tmp_path / "model.onnx").run(None, {"ids": IDS[:7]})
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    assert done


def test_files_of_a_kept_engine_are_those_in_the_state_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file takes the name only while it is opened."""
    from sardonyx.api.engines import held_files

    path = tmp_path / "file"
    path.write_bytes(b"right")
    state = file_state(path)
    assert state is not None
    assert HeldFiles({str(path): state}).array(str(path)).tobytes() == b"right"
    real = held_files.open_file

    def exchanged(name: str) -> Any:
        os.rename(path, tmp_path / "aside")
        path.write_bytes(b"wrong")
        try:
            return real(name)
        finally:
            os.replace(tmp_path / "aside", path)

    monkeypatch.setattr(held_files, "open_file", exchanged)
    with pytest.raises(FileNotFoundError, match="changed"):
        HeldFiles({str(path): state})


def test_an_engine_outside_of_the_models_folder(constants: dict[str, np.ndarray], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    folder = tmp_path / "folder"
    folder.mkdir()
    ort.ModelCompiler(options, str(tmp_path / "model.onnx")).compile_to_file(str(folder / "m.onnx"))
    os.rename(folder / "m.engine", tmp_path / "m.engine")
    with pytest.raises(errors.NoSuchFile, match="does not exist"):
        session(folder / "m.onnx")
    os.symlink(tmp_path / "m.engine", folder / "m.engine")
    with pytest.raises(errors.InvalidArgument, match="below its folder"):
        session(folder / "m.onnx")
    os.unlink(folder / "m.engine")
    os.mkfifo(folder / "m.engine")
    with pytest.raises((errors.NoSuchFile, errors.Fail)):
        session(folder / "m.onnx")
