"""Models whose Ifs ask for sizes: the same results before and after they are compiled for the sizes that come again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.api.explaining.explanation import OpenIfs, explain
from sardonyx.api.running import settled_plans
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings

pytestmark = pytest.mark.machine_neutral

Array = np.ndarray[Any, Any]

# As an exporter writes "squeeze the second axis if it is one": behind it no rank is known.
MODEL = """<ir_version: 9, opset_import: ["" : 17]>
agraph (float[p, q] x, bool c) => (float[r, s] y) {
    shape = Shape (x)
    one = Constant <value_ints = [1]> ()
    second = Gather <axis = 0> (shape, one)
    is_one = Equal (second, one)
    flat = If (is_one) <
        then_branch = yes () => (float[a] narrow) { narrow = Squeeze (x, one) },
        else_branch = no () => (float[b, d] same) { same = Identity (x) }>
    pair = Constant <value_ints = [2, -1]> ()
    z = Exp (flat)
    y = If (c) <
        then_branch = halves () => (float[e, f] h) { h = Reshape (z, pair) },
        else_branch = whole () => (float[g, k] w) {
            row = Constant <value_ints = [1, -1]> ()
            w0 = Reshape (z, row)
            w = Neg (w0)
        }>
}"""


RATES = Ceilings({1: {"f32": 100.0}, 2: {"f32": 200.0}}, {1: {"L2": 100.0}, 2: {"L2": 200.0}}, l2=1 << 20, l3=1 << 25)


def model() -> bytes:
    return parser.parse_model(MODEL).SerializeToString()


def session(
    source: bytes | str, level: ort.GraphOptimizationLevel | None = None, without: str = ""
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if level is not None:
        options.graph_optimization_level = level
    disabled = [without] if without else None
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)


def expected(x: Array, halves: bool) -> Array:
    z = np.exp(x)
    return z.reshape(2, -1) if halves else -z.reshape(1, -1)


def check(made: ort.InferenceSession, shape: tuple[int, int], halves: bool) -> None:
    x = np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)
    (y,) = made.run(None, {"x": x, "c": np.array(halves)})
    np.testing.assert_allclose(y, expected(x, halves), rtol=1e-6)


def settled(made: ort.InferenceSession) -> settled_plans.SettledPlans:
    found = made._sess._settled
    assert found is not None
    return found


def test_sizes_that_come_again_have_plans_without_questions() -> None:
    made = session(model())
    for _ in range(4):
        check(made, (6, 1), True)
        check(made, (3, 4), False)
    kinds = [[step.op_type for step in plan.steps] for plan in settled(made).plans]
    assert len(kinds) == 2
    generic = [step.op_type for step in made._sess.plan.steps]
    assert generic.count("If") == 2
    assert all(found.count("If") == 1 for found in kinds)  # the one that asks for data
    assert made._sess.fast_run is not None


@pytest.mark.parametrize("halves", [True, False])
def test_a_branch_that_sizes_break_is_an_error_only_where_it_is_chosen(halves: bool) -> None:
    made = session(model())
    x = np.ones((5, 1), np.float32)
    for _ in range(4):
        if halves:
            with pytest.raises(errors.OnnxRuntimeError, match=r"Reshape.*cannot be reshaped") as found:
                made.run(None, {"x": x, "c": np.array(True)})
            assert "Refusal" not in str(found.value)
        else:
            check(made, (5, 1), False)
    assert len(settled(made).plans) == 1
    check(made, (5, 1), False)


def test_few_sizes_are_kept_and_few_plans_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_plans, "MOST_BUILDS", 6)
    made = session(model())
    for count in range(2, 30, 2):
        for _ in range(3):
            check(made, (count, 1), bool(count % 4))
    found = settled(made)
    assert len(found.plans) == settled_plans.MOST_SIZES
    assert found._builds == 6


def test_where_data_decide_other_sizes_are_not_tried() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    agraph (float[p, q] x, bool c) => (float[r] y) {
        one = Constant <value_ints = [1]> ()
        flat = If (c) <
            then_branch = yes () => (float[a] narrow) { narrow = Squeeze (x, one) },
            else_branch = no () => (float[b, d] same) { same = Identity (x) }>
        long = Constant <value_ints = [-1]> ()
        y = Reshape (flat, long)
    }"""
    made = session(parser.parse_model(text).SerializeToString(), without="OpenRankSinking")
    for count in (2, 3, 4):
        x = np.arange(count, dtype=np.float32).reshape(count, 1)
        for turn in range(4):
            np.testing.assert_array_equal(made.run(None, {"x": x, "c": np.array(turn % 2 == 0)})[0], x.ravel())
    assert len(settled(made).plans) == 1


def test_threads_with_different_sizes() -> None:
    made = session(model())

    def work(number: int) -> None:
        for turn in range(20):
            check(made, (2 + 2 * (number % 3), 1 + number % 2), bool(turn % 2))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_other_models_and_levels_ask_for_nothing() -> None:
    plain = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
    )
    assert session(plain.SerializeToString())._sess._settled is None
    off = session(model(), ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert off._sess._settled is None
    for _ in range(3):
        check(off, (4, 1), True)


def test_a_file_that_changed_is_not_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    made = session(str(path))
    check(made, (4, 1), True)
    other = parser.parse_model(MODEL.replace("Exp (flat)", "Abs (flat)"))
    onnx.save(other, path)
    for _ in range(3):
        check(made, (4, 1), True)
    assert settled(made).plans == []


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The engine file of the model, for products in bfloat16."""
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("sardonyx.cpu.precision", "bfloat16")
    compile_engine(model(), tmp_path / "model.engine", options, [shape_profiles.parse("x:6x1;c:")])
    return tmp_path / "model.engine"


@pytest.mark.usefixtures("rates")
def test_sessions_of_engine_files_compile_the_model_inside(engine: Path) -> None:
    made = session(str(engine))
    core = made._session()
    assert core._is_stored
    for _ in range(4):
        check(made, (6, 1), True)
        check(made, (3, 4), False)
    assert [sum(step.op_type == "If" for step in plan.steps) for plan in settled(made).plans] == [1, 1]
    assert explain(made).open_ifs == OpenIfs(("flat",), ("flat",), is_shown=True)
    again = core._built_again(core._request.options, sizes={"x": (6, 1), "c": ()})
    (provider,) = again.providers
    assert isinstance(provider, CPUExecutionProvider)
    assert provider.settings.precision == "bfloat16"


def test_an_engine_file_that_was_replaced_is_not_compiled(engine: Path, tmp_path: Path) -> None:
    made = session(str(engine))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    other = parser.parse_model(MODEL.replace("Exp (flat)", "Abs (flat)")).SerializeToString()
    compile_engine(other, tmp_path / "other.engine", options, [shape_profiles.parse("x:6x1;c:")])
    (tmp_path / "other.engine").replace(engine)
    for _ in range(3):
        check(made, (6, 1), True)
    assert len(settled(made).plans) == 1


def test_sessions_that_may_not_compile_settle_nothing(engine: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_model_compile", "1")
    made = ort.InferenceSession(str(engine), options, providers=["CPUExecutionProvider"])
    assert made._session()._is_stored
    for _ in range(3):
        check(made, (6, 1), True)
    assert made._session()._settled is None


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)


def hosts(made: ort.InferenceSession, **keywords: Any) -> tuple[int, OpenIfs]:
    """How many Ifs run, and what is told of those that ask for sizes."""
    found = explain(made, **keywords)
    assert found.open_ifs is not None
    return sum("If" in row.operators for row in found.rows), found.open_ifs


@pytest.mark.usefixtures("rates")
def test_the_plan_for_given_sizes_is_explained() -> None:
    made = session(model())
    feeds = {"x": np.ones((6, 1), np.float32), "c": np.array(True)}
    shown = OpenIfs(("flat",), ("flat",), is_shown=True)
    assert hosts(made, feeds=feeds) == (1, shown)
    assert hosts(made, shapes={"x": (6, 1), "c": ()}) == (1, shown)
    assert explain(made, feeds, runs=3).run_us
    assert settled(made).plans == []  # the session is left as it is
    odd = {"x": np.ones((5, 1), np.float32), "c": np.array(False)}
    assert hosts(made, feeds=odd) == (1, shown)
    with pytest.raises(errors.OnnxRuntimeError, match=r"running Reshape node.*cannot be reshaped"):
        explain(made, odd | {"c": np.array(True)}, runs=1)


@pytest.mark.usefixtures("rates")
def test_sizes_that_break_every_way_have_no_plan_of_their_own() -> None:
    made = session(parser.parse_model(MODEL.replace("[1, -1]", "[-1, 2]")).SerializeToString())
    with pytest.raises(errors.OnnxRuntimeError, match="cannot be reshaped"):
        explain(made, {"x": np.ones((5, 1), np.float32), "c": np.array(False)})
    found = explain(made, shapes={"x": (6, 1), "c": ()})
    assert found.open_ifs == OpenIfs(("flat",), ("flat",), is_shown=True)


@pytest.mark.usefixtures("rates")
def test_without_sizes_the_plan_that_a_session_made_last_is_explained() -> None:
    made = session(model())
    for _ in range(3):
        check(made, (3, 4), False)
        check(made, (8, 1), True)
    found = explain(made)
    assert found.inputs == {"x": (8, 1), "c": ()}
    assert found.open_ifs is not None
    assert found.open_ifs.is_shown


@pytest.mark.usefixtures("rates")
def test_sizes_that_get_no_plan_are_explained_with_the_plan_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_plans, "MOST_BUILDS", 0)
    feeds = {"x": np.ones((6, 1), np.float32), "c": np.array(True)}
    count, told = hosts(session(model()), feeds=feeds)
    assert (count, told.is_shown) == (2, False)
    assert "no plan of their own" in told.note
    off = explain(session(model(), ort.GraphOptimizationLevel.ORT_DISABLE_ALL), feeds)
    assert off.open_ifs is None


@pytest.mark.usefixtures("rates")
def test_variants_of_a_session_are_made_for_the_same_sizes() -> None:
    made = session(model())
    found = explain(made, {"x": np.ones((6, 1), np.float32), "c": np.array(True)}, why=True)
    assert found.why is not None
    turned = {one.value: one.steps for knob in found.why.knobs for one in knob.turned}
    assert turned["ORT_ENABLE_LAYOUT"] == len(found.rows)
    assert turned["ORT_DISABLE_ALL"] > len(found.rows)  # type: ignore[operator]
    (shapes,) = [one for one in found.why.diagnoses if one.name == "dynamic shapes"]
    assert shapes.found
    assert "compiled again" in shapes.evidence
    assert "flat" in shapes.nodes
