"""What the options and config keys about threads do to the threads of a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.runtime.threads import processors
from sardonyx.runtime.threads.thread_pool import ThreadPool
from sardonyx.runtime.threads.thread_pool_options import Idling
from sardonyx.runtime.threads.thread_pool_words import MemberField
from tests.runtime.workers import looks, looks_per_second, wait_for_sleep, wait_until

MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 20]> agraph (float[n, 256] x) => (float[n, 256] y) '
    "{ a = Exp(x) b = Softmax(a) y = Add(b, x) }"
).SerializeToString()
X = np.linspace(-1, 1, 2048 * 256, dtype=np.float32).reshape(2048, 256)
BASE = "session.dynamic_block_base"


@pytest.fixture(autouse=True)
def _no_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


def session(threads: int = 0, **config: Any) -> ort.InferenceSession:
    """A session with config entries, by the names of `KEYS`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in config.items():
        options.add_session_config_entry(KEYS[name], str(value))
    return ort.InferenceSession(MODEL, options)


KEYS = {
    "base": BASE,
    "spinning": "session.intra_op.allow_spinning",
    "duration": "session.intra_op.spin_duration_us",
    "backoff": "session.intra_op.spin_backoff_max",
    "branch_spinning": "session.inter_op.allow_spinning",
    "branch_duration": "session.inter_op.spin_duration_us",
    "branch_backoff": "session.inter_op.spin_backoff_max",
}


def thread_pool_of(made: ort.InferenceSession) -> ThreadPool:
    return made._sess.short_way.segment._thread_pool  # type: ignore[union-attr]


def workers_after_a_run(made: ort.InferenceSession) -> int:
    made.run(None, {"x": X})
    return len(thread_pool_of(made).workers)


def claims_of_a_run(made: ort.InferenceSession) -> int:
    made.run(None, {"x": X})
    thread_pool = thread_pool_of(made)
    before = sum(thread_pool.column(MemberField.CLAIMS))
    made.run(None, {"x": X})
    return sum(thread_pool.column(MemberField.CLAIMS)) - before


# Blocks


def test_blocks_are_claimed_less_often() -> None:
    made = {base: session(2, base=base) for base in (0, 1, 4)}
    claims = {base: claims_of_a_run(one) for base, one in made.items()}
    assert claims[1] < claims[4] < claims[0]
    results = [one.run(None, {"x": X})[0] for one in made.values()]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("base", [-1, 0])
def test_no_base_below_one_divides_anything(base: int) -> None:
    assert claims_of_a_run(session(2, base=base)) == claims_of_a_run(session(2))


# OpenMP's environment


def test_openmp_says_how_many_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert workers_after_a_run(session()) == 2
    assert workers_after_a_run(session(2)) == 1  # what the session says counts more
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert workers_after_a_run(session()) == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "lots")
    assert workers_after_a_run(session()) == processors.default_threads() - 1


def test_openmp_says_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_pool_of(session(2)).options.idling(1).nanoseconds > 0
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert looks_before_sleep(session(2)) <= 1000
    assert thread_pool_of(session(2, spinning=1)).options.idling(1).nanoseconds > 0  # what the session says counts more
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_pool_of(session(2)).options.idling(1).nanoseconds > 0
    assert thread_pool_of(session(2, spinning=0)).options.idling(1).nanoseconds == 0


def looks_before_sleep(made: ort.InferenceSession) -> int:
    """How often a worker looks for another run after one until it sleeps."""
    made.run(None, {"x": X})
    thread_pool = thread_pool_of(made)
    begin = looks(thread_pool, 1)
    wait_for_sleep(thread_pool, 1)
    return looks(thread_pool, 1) - begin


# Threads that look for work


def test_workers_look_for_work_as_long_as_they_are_told() -> None:
    made = session(2, duration=50_000_000)
    made.run(None, {"x": X})
    begin = looks(thread_pool_of(made), 1)
    wait_until(lambda: looks(thread_pool_of(made), 1) > begin + 10_000)
    assert looks_before_sleep(session(2, duration=0)) <= 1000


def test_pauses_between_looks_grow() -> None:
    found = []
    for backoff in (1, 64):
        made = session(2, duration=50_000_000, backoff=backoff)
        made.run(None, {"x": X})
        found.append(looks_per_second(thread_pool_of(made), 1))
    often, rarely = found
    assert 0 < 4 * rarely < often


@pytest.mark.parametrize(("given", "taken"), [("0", 1), ("7", 7), ("64", 64), ("1000000", 64), ("-3", 1), ("x", 1)])
def test_pauses_are_bounded_as_in_onnxruntime(given: str, taken: int) -> None:
    assert thread_pool_of(session(2, backoff=given)).options.idling(1).backoff == taken


def test_keys_of_the_other_pool_are_for_threads_that_parallel_mode_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.runtime.threads.processors.available_processors", lambda: frozenset(range(8)))
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 2, 2
    options.add_session_config_entry("session.intra_op.spin_duration_us", "7000")
    options.add_session_config_entry("session.inter_op.spin_duration_us", "9000")
    options.add_session_config_entry("session.inter_op.spin_backoff_max", "8")
    alone = thread_pool_of(ort.InferenceSession(MODEL, options)).options
    assert alone.threads == 2
    assert alone.idling(1) == Idling(True, 0.007, 1)
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    both = thread_pool_of(ort.InferenceSession(MODEL, options)).options
    assert [both.idling(number) for number in (1, 2, 3)] == [Idling(True, 0.007, 1), *[Idling(True, 0.009, 8)] * 2]
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    made = ort.InferenceSession(MODEL, options)
    made.run(None, {"x": X})
    spins = thread_pool_of(made).column(MemberField.SPIN)
    assert spins[1:] == [7_000_000, 0, 0]
