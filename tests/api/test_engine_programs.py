"""Engines of models that are more than one native step: strings, sequences, maps, pictures, branches and loops."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.engine_compiler import NotCompilableError, compile_engine
from tests.api.engine_models import is_stored, keeps_every_engine, sealed_in, wait
from tests.api.program_models import PROGRAMS, Program

pytestmark = pytest.mark.machine_neutral


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where engines and trust records are; every model has one, however young and quickly made."""
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    return tmp_path


def session(model: Path | bytes, entries: dict[str, str] | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def plain(value: Any) -> Any:
    """A result in a form whose parts are compared bit by bit."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist() if value.dtype.hasobject else value.tobytes()
    return value


def check(made: ort.InferenceSession, program: Program) -> None:
    """Run as a session without an engine would, twice, so that what runs are prepared with is used."""
    ordinary = session(program.model.SerializeToString(), {"sardonyx.engine_cache": "0"})
    assert not is_stored(ordinary)
    for _ in range(3):
        for feed in program.feeds:
            assert plain(made.run(None, feed)) == plain(ordinary.run(None, feed))
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        shown, expected = ([(one.name, one.type, one.shape) for one in getattr(s, ask)()] for s in (made, ordinary))
        assert shown == expected


def test_engines_compute_the_same(program: Program, folder: Path) -> None:
    onnx.save(program.model, folder / "model.onnx")
    profiles = [shape_profiles.parse(program.profile)] if program.profile else None
    compile_engine(str(folder / "model.onnx"), folder / "model.engine", profiles=profiles)
    (folder / "model.onnx").unlink()
    made = session(folder / "model.engine")
    assert is_stored(made)
    check(made, program)


def test_sessions_leave_engines(program: Program, folder: Path) -> None:
    onnx.save(program.model, folder / "model.onnx")
    first = session(folder / "model.onnx")
    assert not is_stored(first)
    check(first, program)
    wait()
    again = session(folder / "model.onnx")
    assert is_stored(again)
    check(again, program)


def test_compiled_models_compute_the_same(program: Program, folder: Path) -> None:
    onnx.save(program.model, folder / "model.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_embed_mode", "1")
    ort.ModelCompiler(options, folder / "model.onnx", embed_compiled_data_into_model=True).compile_to_file(
        folder / "compiled.onnx"
    )
    onnx.checker.check_model(folder / "compiled.onnx")
    made = session(folder / "compiled.onnx")
    assert is_stored(made)
    check(made, program)


def test_only_what_runs_is_imported(folder: Path) -> None:
    """Operators of the host come with their first run; what compiles stays away."""
    program = PROGRAMS["text_classifier"]()
    onnx.save(program.model, folder / "model.onnx")
    compile_engine(
        str(folder / "model.onnx"), folder / "model.engine", profiles=[shape_profiles.parse(program.profile)]
    )
    text = (
        "import sys, numpy as np, sardonyx as ort\n"
        "made = ort.InferenceSession(sys.argv[1])\n"
        "print([name for name in ('onnx', 'onnx_ir', 'sympy', 'llvmlite') if name in sys.modules])\n"
        "results = made.run(None, {'text': np.array(['CAT', 'dog'], object)})\n"
        "print(made._sess._is_stored, [name for name in ('sympy', 'llvmlite') if name in sys.modules])\n"
        "print(results[0].tolist(), results[2][0].tobytes().hex())\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", text, str(folder / "model.engine")], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    expected = session(program.model.SerializeToString()).run(None, program.feeds[0])
    assert told == ["[]", "True []", f"{expected[0].tolist()} {expected[2][0].tobytes().hex()}"]


def imported(engine: Path, feed: dict[str, Any], folder: Path) -> list[str]:
    """What another process has imported when it has opened an engine, and when it has run it twice."""
    (folder / "feed").write_bytes(pickle.dumps(feed))
    text = (
        "import pickle, sys, sardonyx as ort\n"
        "def told():\n"
        "    print([name for name in ('onnx', 'onnx_ir', 'sympy', 'google', 'llvmlite') if name in sys.modules])\n"
        "options = ort.SessionOptions()\n"
        "options.log_severity_level = 3\n"
        "made = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "assert made._sess._is_stored\n"
        "told()\n"
        "feed = pickle.load(open(sys.argv[2], 'rb'))\n"
        "made.run(None, feed), made.run(None, feed)\n"
        "told()\n"
    )
    arguments = [sys.executable, "-c", text, str(engine), str(folder / "feed")]
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.splitlines()


def test_opening_imports_nothing_of_models(program: Program, folder: Path) -> None:
    """Strings, sequences, maps and bodies do without it, too."""
    onnx.save(program.model, folder / "model.onnx")
    profiles = [shape_profiles.parse(program.profile)] if program.profile else None
    compile_engine(str(folder / "model.onnx"), folder / "model.engine", profiles=profiles)
    assert imported(folder / "model.engine", program.feeds[0], folder)[0] == "[]"


def test_running_native_bodies_imports_nothing_of_models(folder: Path) -> None:
    program = PROGRAMS["native_bodies"]()
    onnx.save(program.model, folder / "model.onnx")
    compile_engine(
        str(folder / "model.onnx"), folder / "model.engine", profiles=[shape_profiles.parse(program.profile)]
    )
    assert imported(folder / "model.engine", program.feeds[0], folder) == ["[]", "[]"]


def test_errors_name_the_node(folder: Path) -> None:
    program = PROGRAMS["image_decoder"]()
    compile_engine(program.model.SerializeToString(), folder / "model.engine")
    made = session(folder / "model.engine")
    assert is_stored(made)
    with pytest.raises(errors.OnnxRuntimeError, match="ImageDecoder node"):
        made.run(None, {"bytes": np.zeros(9, np.uint8)})
    check(made, program)


@pytest.mark.parametrize("part", ["nodes", "constants", "tables"])
def test_damage_is_an_error(folder: Path, part: str) -> None:
    program = PROGRAMS["text_classifier"]()
    path = folder / "model.engine"
    compile_engine(program.model.SerializeToString(), path)
    content = bytearray(path.read_bytes())
    section = sealed_in(path).engine.sections[part]
    place = content.find(section.tobytes())
    content[place + section.size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(errors.Fail, match=f"section '{part}' is not what was written"):
        session(path)


def test_what_a_node_keeps_besides_its_attributes(folder: Path) -> None:
    """A gradient goes back along nodes that ran before it, which another process has not."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 12, "ai.onnx.preview.training" : 1]>
        program (float x) => (float y, float g)
        {
            y = Mul(x, x)
            g = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(x)
        }
    """)
    ordinary = session(model.SerializeToString())
    assert ordinary.run(["g"], {"x": np.array(3, np.float32)})[0] == 6
    with pytest.raises(NotCompilableError, match=r"\(Gradient\) cannot be made again"):
        compile_engine(model.SerializeToString(), folder / "model.engine")
