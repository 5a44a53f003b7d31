"""Variants give for other sizes what binding gives: the same words, in the same steps, over the same tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.compiler.segment import Segment
from sardonyx.compiler.symbolic import plan as symbolic_plan
from sardonyx.compiler.symbolic import variants
from sardonyx.compiler.symbolic.plan import SymbolicPlan, SymbolicPlans
from sardonyx.compiler.symbolic.variants import Sized, Variant, VariantMaker
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native_plan import StepColumn
from tests.compiler.plans import assert_alike, bound_one_by_one

Array = np.ndarray[Any, Any]

# Products by weights and of values, attention, reductions, loops, copies, views, indices that may be wrong.
MODEL = """(float[b, n, 64] x, int64[b, n] ids) => (float[b, n, 64] y, float[b, n, 4, 16] heads, float[b, n] top) {
    words = Gather <axis = 0> (table, ids)
    dims = Shape (x)
    spread = Expand (bias, dims)
    e0 = Add (words, spread)
    h0 = Add (x, e0)
    LAYER0 LAYER1
    y = Tanh (h2)
    four = Constant <value_ints = [0, 0, 4, 16]> ()
    split = Reshape (y, four)
    heads = Softmax (split)
    last = Constant <value_ints = [2]> ()
    top = ReduceMax <keepdims = 0> (y, last)
}"""
LAYER = """
    n{0} = LayerNormalization <axis = -1> (h{0}, scale, bias)
    wide{0} = MatMul (n{0}, wide)
    q{0}, k{0}, v{0} = Split <axis = -1, num_outputs = 3> (wide{0})
    mixed{0} = com.microsoft.MultiHeadAttention <num_heads = 4> (q{0}, k{0}, v{0})
    out{0} = MatMul (mixed{0}, square)
    more{0} = Add (out{0}, bias)
    act{0} = Gelu (more{0})
    kt{0} = Transpose <perm = [0, 2, 1]> (k{0})
    scores{0} = MatMul (q{0}, kt{0})
    soft{0} = Softmax (scores{0})
    seen{0} = MatMul (soft{0}, v{0})
    sum{0} = Add (act{0}, seen{0})
    h{1} = Add (sum{0}, h{0})
"""
# What is added is computed while binding, from the shape of what a kernel makes.
PLACES = """(float[b, n, 64] x) => (float[b, n, 64] y) {
    kept = Relu (x)
    soft = Softmax (kept)
    sizes = Shape (soft)
    one = Constant <value_int = 1> ()
    n = Gather <axis = 0> (sizes, one)
    none = Constant <value_int = 0> ()
    counted = Range (none, n, one)
    places = Cast <to = 1> (counted)
    axis = Constant <value_ints = [1]> ()
    column = Unsqueeze (places, axis)
    y = Add (soft, column)
}"""
# The same of integers, which are numbers of a variant where there are few.
TURNS = """(float[b, n, 64] x) => (float[b, n, 64] y) {
    kept = Relu (x)
    soft = Softmax (kept)
    sizes = Shape (soft)
    one = Constant <value_int = 1> ()
    n = Gather <axis = 0> (sizes, one)
    none = Constant <value_int = 0> ()
    counted = Range (none, n, one)
    y = Gather <axis = 1> (soft, counted)
}"""
SIZES = {"table": (9, 64), "scale": (64,), "bias": (64,), "wide": (64, 192), "square": (64, 64)}


@pytest.fixture(scope="module")
def model() -> bytes:
    text = MODEL
    for layer in range(2):
        text = text.replace(f"LAYER{layer}", LAYER.format(layer, layer + 1))
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\nagraph {text}')
    rng = np.random.default_rng(0)
    for name, shape in SIZES.items():
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return made.SerializeToString()


def session_of(model: bytes, precision: str = "float32", threads: int = 1) -> ort.InferenceSession:
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.add_session_config_entry("sardonyx.cpu.precision", precision)
    return ort.InferenceSession(model, made)


def native(session: ort.InferenceSession) -> NativeSegment:
    (step,) = [step for step in session._sess._plan.steps if isinstance(step.call, NativeSegment)]
    assert isinstance(step.call, NativeSegment)
    return step.call


def segment_of(session: ort.InferenceSession) -> Segment:
    segment = native(session)
    assert segment.names == ("ids", "x")
    source = segment.plan_for(tuple(shapes_of(1, 128))).source
    assert isinstance(source, BoundSegment)
    return source.segment


def shapes_of(b: int, n: int) -> list[tuple[int, ...]]:
    return [(b, n), (b, n, 64)]


def feeds(b: int, n: int) -> dict[str, Array]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((b, n, 64)).astype(np.float32), "ids": rng.integers(0, 9, (b, n))}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each operation of symbolic plans that was looked for: whether a variant gave it."""
    outcomes: list[bool] = []
    by_variant, bound = SymbolicPlan._by_variant, SymbolicPlan._bound

    def looking(self: SymbolicPlan, *others: Any) -> Any:
        outcome = by_variant(self, *others)
        outcomes.extend([True] * (outcome is not None))
        return outcome

    def binding(self: SymbolicPlan, *others: Any) -> Any:
        outcomes.append(False)
        return bound(self, *others)

    monkeypatch.setattr(SymbolicPlan, "_by_variant", looking)
    monkeypatch.setattr(SymbolicPlan, "_bound", binding)
    return outcomes


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each plan that might have been evaluated: whether it was."""
    outcomes: list[bool] = []
    evaluate = SymbolicPlans.evaluate

    def noting(self: SymbolicPlans, *others: Any) -> Any:
        found = evaluate(self, *others)
        outcomes.append(found is not None)
        return found

    monkeypatch.setattr(SymbolicPlans, "evaluate", noting)
    return outcomes


def assert_same_plan(segment: Segment, shapes: Sequence[Sequence[int]]) -> None:
    """The plan and its words, but for addresses, are those of binding every operation."""
    assert_alike(segment.bind(shapes)[0], bound_one_by_one(segment, shapes)[0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_plans_are_those_of_binding(model: bytes, precision: str, threads: int, found: list[bool]) -> None:
    segment = segment_of(session_of(model, precision, threads))
    rng = np.random.default_rng(threads)
    for n in (128, 120, 121, 130, 140, *rng.integers(1, 300, 24).tolist(), 512, 1, 0):
        assert_same_plan(segment, shapes_of(1, n))
    for n in (20, 21, 50):
        for b in (2, 5, 1, 3):
            assert_same_plan(segment, shapes_of(b, n))
    assert sum(found) > 0.6 * len(found)


def test_long_inputs_are_bound_by_variants_alone(model: bytes, found: list[bool]) -> None:
    segment = segment_of(session_of(model))
    for n in range(120, 144):
        segment.bind(shapes_of(1, n))
    found.clear()
    for n in range(144, 160):
        segment.bind(shapes_of(1, n))
    assert found.count(False) <= 0.1 * len(found)


def test_long_inputs_are_evaluated(model: bytes, evaluated: list[bool]) -> None:
    segment = segment_of(session_of(model))
    for n in range(120, 144):
        segment.bind(shapes_of(1, n))
    evaluated.clear()
    for n in range(144, 160):
        assert_same_plan(segment, shapes_of(1, n))
    assert evaluated.count(False) <= 1


def test_what_is_computed_from_results_is_evaluated(evaluated: list[bool]) -> None:
    text = f'<ir_version: 10, opset_import: ["" : 20]>\nagraph {PLACES}'
    session = session_of(parser.parse_model(text).SerializeToString())
    source = native(session).plan_for(((1, 128, 64),)).source
    assert isinstance(source, BoundSegment)
    for n in (100, 90, 91):
        assert_same_plan(source.segment, [(1, n, 64)])
    evaluated.clear()
    for n in (102, 103, 150, 20, 1, 17, 5, 300):
        assert_same_plan(source.segment, [(1, n, 64)])
        x = np.random.default_rng(n).standard_normal((1, n, 64)).astype(np.float32)
        (found,) = session.run(None, {"x": x})
        exact = np.exp(np.maximum(x, 0).astype(np.float64))
        wanted = exact / exact.sum(-1, keepdims=True) + np.arange(n)[:, None]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)  # type: ignore[arg-type]
    assert sum(evaluated) > 0.5 * len(evaluated)


def test_values_on_the_way_may_be_of_several_kinds(evaluated: list[bool]) -> None:
    """What is computed on the way is numbers where it is short, as for a token, and an array where it is long."""
    text = f'<ir_version: 10, opset_import: ["" : 20]>\nagraph {TURNS}'
    source = native(session_of(parser.parse_model(text).SerializeToString())).plan_for(((1, 128, 64),)).source
    assert isinstance(source, BoundSegment)
    for n in (100, 90, 91, 5, 6):
        assert_same_plan(source.segment, [(1, n, 64)])
    evaluated.clear()
    for n in (5, 6, 92, 5, 93):
        assert_same_plan(source.segment, [(1, n, 64)])
    assert all(evaluated)


def test_recurrent_layers_have_variants(found: list[bool]) -> None:
    text = """(float[n, b, 16] x) => (float[n, 2, b, 40] y, float[2, b, 40] h) {
        y, h = LSTM <hidden_size = 40, direction = "bidirectional"> (x, w, r, bias) }"""
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\nagraph {text}')
    rng = np.random.default_rng(1)
    for name, shape in {"w": (2, 160, 16), "r": (2, 160, 40), "bias": (2, 320)}.items():
        made.graph.initializer.append(numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name))
    source = native(session_of(made.SerializeToString(), threads=2)).plan_for(((64, 1, 16),)).source
    assert isinstance(source, BoundSegment)
    for n, b in ((64, 1), (65, 2), (66, 3), (80, 4), (120, 2)):
        assert_same_plan(source.segment, [(n, b, 16)])
    found.clear()
    for n, b in ((67, 2), (68, 4), (91, 3), (103, 2), (110, 4), (119, 2)):
        assert_same_plan(source.segment, [(n, b, 16)])
    assert found.count(False) <= 1


def test_determinants_of_new_sizes() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> squares (float[b, n, n] x) => (float[b] y) { y = Det (x) }'
    )
    session = session_of(made.SerializeToString())
    for number, (b, n) in enumerate(((2, 4), (7, 13), (3, 4), (7, 4), (5, 6), (9, 2), (1, 9))):
        x = np.random.default_rng(number).standard_normal((b, n, n)).astype(np.float32)
        (found,) = session.run(None, {"x": x})
        np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4)  # type: ignore[arg-type]


def test_products_of_quarters_have_variants(found: list[bool]) -> None:
    """Where they pay, a wide product takes quarters in long inputs."""
    text = '<ir_version: 10, opset_import: ["" : 20]> wide (float[1, n, 384] x) => (float[1, n, 1536] y) {'
    made = parser.parse_model(f"{text} y = MatMul (x, w) }}")
    w = np.random.default_rng(1).standard_normal((384, 1536)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    source = native(session_of(made.SerializeToString())).plan_for(((1, 16, 384),)).source
    assert isinstance(source, BoundSegment)
    for n in range(112, 136):
        source.segment.bind([(1, n, 384)])
    found.clear()
    for n in range(136, 200):
        assert_same_plan(source.segment, [(1, n, 384)])
    assert found.count(False) <= 0.1 * len(found)


def test_rows_that_are_a_line_longer_are_so_for_other_sizes(evaluated: list[bool]) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> rows (float[n, 16] x) => (float[n, 8] y) {'
    made = parser.parse_model(f"{text} h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, u) }}")
    for name, shape in {"w": (16, 1024), "u": (1024, 8)}.items():
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    source = native(session_of(made.SerializeToString())).plan_for(((16, 16),)).source
    assert isinstance(source, BoundSegment)
    assert source.segment.slices
    for n in (20, 21, 22, 50, 3, 1, 90):
        assert_same_plan(source.segment, [(n, 16)])
    assert sum(evaluated) > len(evaluated) // 2


def test_one_layout_serves_steps_of_one_chunk_and_of_many(model: bytes, evaluated: list[bool]) -> None:
    segment = segment_of(session_of(model, threads=2))
    patterns = set()
    for n in (120, 130, 8, 250, 1, 60, 17, 100):
        steps = segment.bind(shapes_of(1, n))[0].plan.steps
        patterns.add((steps[:, StepColumn.CHUNKS] == 1).tobytes())
    assert len(patterns) > 1
    assert evaluated.count(False) <= 2
    assert segment._symbolic is not None
    assert len(segment._symbolic._layouts) == 1


def test_results_have_the_same_bits(model: bytes) -> None:
    session, plain = session_of(model), session_of(model)
    segment_of(plain)._symbolic = None
    for n in (128, 120, 121, 130, 140, 7, 65, 66, 1, 33, 250):
        for got, wanted in zip(session.run(None, feeds(1, n)), plain.run(None, feeds(1, n)), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_wrong_indices_and_sizes_are_told_as_ever(model: bytes) -> None:
    session, plain = session_of(model), session_of(model)
    segment_of(plain)._symbolic = None
    for n in range(100, 110):
        session.run(None, feeds(1, n))
    indices, sizes = feeds(1, 111), feeds(1, 112)
    indices["ids"][0, 5] = 9
    sizes["ids"] = sizes["ids"][:, :7]
    for wrong in (indices, sizes):
        messages = []
        for one in (session, plain):
            with pytest.raises(errors.OnnxRuntimeError) as raised:
                one.run(None, wrong)
            messages.append(raised.value.message)
        assert messages[0] == messages[1]


def test_what_has_no_variant_is_not_tried_for_ever(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def none(*others: Any) -> None:
        tried.append(others)

    monkeypatch.setattr(VariantMaker, "traced", none)
    segment = segment_of(session_of(model))
    for n in range(100, 140):
        segment.bind(shapes_of(1, n))
    before = len(tried)
    assert before > 0
    for n in range(140, 160):
        segment.bind(shapes_of(1, n))
    assert len(tried) == before


@pytest.mark.parametrize("moment", ["while it is made", "when it is asked"])
def test_binding_takes_the_place_of_a_variant_that_fails(
    model: bytes, monkeypatch: pytest.MonkeyPatch, moment: str, found: list[bool]
) -> None:
    """Whatever a kernel does with sizes, the session gives its results."""

    def fail(*others: Any) -> None:
        raise TypeError("no number")

    if moment == "while it is made":
        monkeypatch.setattr(variants.Trace, "made", fail)
    else:
        monkeypatch.setattr(variants.Trace, "function", lambda *others: fail)
    session = session_of(model)
    for n in (128, 64, 200, 33, 90, 150):
        for mine, right in zip(session.run(None, feeds(1, n)), session_of(model).run(None, feeds(1, n)), strict=True):
            assert mine.tobytes() == right.tobytes()  # type: ignore[union-attr]
    assert found
    assert not any(found)


def test_there_are_so_many_variants_at_most(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_plan, "MOST_VARIANTS", 1)
    segment = segment_of(session_of(model))
    for n in (*range(1, 60, 3), *range(100, 120)):
        assert_same_plan(segment, shapes_of(1, n))
    assert segment._symbolic is not None
    assert segment._symbolic._plan is not None
    found = [one for stage in segment._symbolic._plan.stages for one in stage.variants.values()]
    assert found
    assert all(len(one) == 1 for one in found)


def test_messages_of_faults_tell_the_sizes_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[n, 4] x, int64[m, 1] places) => (float[m, 4] y) { s = Softmax (x)  y = GatherND (s, places) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sized: list[Sized | None] = []
    compute = Variant.sized

    def noting(self: Variant, *given: Any) -> Any:
        sized.append(compute(self, *given))
        return sized[-1]

    monkeypatch.setattr(Variant, "sized", noting)
    for n in range(5, 12):
        x = np.zeros((n, 4), np.float32)
        session.run(None, {"x": x, "places": np.array([[n - 1], [0]])})
        with pytest.raises(errors.OnnxRuntimeError, match=f"{n + 3}.*{n - 1}"):
            session.run(None, {"x": x, "places": np.array([[0], [n + 3]])})
    assert sized[-1] is not None
