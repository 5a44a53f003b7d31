"""Models of several native steps and control flow, whose runs after the first ones are chains without Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import sardonyx as ort
from sardonyx.runtime.native.fast_call import is_usable

pytestmark = pytest.mark.skipif(
    not is_usable(), reason="the interpreter's objects are not laid out as native code reads"
)

Array = np.ndarray[Any, Any]


def session_of(text: str, *, short: bool = True, threads: int = 1) -> ort.InferenceSession:
    model: ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = short  # without it no session takes the short way
    return ort.InferenceSession(model.SerializeToString(), options)


def is_chained(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> bool:
    return session._sess.fast_run(None, dict(feeds)) is not None


def check(text: str, runs: Sequence[Mapping[str, Array]], *, threads: int = 1, chained: bool = True) -> None:
    """Every run gives what the long way gives, bit for bit; the last one takes the short way, if it is to."""
    session, other = session_of(text, threads=threads), session_of(text, short=False)
    for _ in range(3):
        for feeds in runs:
            for found, expected in zip(session.run(None, feeds), other.run(None, feeds), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
    assert is_chained(session, runs[-1]) == chained


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_constants_that_no_rewrite_took_out_are_in_chains() -> None:
    text = """m (float[n] x, bool flag) => (float[] y, int64[] at) {
        three = Constant<value = float[1] {3.0}>() at = NonZero(x)
        y = If (flag) <then_branch = g () => (a) { a = Mul(x, three) },
                       else_branch = h () => (b) { b = Add(x, three) }> }"""
    model: ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    x = numbers(5)
    for flag in (True, False, True, False, True):
        feeds = {"x": x, "flag": np.array(flag)}
        y, at = session.run(None, feeds)
        np.testing.assert_array_equal(y, x * np.float32(3) if flag else x + np.float32(3))
        np.testing.assert_array_equal(at, np.nonzero(x))
    assert is_chained(session, feeds)


def test_contents_that_decide_are_compared_in_chains() -> None:
    """What steers one of several steps, be it an input itself or a view of one."""
    text = """m (float[n, 6] x, int64[1] rows, int64[1] k) => (float[] y, int64[] at, float[] z) {
        rest = Constant<value = int64[1] {-1}>() one = Constant<value = int64[1] {1}>()
        p = Relu(x) at = NonZero(p) n = Reshape(rows, one) shape = Concat<axis = 0>(n, rest)
        r = Reshape(p, shape) y = Neg(r) z, i = TopK(x, k) }"""
    one, other = session_of(text), session_of(text, short=False)
    x = numbers(4, 6)
    kinds = [{"x": x, "rows": np.array([rows]), "k": np.array([k])} for rows, k in ((8, 2), (3, 2), (3, 5))]
    for feeds in (*kinds, *reversed(kinds)):
        for _ in range(4):
            for found, expected in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
                np.testing.assert_array_equal(found, expected)
        assert is_chained(one, feeds)
        assert sum(is_chained(one, kind) for kind in kinds) == 1


BRANCHES = """m (bool c, float[n, 5] x) => (float[n, 5] y, float[n, 5] z, float[n, 5] w) {
    s = Sigmoid(x)
    a, b = If(c) <
        then_branch = yes () => (float[n, 5] p, float[n, 5] q) { p = Add(s, x) q = Identity(p) },
        else_branch = no () => (float[n, 5] r, float[n, 5] t) { r = Identity(s) t = Mul(x, x) }>
    y = Exp(a) z = Sub(b, s) w = Identity(b) }"""


@pytest.mark.parametrize("threads", [1, 2])
def test_both_branches_once_both_have_run(threads: int) -> None:
    runs = [{"c": np.array(c), "x": numbers(7, 5, seed=seed)} for seed, c in enumerate((True, False, False, True))]
    check(BRANCHES, runs, threads=threads)


def test_a_branch_that_never_ran_is_not_bound() -> None:
    session = session_of(BRANCHES)
    feeds = {"c": np.array(True), "x": numbers(7, 5)}
    for _ in range(3):
        session.run(None, feeds)
    assert is_chained(session, feeds)
    other = {"c": np.array(False), "x": numbers(7, 5)}
    assert not is_chained(session, other)
    expected = session_of(BRANCHES, short=False).run(None, other)
    for found, wanted in zip(session.run(None, other), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert is_chained(session, other)
    assert is_chained(session, feeds)


def test_values_pass_through_branches() -> None:
    text = """m (bool c, float[4] x, float[4] v) => (float[4] y, float[4] z, float[4] u) {
        s = Neg(x)
        y, z = If(c) <
            then_branch = yes () => (float[4] p, float[4] q) { p = Identity(s) q = Identity(s) },
            else_branch = no () => (float[4] r, float[4] t) { r = Identity(v) t = Abs(s) }>
        u = Identity(s) }"""
    check(text, [{"c": np.array(c), "x": numbers(4, seed=1), "v": numbers(4, seed=2)} for c in (True, False, True)])


def test_branches_in_branches() -> None:
    text = """m (bool c, bool d, float[4] x) => (float[4] y) {
        s = If(c) <
            then_branch = yes () => (float[4] p) {
                p = If(d) < then_branch = both () => (float[4] k) { k = Add(x, x) },
                            else_branch = one () => (float[4] l) { l = Mul(x, x) } > },
            else_branch = no () => (float[4] r) { r = Neg(x) }>
        y = Exp(s) }"""
    truths = [(True, True), (True, False), (False, True), (True, True)]
    check(text, [{"c": np.array(c), "d": np.array(d), "x": numbers(4, seed=3)} for c, d in truths])


def test_branches_of_different_shapes_take_the_long_way() -> None:
    text = """m (bool c, float[4] x) => (float[k] y) {
        y = If(c) <
            then_branch = yes () => (float[4] p) { p = Add(x, x) },
            else_branch = no () => (float[8] q) { q = Concat<axis = 0>(x, x) }> }"""
    check(text, [{"c": np.array(c), "x": numbers(4)} for c in (True, False, True)], chained=False)


LOOP = """m (int64 n, bool c, float[3] x, float[3] v) => (float[3] y, float[3] z, float[1] k) {
    one = Constant<value_floats = [1.0]>() most = Constant<value_float = 1e3>()
    y, z, k = Loop(n, c, x, v, one) <body = round (int64 i, bool going, float[3] a, float[3] b, float[1] d)
        => (bool again, float[3] b1, float[3] a1, float[1] d1) {
            w = Cast<to = 1>(i)
            a0 = Mul(a, d) a1 = Add(a0, w)
            b1 = Identity(b)
            d1 = Add(d, one)
            size = ReduceMax<keepdims = 0>(a1)
            again = Less(size, most) }> }"""


def test_loops_whose_states_change_places() -> None:
    runs = [
        {"n": np.array(n), "c": np.array(c), "x": numbers(3, seed=n + 5), "v": numbers(3, seed=n + 9)}
        for n, c in ((3, True), (0, True), (2, False), (1, True), (40, True), (-3, True), (4, True))
    ]
    check(LOOP, runs)


def test_a_loop_that_never_ran_declines_when_it_does() -> None:
    session = session_of(LOOP)
    feeds = {"n": np.array(0), "c": np.array(True), "x": numbers(3), "v": numbers(3, seed=1)}
    for _ in range(3):
        session.run(None, feeds)
    assert is_chained(session, feeds)
    more = {**feeds, "n": np.array(2)}
    assert not is_chained(session, more)
    expected = session_of(LOOP, short=False).run(None, more)
    for found, wanted in zip(session.run(None, more), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert is_chained(session, more)


def test_a_branch_within_a_loop() -> None:
    text = """m (int64 n, float[4] x) => (float[4] y) {
        zero = Constant<value_float = 0.0>()
        y = Loop(n, , x) <body = round (int64 i, bool going, float[4] a) => (bool again, float[4] b) {
            again = Identity(going)
            sum = ReduceSum<keepdims = 0>(a) large = Greater(sum, zero)
            b = If(large) < then_branch = yes () => (float[4] p) { p = Sub(a, x) },
                            else_branch = no () => (float[4] q) { q = Abs(a) } > }> }"""
    check(text, [{"n": np.array(n), "x": numbers(4, seed=n)} for n in (3, 8, 1, 5)])


def test_collected_items() -> None:
    text = """m (float[4] s, float[n, 4] a, float[n, 2, 4] b)
            => (float[4] y, float[n, 4] p, float[n, 2, 4] q, float[n, 4] r) {
        y, p, q, r = Scan<num_scan_inputs = 2, body = round (float[4] u, float[4] v, float[2, 4] w)
            => (float[4] u1, float[4] p1, float[2, 4] q1, float[4] r1) {
                u1 = Add(u, v) p1 = Identity(u1) q1 = Mul(w, u1) r1 = Identity(u) }>(s, a, b) }"""
    runs = [{"s": numbers(4, seed=n), "a": numbers(n, 4, seed=1), "b": numbers(n, 2, 4, seed=2)} for n in (1, 3, 3, 3)]
    check(text, runs)


def test_items_backwards_take_the_long_way() -> None:
    text = """m (float[4] s, float[n, 4] a) => (float[4] y, float[n, 4] p) {
        y, p = Scan<num_scan_inputs = 1, scan_input_directions = [1], body = round (float[4] u, float[4] v)
            => (float[4] u1, float[4] p1) { u1 = Sub(v, u) p1 = Identity(u1) }>(s, a) }"""
    check(text, [{"s": numbers(4), "a": numbers(3, 4, seed=seed)} for seed in range(3)], chained=False)


def test_an_index_out_of_range_in_a_branch_is_reported_and_forgotten() -> None:
    text = """m (bool c, int64[2] i, float[4] x) => (float[2] y) {
        s = Neg(x)
        p = Gather(s, i)
        y = If(c) < then_branch = yes () => (float[2] q) { q = Gather(x, i) },
                    else_branch = no () => (float[2] r) { r = Abs(p) } > }"""
    session = session_of(text)
    good = {"c": np.array(True), "i": np.array([1, 3]), "x": numbers(4)}
    expected = good["x"][[1, 3]]
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, good)[0], expected)
    assert is_chained(session, good)
    for _ in range(2):
        with pytest.raises(Exception, match=r"Gather node. Name:'' \(which makes '\w+'\) .*idx=9"):
            session.run(None, {**good, "i": np.array([9, 1])})
        np.testing.assert_array_equal(session.run(None, good)[0], expected)


COUNTED = """m (bool[n] c, float[n, 3] x) => (float[k, 3] y, int64[1, l] z, float[n, 3] u) {
    u = Neg(x)
    y = Compress<axis = 0>(u, c)
    z = NonZero(c) }"""


@pytest.mark.parametrize("rows", [1, 9, 40_000])
def test_results_whose_size_is_counted(rows: int) -> None:
    random = np.random.default_rng(3)
    runs = [{"c": random.random(rows) < share, "x": numbers(rows, 3)} for share in (0.0, 0.3, 1.0, 0.9, 0.01)]
    check(COUNTED, runs)


def test_counted_sizes_may_be_counted_from_the_last() -> None:
    text = """m (bool[3] c, float[n, 3, 2] x) => (float[n, k, 2] y, float[n, 3, 2] u) {
        y = Compress<axis = -2>(x, c)
        u = Neg(x) }"""
    runs = [{"c": np.array(keep), "x": numbers(4, 3, 2)} for keep in ([True, False, True], [False, False, True])]
    check(text, runs)


def test_results_that_were_counted_are_the_callers() -> None:
    session = session_of(COUNTED)
    feeds = {"c": np.arange(50) % 3 == 0, "x": numbers(50, 3)}
    for _ in range(3):
        first = session.run(None, feeds)
    kept = [array.copy() for array in first]
    second = session.run(None, {**feeds, "c": ~feeds["c"]})
    for one, two, copy in zip(first, second, kept, strict=True):
        assert not np.shares_memory(one, two)
        assert one.flags.owndata
        np.testing.assert_array_equal(one, copy)
    assert [array.shape for array in second] == [(33, 3), (1, 33), (50, 3)]


def test_large_results_whose_size_is_counted_take_the_long_way() -> None:
    runs = [{"c": np.arange(200_000) % 2 == 0, "x": numbers(200_000, 3)}]
    check(COUNTED, runs, chained=False)


def test_what_reads_counted_results_takes_the_long_way() -> None:
    text = """m (bool[n] c, float[n] x) => (float[k] y) { a = Compress<axis = 0>(x, c) y = Exp(a) }"""
    check(text, [{"c": numbers(9, seed=seed) > 0, "x": numbers(9)} for seed in range(3)], chained=False)


def test_results_that_are_known_before_the_run() -> None:
    text = """m (float[n, 3] x) => (int64[2] y, float[n, 3] z) { y = Shape(x) z = Neg(x) }"""
    check(text, [{"x": numbers(n, 3)} for n in (1, 4, 4, 4)])


def test_views_that_divide_a_value_take_the_long_way() -> None:
    text = """m (float[n] x, bool[n] c, int64[k] sizes) => (float[a] y, float[b] z, float[l] w) {
        u = Relu(x)
        w = Compress<axis = 0>(x, c)
        y, z = Split<axis = 0>(u, sizes) }"""
    runs = [{"x": numbers(4), "c": np.arange(4) > 1, "sizes": np.array(pair)} for pair in ([3, 1], [0, 4])]
    check(text, runs, chained=False)


def test_bound_memory() -> None:
    session = session_of(BRANCHES)
    expected = session_of(BRANCHES, short=False)
    x, made = numbers(7, 5), [np.full((7, 5), np.nan, np.float32) for _ in range(3)]
    condition = ort.OrtValue.ortvalue_from_numpy(np.array(True))
    binding = session.io_binding()
    binding.bind_ortvalue_input("c", condition)
    binding.bind_cpu_input("x", x)
    for name, array in zip("yzw", made, strict=True):
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    for seed in range(4):
        x[...] = numbers(7, 5, seed=seed)
        session.run_with_iobinding(binding)
        for found, wanted in zip(made, expected.run(None, {"c": np.array(True), "x": x}), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_threads_that_share_a_session() -> None:
    session, other = session_of(LOOP, threads=2), session_of(LOOP, short=False)
    cases = [
        {"n": np.array(n), "c": np.array(True), "x": numbers(3, seed=n), "v": numbers(3, seed=n + 1)} for n in range(6)
    ]
    expected = [other.run(None, feeds) for feeds in cases]
    wrong: list[int] = []

    def work(first: int) -> None:
        for turn in range(60):
            number = (first + turn) % len(cases)
            results = session.run(None, cases[number])
            if any(not np.array_equal(one, two) for one, two in zip(results, expected[number], strict=True)):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
