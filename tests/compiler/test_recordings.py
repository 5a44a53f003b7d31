"""Replayed bindings make the plans that fresh ones make, whatever shapes came before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import sardonyx as ort
from sardonyx.compiler import likely_shapes
from sardonyx.compiler import recordings as replaying
from sardonyx.compiler.binding import Binder, Bound, Tensor
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.compiler.recordings import Recordings
from sardonyx.compiler.segment import Segment
from sardonyx.compiler.symbolic import variants
from sardonyx.runtime.native.native_segment import NativeSegment
from tests.compiler.steps import new_binder

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]

# Layers of equal structure, views by shape arithmetic, caches in front of keys, a concatenation without copies.
LAYERS = """(float[b, n, 16] x, int64[b, n] ids, float[b, p, 16] past0, float[b, p, 16] past1)
    => (float[b, n, 16] y, float[b, q, 16] now0, float[b, q, 16] now1, float[b, n, 32] both) {
    e = Gather <axis = 0> (table, ids)
    h0 = Add (x, e)
    LAYER0 LAYER1
    y = Identity(h2)
    squares = Mul(h1, h2)
    roots = Sqrt(squares)
    both = Concat <axis = 2> (squares, roots)
}"""
LAYER = """
    n{0} = LayerNormalization <axis = -1> (h{0}, scale{0}, bias{0})
    q{0} = MatMul (n{0}, query{0})
    qb{0} = Add (q{0}, bias{0})
    k{0} = MatMul (n{0}, key{0})
    now{0} = Concat <axis = 1> (past{0}, k{0})
    shape{0} = Shape (qb{0})
    parts{0} = Constant <value_ints = [0, 0, 2, 8]> ()
    split{0} = Reshape (qb{0}, parts{0})
    turned{0} = Transpose <perm = [0, 2, 1, 3]> (split{0})
    scaled{0} = Mul (turned{0}, half{0})
    back{0} = Transpose <perm = [0, 2, 1, 3]> (scaled{0})
    joined{0} = Reshape (back{0}, shape{0})
    kt{0} = Transpose <perm = [0, 2, 1]> (now{0})
    scores{0} = MatMul (joined{0}, kt{0})
    soft{0} = Softmax (scores{0})
    mixed{0} = MatMul (soft{0}, now{0})
    act{0} = Gelu (mixed{0})
    out{0} = MatMul (act{0}, query{0})
    h{1} = Add (out{0}, h{0})
"""


def layered() -> onnx.ModelProto:
    text = LAYERS.replace("LAYER0", LAYER.format(0, 1)).replace("LAYER1", LAYER.format(1, 2))
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\nagraph {text}')
    rng = np.random.default_rng(0)
    shapes = {"table": (9, 16)}
    for layer in range(2):
        shapes |= {f"scale{layer}": (16,), f"bias{layer}": (16,), f"query{layer}": (16, 16), f"key{layer}": (16, 16)}
        shapes[f"half{layer}"] = (1,)
    for name, shape in shapes.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.fixture(scope="module", params=["all", "basic"])
def session(request: pytest.FixtureRequest) -> ort.InferenceSession:
    options = ort.SessionOptions()
    if request.param == "basic":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(layered().SerializeToString(), options)


def native(session: ort.InferenceSession) -> NativeSegment:
    (step,) = [step for step in session._sess._plan.steps if isinstance(step.call, NativeSegment)]
    assert isinstance(step.call, NativeSegment)
    return step.call


def segment_of(session: ort.InferenceSession) -> Segment:
    call = native(session)
    source = call.plan_for(shapes_of(session, 1, 2, 3)).source
    assert isinstance(source, BoundSegment)
    source.segment._symbolic = None
    return source.segment


def shapes_of(session: ort.InferenceSession, b: int, n: int, p: int) -> Shapes:
    known = {"x": (b, n, 16), "ids": (b, n), "past0": (b, p, 16), "past1": (b, p, 16)}
    return tuple(known[name] for name in native(session).names)


def fresh(segment: Segment, shapes: Shapes) -> Bound:
    """The plan without anything recorded."""
    recorded, segment._recordings = segment._recordings, Recordings([])
    try:
        operations = segment.operations
        segment.operations = tuple(_alone(operation, index) for index, operation in enumerate(operations))
        return segment.bind(shapes)[0]
    finally:
        segment._recordings, segment.operations = recorded, operations


def _alone(operation: Any, index: int) -> Any:
    return replace(operation, structure=-1 - index)


def contents(bound: Bound) -> list[tuple[int, bytes]]:
    """The words of a plan at which constants lie, and what lies there."""
    found, first = [], 0
    for step in bound.steps:
        for word, ref, offset in step.form.places:
            buffer, start = step.buffers[ref].settled()
            if buffer.kind == "constant":
                assert buffer.array is not None
                found.append((first + word, np.ascontiguousarray(buffer.array).tobytes()[start + offset :]))
        first += len(step.form.words) // 8
    return found


def assert_same(one: Bound, other: Bound) -> None:
    """Equal tables; constants may lie elsewhere if they are equal."""
    constants = contents(one)
    assert constants == contents(other)
    words = [np.array(bound.plan.words) for bound in (one, other)]
    for each in words:
        each[[place for place, _ in constants]] = 0
    np.testing.assert_array_equal(*words)
    np.testing.assert_array_equal(one.plan.fixups, other.plan.fixups)
    np.testing.assert_array_equal(one.plan.steps, other.plan.steps)
    for name in ("arena_bytes", "scratch_bytes", "base_count", "labels", "nanoseconds", "width"):
        assert getattr(one.plan, name) == getattr(other.plan, name)
    assert one.outputs == other.outputs
    assert [step.group for step in one.steps] == [step.group for step in other.steps]
    assert [step.origin.operation.label if step.origin else "" for step in one.steps] == [
        step.origin.operation.label if step.origin else "" for step in other.steps
    ]


sizes = st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(0, 20))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes)
def test_a_replayed_plan_is_the_fresh_one(session: ort.InferenceSession, size: tuple[int, int, int]) -> None:
    segment, shapes = segment_of(session), shapes_of(session, *size)
    assert_same(segment.bind(shapes)[0], fresh(segment, shapes))
    assert_same(segment.bind(shapes)[0], fresh(segment, shapes))


def test_equal_layers_are_bound_once(session: ort.InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, bound = segment_of(session), []
    record = replaying.record

    def counting(bind: Any, binder: Binder, *others: Any) -> Any:
        bound.append(binder.label)
        return record(bind, binder, *others)

    monkeypatch.setattr(replaying, "record", counting)
    segment.bind(shapes_of(session, 2, 5, 21))
    assert bound.count("Softmax") == 1
    first = len(bound)
    segment.bind(shapes_of(session, 2, 5, 21))
    # Only what settles where another's buffer lies is bound again.
    assert set(bound[first:]) <= {"Concat"}


def test_a_run_of_the_likely_sizes_binds_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    record = replaying.record

    def counting(bind: Any, binder: Binder, *others: Any) -> Any:
        bound.append(binder.label)
        return record(bind, binder, *others)

    for module in (replaying, variants):
        monkeypatch.setattr(module, "record", counting)
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[n, 16] x) => (float[n, 8] y) {p = MatMul (x, w) y = Softmax (p)}"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((16, 8), np.float32), "w"))
    session = ort.InferenceSession(model.SerializeToString())
    rehearsed = len(bound)
    assert rehearsed > 0
    for rows, again in ((likely_shapes.OTHER, False), (likely_shapes.OTHER + 1, True)):
        (y,) = session.run(None, {"x": np.ones((rows, 16), np.float32)})
        np.testing.assert_allclose(y, np.full((rows, 8), 1 / 8), rtol=1e-6)
        assert (len(bound) > rehearsed) == again


def test_results_do_not_depend_on_what_was_bound_before(session: ort.InferenceSession) -> None:
    rng = np.random.default_rng(1)
    names = ["y", "now0", "now1", "both"]
    for b, n, p in [(1, 3, 4), (2, 1, 0), (1, 3, 5), (1, 4, 4), (1, 3, 4)]:
        feeds = {name: rng.standard_normal((b, size, 16)).astype(np.float32) for name, size in [("x", n), ("past0", p)]}
        feeds |= {"past1": rng.standard_normal((b, p, 16)).astype(np.float32), "ids": rng.integers(0, 9, (b, n))}
        options = ort.SessionOptions()
        other = ort.InferenceSession(layered().SerializeToString(), options)
        for one, expected in zip(session.run(names, feeds), other.run(names, feeds), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)


def bound_by(replays: Recordings, binder: Binder, bind: Any, *inputs: Tensor) -> list[Tensor | None]:
    return list(replays.bind("same", bind, binder, inputs)[0])


def test_contents_count_where_they_were_read() -> None:
    """Two constants alike in all but their contents: one that is read, and one that is not."""
    binder, replays = new_binder(), Recordings([])
    calls = []

    def bind(binder: Binder, inputs: Any) -> list[Tensor]:
        read, _ = inputs
        calls.append(int(read.array[0]))
        return [binder.new(np.dtype(np.float32), (int(read.array[0]),))]

    def constant(number: int) -> Tensor:
        return binder.constant(np.array([number], np.int64))

    def shape(*inputs: Tensor) -> tuple[int, ...]:
        (made,) = bound_by(replays, binder, bind, *inputs)
        assert made is not None
        return made.shape

    assert shape(constant(3), constant(1)) == (3,)
    assert shape(constant(3), constant(2)) == (3,)
    assert shape(constant(4), constant(1)) == (4,)
    assert calls == [3, 4]


def test_another_shape_of_a_constant_reads_nothing_of_it() -> None:
    """One binding serves constants of other contents, and each replay reads its own."""
    binder, replays = new_binder(), Recordings([])
    calls = []

    def bind(binder: Binder, inputs: Any) -> list[Tensor]:
        calls.append(inputs[0].is_known)
        row = inputs[0].reshaped((3,), None, 12)
        assert not row.is_known
        result = binder.new(row.dtype, row.shape)
        binder.step(_nothing, "", [row, result], reads=(row,), writes=(result,))
        return [result]

    constants = [binder.constant(np.full((2, 3), number, np.float32)) for number in range(3)]
    for constant in constants:
        bound_by(replays, binder, bind, constant)
    assert calls == [True]
    for step, constant in zip(binder.steps, constants, strict=True):
        (row,) = step.reads
        assert (row.buffer, row.offset, row.shape, row.strides) == (constant.buffer, 12, (3,), (1,))


def test_what_is_made_of_a_constant_follows_the_constant() -> None:
    binder, replays = new_binder(), Recordings([])
    made = []

    def doubled(array: Array) -> Array:
        made.append(array)
        return array * 2

    def bind(binder: Binder, inputs: Any) -> list[Tensor]:
        twice = binder.derived(inputs[0], "doubled", doubled)
        result = binder.new(twice.dtype, twice.shape)
        binder.step(_nothing, "", [twice, result, 7], reads=(twice,), writes=(result,))
        return [result]

    arrays = [np.arange(100, dtype=np.float32) + index for index in range(2)]
    first, second = (binder.constant(array) for array in arrays)
    for tensor in (first, second, first, second):
        bound_by(replays, binder, bind, tensor)
    assert len(made) == 2
    assert len(binder.steps) == 4
    for step, array in zip(binder.steps, [*arrays, *arrays], strict=True):
        source, result, seven = step.arguments
        assert seven == 7
        assert not isinstance(source, int)
        assert not isinstance(result, int)
        assert source.buffer.array is not None
        np.testing.assert_array_equal(source.buffer.array, array * 2)
        assert result.buffer is step.writes[0].buffer
    assert len({step.writes[0].buffer for step in binder.steps}) == 4


def test_only_what_is_made_of_lasting_constants_is_kept() -> None:
    lasting, passing = (np.arange(10, dtype=np.float32) for _ in range(2))
    prepared: dict[Any, Any] = {}
    made = []

    def doubled(array: Array) -> Array:
        made.append(array)
        return array * 2

    for _ in range(3):
        binder = Binder(new_binder().library, lasting={id(lasting)}, prepared=prepared)
        for array in (lasting, passing):
            twice = binder.derived(binder.constant(array), "doubled", doubled)
            assert twice.array is not None
            np.testing.assert_array_equal(twice.array, array * 2)
    assert [array is lasting for array in made] == [True, False, False, False]
    assert len(prepared) == 1


def _nothing(target: Any, spec: str) -> str:
    return "define void @kernel(ptr %a, i64 %b, i64 %c, ptr %d) {\n  ret void\n}\n"


def test_which_inputs_share_memory_counts() -> None:
    binder, replays = new_binder(), Recordings([])
    calls = []

    def bind(binder: Binder, inputs: Any) -> list[Tensor]:
        calls.append(inputs[0].buffer is inputs[1].buffer)
        return [inputs[1]]

    one, other = (binder.new(np.dtype(np.float32), (4,)) for _ in range(2))
    assert bound_by(replays, binder, bind, one, other) == [other]
    assert bound_by(replays, binder, bind, other, one) == [one]
    assert bound_by(replays, binder, bind, one, one) == [one]
    assert calls == [False, True]
