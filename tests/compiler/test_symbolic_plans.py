"""Symbolic plans do what those do that were bound operation by operation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.compiler.segment import Segment
from sardonyx.compiler.symbolic.layout import PlanLayout
from sardonyx.compiler.symbolic.variants import VariantMaker
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native_plan import NativePlan, StepColumn, StepFlag

Array = np.ndarray[Any, Any]

# Equal layers, indices that may be wrong, positions that follow from the sizes, views.
MODEL = """(float[b, n, 16] x, int64[b, n] ids, int64[b, n] kinds) => (float[b, n, 16] y, float[b, q, 4] half) {
    words = Gather <axis = 0> (table, ids)
    marks = Gather <axis = 0> (small, kinds)
    shape = Shape (x)
    one = Constant <value_int = 1> ()
    length = Gather <axis = 0> (shape, one)
    zero = Constant <value_int = 0> ()
    places = Range (zero, length, one)
    positions = Gather <axis = 0> (rows, places)
    e0 = Add (words, marks)
    e1 = Add (e0, positions)
    h0 = Add (x, e1)
    LAYER0 LAYER1 LAYER2
    y = Relu (h3)
    wide = Constant <value_ints = [0, -1, 4]> ()
    parts = Reshape (y, wide)
    half = Tanh (parts)
}"""
LAYER = """
    n{0} = LayerNormalization <axis = -1> (h{0}, scale{0}, bias{0})
    q{0} = MatMul (n{0}, query{0})
    k{0} = MatMul (n{0}, key{0})
    kt{0} = Transpose <perm = [0, 2, 1]> (k{0})
    scores{0} = MatMul (q{0}, kt{0})
    soft{0} = Softmax (scores{0})
    mixed{0} = MatMul (soft{0}, k{0})
    act{0} = Gelu (mixed{0})
    h{1} = Add (act{0}, h{0})
"""


@pytest.fixture(scope="module")
def model() -> bytes:
    text = MODEL
    for layer in range(3):
        text = text.replace(f"LAYER{layer}", LAYER.format(layer, layer + 1))
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\nagraph {text}')
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"table": (9, 16), "small": (3, 16), "rows": (64, 16)}
    for layer in range(3):
        shapes |= {f"scale{layer}": (16,), f"bias{layer}": (16,), f"query{layer}": (16, 16), f"key{layer}": (16, 16)}
    for name, shape in shapes.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.checker.check_model(made)
    return made.SerializeToString()


def native(session: ort.InferenceSession) -> NativeSegment:
    (step,) = [step for step in session._sess._plan.steps if isinstance(step.call, NativeSegment)]
    assert isinstance(step.call, NativeSegment)
    return step.call


def shapes_of(session: ort.InferenceSession, b: int, n: int) -> tuple[tuple[int, ...], ...]:
    known = {"x": (b, n, 16), "ids": (b, n), "kinds": (b, n)}
    return tuple(known[name] for name in native(session).names)


def segment_of(session: ort.InferenceSession) -> Segment:
    source = native(session).plan_for(shapes_of(session, 1, 2)).source
    assert isinstance(source, BoundSegment)
    return source.segment


@pytest.fixture
def session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, options(2))


@pytest.fixture(scope="module")
def plain(model: bytes) -> ort.InferenceSession:
    """A session that binds every operation."""
    made = ort.InferenceSession(model, options(2))
    segment_of(made)._symbolic = None
    return made


def options(threads: int) -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    return made


def feeds(b: int, n: int) -> dict[str, Array]:
    rng = np.random.default_rng(n)
    ids, kinds = (rng.integers(0, most, (b, n)) for most in (9, 3))
    return {"x": rng.standard_normal((b, n, 16)).astype(np.float32), "ids": ids, "kinds": kinds}


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[NativePlan]:
    """The plans that are made by symbolic plans."""
    found: list[NativePlan] = []
    make = PlanLayout.plan

    def noting(self: PlanLayout, *others: Any) -> NativePlan:
        found.append(make(self, *others))
        return found[-1]

    monkeypatch.setattr(PlanLayout, "plan", noting)
    return found


def assert_same(one: ort.InferenceSession, other: ort.InferenceSession, b: int, n: int) -> None:
    for got, wanted in zip(one.run(None, feeds(b, n)), other.run(None, feeds(b, n)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_plans_of_other_sizes_give_the_same_bits(
    session: ort.InferenceSession, plain: ort.InferenceSession, evaluated: list[NativePlan]
) -> None:
    sizes = [(1, n) for n in (20, 21, 5, 33, 48, 6, 22, 64, 7, 50, 8, 16, 17, 15, 1, 2, 3)]
    for b, n in [*sizes, (2, 20), (3, 4), (2, 21), (1, 23)]:
        assert_same(session, plain, b, n)
    assert len(evaluated) >= len(sizes) // 2


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 64)), min_size=3, max_size=8))
def test_any_order_of_sizes_gives_the_same_bits(
    model: bytes, plain: ort.InferenceSession, sizes: list[tuple[int, int]]
) -> None:
    session = ort.InferenceSession(model, options(1))
    for b, n in sizes:
        assert_same(session, plain, b, n)


def tables(plan: NativePlan) -> dict[str, Any]:
    """A plan without what depends on where buffers lie in the arena, and without the addresses of constants."""
    flags = plan.steps[:, StepColumn.FLAGS] & ~np.int64(StepFlag.BARRIER | StepFlag.CALLER)
    moving = plan.fixups[:, 1] == 0
    return {
        "functions": plan.steps[:, [StepColumn.FUNCTION, StepColumn.ARGUMENTS, StepColumn.CHUNKS, StepColumn.CLAIM]],
        "flags": flags,
        "externals": plan.fixups[~moving],
        "moving": plan.fixups[moving][:, :2],
        "sizes": (plan.scratch_bytes, plan.base_count, plan.nanoseconds),
        "labels": plan.labels,
    }


def test_a_plan_has_the_steps_of_the_ordinary_one(session: ort.InferenceSession, evaluated: list[NativePlan]) -> None:
    segment = segment_of(session)
    ordinary = replace(segment)
    ordinary._symbolic = None
    for n in (20, 21, 22, 40):
        shapes = shapes_of(session, 1, n)
        bound, expected = segment.bind(shapes)[0], ordinary.bind(shapes)[0]
        assert bound.outputs == expected.outputs
        found, wanted = tables(bound.plan), tables(expected.plan)
        for name in found:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
        assert [step.label for step in bound.steps] == [step.label for step in expected.steps]
        assert len(bound.steps) == len(bound.plan.labels)
    assert len(evaluated) >= 2


def test_one_operation_of_a_kind_is_bound(
    session: ort.InferenceSession, evaluated: list[NativePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, labels = segment_of(session), []
    maker = VariantMaker.bound

    def counting(self: VariantMaker, bind: Any, binder: Any, *others: Any) -> Any:
        labels.append(binder.label)
        return maker(self, bind, binder, *others)

    monkeypatch.setattr(VariantMaker, "bound", counting)
    monkeypatch.setattr(VariantMaker, "traced", lambda *others: None)
    segment.bind(shapes_of(session, 1, 20))
    labels.clear()
    before = len(evaluated)
    segment.bind(shapes_of(session, 1, 23))
    assert len(evaluated) == before + 1
    assert labels.count("Softmax") == 1
    assert len(labels) < 0.6 * len(segment.operations)


def test_the_arena_grows_in_strides(session: ort.InferenceSession, evaluated: list[NativePlan]) -> None:
    segment = segment_of(session)
    exact = {}
    for n in range(20, 60):
        bound = segment.bind(shapes_of(session, 1, n))[0]
        exact[n] = bound.plan.arena_bytes
    assert len(evaluated) > 25
    assert len(set(exact.values())) <= 16
    segment._symbolic = None
    fresh = segment.bind(shapes_of(session, 1, 59))[0]
    assert exact[59] <= 1.3 * fresh.plan.arena_bytes


def test_what_is_apart_stays_apart_in_stretched_layouts(session: ort.InferenceSession) -> None:
    for n in (20, 21, 22):
        session.run(None, feeds(1, n))
    plans = segment_of(session)._symbolic
    assert plans is not None
    (shared, *_) = plans._layouts.values()
    count, rng, stretched = len(shared._in_arena), np.random.default_rng(0), 0
    for _ in range(50):
        room = rng.integers(1, 9000, count)
        layout = shared._lay_steps_out(room)
        grown = shared._stretched(
            layout, (room * rng.uniform(1, 1.2, count) * rng.choice([1, 1.3, 5])).astype(np.int64)
        )
        if grown is None:
            continue
        stretched += 1
        begins, starts = layout.base[shared._in_arena], grown.base[shared._in_arena]
        ends, stops = begins + layout.room, starts + grown.room
        apart = (ends[:, None] <= begins) | (begins[:, None] >= ends)
        assert ((stops[:, None] <= starts) | (starts[:, None] >= stops))[apart].all()
        assert stops.max() <= grown.arena_bytes
        assert not (starts % 64).any()
        assert grown.barriers is layout.barriers
    assert stretched > 20
    assert shared._stretched(layout, np.where(np.arange(count) == 0, 1 << 20, room)) is None
    assert shared._stretched(layout, room << 50) is None


def test_short_inputs_need_no_room_for_long_ones(session: ort.InferenceSession, evaluated: list[NativePlan]) -> None:
    """Whatever was bound before: what is too large for the machine, too."""
    segment = segment_of(session)
    for n in (64, 63, 6, 7):
        segment.bind(shapes_of(session, 1, n))
    segment.bind(shapes_of(session, 1 << 18, 64))
    before = len(evaluated)
    found = [segment.bind(shapes_of(session, 1, n))[0].plan.arena_bytes for n in (5, 60)]
    assert len(evaluated) > before
    segment._symbolic = None
    fresh = [segment.bind(shapes_of(session, 1, n))[0].plan.arena_bytes for n in (5, 60)]
    assert found[0] <= 2.3 * fresh[0]
    assert found[1] <= 2.3 * fresh[1]


def test_sizes_beyond_64_bits_are_refused_as_ever() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[b, n] x) => (float[b, n] y) {
        a = Softmax (x)
        c = LayerNormalization <axis = -1> (a, one)
        d = Softmax <axis = 0> (c)
        e = Add (a, d)
        y = Softmax (e)
    }"""
    made = parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
    source = native(ort.InferenceSession(made.SerializeToString())).plan_for(((2, 3),)).source
    assert isinstance(source, BoundSegment)
    segment = source.segment
    for n in (20, 21, 22):
        segment.bind([(2, n)])
    with pytest.raises(errors.Fail, match="a size exceeds 64 bits"):
        segment.bind([(1 << 40, 1 << 25)])
    assert segment.bind([(2, 24)])[0].plan.arena_bytes < 1 << 20


def test_wrong_sizes_and_indices_are_refused_as_ever(
    session: ort.InferenceSession, plain: ort.InferenceSession, evaluated: list[NativePlan]
) -> None:
    for n in (20, 21, 22):
        session.run(None, feeds(1, n))
    before = len(evaluated)
    for name, wrong in (("ids", 9), ("kinds", 3), ("kinds", -4)):
        fed = feeds(1, 23)
        fed[name][0, 5] = wrong
        messages = []
        for one in (session, plain):
            with pytest.raises(errors.OnnxRuntimeError) as raised:
                one.run(None, fed)
            messages.append(raised.value.message)
        assert messages[0] == messages[1]
        assert str(wrong) in messages[0]
    assert len(evaluated) > before
    fed = feeds(1, 24)
    fed["ids"] = fed["ids"][:, :20]
    messages = []
    for one in (session, plain):
        with pytest.raises(errors.OnnxRuntimeError) as raised:
            one.run(None, fed)
        messages.append(raised.value.message)
    assert messages[0] == messages[1]
    with pytest.raises(errors.OnnxRuntimeError):  # more positions than there are rows
        session.run(None, feeds(1, 65))
    assert_same(session, plain, 1, 25)


def test_indices_of_nothing_are_not_looked_at(evaluated: list[NativePlan]) -> None:
    text = """m (float[n, 4] x, int64[k] ids, float[k] u) => (float[n, k] y, float[k] v) {
        y = Gather<axis = 1>(x, ids)
        v = Neg(u) }"""
    found = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    session = ort.InferenceSession(found.SerializeToString(), options(1))
    for k in (5, 6, 7, 8):
        fed = {"x": np.zeros((0, 4), np.float32), "ids": np.zeros(k, np.int64), "u": np.ones(k, np.float32)}
        y, v = session.run(None, fed)
        assert y.shape == (0, k)
        np.testing.assert_array_equal(v, -fed["u"])
    assert evaluated


def test_several_threads_make_plans_at_once(session: ort.InferenceSession, plain: ort.InferenceSession) -> None:
    expected = {n: plain.run(None, feeds(1, n)) for n in range(10, 50)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: session.run(None, feeds(1, n)), expected))
    for got, wanted in zip(found, expected.values(), strict=True):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


JOINED = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[n, 16] x) => (float[m, 16] y) {
    a = Exp (x)
    b = LayerNormalization <axis = -1> (x, x0)
    c = LayerNormalization <axis = -1> (a, x0)
    y = Concat <axis = 0> (b, c)
}"""


def assert_joined(session: ort.InferenceSession, lengths: range) -> None:
    for n in lengths:
        x = np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        parts = [(one - one.mean(-1, keepdims=True)) / one.std(-1, keepdims=True) for one in (x, np.exp(x))]
        np.testing.assert_allclose(y, np.concatenate(parts), rtol=1e-3, atol=1e-3)


def joined() -> ort.InferenceSession:
    made = parser.parse_model(JOINED)
    made.graph.initializer.append(numpy_helper.from_array(np.ones(16, np.float32), "x0"))
    return ort.InferenceSession(made.SerializeToString())


def test_a_segment_without_a_symbolic_plan_is_bound_in_the_ordinary_way(evaluated: list[NativePlan]) -> None:
    """Parts of a concatenation are computed where it lies: they are no whole buffers."""
    assert_joined(joined(), range(64, 68))
    assert not evaluated


def test_small_parts_of_a_concatenation_are_copied(evaluated: list[NativePlan]) -> None:
    """As cosines of a token are, which decoders compute for every one."""
    assert_joined(joined(), range(4, 9))
    assert len(evaluated) >= 2


def test_symbolic_plans_are_made_for_small_sizes_after_large_ones(evaluated: list[NativePlan]) -> None:
    session = joined()
    assert_joined(session, range(64, 66))
    assert not evaluated
    assert_joined(session, range(4, 9))
    assert len(evaluated) >= 2


def test_inputs_that_are_handed_on_have_symbolic_plans(evaluated: list[NativePlan]) -> None:
    """As bodies of loops hand on their condition."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[n] x, bool c, float[k, 2] v) => (float[m] y, bool d, float[q] w, float[k, 2] z) {
        y = Concat <axis = 0> (x, x)
        d = Identity (c)
        flat = Constant <value_ints = [-1]> ()
        w = Reshape (v, flat)
        z = Exp (v)
    }"""
    session = ort.InferenceSession(parser.parse_model(text).SerializeToString())
    for n in (4, 5, 6, 7):
        x, v = np.arange(n, dtype=np.float32), np.ones((n + 1, 2), np.float32)
        y, d, w, z = session.run(None, {"x": x, "c": np.array(n % 2 == 0), "v": v})
        np.testing.assert_array_equal(y, np.concatenate([x, x]))
        assert d == (n % 2 == 0)
        np.testing.assert_array_equal(w, v.ravel())
        np.testing.assert_allclose(z, np.exp(v), rtol=1e-6)
    assert len(evaluated) >= 2


def test_an_input_that_decides_is_handed_on_as_well() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[n] x, int64[2] s) => (float[a, b] y, int64[2] t, int64[2, 1] u) {
        y = Reshape (x, s)
        t = Identity (s)
        one = Constant <value_ints = [1]> ()
        u = Unsqueeze (s, one)
    }"""
    session = ort.InferenceSession(parser.parse_model(text).SerializeToString())
    for rows in (2, 3, 4, 6):
        x, s = np.arange(12, dtype=np.float32), np.array([rows, -1])
        y, t, u = session.run(None, {"x": x, "s": s})
        np.testing.assert_array_equal(y, x.reshape(rows, -1))
        np.testing.assert_array_equal(t, s)
        np.testing.assert_array_equal(u, s[:, None])


def test_what_was_copied_without_elements_is_copied_with_them() -> None:
    """A result that is a part of a value, or a value a second time, takes no step where it has no elements."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[n, 8] x, int64[2] s, float[m] v, int64[1] k) => (float[a, b] y, float[c] w, float[c] u) {
        r = Relu (x)
        y = Expand (r, s)
        w = Exp (v)
        zero = Constant <value_ints = [0]> ()
        u = Slice (w, zero, k)
    }"""
    session = ort.InferenceSession(parser.parse_model(text).SerializeToString())
    for rows, count in ((0, 0), (1, 3), (0, 5), (1, 0), (2, 4), (1, 1), (0, 0), (1, 2)):
        x, v = np.arange(1, 9, dtype=np.float32)[None], np.arange(count, dtype=np.float32)
        y, w, u = session.run(None, {"x": x, "s": np.array([rows, 8]), "v": v, "k": np.array([count])})
        np.testing.assert_array_equal(y, np.broadcast_to(x, (rows, 8)))
        np.testing.assert_allclose(w, np.exp(v), rtol=1e-6)
        np.testing.assert_array_equal(u, w)
