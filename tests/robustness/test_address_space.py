"""Sessions where address space is scarce (RLIMIT_AS): right results or a typed error, and the process lives on.

Each case is a process of its own, whose limit begins to hold at some stage; see `benchmarks.scarce_program`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.address_space import Model, Prepared, write_small
from sardonyx import errors
from sardonyx.runtime.memory import address_space

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")

MB = 1 << 20
ROOT = Path(__file__).parents[2]

# With one thread of OpenBLAS, NumPy takes as much on every machine.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("small")
    write_small(folder / "small.onnx", folder / "small.npz")
    return Model("small", str(folder / "small.onnx"), str(folder / "small.npz"))


@pytest.fixture(autouse=True)
def one_thread_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def is_fine(found: dict[str, Any]) -> bool:
    """Whether a process gave right results, or a typed error after which it went on."""
    return found["outcome"] == "right" or (found["outcome"] == "typed" and found["recovers"])


@pytest.fixture(scope="module", params=["cold", "engine"])
def start(request: pytest.FixtureRequest, small: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with Prepared(small, "sardonyx", 2, request.param, tmp_path_factory.mktemp(request.param)) as prepared:
        yield prepared


@pytest.mark.parametrize(
    ("at", "extra"),
    [
        ("import", 1),
        ("session", 4),
        ("session", 24),
        ("session", 48),
        ("run", 1),
        ("run", 8),
        ("shape", 1),
        ("shape", 8),
    ],
)
def test_a_limit_that_begins_to_hold(start: Prepared, at: str, extra: int) -> None:
    found = start.one(at, -extra * MB)
    assert is_fine(found), found


def test_a_limit_under_which_llvm_would_end_the_process(small: Model, tmp_path: Path) -> None:
    with Prepared(small, "sardonyx", 2, "cold", tmp_path) as prepared:
        found = prepared.one("numpy", 400 * MB)
    assert found["outcome"] == "right", found


def test_a_cold_session_takes_little_more_than_its_imports(small: Model, tmp_path: Path) -> None:
    """LLVM is in another process: this one has NumPy, onnx and what the session itself keeps."""
    with Prepared(small, "sardonyx", 1, "cold", tmp_path) as prepared:
        found = prepared.one("numpy", 260 * MB)
    assert found["outcome"] == "right", found
    assert found["VmPeak"] < 260
    assert found["VmHWM"] < 110


def program(text: str, megabytes: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a program printed that runs under a limit from its beginning on."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes * MB}, resource.RLIM_INFINITY))\n"
    lift = "def lift(): resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
    return subprocess.run(
        [sys.executable, "-c", limit + lift + text],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_import_without_room_for_numpy_says_so() -> None:
    """NumPy's own import would end the process: OpenBLAS calls exit."""
    done = program(
        """
import sardonyx as ort
from sardonyx import errors
try:
    ort.InferenceSession
except errors.Fail as error:
    print(error.message)
lift()
print(ort.InferenceSession.__name__)
""",
        60,
    )
    said, name = done.stdout.splitlines()
    assert said.startswith("Importing NumPy needs 92 MB of address space; ")
    assert "under the limit of 63 MB (ulimit -v). Raise the limit, or set OPENBLAS_NUM_THREADS=1" in said
    assert (name, done.returncode, done.stderr) == ("InferenceSession", 0, "")


def test_a_compiler_without_room_says_so(small: Model, tmp_path: Path) -> None:
    """Its process gets the limit too, and cannot even load LLVM; this one goes on, and compiles when there is room."""
    done = program(
        """
import sys
import numpy as np
import sardonyx as ort
from sardonyx import errors
try:
    ort.InferenceSession(sys.argv[1])
except errors.Fail as error:
    print(error.message)
lift()
print(ort.InferenceSession(sys.argv[1]).run(None, {"x": np.zeros((1, 256), np.float32)})[0].shape)
""".replace("sys.argv[1]", repr(small.path)),
        165,
        SARDONYX_CACHE=str(tmp_path),
    )
    said, shape = done.stdout.splitlines()
    assert said.startswith(
        "Compiling a kernel failed, LLVM could not be loaded there: the process that compiles needs "
    )
    assert "Raise the limit, or make the session from an engine" in said
    assert (shape, done.returncode) == ("(1, 256)", 0)


def test_an_engine_without_room_for_new_sizes_says_so(small: Model, tmp_path: Path) -> None:
    with Prepared(small, "sardonyx", 1, "engine", tmp_path) as prepared:
        found = prepared.one("shape", -16 * MB)
        assert (found["outcome"], found["stage"], found["recovers"]) == ("typed", "shape", True), found
        assert "Compiling for new sizes (x [" in found["error"]
        assert "256]), for which the engine has no plan, needs 38 MB of address space; " in found["error"]
        assert "compile an engine whose profile has these sizes" in found["error"]
        assert "sardonyx.engine_compiler" in found["error"]


def test_no_process_that_compiles_is_left_behind(small: Model, tmp_path: Path) -> None:
    done = program(
        f"""
import time
import numpy as np
import sardonyx as ort
from pathlib import Path
made = ort.InferenceSession({small.path!r})
for size in (1, 70):
    made.run(None, {{"x": np.zeros((size, 256), np.float32)}})
def children(): return "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
last = time.monotonic() + 30  # the engine that is kept may still be compiled for
while children() and time.monotonic() < last: time.sleep(0.1)
print([children()])
print("llvmlite.binding" in __import__("sys").modules)
""",
        400,
        SARDONYX_CACHE=str(tmp_path),
    )
    children, has_llvm = done.stdout.splitlines()
    assert not children.strip("[]', ")
    assert (has_llvm, done.returncode) == ("False", 0)


def test_a_module_that_was_read_in_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's parser blames the text of a module if it gets no memory in the midst of it."""
    error = SyntaxError("expected ':'", (errors.__file__, 5, 1, "else"))
    assert address_space.explained(error, "Making the session") is None  # nothing limits this process
    monkeypatch.setattr(address_space, "limit", lambda: 100 * MB)
    found = address_space.explained(error, "Making the session")
    assert found is not None
    assert found.message.startswith("Making the session needs more address space than there is")
    assert found.message.endswith(f"(SyntaxError: expected ':' ({Path(errors.__file__).name}, line 5))")
    assert address_space.explained(SyntaxError("x", ("<text>", 1, 1, "")), "Making the session") is None
