"""Compiled engines have plans for every size in the ranges of their profiles: the same bits as from the model, without
what compiles. What they do not have is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.engine_compiler import MOST_SIZES, SECONDS, Summary, compile_engine
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.stored import sized_plans
from tests.api.size_models import check_alike, feeds, session, write_transformer
from tests.api.test_engine_files import is_compiled_later

pytestmark = pytest.mark.machine_neutral

NO_ENGINE = {"sardonyx.engine_cache": "0"}
LENGTHS = "ids:1x1,1x16,1x80"
BOTH = "ids:1x1,1x9,3x12"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the trust records are; kernels come from where all tests have them."""
    for purpose in ("models", "runtime"):
        library(purpose=purpose)
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARDONYX_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    write_transformer(path)
    return path


@pytest.fixture(scope="module")
def wanted(model: Path) -> ort.InferenceSession:
    """The session of the model."""
    return session(model, NO_ENGINE)


def compiled(model: Path, target: Path, profile: str, entries: dict[str, str] | None = None) -> Summary:
    options = ort.SessionOptions()
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return compile_engine(str(model), target, options, [shape_profiles.parse(profile)])


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with all lengths of up to 80."""
    target = tmp_path_factory.mktemp("engine") / "model.engine"
    summary = compiled(model, target, LENGTHS)
    assert [(one.sizes, one.covered, one.reason) for one in summary.coverage] == [(80, 80, "")]
    assert str(summary.coverage[0]) == "all 80 of it have plans"
    return target


def test_every_size_of_a_range_gives_the_bits_of_the_model(engine: Path, wanted: ort.InferenceSession) -> None:
    made = session(engine)
    for length in np.random.default_rng(0).permutation(np.arange(1, 81)).tolist():
        check_alike(made, wanted, 1, length)
    assert not is_compiled_later(made)
    check_alike(made, wanted, 1, 81)
    assert is_compiled_later(made)
    check_alike(made, wanted, 1, 40)


def test_batches_and_lengths(model: Path, wanted: ort.InferenceSession, tmp_path: Path) -> None:
    summary = compiled(model, tmp_path / "both.engine", BOTH)
    assert [(one.sizes, one.covered) for one in summary.coverage] == [(36, 36)]
    made = session(tmp_path / "both.engine")
    for batch in (1, 2, 3):
        for length in (1, 2, 5, 9, 11, 12):
            check_alike(made, wanted, batch, length)
    assert not is_compiled_later(made)
    for batch, length in ((4, 12), (3, 13)):
        check_alike(made, wanted, batch, length)
    assert is_compiled_later(made)


def test_one_thread_and_fewer_outputs(engine: Path, model: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    found = ort.InferenceSession(engine, options)
    wanted = ort.InferenceSession(model, options)
    for length in (1, 31, 80):
        check_alike(found, wanted, 1, length)
    assert found.run(["shape"], feeds(1, 7))[0].tolist() == [7]


# What loads and compiles models.
_NOT_IMPORTED = ("onnx", "onnx_ir", "llvmlite", "llvmlite.binding", "sardonyx.graph.load", "sardonyx.compiler.fusion")


def test_a_process_needs_nothing_that_compiles_for_sizes_that_it_has_not_seen(
    engine: Path, model: Path, cache: Path, wanted: ort.InferenceSession
) -> None:
    program = (
        "import sys, json, hashlib, numpy as np, sardonyx as ort\n"
        "options = ort.SessionOptions()\n"
        "options.intra_op_num_threads = 2\n"
        "made = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "given = np.load(sys.argv[2])\n"
        "digests = []\n"
        "for length in (1, 2, 33, 80):\n"
        "    ids, mask = given['ids'][:, :length], given['mask'][:, :length]\n"
        "    found = made.run(None, {'ids': ids, 'mask': mask})\n"
        "    digests.append(hashlib.sha256(found[0].tobytes()).hexdigest())\n"
        "print(json.dumps([digests, [name for name in sys.argv[3:] if name in sys.modules]]))\n"
    )
    given = feeds(1, 80)
    np.savez(model.parent / "given.npz", **given)
    run = [sys.executable, "-c", program, str(engine), str(model.parent / "given.npz"), *_NOT_IMPORTED]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env={**os.environ})
    digests, loaded = json.loads(done.stdout)
    assert loaded == []
    import hashlib

    for length, digest in zip((1, 2, 33, 80), digests, strict=True):
        cut = {name: np.ascontiguousarray(array[:, :length]) for name, array in given.items()}
        assert hashlib.sha256(wanted.run(None, cut)[0].tobytes()).hexdigest() == digest


def test_sizes_are_bounded_and_that_is_said(model: Path, wanted: ort.InferenceSession, tmp_path: Path) -> None:
    target = tmp_path / "few.engine"
    (found,) = compiled(model, target, LENGTHS, {MOST_SIZES: "11"}).coverage
    assert (found.sizes, found.covered, found.reason) == (80, 11, "there are more than an engine may have")
    assert "11 of 80 have plans, for others sessions compile the model in the engine" in str(found)
    made = session(target)
    for length in (8, 16, 80):
        check_alike(made, wanted, 1, length)
    assert not is_compiled_later(made)
    check_alike(made, wanted, 1, 79)
    assert is_compiled_later(made)


def test_the_usual_size_alone(model: Path, tmp_path: Path) -> None:
    (found,) = compiled(model, tmp_path / "one.engine", LENGTHS, {MOST_SIZES: "0"}).coverage
    assert (found.sizes, found.covered, found.reason) == (80, 1, "none are asked for")
    (found,) = compiled(model, tmp_path / "one.engine", LENGTHS, {SECONDS: "0"}).coverage
    assert (found.covered, found.reason) == (0, "they took too long to make")
    (found,) = compiled(model, tmp_path / "one.engine", "ids:1x7").coverage
    assert (found.sizes, found.covered, found.reason) == (1, 1, "")
    with pytest.raises(errors.InvalidArgument, match=r"sardonyx\.engine_sizes"):
        compiled(model, tmp_path / "one.engine", LENGTHS, {MOST_SIZES: "-1"})


def test_plans_that_are_too_large_are_left_out(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_plans, "_MOST_ROW_BYTES", 40_000)
    (found,) = compiled(model, tmp_path / "small.engine", LENGTHS).coverage
    assert 0 < found.covered < 80
    assert found.reason.startswith("their tables or constants are too large")


def test_whoever_compiles_hears_how_far_it_is(model: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def tell(done: int, whole: int) -> bool:
        told.append((done, whole))
        return True

    profile = shape_profiles.parse("ids:1x1,1x4,1x6")
    compile_engine(str(model), tmp_path / "told.engine", profiles=[profile], tell=tell)
    assert [one for one in told if one[1]] == [(done, 6) for done in range(6)]


def test_waits_for_what_compiles_are_counted(engine: Path, wanted: ort.InferenceSession) -> None:
    made = session(engine)
    for length in (1, 80, 33):
        made.run(None, feeds(1, length))
    told = explain(made, feeds(1, 5)).new_sizes
    assert told is not None
    assert (told.engine, told.waits, told.waited_ms, told.latest) == (True, 0, 0, ())
    assert [(one.sizes, one.covered) for one in told.coverage] == [(80, 80)]
    made.run(None, feeds(1, 90))
    made.run(None, feeds(1, 91))
    told = explain(made, feeds(1, 5)).new_sizes
    assert told is not None
    assert told.waits == 2
    assert told.waited_ms > 0
    first, second = told.latest
    assert "for which the model was loaded" in first
    assert "ids [1, 90]" in first
    assert "mask [1, 90]" in first
    assert "loaded" not in second
    assert "ids [1, 91]" in second
    told = explain(wanted, feeds(1, 5)).new_sizes
    assert told is not None
    assert (told.engine, told.coverage) == (False, ())


def test_no_room_to_compile_for_sizes_outside_is_said(engine: Path) -> None:
    """The limit of the address space leaves as much as runs take, but not what onnx does."""
    program = (
        "import resource, sys, numpy as np, sardonyx as ort\n"
        "from sardonyx import errors\n"
        "options = ort.SessionOptions()\n"
        "options.intra_op_num_threads = 1\n"
        "made = ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])\n"
        "def run(length):\n"
        "    return made.run(None, {name: np.ones((1, length), np.int64) for name in ('ids', 'mask')})\n"
        "run(80)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "most = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "for room in (8, 60):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (room << 20), most))\n"
        "    try:\n"
        "        print(run(90)[0].shape)\n"
        "    except errors.Fail as error:\n"
        "        print(error.message)\n"
        "    print(run(33)[0].shape)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "print(run(90)[0].shape)\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = [sys.executable, "-c", program, str(engine)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120, env=environment)
    first, inside, second, again, last = done.stdout.splitlines()
    for said in (first, second):
        if said != "(1, 90, 32)":  # as much room as it takes
            assert said.startswith("Compiling"), said
            assert "address space" in said
            assert "Raise the limit" in said
    assert "new sizes (" in first
    assert "ids [1, 90]" in first
    assert "sardonyx.engine_compiler" in first
    assert "sardonyx compile --profile" in first
    assert (inside, again) == ("(1, 33, 32)", "(1, 33, 32)")
    assert (last, done.returncode) == ("(1, 90, 32)", 0)
