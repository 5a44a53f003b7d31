"""Loops and scans whose bodies are native: the same as round by round, and no round by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx.compiler.control_flow_call import BodyCall
from sardonyx.runtime.native import rounds

Array = np.ndarray[Any, Any]

COUNTED = """counted (float[n] x, int64 m, bool go) => (float[n] y, float[k, n] s)
{ y, s = Loop(m, go, x)<body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] z)
    { f = Cast<to = 1>(i) w = Add(v, f) z = Mul(w, w) d = Identity(c) }> }"""
CONDITION = """condition (float[3] x, int64 m, bool go) => (float[3] y, float[k] s)
{ y, s = Loop(m, go, x)<body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w, float t)
    { w = Add(v, v) t = ReduceSum<keepdims = 0>(w) most = Constant<value_float = 1000.0>() d = Less(t, most) }> }"""
OUTER = """outer (float[n] x, int64 m, bool go) => (float[n] y, float[n] kept, float[k, n] s)
{ a = Mul(x, x)
  y, kept, s = Loop(m, go, x, a)<body = b (int64 i, bool c, float[n] v, float[n] u)
      => (bool d, float[n] w, float[n] u, float[n] z)
    { half = Constant<value_float = 0.5>() h = Mul(v, half) w = Add(h, a) d = Identity(c) z = Sub(w, u) }> }"""
FIBONACCI = """fibonacci (float[n] x, float[n] x1, int64 m, bool go) => (float[n] y, float[n] z)
{ y, z = Loop(m, go, x, x1)<body = b (int64 i, bool c, float[n] p, float[n] q) => (bool d, float[n] r, float[n] s)
    { r = Identity(q) s = Add(p, q) d = Identity(c) }> }"""
GROWING = """growing (float[n] x, int64 m, bool go) => (float[l] y)
{ y = Loop(m, go, x)<body = b (int64 i, bool c, float[j] v) => (bool d, float[o] w)
    { w = Concat<axis = 0>(v, x) d = Identity(c) }> }"""
INDEXED = """indexed (float[n] x, int64 m, bool go) => (float[n] y, float[k] s)
{ y, s = Loop(m, go, x)<body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float z)
    { z = Gather<axis = 0>(x, i) w = Add(v, z) d = Identity(c) }> }"""
SCAN = """scan (float[n] x, float[k, n] p, float[n, k] q) => (float[n] y, float[n, k] s, float[k, n] t)
{ y, s, t = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                 scan_output_axes = [1, 0], scan_output_directions = [0, 1],
                 body = b (float[n] v, float[n] e, float[n] f) => (float[n] w, float[n] g, float[n] h)
    { a = Add(v, e) w = Tanh(a) g = Mul(w, f) h = Sub(e, f) }>(x, p, q) }"""


class Watch:
    """Counts the rounds done natively and those done one by one; with `never`, all are done one by one."""

    def __init__(self) -> None:
        self.never = False
        self.native = self.single = 0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    native, single = BodyCall.rounds, BodyCall.__call__

    def counted_rounds(self: BodyCall, given: rounds.Rounds) -> rounds.Outcome | None:
        outcome = None if watch.never else native(self, given)
        watch.native += 0 if outcome is None else outcome.done
        return outcome

    def counted_call(self: BodyCall, *arguments: Any) -> list[Any]:
        watch.single += 1
        return single(self, *arguments)

    monkeypatch.setattr(BodyCall, "rounds", counted_rounds)
    monkeypatch.setattr(BodyCall, "__call__", counted_call)
    return watch


def session_of(text: str, threads: int = 1) -> ort.InferenceSession:
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False  # no run takes the short way, where nobody counts rounds
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def both_ways(text: str, feeds: Mapping[str, Array], watch: Watch) -> list[Array]:
    """The outputs in native rounds, which are those of single rounds."""
    session = session_of(text)
    watch.never = True
    expected = session.run(None, feeds)
    watch.never, watch.native, watch.single = False, 0, 0
    found = session.run(None, feeds)
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == right.dtype
        np.testing.assert_array_equal(mine, right)
    return found


def loop_feeds(x: Array, limit: int) -> dict[str, Array]:
    return {"x": x, "m": np.array(limit), "go": np.array(True)}


def shares(count: int) -> tuple[int, int]:
    """How many of so many rounds are done in native code, and one by one: all of them if there are few."""
    return (0, count) if count <= 2 else (count, 0)


X = np.random.default_rng(0).standard_normal(5).astype(np.float32)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_counted_loop(limit: int, watch: Watch) -> None:
    y, s = both_ways(COUNTED, loop_feeds(X, limit), watch)
    assert (watch.native, watch.single) == shares(limit)
    np.testing.assert_allclose(y, X + sum(range(limit)), rtol=1e-5)
    assert s.shape == (limit, 5)


def test_no_round_at_all(watch: Watch) -> None:
    y, s = both_ways(COUNTED, loop_feeds(X, 0), watch)
    np.testing.assert_array_equal(y, X)
    assert (watch.native, watch.single, len(s)) == (0, 0, 0)


def test_a_condition_ends_the_loop(watch: Watch) -> None:
    y, s = both_ways(CONDITION, loop_feeds(np.ones(3, np.float32), 1 << 40), watch)
    np.testing.assert_array_equal(y, np.full(3, 512, np.float32))
    np.testing.assert_array_equal(s, 3 * 2.0 ** np.arange(1, 10))
    assert (watch.native, watch.single) == (9, 0)
    assert s.base is None or s.base.size == s.size


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_outer_values_and_values_that_stay(limit: int, watch: Watch) -> None:
    both_ways(OUTER, loop_feeds(X, limit), watch)
    assert (watch.native, watch.single) == shares(limit)


def test_values_that_change_places(watch: Watch) -> None:
    one = np.ones(1, np.float32)
    y, z = both_ways(FIBONACCI, {**loop_feeds(one, 20), "x1": one}, watch)
    assert (y[0], z[0]) == (10946, 17711)
    assert watch.native == 20


def test_shapes_that_change_go_round_by_round(watch: Watch) -> None:
    (y,) = both_ways(GROWING, loop_feeds(X, 6), watch)
    np.testing.assert_array_equal(y, np.tile(X, 7))
    assert (watch.native, watch.single) == (0, 6)


def test_a_bad_index_is_the_error_of_its_round(watch: Watch) -> None:
    _, s = both_ways(INDEXED, loop_feeds(X, 5), watch)
    np.testing.assert_array_equal(s, X)
    session = session_of(INDEXED)
    messages = []
    for never in (True, False):
        watch.never = never
        with pytest.raises(ort.errors.OnnxRuntimeError, match="5") as caught:
            session.run(None, loop_feeds(X, 9))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("length", [0, 1, 2, 33])
def test_a_scan_in_all_directions(length: int, watch: Watch) -> None:
    rng = np.random.default_rng(1)
    p = rng.standard_normal((length, 5)).astype(np.float32)
    q = rng.standard_normal((5, length)).astype(np.float32)
    y, s, t = both_ways(SCAN, {"x": X, "p": p, "q": q}, watch)
    assert (watch.native, watch.single) == shares(length)
    state, first, second = X.astype(np.float64), [], []
    for step in range(length):
        state = np.tanh(state + p[step])
        first.append(state * q[:, length - 1 - step])
        second.append(p[step] - q[:, length - 1 - step])
    np.testing.assert_allclose(y, state, rtol=1e-5)
    if length:
        np.testing.assert_allclose(s, np.stack(first, 1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(t, np.stack(second[::-1]), rtol=1e-5, atol=1e-6)


def test_collected_values_come_in_pieces(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_COLLECTED_BYTES", 100)
    both_ways(COUNTED, loop_feeds(X, 23), watch)
    assert (watch.native, watch.single) == (23, 0)


def test_threads_share_large_bodies(watch: Watch) -> None:
    x = np.random.default_rng(2).standard_normal(200_000).astype(np.float32)
    expected = session_of(OUTER).run(None, loop_feeds(x, 5))
    found = session_of(OUTER, threads=3).run(None, loop_feeds(x, 5))
    assert watch.native == 10
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_a_loop_can_be_terminated(watch: Watch) -> None:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(ort.errors.OnnxRuntimeError, match="terminate"):
        session_of(COUNTED).run(None, loop_feeds(X, 1000), options)


def test_a_profile_shows_every_round(watch: Watch, tmp_path: Any) -> None:
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + COUNTED)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, loop_feeds(X, 4))
    session.end_profiling()
    assert (watch.native, watch.single) == (0, 4)
