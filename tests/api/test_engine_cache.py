"""Sessions from kept engines: the same answers and errors as from the model, and never those of another model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import engine_store
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime import file_state
from sardonyx.runtime.files import engine_file
from sardonyx.runtime.files.machine_file import machine_key, write_section
from tests.api.engine_models import IDS, ROWS, engines_in, expected, is_stored, keeps_every_engine, wait, write_model

pytestmark = pytest.mark.machine_neutral


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every model has an engine, in a folder of the test; no session takes what another one has in memory."""
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    return engines_in(tmp_path / "cache")


def session(path: Path, entries: dict[str, str] | None = None, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def keep(path: Path, count: int = 7, **others: Any) -> list[Any]:
    """Leave an engine for inputs of this size; what the session gave."""
    made = session(path, **others)
    assert not is_stored(made)
    results = made.run(None, {"ids": IDS[:count]})
    wait()
    return results


@pytest.mark.parametrize("threads", [1, 2])
def test_the_second_session_begins_from_the_engine(tmp_path: Path, threads: int) -> None:
    constants = write_model(tmp_path / "model.onnx")
    first = keep(tmp_path / "model.onnx", threads=threads)
    made = session(tmp_path / "model.onnx", threads=threads)
    assert is_stored(made)
    for _ in range(3):  # the long way, and then the short one
        results = made.run(None, {"ids": IDS[:7]})
        for one, other in zip(first, results, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(results[0], expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    assert [(one.name, one.type, one.shape) for one in made.get_inputs()] == [("ids", "tensor(int64)", ["n"])]
    assert [(one.name, one.shape) for one in made.get_outputs()] == [("y", ["n", 40]), ("most", [])]
    assert made.get_modelmeta().producer_name == "a test"
    assert made.get_modelmeta().graph_name == "words"
    assert made.get_providers() == ["CPUExecutionProvider"]


def sizes_of(folder: Path) -> list[int]:
    """The numbers of rows for which the only engine has plans, the latest first."""
    (path,) = folder.glob("*.engine")
    content = engine_file.read_content(path)
    assert content is not None
    return [plan["shapes"][0][0] for plan in content["plans"]]


def run_all(made: ort.InferenceSession, constants: dict[str, np.ndarray], *counts: int) -> None:
    """Run with these numbers of rows, each twice, and see that the results are right."""
    for count in counts:
        for _ in range(2):
            y, most = made.run(None, {"ids": IDS[:count]})
            np.testing.assert_allclose(y, expected(constants, IDS[:count]), rtol=1e-4, atol=1e-4)
            assert most == y.max()
        wait()


def test_an_engine_has_the_latest_sizes(tmp_path: Path, folder: Path) -> None:
    constants = write_model(tmp_path / "model.onnx")
    made = session(tmp_path / "model.onnx")
    run_all(made, constants, 7, 12, 7, 1)
    assert sizes_of(folder) == [1, 12, 7]
    assert not is_stored(made)
    for counts, kept in (((12, 7, 1), [1, 12, 7]), ((12, 64, 7, 5), [5, 64, 1, 12, 7])):
        made = session(tmp_path / "model.onnx")
        assert is_stored(made)
        run_all(made, constants, *counts)
        assert sizes_of(folder) == kept
    run_all(session(tmp_path / "model.onnx"), constants, *range(20, 20 + engine_store.MOST_SHAPES + 2))
    latest = 20 + engine_store.MOST_SHAPES - 1  # of those that one session adds
    assert sizes_of(folder) == list(range(latest, 19, -1))
    assert len(list(folder.glob("*.engine"))) == len(list(folder.glob("*.missed"))) == 1


def test_plans_share_their_constants(tmp_path: Path, folder: Path) -> None:
    constants = write_model(tmp_path / "model.onnx")
    sizes = []
    made = session(tmp_path / "model.onnx")
    for count in (7, 12):
        run_all(made, constants, count)
        (path,) = folder.glob("*.engine")
        engine = engine_file.read_engine(path)
        assert engine is not None
        sizes.append({name: section.size for name, section in engine.sections.items()})
    assert sizes[1]["tables"] > 1.5 * sizes[0]["tables"]
    assert sizes[1]["constants"] < sizes[0]["constants"] + 1024
    assert sizes[0]["constants"] > constants["weights"].nbytes


def test_models_whose_sizes_never_come_back_have_no_engine(tmp_path: Path, folder: Path) -> None:
    constants = write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx", 50)
    for count in range(1, engine_store.MOST_MISSES + 1):
        assert is_stored(session(tmp_path / "model.onnx"))
        run_all(session(tmp_path / "model.onnx"), constants, count)
    assert list(folder.glob("*.engine")) == []
    later = session(tmp_path / "model.onnx")
    assert not is_stored(later)
    run_all(later, constants, 7)
    (marker,) = folder.glob("*.missed")
    assert list(folder.glob("*.engine")) == []
    for long_ago in (time.time() - 31 * 86400, (tmp_path / "model.onnx").stat().st_ctime - 1):  # older than the file
        marker.write_bytes(b"." * engine_store.MOST_MISSES)
        os.utime(marker, (long_ago, long_ago))
        keep(tmp_path / "model.onnx")
        assert is_stored(session(tmp_path / "model.onnx"))
        assert not marker.exists()
        next(folder.glob("*.engine")).unlink()


def test_a_size_that_comes_back_ends_the_count_of_misses(tmp_path: Path, folder: Path) -> None:
    constants = write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx", 7)
    for count in (20, 21):
        run_all(session(tmp_path / "model.onnx"), constants, count)
    (marker,) = folder.glob("*.missed")
    assert marker.stat().st_size == 2
    run_all(session(tmp_path / "model.onnx"), constants, 20)
    assert not marker.exists()


def test_errors_are_those_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    stored, ordinary = session(tmp_path / "model.onnx"), session(tmp_path / "model.onnx", {engine_store.KEY: "0"})
    assert is_stored(stored)
    assert not is_stored(ordinary)
    outside = IDS[:7].copy()
    outside[3] = ROWS
    for feeds in ({"ids": outside}, {"ids": IDS[:7].astype(np.int32)}, {}, {"ids": IDS[:7], "other": IDS}):
        messages = []
        for made in (stored, ordinary):
            made.run(None, {"ids": IDS[:7]})
            with pytest.raises((errors.OnnxRuntimeError, ValueError)) as caught:
                made.run(None, feeds)
            messages.append(f"{type(caught.value).__name__}: {caught.value}")
        assert messages[0] == messages[1]
        if "ids" in feeds and feeds["ids"] is outside:
            assert "look_up" in messages[0]


def test_every_source_file_counts_for_the_state_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: counted.append(Path(path)) or scan(path))
    engine_store.package_state.__wrapped__()
    package = Path(ort.__file__).parent
    assert set(counted) == {path.parent for path in package.rglob("__init__.py")}


def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_model(path)
    keep(path)
    assert is_stored(session(path))
    status = path.stat()
    constants = write_model(path, seed=1)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    made = session(path)
    assert not is_stored(made)
    (y,) = made.run(["y"], {"ids": IDS})
    np.testing.assert_allclose(y, expected(constants, IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["other weights", "gone"])
def test_external_data_belong_to_the_model(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.onnx"
    write_model(path, external="weights.bin")
    first = keep(path)
    made = session(path)
    assert is_stored(made)
    np.testing.assert_array_equal(made.run(None, {"ids": IDS[:7]})[0], first[0])
    if change == "gone":
        (tmp_path / "weights.bin").unlink()
        with pytest.raises(errors.Fail, match=r"weights\.bin"):
            session(path)
        return
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.write(np.float32(7).tobytes())
    assert not is_stored(session(path))


@pytest.mark.parametrize("external", ["", "weights.bin"])
@pytest.mark.parametrize("change", ["gone", "replaced", "written to"])
def test_a_session_keeps_the_model_that_it_began_with(tmp_path: Path, change: str, external: str) -> None:
    path = tmp_path / "model.onnx"
    constants = write_model(path, external=external)
    keep(path)
    made = session(path)
    assert is_stored(made)
    changed = tmp_path / (external or "model.onnx")
    if change == "gone":
        changed.unlink()
    elif change == "replaced":
        (tmp_path / "other").mkdir()
        write_model(tmp_path / "other" / "model.onnx", seed=5, external=external)
        os.replace(tmp_path / "other" / changed.name, changed)
    else:
        content = changed.read_bytes()
        with changed.open("r+b") as file:
            file.write(content)
    if change == "written to":
        with pytest.raises(errors.Fail, match=f"{changed.name} was written to "):
            made.run(None, {"ids": IDS})
        if not external:  # of which nothing is mapped for the size that the engine has
            assert made.run(None, {"ids": IDS[:7]})[0].shape == (7, 40)
        return
    for count in (64, 7):
        (y, _) = made.run(None, {"ids": IDS[:count]})
        np.testing.assert_allclose(y, expected(constants, IDS[:count]), rtol=1e-4, atol=1e-4)


def test_fewer_outputs_come_from_the_model(tmp_path: Path, folder: Path) -> None:
    constants = write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    made = session(tmp_path / "model.onnx")
    (y,) = made.run(["y"], {"ids": IDS[:7]})
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    assert made.run(["most"], {"ids": IDS[:7]})[0] == y.max()
    np.testing.assert_array_equal(made.run(None, {"ids": IDS[:7]})[0], y)
    (marker,) = folder.glob("*.missed")
    assert marker.stat().st_size == 1


def test_new_files_have_no_engine(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", 2.0)
    write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    assert not folder.exists()


def note_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session read the engine of a model and note that it is whole, however new it is."""
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", -3600.0)
    assert is_stored(session(path))


def test_whole_engines_are_mapped(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    note_whole(tmp_path / "model.onnx", monkeypatch)
    (path,) = folder.glob("*.engine")
    status = path.stat()
    with monkeypatch.context() as patch:  # used again so soon it stays as it is
        patch.setattr(engine_file, "_check", None)  # nothing is read
        made = session(tmp_path / "model.onnx")
        assert is_stored(made)
        (y,) = made.run(["y"], {"ids": IDS[:7]})
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)
    hour = 3600 * 10**9
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 2 * hour))
    assert is_stored(session(tmp_path / "model.onnx"))
    assert path.stat().st_mtime_ns > status.st_mtime_ns - hour


@pytest.mark.parametrize(
    ("where", "noted"),
    [
        *((where, False) for where in (0, 20, 60, 400, "tables", "constants", "short", "long key", "shared")),
        *((where, True) for where in (400, "constants", "short", "shared")),
    ],
)
def test_damaged_engines_count_as_absent(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, where: int | str, noted: bool
) -> None:
    """Also those of which it was noted that they are whole."""
    constants = write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    (path,) = folder.glob("*.engine")
    if noted:
        note_whole(tmp_path / "model.onnx", monkeypatch)
    content = bytearray(path.read_bytes())
    if where == "short":
        del content[-100:]
    elif where == "long key":
        content[18:26] = (1 << 60).to_bytes(8, "little")
    elif where != "shared":
        engine = engine_file.read_engine(path)
        assert engine is not None
        sought = {"tables": engine.sections["tables"], "constants": constants["bias"].view(np.uint8)}
        place = where if isinstance(where, int) else content.index(sought[where].tobytes()[:64])
        content[place] ^= 0x10
    path.write_bytes(bytes(content))
    if where == "shared":
        path.chmod(0o666)
    made = session(tmp_path / "model.onnx")
    assert not is_stored(made)
    (y,) = made.run(["y"], {"ids": IDS})
    np.testing.assert_allclose(y, expected(constants, IDS), rtol=1e-4, atol=1e-4)
    made.run(None, {"ids": IDS[:7]})
    wait()
    assert is_stored(session(tmp_path / "model.onnx"))


def test_options_have_engines_of_their_own(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    assert not is_stored(session(tmp_path / "model.onnx", threads=2))
    assert not is_stored(session(tmp_path / "model.onnx", {"sardonyx.cpu.kernels": "portable"}))
    assert not is_stored(session(tmp_path / "model.onnx", {engine_store.KEY: "0"}))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not is_stored(ort.InferenceSession(str(tmp_path / "model.onnx"), options))
    assert is_stored(session(tmp_path / "model.onnx"))


def test_other_figures_of_the_machine_leave_engines_alone(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    assert write_section(machine_key(host_target().key), "ceilings", {"seconds": 1.5}) is not None
    assert is_stored(session(tmp_path / "model.onnx"))


def test_what_an_engine_cannot_do_comes_from_the_model(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    first = keep(tmp_path / "model.onnx")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    assert not is_stored(ort.InferenceSession(str(tmp_path / "model.onnx"), options))
    bytes_ = (tmp_path / "model.onnx").read_bytes()
    assert not is_stored(ort.InferenceSession(bytes_, providers=["CPUExecutionProvider"]))
    made = session(tmp_path / "model.onnx")
    assert is_stored(made)
    rows = explain(made, {"ids": IDS[:7]}).rows
    assert any("look_up" in node for row in rows for node in row.nodes)
    binding = made.io_binding()
    binding.bind_cpu_input("ids", IDS[:7])
    binding.bind_output("y")
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], first[0])


def test_other_sizes_come_from_the_model_in_whatever_folder_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model.onnx")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    expected = session(Path("model.onnx"), {"sardonyx.engine_cache": "0"}).run(None, {"ids": IDS[:5]})
    keep(Path("model.onnx"))
    made = session(Path("model.onnx"))
    assert is_stored(made)
    monkeypatch.chdir(tmp_path / "other")
    for one, other in zip(made.run(None, {"ids": IDS[:5]}), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert made._sess is not None
    assert made._sess.passes


def test_another_process_finds_the_engine(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    program = (
        "import sys, hashlib, numpy as np, sardonyx as ort\n"
        "from sardonyx.api.engines import engine_store\n"
        "from sardonyx.runtime import file_state\n"
        "engine_store.LEAST_SECONDS, file_state.SETTLED_SECONDS = 0.0, -3600.0\n"
        "made = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "results = made.run(None, {'ids': np.arange(9)})\n"
        "print(made._sess._is_stored, hashlib.sha256(results[0].tobytes()).hexdigest())\n"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "model.onnx")]
    found = [subprocess.run(run, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert [stored for stored, _ in found] == ["False", "True"]
    assert found[0][1] == found[1][1]


def test_one_of_many_processes_writes(tmp_path: Path, folder: Path) -> None:
    write_model(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    (path,) = folder.glob("*.engine")
    path.unlink()
    with engine_file.only_writer(path) as first, engine_file.only_writer(path) as second:
        assert first
        assert not second
        keep(tmp_path / "model.onnx")
        assert not path.exists()
    keep(tmp_path / "model.onnx")
    assert [found.name for found in folder.iterdir()] == [path.name]


def test_the_folder_is_bounded(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write_model(tmp_path / f"{number}.onnx", number)
        keep(tmp_path / f"{number}.onnx")
    first, second, third = (path for path in sorted(folder.glob("*.engine"), key=lambda path: path.stat().st_mtime_ns))
    size = first.stat().st_size
    monkeypatch.setattr(engine_file, "MOST_BYTES", 4 * size)
    write_model(tmp_path / "3.onnx", 3)
    now = time.time()
    for age, path in ((10, first), (30, second), (20, third)):
        os.utime(path, (now - age, now - age))
    monkeypatch.setattr(engine_file, "MOST_BYTES", int(3.9 * size))
    keep(tmp_path / "3.onnx")
    assert not second.exists()
    assert first.exists()
    monkeypatch.setattr(engine_file, "MOST_BYTES", size)
    write_model(tmp_path / "4.onnx", 4)
    before = set(folder.glob("*.engine"))
    keep(tmp_path / "4.onnx")
    assert set(folder.glob("*.engine")) == before


def test_a_link_that_leads_to_other_weights_is_noticed(tmp_path: Path) -> None:
    """Two snapshots of one graph with different weights, as links into one folder, and one that changes its link."""
    blobs, constants = tmp_path / "blobs", {}
    blobs.mkdir()
    for seed in (0, 1):
        constants[seed] = write_model(blobs / "graph", seed, external="model.data")
        (blobs / "model.data").rename(blobs / f"weights{seed}")
        snapshot = tmp_path / f"snapshot{seed}"
        snapshot.mkdir()
        os.symlink(blobs / "graph", snapshot / "model.onnx")
        os.symlink(blobs / f"weights{seed}", snapshot / "model.data")
    first = tmp_path / "snapshot0" / "model.onnx"
    keep(first)
    made = session(first)
    assert is_stored(made)
    run_all(made, constants[0], 7)
    other = session(tmp_path / "snapshot1" / "model.onnx")
    assert not is_stored(other)
    run_all(other, constants[1], 7)
    first.with_name("model.data").unlink()
    os.symlink(blobs / "weights1", first.with_name("model.data"))
    again = session(first)
    assert not is_stored(again)
    run_all(again, constants[1], 7)
    run_all(made, constants[0], 7, 9)


def test_a_session_of_an_engine_compiles_the_model_that_it_began_with(tmp_path: Path) -> None:
    """Sizes that contradict a name make a session compile its model again."""

    def write(kind: str) -> None:
        text = f"g (float[n] a, float[n] b) => (float[m] y) {{ y = {kind} (a, b) }}"
        text = f'<ir_version: 9, opset_import: ["" : 17]> {text}'
        onnx.save(parser.parse_model(text), tmp_path / "new.onnx")
        (tmp_path / "new.onnx").replace(tmp_path / "model.onnx")

    one, five = np.full(1, 2, np.float32), np.full(5, 3, np.float32)
    write("Add")
    session(tmp_path / "model.onnx").run(None, {"a": five, "b": five})
    wait()
    made, other = session(tmp_path / "model.onnx"), session(tmp_path / "model.onnx")
    assert is_stored(made)
    np.testing.assert_array_equal(other.run(None, {"a": one, "b": five})[0], one + five)
    write("Mul")
    np.testing.assert_array_equal(made.run(None, {"a": five, "b": five})[0], five + five)
    np.testing.assert_array_equal(made.run(None, {"a": one, "b": five})[0], one + five)


def write_warned(path: Path) -> dict[str, np.ndarray]:
    """The model with two initializers that callers may override, one that nobody reads, and a wrong declared shape."""
    constants = write_model(path)
    model = onnx.load(path)
    for name in ("bias", "weights"):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, constants[name].shape))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unused"))
    model.graph.value_info.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, ["n", 41]))
    onnx.save(model, path)
    return constants


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the log's warnings are about, since the last call."""
    lines = [line.partition("[W:onnxruntime:, ")[2] for line in capfd.readouterr().err.splitlines()]
    return sorted(line.partition("]")[0] + ":" + line.partition("'")[2].partition("'")[0] for line in lines if line)


def test_models_that_are_warned_of_have_engines_which_warn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_warned(tmp_path / "model.onnx")
    first = keep(tmp_path / "model.onnx")
    said = warnings(capfd)
    assert said == ["inference:product", "model:", "model:", "model:unused"]
    made = session(tmp_path / "model.onnx")
    assert is_stored(made)
    assert warnings(capfd) == said
    np.testing.assert_array_equal(made.run(None, {"ids": IDS[:7]})[0], first[0])
    made.run(None, {"ids": IDS[:9]})  # which the model is loaded for
    made._session().without_engine()  # as those do who ask why
    assert warnings(capfd) == []
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    assert is_stored(ort.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"]))
    assert warnings(capfd) == []


def test_sessions_that_share_a_model_warn_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_store, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(file_state, "SETTLED_SECONDS", -3600.0)
    write_warned(tmp_path / "model.onnx")
    made = session(tmp_path / "model.onnx")
    said = warnings(capfd)
    other = session(tmp_path / "model.onnx")
    assert warnings(capfd) == said != []
    feeds = {"ids": IDS[:7], "bias": np.zeros(40, np.float32)}
    np.testing.assert_array_equal(made.run(None, feeds)[0], other.run(None, feeds)[0])


def test_initializers_of_an_engine_are_overridden(tmp_path: Path) -> None:
    constants = write_warned(tmp_path / "model.onnx")
    keep(tmp_path / "model.onnx")
    made = session(tmp_path / "model.onnx")
    assert is_stored(made)
    assert [(one.name, one.shape) for one in made.get_overridable_initializers()] == [
        ("bias", [40]),
        ("weights", [24, 40]),
    ]
    rng = np.random.default_rng(3)
    for _ in range(3):
        other = {"bias": rng.standard_normal(40).astype(np.float32)}
        for given in ({}, other, other | {"weights": rng.standard_normal((24, 40)).astype(np.float32)}, {}):
            (y, _) = made.run(None, {"ids": IDS[:7]} | given)
            np.testing.assert_allclose(y, expected(constants | given, IDS[:7]), rtol=1e-4, atol=1e-4)


def test_what_the_environment_makes_an_error_is_one_with_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 9
    del model.graph.node[-1], model.graph.output[-1]  # whose attributes are others by now
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    keep(tmp_path / "model.onnx")
    assert is_stored(session(tmp_path / "model.onnx"))
    monkeypatch.delenv("ALLOW_RELEASED_ONNX_OPSET_ONLY")
    with pytest.raises(errors.Fail, match="opset"):
        session(tmp_path / "model.onnx")
