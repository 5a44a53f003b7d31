"""Threads of sessions that a caller's functions make and end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from sardonyx.runtime.threads.thread_pool_words import MemberField
from tests.runtime.workers import PATIENCE

pytestmark = pytest.mark.machine_neutral

MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 20]> agraph (float[n, 256] x) => (float[n, 256] y) '
    "{ a = Exp(x) b = Softmax(a) y = Add(b, x) }"
).SerializeToString()
X = np.linspace(-1, 1, 512 * 256, dtype=np.float32).reshape(512, 256)


class Made:
    """Callbacks that make threads, and what they were asked."""

    def __init__(self) -> None:
        self.created: list[tuple[Any, threading.Thread]] = []
        self.joined: list[threading.Thread] = []

    def create(self, options: Any, work: Any) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"mine-{len(self.created)}")
        self.created.append((options, thread))
        thread.start()
        return thread

    def join(self, handle: threading.Thread) -> None:
        handle.join(PATIENCE)
        self.joined.append(handle)

    def options(self, threads: int) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.set_custom_create_thread_fn(self.create)
        options.set_custom_thread_creation_options("mine")
        options.set_custom_join_thread_fn(self.join)
        return options


def _result() -> np.ndarray[Any, Any]:
    return ort.InferenceSession(MODEL).run(None, {"x": X})[0]


def test_threads_are_made_with_the_session_and_joined_when_it_goes() -> None:
    made = Made()
    session = ort.InferenceSession(MODEL, made.options(3))
    assert [options for options, _ in made.created] == ["mine", "mine"]
    threads = [thread for _, thread in made.created]
    assert {thread.name for thread in threads} <= {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], _result())
    assert made.joined == []
    gc.disable()
    try:
        del session
        assert made.joined == threads
    finally:
        gc.enable()
    assert not any(thread.is_alive() for thread in threads)


def test_threads_that_were_made_take_part() -> None:
    made = Made()
    session = ort.InferenceSession(MODEL, made.options(2))
    thread_pool = session._sess.short_way.segment._thread_pool  # type: ignore[union-attr]
    deadline = time.monotonic() + PATIENCE
    while thread_pool.column(MemberField.CLAIMS)[1] == 0:
        assert time.monotonic() < deadline, "it took no part"
        session.run(None, {"x": X})
    assert thread_pool.workers == ()  # none of Python's own


def test_one_thread_needs_nobody_else() -> None:
    made = Made()
    session = ort.InferenceSession(MODEL, made.options(1))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], _result())
    del session
    gc.collect()
    assert made.created == []
    assert made.joined == []


def test_sessions_have_threads_of_their_own() -> None:
    made = Made()
    options = made.options(2)
    sessions = [ort.InferenceSession(MODEL, options) for _ in range(2)]
    assert len(made.created) == 2
    sessions.pop()
    gc.collect()
    assert len(made.joined) == 1
    np.testing.assert_array_equal(sessions[0].run(None, {"x": X})[0], _result())


def test_threads_end_with_their_session_though_another_one_runs_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    os.utime(path, (1e9, 1e9))  # settled long ago
    made, plain = Made(), ort.SessionOptions()
    plain.intra_op_num_threads = 2
    first = ort.InferenceSession(path, made.options(2))
    second = ort.InferenceSession(path, plain)
    third = ort.InferenceSession(path, made.options(2))
    for session in (first, second, third):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], _result())
    assert len(made.created) == 2
    del first, session
    gc.collect()
    assert made.joined == [made.created[0][1]]
    del third
    gc.collect()
    assert len(made.joined) == 2
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], _result())


def test_threads_of_parallel_mode_are_made_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.runtime.threads.processors.available_processors", lambda: frozenset(range(8)))
    made = Made()
    options = made.options(2)
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    session = ort.InferenceSession(MODEL, options)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], _result())
    assert len(made.created) == 3  # two threads for each of two branches, one of them the caller


def test_what_makes_threads_needs_what_joins_them() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.set_custom_create_thread_fn(Made().create)
    with pytest.raises(errors.Fail, match="custom join thread function not set"):
        ort.InferenceSession(MODEL, options)


@pytest.mark.parametrize("name", ["set_custom_create_thread_fn", "set_custom_join_thread_fn"])
def test_only_functions_are_taken(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*a function"):
        getattr(ort.SessionOptions(), name)(5)


@pytest.mark.parametrize("outcome", [ValueError("no thread today"), None])
def test_a_function_that_makes_no_thread_is_an_error_and_leaves_none(outcome: ValueError | None) -> None:
    made = Made()

    def create(options: Any, work: Any) -> threading.Thread | None:
        if len(made.created) < 2:
            return made.create(options, work)
        if outcome is None:
            return None
        raise outcome

    options = made.options(4)
    options.set_custom_create_thread_fn(create)
    told = "raised ValueError: no thread today" if outcome else "returned invalid handle: None"
    with pytest.raises(errors.Fail, match=rf"custom_create_thread_fn {told} \(worker 3 of 3\)"):
        ort.InferenceSession(MODEL, options)
    assert len(made.joined) == 2
    assert not any(thread.is_alive() for _, thread in made.created)


def test_the_work_is_not_for_the_thread_that_asks_for_another() -> None:
    made = Made()
    options = made.options(2)
    options.set_custom_create_thread_fn(lambda options, work: work())
    with pytest.raises(errors.Fail, match="RuntimeError: the work of a thread was called by the thread that shall"):
        ort.InferenceSession(MODEL, options)


def test_a_function_that_cannot_join_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    made = Made()

    def join(handle: threading.Thread) -> None:
        made.join(handle)
        raise KeyError("handle")

    options = made.options(3)
    options.set_custom_join_thread_fn(join)
    session = ort.InferenceSession(MODEL, options)
    del session
    gc.collect()
    assert len(made.joined) == 2
    assert capfd.readouterr().err.count("custom_join_thread_fn raised KeyError: 'handle'") == 2


_PROGRAM = """
import threading
import numpy as np
import sardonyx as ort
from tests.api.test_thread_callbacks import MODEL, X, Made

made = Made()
{body}
print(len(made.created), threading.active_count(), flush=True)
"""


def _printed(body: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(body=body)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_process_ends_though_threads_are_no_daemons() -> None:
    assert _printed("session = ort.InferenceSession(MODEL, made.options(3)); session.run(None, {'x': X})") == "2 3\n"


def test_the_pool_of_all_sessions() -> None:
    body = """
ort.set_global_custom_create_thread_fn(made.create)
ort.set_global_custom_thread_creation_options("ours")
try:
    ort.set_global_thread_pool_sizes(3, 1)
except Exception as error:
    print(type(error).__name__, "join" in str(error))
ort.set_global_custom_join_thread_fn(made.join)
ort.set_global_thread_pool_sizes(3, 1)
try:
    ort.set_global_custom_join_thread_fn(made.join)
except Exception as error:
    print(type(error).__name__, "already" in str(error))
options = ort.SessionOptions()
options.use_per_session_threads = False
options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # of no concern to the pool
other = ort.SessionOptions()
other.use_per_session_threads = False
sessions = [ort.InferenceSession(MODEL, options), ort.InferenceSession(MODEL, other)]
for session in sessions:
    session.run(None, {"x": X})
print([options for options, _ in made.created])
"""
    assert _printed(body) == "Fail True\nFail True\n['ours', 'ours']\n2 3\n"
