"""Engines that are compiled ahead: sessions of them, whom they are trusted by, and what becomes of those that do not
fit or are damaged."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import compiled_engine, shape_profiles
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.llvm.library import forget_kernels, library
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.runtime import file_state
from sardonyx.runtime.files.engine_file import SealedEngine
from sardonyx.runtime.memory.mapped_pages import mapped_ranges
from sardonyx.runtime.native.native_image import NativeImage
from sardonyx.runtime.native_plan import StepColumn
from tests.api.engine_models import IDS, engines_in, expected, sealed_in, write_model

pytestmark = pytest.mark.machine_neutral

SIZES = (7, 12)
PROFILES = [shape_profiles.parse(f"ids:1,{size},64") for size in SIZES]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the trust records of these tests are; their kernels come from where all tests have them."""
    folder = tmp_path_factory.mktemp("cache")
    forget_kernels()
    for purpose in ("models", "runtime"):
        library(purpose=purpose)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARDONYX_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def made_engine(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with plans for two sizes, whose model is gone."""
    folder = tmp_path_factory.mktemp("engine")
    write_model(folder / "model.onnx")
    compile_engine(str(folder / "model.onnx"), folder / "model.engine", profiles=PROFILES)
    (folder / "model.onnx").unlink()
    return folder / "model.engine"


@pytest.fixture
def engine(made_engine: Path, tmp_path: Path) -> Path:
    """A file of it."""
    return Path(shutil.copy(made_engine, tmp_path / "model.engine"))


@pytest.fixture
def no_trust_records(cache: Path, tmp_path: Path) -> Iterator[None]:
    """Nobody has made an engine."""
    engines_in(cache).rename(tmp_path / "engines")
    yield
    shutil.rmtree(engines_in(cache), ignore_errors=True)
    (tmp_path / "engines").rename(engines_in(cache))


def session(path: Path | bytes, entries: dict[str, str] | None = None, **settings: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def is_stored(made: ort.InferenceSession) -> bool:
    assert made._sess is not None
    return made._sess._is_stored


@functools.cache
def the_constants() -> dict[str, np.ndarray]:
    """Those of the model, which are the same each time."""
    with tempfile.TemporaryDirectory() as folder:
        return write_model(Path(folder) / "model.onnx")


def check(made: ort.InferenceSession, *counts: int) -> None:
    """Run with these numbers of rows and see that the results are right."""
    constants = the_constants()
    for count in counts or SIZES:
        for _ in range(2):
            y, most = made.run(None, {"ids": IDS[:count]})
            np.testing.assert_allclose(y, expected(constants, IDS[:count]), rtol=1e-4, atol=1e-4)
            assert most == y.max()


def is_compiled_later(made: ort.InferenceSession) -> bool:
    """Whether the model in the engine has been compiled."""
    step = made._session().plan.steps[0].call
    later = made._session()._compiled.__closure__
    assert step is not None
    assert later is not None
    return any(getattr(cell.cell_contents, "_built", None) is not None for cell in later)


def test_sessions_begin_from_a_file(engine: Path) -> None:
    made = session(engine)
    assert is_stored(made)
    check(made)
    assert not is_compiled_later(made)
    assert [(one.name, one.type, one.shape) for one in made.get_inputs()] == [("ids", "tensor(int64)", ["n"])]
    assert made.get_modelmeta().producer_name == "a test"
    check(session(engine.read_bytes()))  # as bytes, too


def test_sizes_in_no_profile_come_from_the_model_inside(engine: Path) -> None:
    made = session(engine)
    check(made, 7, 30, 64, 7, 12, 3)
    assert not is_compiled_later(made)
    with pytest.raises(errors.OnnxRuntimeError, match="look_up"):
        made.run(None, {"ids": np.array([1000] * 65)})
    assert is_compiled_later(made)
    assert made.run(["most"], {"ids": IDS[:9]})[0] == made.run(None, {"ids": IDS[:9]})[1]
    assert any("look_up" in node for row in explain(made, {"ids": IDS[:7]}).rows for node in row.nodes)
    outside = IDS[:7].copy()
    outside[3] = 1000
    with pytest.raises(errors.OnnxRuntimeError, match="look_up"):
        session(engine).run(None, {"ids": outside})


# What makes a process slow to start, and a session from an engine does without.
_NOT_IMPORTED = (
    *("onnx", "onnx_ir", "sympy", "google", "llvmlite.binding", "ml_dtypes", "numpy.typing", "importlib.metadata"),
    *("sardonyx.runtime.native.counted_call", "sardonyx.runtime.native.rounds", "sardonyx.compiler.llvm.types"),
    *("sardonyx.compiler.control_flow_call", "sardonyx.compiler.fusion"),
    *("sardonyx.graph.load", "sardonyx.graph.wire_format", "sardonyx.kernel.dtypes", "sardonyx.ops"),
    *("sardonyx.api.device_enums", "sardonyx.api.options.lora", "sardonyx.api.running.io_binding"),
    *("sardonyx.api.running.settled_plans", "sardonyx.api.values.dlpack", "sardonyx.runtime.trace"),
)


def test_what_compiles_is_loaded_when_the_session_is_made_if_asked(engine: Path) -> None:
    assert not is_compiled_later(session(engine, {"sardonyx.engine_compiler": "0"}))
    made = session(engine, {"sardonyx.engine_compiler": "1"})
    assert is_stored(made)
    assert is_compiled_later(made)
    check(made, 7, 66)


def test_a_run_that_compiles_for_new_sizes_says_so(engine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = session(engine, log_severity_level=1)
    said = r"the run had to compile for new sizes, in \d+ ms, with \d+ new kernels?(.*): ids \[(\d+)\]"
    check(made, 7, 29)
    assert not re.search(said, capfd.readouterr().err)
    check(made, 65)
    check(made, 66)
    assert re.findall(said, capfd.readouterr().err) == [(", for which the model was loaded", "65"), ("", "66")]


def test_a_process_needs_neither_kernels_of_a_cache_nor_what_compiles(
    engine: Path, cache: Path, tmp_path: Path
) -> None:
    program = (
        "import sys, numpy as np, sardonyx as ort\n"
        "made = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "results = made.run(None, {'ids': np.arange(7)})\n"
        "loaded = [name for name in sys.argv[2:] if name in sys.modules]\n"
        "from sardonyx.compiler.llvm.library import library\n"
        "counts = [library(purpose=purpose).counts for purpose in ('models', 'runtime')]\n"
        "print(made._sess._is_stored, sum(one.compiled + one.from_cache for one in counts), loaded)\n"
    )
    shutil.copytree(engines_in(cache), engines_in(tmp_path / "cache"))
    environment = {**os.environ, "SARDONYX_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, "-c", program, str(engine), *_NOT_IMPORTED]
    found = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "True 0 []", found.stderr
    assert list((tmp_path / "cache").rglob("*.o")) == []


def test_weights_are_mapped(engine: Path) -> None:
    made = session(engine)
    step = made._session().plan.steps[0].call
    plan = step.plan_for(((7,),)).plan
    mapped = [one for one in mapped_ranges() if one.path == str(engine)]
    words = plan.words
    inside = sum(int(((words >= one.start) & (words < one.end)).sum()) for one in mapped)
    assert inside >= 3  # table, packed weights and bias
    weights = made.memory_report().weights
    assert weights.mapped > 0
    assert (weights.packed, weights.held, weights.computed) == (0, 0, 0)
    sealed = sealed_in(engine).engine
    constants = write_model(engine.parent / "again.onnx")
    content = engine.read_bytes()
    assert content.count(constants["table"].tobytes()) == 1  # read where the model has it
    assert set(sealed.sections) == {"tables", "image", "constants", "made", "nodes", "model", "weights"}


def test_settings_of_the_compilation_are_those_of_sessions(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("sardonyx.cpu.winograd", "0")
    path = tmp_path / "model.engine"
    write_model(tmp_path / "model.onnx")
    compile_engine(str(tmp_path / "model.onnx"), path, options, PROFILES)
    made = session(path)
    assert is_stored(made)
    assert made.get_session_options().intra_op_num_threads == 0  # the caller's
    assert made._session().plan.steps[0].call.threads == 1
    assert session(path, intra_op_num_threads=2)._session().plan.steps[0].call.threads == 2
    other = session(path, {"sardonyx.cpu.winograd": "1"})
    assert not is_stored(other)
    check(other)


@pytest.fixture
def changed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An engine does not fit: the session's config entries for it."""
    if request.param == "machine":
        return {"sardonyx.cpu.kernels": list(host_targets())[-1]}
    if request.param == "numbers":
        return {"session.set_denormal_as_zero": "1"}
    monkeypatch.setattr(compiled_engine, "package_state", lambda: "another")
    monkeypatch.setattr(compiled_engine, "generator_version", lambda: "another")
    return {}


WORDS = {
    "machine": "made for another machine",
    "numbers": "other values of flush_denormals",
    "version": "another state",
}


@pytest.mark.parametrize(("changed", "words"), WORDS.items(), indirect=["changed"])
def test_what_does_not_fit_is_compiled_with_a_warning(
    engine: Path, changed: dict[str, str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made = session(engine, changed)
    assert not is_stored(made)
    assert words in capfd.readouterr().err
    check(made, 7, 20)
    with pytest.raises(errors.ModelRequiresCompilation, match=words):
        session(engine, {**changed, "session.disable_model_compile": "1"})
    with pytest.raises(errors.Fail, match=words):
        session(engine, {**changed, "session.fail_on_suboptimal_compiled_model": "1"})


@pytest.mark.usefixtures("no_trust_records")
def test_code_of_others_is_not_run_unless_the_caller_answers(engine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = session(engine)
    assert not is_stored(made)
    assert "not made by this user on this machine" in capfd.readouterr().err
    check(made, 7)
    made = session(engine, {compiled_engine.TRUST: "1"})
    assert is_stored(made)
    check(made)
    assert not is_stored(session(engine))  # nobody answers here


@pytest.mark.usefixtures("no_trust_records")
def test_options_of_others_are_not_taken(tmp_path: Path, cache: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(tmp_path / "stats"))
    write_model(tmp_path / "model.onnx")
    compile_engine(str(tmp_path / "model.onnx"), tmp_path / "model.engine", options)
    (tmp_path / "stats").unlink(missing_ok=True)
    shutil.rmtree(engines_in(cache))
    check(session(tmp_path / "model.engine"), 7)
    assert not (tmp_path / "stats").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.engine")
    with pytest.raises(errors.InvalidProtobuf, match="not a file"):
        session(tmp_path / "model.engine")


def test_files_that_others_can_write_to_are_not_trusted(engine: Path) -> None:
    engine.chmod(0o666)
    assert not is_stored(session(engine))
    engine.chmod(0o644)
    assert is_stored(session(engine))


def test_a_file_is_read_whole_once(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[SealedEngine] = []
    verify = SealedEngine.verify
    monkeypatch.setattr(SealedEngine, "verify", lambda sealed: (read.append(sealed), verify(sealed)))
    for _ in range(2):  # changed too short a while ago to tell changes by its times
        assert is_stored(session(engine))
    assert len(read) == 2
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", -3600.0)
    for _ in range(3):
        assert is_stored(session(engine))
    assert len(read) == 3
    shutil.copy(engine, tmp_path / "copy.engine")
    for _ in range(2):
        assert is_stored(session(tmp_path / "copy.engine"))
    assert len(read) == 4
    content = engine.read_bytes()
    status = engine.stat()
    with engine.open("r+b") as file:
        file.seek(len(content) - 100)
        file.write(b"\1\2\3")
    os.utime(engine, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(errors.Fail, match="damaged"):
        session(engine)


PARTS = ["start", "length", "digest", "head", "tables", "image", "constants", "model", "weights", "short", "long"]


@pytest.mark.parametrize("part", PARTS)
def test_damaged_engines_are_errors(engine: Path, part: str) -> None:
    sealed = sealed_in(engine).engine
    content = bytearray(engine.read_bytes())
    if part == "short":
        del content[-5000:]
    elif part == "long":
        content += bytes(10)
    elif part == "length":
        content[18:26] = (1 << 61).to_bytes(8, "little")
    elif part in sealed.sections:
        whole = np.frombuffer(bytes(content), np.uint8)
        section = sealed.sections[part]
        (place,) = (at for at in range(0, whole.size, 4096) if np.array_equal(whole[at : at + section.size], section))
        content[place + section.size // 2] ^= 0x10
    else:
        content[{"start": 17, "digest": 30, "head": 200}[part]] ^= 0x10
    engine.write_bytes(bytes(content))
    for trusts in ("0", "1"):
        with pytest.raises(errors.Fail, match=r"model\.engine' is damaged: .*Compile the model again"):
            session(engine, {compiled_engine.TRUST: trusts})
        if part != "start":  # bytes that are no engine are a model
            with pytest.raises(errors.Fail, match="is damaged"):
                session(bytes(content), {compiled_engine.TRUST: trusts})


def test_sessions_that_ask_for_more_come_from_the_model(engine: Path, tmp_path: Path) -> None:
    made = session(engine, enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    assert not is_stored(made)
    check(made, 7)
    assert "look_up" in Path(made.end_profiling()).read_text()
    session(engine, optimized_model_filepath=str(tmp_path / "saved.onnx"))
    assert onnx.load(tmp_path / "saved.onnx").graph.name == "words"
    assert not is_stored(session(engine, {"sardonyx.engine_cache": "0"}))


def test_external_data_and_bytes_become_engines(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", external="weights.bin")
    compile_engine(str(tmp_path / "model.onnx"), tmp_path / "a.engine", profiles=PROFILES)
    (tmp_path / "weights.bin").unlink()
    check(session(tmp_path / "a.engine"))
    write_model(tmp_path / "model.onnx")
    summary = compile_engine((tmp_path / "model.onnx").read_bytes(), tmp_path / "b.engine", sizes={"n": 5})
    assert [plan["shapes"] for plan in summary.content["plans"]] == [((5,),)]
    made = session(tmp_path / "b.engine")
    check(made, 5)
    assert is_stored(made)
    assert not is_compiled_later(made)


def test_a_model_that_changed_is_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By its contents, while it has its name; the engine is what the caller asked for."""
    path = tmp_path / "model.onnx"
    write_model(path, external="weights.bin")
    compile_engine(str(path), tmp_path / "model.engine", profiles=PROFILES)
    steps = {
        "nothing": lambda: None,
        "the time": lambda: os.utime(path, (0, 0)),
        "contents": lambda: write_model(path, seed=1, external="weights.bin"),
        "the name": lambda: (tmp_path / "weights.bin").unlink(),
    }
    capfd.readouterr()
    for what, change in steps.items():
        change()
        made = session(tmp_path / "model.engine")
        assert is_stored(made)
        check(made)
        said = "weights.bin has changed since" in capfd.readouterr().err
        assert said == (what == "contents"), what


def test_what_cannot_be_written(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    with pytest.raises(errors.Fail, match="cannot be written"):
        compile_engine(str(tmp_path / "model.onnx"), tmp_path / "absent" / "x.engine")
    with pytest.raises(errors.NoSuchFile):
        compile_engine(str(tmp_path / "absent.onnx"), tmp_path / "x.engine")
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["model.onnx"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ids", "reads NAME:MIN,OPT,MAX"),
        ("ids:1,2", "reads NAME:MIN,OPT,MAX"),
        ("ids:1xa", "reads NAME:MIN,OPT,MAX"),
        ("ids:1;ids:2", "names the input 'ids' twice"),
        ("other:1", "names 'other', but the inputs are ids"),
        ("ids:1x2", "does not fit the input 'ids', which is n"),
        ("ids:4,2,8", "must not decrease from min to opt to max: 4, 2, 8"),
    ],
)
def test_profiles_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    write_model(tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry(shape_profiles.KEY, text)
    with pytest.raises(errors.InvalidArgument, match=words):
        compile_engine(str(tmp_path / "model.onnx"), tmp_path / "x.engine", options)


def test_profiles_follow_the_names_of_dimensions(tmp_path: Path) -> None:
    """Inputs that a profile leaves out are as large as those that share their dimensions; others must be named."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("a", ["n", 3]), ("b", ["n", 3]), ("c", [3]), ("y", ["n", 3]))
    ]
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Mul", ["sum", "c"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    options = ort.SessionOptions()
    options.add_session_config_entry(shape_profiles.KEY, "a:1x3,4x3,9x3;;b:6x3")
    summary = compile_engine(model, tmp_path / "x.engine", options)
    found = [{name: three[1] for name, three in profile.shapes.items()} for profile in summary.profiles]
    assert found == [{"a": (4, 3), "b": (4, 3), "c": (3,)}, {"a": (6, 3), "b": (6, 3), "c": (3,)}]
    options.add_session_config_entry(shape_profiles.KEY, "c:3")
    with pytest.raises(errors.InvalidArgument, match="must name the input 'a'"):
        compile_engine(model, tmp_path / "x.engine", options)


def test_the_largest_shape_is_tried(tmp_path: Path) -> None:
    """Position 9 of a table of 8 rows: the model takes the usual size and not the largest."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [8, 2], np.arange(16, dtype=np.float32))
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "table"], ["y"], name="positions")], "g", values[:1], values[1:], [table]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    with pytest.raises(errors.InvalidArgument, match=r"does not take the shapes of a profile \(x \[9, 2\]\)"):
        compile_engine(model, tmp_path / "x.engine", profiles=[shape_profiles.parse("x:1x2,8x2,9x2")])


def test_kernels_that_the_process_has_are_used(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sessions of one engine, in a process without its kernels, only the first brings them."""
    loaded: list[NativeImage] = []
    make = NativeImage.__init__
    monkeypatch.setattr(NativeImage, "__init__", lambda image, *given: (loaded.append(image), make(image, *given))[1])
    forget_kernels()
    addresses = []
    for _ in range(2):
        made = session(engine)
        check(made)
        steps = made._session().plan.steps[0].call.plan_for(((7,),)).plan.steps
        addresses.append(steps[:, StepColumn.FUNCTION].tolist())
    assert len(loaded) == 1
    assert addresses[0] == addresses[1]
    assert min(addresses[0]) >= loaded[0].address
