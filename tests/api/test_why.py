"""What knobs did and would do, and the troubles of the checklist: each in a model that has it and one that has not."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.api.explaining import troubles
from sardonyx.api.explaining.explanation import Diagnosis, Explanation, Knob, explain
from sardonyx.providers import registry
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.threads import other_load
from sardonyx.runtime.threads.processors import available_processors, usable_processors
from sardonyx.tuning import ceilings
from sardonyx.tuning.ceilings import Ceilings
from tests.providers.fused_arithmetic import FusedArithmetic

RATES = Ceilings(
    {1: {"f32": 100.0, "f64": 50.0, "bf16": 200.0}, 2: {"f32": 200.0, "f64": 100.0, "bf16": 400.0}},
    {1: {"L2": 100.0, "L3": 50.0, "DRAM": 10.0}, 2: {"L2": 200.0, "L3": 60.0, "DRAM": 12.0}},
    l2=1 << 20,
    l3=1 << 25,
)
CHECKLIST = [
    "fallback",
    "missing fusions",
    "thread contention",
    "fragmentation",
    "transfers",
    "initializers in inputs",
    "dynamic shapes",
]


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a machine that nobody has to measure, on which nobody else computes."""
    monkeypatch.setattr(ceilings, "stored_ceilings", lambda threads: RATES)
    monkeypatch.setattr(troubles, "other_load", lambda: 0.0)


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: list[str],
    constants: dict[str, Any],
    overridable: Sequence[str] = (),
) -> bytes:
    """A model of float tensors; `inputs` gives their shapes, and `overridable` constants are inputs as well."""
    tensors = {name: numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    values += [helper.make_tensor_value_info(name, tensors[name].data_type, tensors[name].dims) for name in overridable]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "model", values, results, list(tensors.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def block(shape: Sequence[Any] = (6, 8), overridable: Sequence[str] = ()) -> bytes:
    """GELU(x @ weight + bias), GELU as torch writes it."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"], name="product"),
        helper.make_node("Add", ["product", "bias"], ["sum"], name="sum"),
        helper.make_node("Div", ["sum", "root"], ["scaled"], name="div"),
        helper.make_node("Erf", ["scaled"], ["erf"], name="erf"),
        helper.make_node("Add", ["erf", "one"], ["more"], name="more"),
        helper.make_node("Mul", ["sum", "more"], ["twice"], name="twice"),
        helper.make_node("Mul", ["twice", "half"], ["y"], name="half"),
    ]
    constants = {
        "weight": rng.standard_normal((8, 32)).astype(np.float32),
        "bias": rng.standard_normal(32).astype(np.float32),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    return made(nodes, {"x": list(shape)}, ["y"], constants, overridable)


FEED = {"x": np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)}


def why(
    model: bytes, feeds: dict[str, Any] = FEED, options: ort.SessionOptions | None = None, **keywords: Any
) -> Explanation:
    return explain(ort.InferenceSession(model, options, **keywords), feeds, why=True)


@functools.cache
def plain() -> Explanation:
    """Why of the block, in a session with the defaults."""
    return why(block())


def diagnosis(found: Explanation, name: str) -> Diagnosis:
    assert found.why is not None
    (one,) = [one for one in found.why.diagnoses if one.name == name]
    return one


def knob(found: Explanation, name: str) -> Knob:
    assert found.why is not None
    (one,) = [one for one in found.why.knobs if one.name == name]
    return one


def leaving(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    return options


# Knobs


def test_levels_are_turned_and_compared() -> None:
    found = plain()
    level = knob(found, "graph_optimization_level")
    assert level.value == "ORT_ENABLE_ALL"
    assert "1 step for 7 nodes" in level.did
    by_value = {one.value: one for one in level.turned}
    assert set(by_value) == {one.name for one in ort.GraphOptimizationLevel} - {level.value}
    assert by_value["ORT_DISABLE_ALL"].steps == 7
    assert by_value["ORT_ENABLE_LAYOUT"].steps == 1
    predicted = found.totals["predicted_us"]
    assert predicted is not None
    assert by_value["ORT_DISABLE_ALL"].predicted_us > predicted  # type: ignore[operator]
    assert by_value["ORT_ENABLE_LAYOUT"].predicted_us == pytest.approx(predicted)
    assert by_value["ORT_DISABLE_ALL"].measured_us is None


def test_rewrites_and_fused_kernels_are_left_out_one_at_a_time() -> None:
    optimizers = knob(plain(), "disabled_optimizers")
    assert optimizers.did == "1 of 1 steps do the work of several operators"
    by_value = {one.value: one for one in optimizers.turned}
    assert by_value["without KernelFusion"].steps == 3  # MatMul, Add, Gelu
    assert "without GeluFusionL2" in by_value
    already = knob(why(block(), disabled_optimizers=["KernelFusion"]), "disabled_optimizers")
    assert already.value == "KernelFusion"
    assert "without KernelFusion" not in {one.value for one in already.turned}


def test_other_numbers_of_threads_come_from_the_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.api.explaining import knobs

    monkeypatch.setattr(knobs, "usable_processors", lambda: 2.0)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((256, 1024)).astype(np.float32)
    model = made([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [512, 256]}, ["y"], {"w": weight})
    found = why(model, {"x": np.ones((512, 256), np.float32)}, options)
    (two,) = knob(found, "intra_op_num_threads").turned
    assert two.value == "2"
    assert two.predicted_us == pytest.approx(found.totals["predicted_us"] / 2, rel=0.2)  # type: ignore[operator]


def test_half_precision_is_predicted_where_the_machine_has_it() -> None:
    found = plain()
    precision = knob(found, "sardonyx.cpu.precision")
    assert precision.value == "float32"
    assert [one.value for one in precision.turned] == ["bfloat16"]


def test_open_dimensions_and_memory_are_knobs() -> None:
    found = why(block(["rows", 8]))
    dimensions = knob(found, "add_free_dimension_override_by_name")
    assert dimensions.value == "none"
    assert [one.value for one in dimensions.turned] == ["rows=6"]
    arena = knob(found, "enable_cpu_mem_arena")
    assert arena.value == "True"
    (off,) = arena.turned
    assert off.predicted_us > found.totals["predicted_us"] + 10  # type: ignore[operator]
    assert arena.did == f"{found.arena_bytes + found.scratch_bytes * found.threads:,} bytes are kept for later runs"
    assert {one.value for one in knob(found, "execution_order").turned} == {"PRIORITY_BASED", "MEMORY_EFFICIENT"}
    (lying,) = knob(found, "session.disable_prepacking").turned
    assert found.packed_bytes >= 8 * 32 * 4 > lying.packed_bytes == 0  # type: ignore[operator]


def test_turned_values_are_measured_where_the_session_is() -> None:
    session = ort.InferenceSession(block())
    found = explain(session, FEED, runs=3, why=True)
    assert found.runs == 3
    measured = [one.measured_us for one in knob(found, "graph_optimization_level").turned]
    assert len(measured) == 4
    assert all(one is not None and one > 0 for one in measured)
    assert all(one.beside_us > 0 for one in knob(found, "graph_optimization_level").turned)  # type: ignore[operator]
    np.testing.assert_array_equal(session.run(None, FEED)[0], ort.InferenceSession(block()).run(None, FEED)[0])


def test_what_cannot_be_made_says_why() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3
    options.add_session_config_entry("session.intra_op_thread_affinities", "1;1")
    threads = knob(why(block(), options=options), "intra_op_num_threads")
    notes = {one.value: one.note for one in threads.turned if one.value not in ("1", "3")}
    assert all("affinities" in note for note in notes.values())


def test_everything_is_typed_json() -> None:
    found = json.loads(json.dumps(why(block(overridable=["weight"])).as_dict()))
    assert [one["name"] for one in found["why"]["diagnoses"]] == CHECKLIST
    assert found["overridable"]["names"] == ["weight"]
    level = next(one for one in found["why"]["knobs"] if one["name"] == "graph_optimization_level")
    assert sorted(level["turned"][0]) == [
        *("arena_bytes", "beside_us", "measured_us", "note", "packed_bytes", "predicted_us", "steps", "value"),
    ]
    assert explain(ort.InferenceSession(block()), FEED).why is None


# Troubles


def test_a_healthy_session_has_no_trouble() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    found = why(block(), options=options)
    assert found.why is not None
    assert [one.name for one in found.why.diagnoses] == CHECKLIST
    assert [one.name for one in found.why.diagnoses if one.found] == []
    assert all(one.evidence for one in found.why.diagnoses)


def noisy() -> bytes:
    """Random numbers have no kernel."""
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], name="noise"),
        helper.make_node("Add", ["x", "noise"], ["y"], name="add"),
    ]
    return made(nodes, {"x": [6, 8]}, ["y"], {})


def test_fallback_names_steps_in_python_with_their_reason() -> None:
    one = diagnosis(why(noisy()), "fallback")
    assert one.found
    assert one.nodes == ("noise",)
    assert "in Python: 1 of 2 steps" in one.evidence
    assert "RandomNormalLike" in one.evidence
    assert one.remedy


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A session's providers with one before the CPU that takes Add and Mul."""
    providers = {FusedArithmetic.name: FusedArithmetic, CPUExecutionProvider.name: CPUExecutionProvider}
    monkeypatch.setattr(registry, "_registered", lambda: providers)
    monkeypatch.setattr(registry, "_available", lambda: tuple(providers))
    return list(providers)


def test_nodes_that_a_provider_declines_are_a_fallback_and_cost_transfers(third_party: list[str]) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"], name="square"),
        helper.make_node("Relu", ["square"], ["positive"], name="relu"),
        helper.make_node("Add", ["positive", "x"], ["y"], name="add"),
    ]
    found = why(made(nodes, {"x": [6, 8]}, ["y"], {}), providers=third_party)
    left = diagnosis(found, "fallback")
    assert left.found
    assert left.nodes == ("relu",)
    assert "Relu is no arithmetic of two operands" in left.evidence
    moved = diagnosis(found, "transfers")
    assert moved.found
    assert set(moved.nodes) == {"square", "positive"}
    assert "2 values go from one provider to another, 0.4 KB" in moved.evidence
    assert not diagnosis(plain(), "fallback").found


def test_values_that_are_only_turned_are_transfers() -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"], name="turn")]
    one = diagnosis(why(made(nodes, {"x": [64, 48]}, ["y"], {}), {"x": np.ones((64, 48), np.float32)}), "transfers")
    assert one.found
    assert one.nodes == ("turn",)
    assert "1 step for nothing but copying or turning values" in one.evidence
    assert not diagnosis(plain(), "transfers").found


def test_copies_that_the_options_cause_are_laid_to_them() -> None:
    """Convolutions that do not hand their results on as they compute them."""
    weights = np.random.default_rng(4).standard_normal((32, 32, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="first"),
        helper.make_node("Conv", ["h", "w"], ["i"], name="second"),
        helper.make_node("Conv", ["i", "w"], ["y"], name="third"),
    ]
    model, feeds = (
        made(nodes, {"x": [1, 32, 40, 40]}, ["y"], {"w": weights}),
        {"x": np.ones((1, 32, 40, 40), np.float32)},
    )
    kept = diagnosis(why(model, feeds, disabled_optimizers=["NchwcTransformer"]), "transfers")
    assert kept.found
    assert kept.nodes == ("first", "second", "third")
    assert kept.remedy == "ORT_ENABLE_ALL and no disabled optimizers, with which 2 steps would copy"
    assert not diagnosis(why(model, feeds), "transfers").found


def test_fusions_that_the_options_leave_out_are_missing() -> None:
    one = diagnosis(why(block(), options=leaving(ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)), "missing fusions")
    assert one.found
    assert "GeluFusionL2 1" in one.evidence
    assert "ORT_ENABLE_ALL" in one.remedy
    by_name = diagnosis(why(block(), disabled_optimizers=["GeluFusionL2"]), "missing fusions")
    assert by_name.found
    assert "GeluFusionL2 1" in by_name.evidence


def test_fusions_that_just_miss_their_pattern_say_why() -> None:
    """The sum of a skip connection that is broadcast is no SkipLayerNormalization."""
    nodes = [
        helper.make_node("Add", ["x", "row"], ["sum"], name="skip"),
        helper.make_node("LayerNormalization", ["sum", "scale", "shift"], ["y"], name="norm", axis=-1),
    ]
    ones = np.ones(8, np.float32)
    model = made(nodes, {"x": [6, 8], "row": [1, 8]}, ["y"], {"scale": ones, "shift": ones})
    one = diagnosis(why(model, {**FEED, "row": np.ones((1, 8), np.float32)}), "missing fusions")
    assert one.found
    assert one.nodes == ("norm",)
    assert "SkipLayerNormFusion" in one.evidence
    assert "shape" in one.evidence


@pytest.mark.parametrize(
    ("threads", "usable", "others", "found"),
    [
        (2, 2.0, 0.1, False),
        (4, 2.0, 0.0, True),
        (2, 1.5, None, True),
        (2, 2.0, 1.0, True),
        (1, 2.0, 1.0, False),
        (1, 2.0, 2.0, True),
        (1, 0.5, 0.0, False),
    ],
)
def test_contention_is_more_threads_than_processors_or_others_on_them(
    threads: int, usable: float, others: float | None, found: bool
) -> None:
    explanation = Explanation({}, threads, "avx2", {})
    one = troubles.thread_contention(explanation, usable, others)
    assert one.found is found
    assert f" on {usable:g} processor" in one.evidence
    assert ("intra_op_num_threads" in one.remedy) == (found and threads > 1)
    assert bool(one.remedy) == found


def test_contention_is_told_once() -> None:
    """Fewer threads for the processors that there are, and still fewer while others use these."""
    one = troubles.thread_contention(Explanation({}, 8, "avx2", {}), 4.0, 2.0)
    assert one.remedy == "set intra_op_num_threads to 4 at most, to 2 while others compute on the same processors"
    assert troubles.thread_contention(Explanation({}, 4, "avx2", {}), 1.0, 1.0).remedy == (
        "set intra_op_num_threads to 1 at most"
    )
    assert troubles.thread_contention(Explanation({}, 1, "avx2", {}), 1.0, None).evidence == "1 thread on 1 processor"


def test_too_many_threads_are_contention_of_a_session() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(available_processors()) + 1
    assert diagnosis(why(block(), options=options), "thread contention").found


def test_other_load_is_what_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter([10.0, 10.75]), iter([3.0, 3.25])
    times = iter([0.0, 0.5])
    monkeypatch.setattr(other_load, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(other_load, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(other_load.time, "perf_counter", lambda: next(times))
    assert other_load.other_load(0.0) == 1.0


def test_busy_time_is_that_of_the_processors_of_this_process(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(available_processors())
    statistics = tmp_path / "stat"
    statistics.write_text(
        f"cpu  9 9 9 9\ncpu{first} 100 20 30 400 50 1 2 3 4 5\ncpu{10**6} 7 7 7 7 7 7 7 7 7 7\nintr 5\n"
    )
    monkeypatch.setattr(other_load, "_STATISTICS", statistics)
    ticks = other_load.os.sysconf("SC_CLK_TCK")
    assert other_load._busy_seconds() == (100 + 20 + 30 + 1 + 2 + 3) / ticks
    monkeypatch.setattr(other_load, "_STATISTICS", tmp_path / "nothing")
    assert other_load.other_load() is None


def test_processors_are_those_of_the_mask_and_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.runtime.threads import processors

    monkeypatch.setattr(processors, "available_processors", lambda: frozenset(range(4)))
    monkeypatch.setattr(processors, "_quota", lambda: 1.5)
    assert usable_processors() == 1.5
    monkeypatch.setattr(processors, "_quota", lambda: None)
    assert usable_processors() == 4


def growing() -> bytes:
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], name="up"),
        helper.make_node("Softmax", ["h"], ["s"], name="soft"),
        helper.make_node("MatMul", ["s", "down"], ["y"], name="down"),
    ]
    up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 512), (512, 8)))
    return made(nodes, {"x": ["n", 8]}, ["y"], {"up": up, "down": down})


def test_an_arena_that_grew_for_other_shapes_is_fragmentation() -> None:
    session = ort.InferenceSession(growing())
    small, large = np.ones((4, 8), np.float32), np.ones((8000, 8), np.float32)
    session.run(None, {"x": small})
    assert not diagnosis(explain(session, {"x": small}, why=True), "fragmentation").found
    session.run(None, {"x": large})
    one = diagnosis(explain(session, {"x": small}, why=True), "fragmentation")
    assert one.found
    assert "shrinkage" in one.remedy
    assert not diagnosis(explain(session, {"x": large}, why=True), "fragmentation").found


def test_initializers_in_inputs_say_what_they_cost() -> None:
    found = why(block(overridable=["weight", "one"]))
    cost = found.overridable
    assert cost is not None
    assert cost.names == ("weight", "one")
    assert {"product", "more"} <= set(cost.nodes)
    assert cost.rewrites["GeluFusionL2"] == 1
    assert cost.packed_bytes >= 8 * 32 * 4
    assert cost.steps == (1, 1)
    assert cost.predicted_us is not None
    assert cost.predicted_us[1] <= cost.predicted_us[0]
    one = diagnosis(found, "initializers in inputs")
    assert one.found
    assert "GeluFusionL2 1" in one.evidence
    assert "remove_initializer_from_input" in one.remedy
    assert plain().overridable is None
    assert not diagnosis(plain(), "initializers in inputs").found


def test_overridable_initializers_stay_so() -> None:
    session = ort.InferenceSession(block(overridable=["half"]))
    explain(session, FEED, why=True)
    (usual,) = session.run(None, FEED)
    (doubled,) = session.run(None, {**FEED, "half": np.array(1, np.float32)})
    np.testing.assert_allclose(doubled, 2 * usual, rtol=1e-6)


def test_sizes_that_data_decide_are_dynamic_shapes() -> None:
    nodes = [
        helper.make_node("Unique", ["x"], ["once"], name="once", axis=0),
        helper.make_node("Neg", ["once"], ["y"], name="less"),
    ]
    one = diagnosis(why(made(nodes, {"x": ["n", 8]}, ["y"], {})), "dynamic shapes")
    assert one.found
    assert "once" in one.nodes
    assert "open sizes: n" in one.evidence
    harmless = diagnosis(why(block(["rows", 8])), "dynamic shapes")
    assert not harmless.found
    assert "open sizes: rows" in harmless.evidence
    assert "mask" in one.remedy
    assert "fix the open sizes" not in one.remedy
    assert diagnosis(plain(), "dynamic shapes").evidence == "open sizes: none"


def test_inputs_that_say_sizes_are_dynamic_shapes() -> None:
    """To fix the sizes of the inputs would not help."""
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["turned"], name="view"),
        helper.make_node("Softmax", ["turned"], ["y"], name="soft"),
    ]
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2])
    model = onnx.load_from_string(made(nodes, {"x": ["n", 8]}, ["y"], {}))
    model.graph.input.append(sizes)
    one = diagnosis(why(model.SerializeToString(), {**FEED, "sizes": np.array([8, 6])}), "dynamic shapes")
    assert one.found
    assert "planned anew for other contents of small inputs: 1 part of the model" in one.evidence
    assert one.remedy == "make constants of the inputs that say sizes"


def test_open_sizes_that_keep_a_rewrite_from_its_place_are_dynamic_shapes() -> None:
    """With a fixed size the sum is an ordinary one of equal shapes, and one kernel does everything."""
    nodes = [
        helper.make_node("Exp", ["x"], ["grown"], name="grow"),
        helper.make_node("Add", ["grown", "other"], ["sum"], name="add"),
        helper.make_node("Neg", ["sum"], ["y"], name="less"),
    ]
    model = made(nodes, {"x": ["n", 8], "other": ["m", 8]}, ["y"], {})
    one = diagnosis(why(model, {**FEED, "other": FEED["x"]}), "dynamic shapes")
    assert one.found
    assert "fixed sizes would make 1 step of 3" in one.evidence
