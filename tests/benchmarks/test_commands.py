"""The commands that measure: their models, switches and profiles."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import benchmarks.__main__ as everything
import sardonyx as ort
from benchmarks import ablation, gemm_shapes, isolated, knobs, options, small, spread, startup, where
from benchmarks.ablation import Switch
from benchmarks.engines import BASELINE, COMPILED, ENGINES, KEPT, OURS, CompiledAhead
from benchmarks.turns import Budget
from benchmarks.zoo import registry, store
from sardonyx.api.options.config_keys import CONFIG_KEYS
from tests.runtime.workers import wait_until

# Isolated calls


def environment_of(name: str) -> str | None:
    return os.environ.get(name)


def refuse(message: str) -> None:
    raise ValueError(message)


def end_now() -> None:
    os._exit(3)


def test_a_call_in_a_fresh_process() -> None:
    assert isolated.call(environment_of, "SARDONYX_TEST", environment={"SARDONYX_TEST": "1"}) == "1"
    assert "SARDONYX_TEST" not in os.environ
    with pytest.raises(ValueError, match="no such thing"):
        isolated.call(refuse, "no such thing")
    with pytest.raises(isolated.DiedError, match="exit code 3"):
        isolated.call(end_now)


def test_reasons_are_a_line() -> None:
    assert isolated.reason(ValueError("no\nsuch thing")) == "ValueError: no"
    assert isolated.reason(isolated.DiedError("the process died of SIGILL")) == "the process died of SIGILL"


# Everything in one go


def chosen_parts(parts: tuple[str, ...], models: tuple[str, ...], folder: Path) -> argparse.Namespace:
    return argparse.Namespace(
        parts=parts,
        models=models,
        engines=("sardonyx",),
        threads=(1,),
        quick=True,
        thorough=False,
        seconds=None,
        zoo=folder / "zoo",
        json=folder / "results.json",
        plot=folder / "speed.png",
    )


def test_a_part_that_fails_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: everything.Request) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setitem(everything.PARTS, "memory", replace(everything.PARTS["memory"], measure=fail))
    failures = everything.measure(chosen_parts(("memory", "small"), ("one-add",), tmp_path))
    assert failures == ["memory: RuntimeError: no such luck"]
    assert "failed: memory" in capsys.readouterr().err
    rows = json.loads((tmp_path / "results.json").read_text())["small"]["rows"]
    assert {row["call"] for row in rows} == set(small.MODELS)
    assert all(row["error"] == "" and row["min_us"] > 0 for row in rows)
    assert (tmp_path / "zoo" / "one-add" / "info.json").exists()


def test_a_model_that_cannot_be_built_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("in the place of a folder")
    models, failures = everything.build(("one-add",), tmp_path / "a-file")
    assert models == ()
    assert len(failures) == 1
    assert failures[0].startswith("one-add was not built: ")


def test_shapes_that_fail_are_tried_alone() -> None:
    rows = gemm_shapes.measure_apart([(1, 2, 3), (2, 0, -1)], 1, False, 1)
    assert [(row.m, row.error == "") for row in rows] == [(1, True), (2, False)]


# Options


def test_options_refuse_what_they_do_not_know() -> None:
    assert options.counts("1, 2") == (1, 2)
    for text in ("", "0", "many"):
        with pytest.raises(argparse.ArgumentTypeError, match="numbers of threads"):
            options.counts(text)
    assert options.engines("torch sardonyx") == ("torch", "sardonyx")
    with pytest.raises(argparse.ArgumentTypeError, match="no engine 'caffe'"):
        options.engines("caffe")


# Matrix products


def test_shapes_are_spread_over_the_magnitudes() -> None:
    found = np.array(gemm_shapes.shapes(200))
    assert found.shape == (200, 3)
    assert found.min() >= 1
    assert found.max() <= gemm_shapes.LARGEST
    assert 0.4 < (found < 64).mean() < 0.6  # half of a logarithmic scale
    assert gemm_shapes.shapes(200) == gemm_shapes.shapes(200)


@pytest.mark.parametrize("variable", [False, True])
def test_model_of_one_product(variable: bool) -> None:
    text = gemm_shapes.model(5, 7, variable)
    onnx.checker.check_model(text)
    rng = np.random.default_rng(0)
    feeds = {"a": rng.standard_normal((3, 7), dtype=np.float32)}
    right = rng.standard_normal((7, 5), dtype=np.float32)
    if variable:
        feeds["b"] = right
    else:
        right = onnx.numpy_helper.to_array(onnx.load_from_string(text).graph.initializer[0])
    (found,) = ort.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(found, feeds["a"] @ right, rtol=1e-5, atol=1e-5)


def test_summary_of_products() -> None:
    rows = [
        {"m": 1, "n": 1, "k": size, "threads": 1, "error": "", "ratio": ratio, "min_ratio": ratio}
        for size, ratio in ((1, 0.5), (2, 2.0), (3, 4.0))
    ]
    rows.append({"m": 9, "n": 9, "k": 9, "threads": 1, "error": "no", "ratio": 0.0, "min_ratio": 0.0})
    text = gemm_shapes.summary(rows)
    assert "3 shapes: geometric mean 1.587" in text
    assert "1 behind by their minima, 1 failed" in text
    lines = [line for line in text.splitlines() if line.startswith("|     1")]
    assert ["0.50" in lines[0], "2.00" in lines[1], "4.00" in lines[2]] == [True] * 3


# Techniques


def test_switches_from_the_command_line() -> None:
    found = ablation.parsed("no spinning: session.intra_op.allow_spinning=0, -AttentionFusion")
    assert found == Switch("no spinning", {"session.intra_op.allow_spinning": "0"}, ("AttentionFusion",))
    for text in ("name", "name:", "name: nothing", ": =1"):
        with pytest.raises(argparse.ArgumentTypeError):
            ablation.parsed(text)


def test_switches_that_switch_nothing_are_noticed() -> None:
    assert list(ablation.unknown(Switch("x", {"session.no_such": "1"}, ("NoSuchFusion",)))) == [
        "there is no rewrite NoSuchFusion",
        "there is no session config entry session.no_such",
    ]
    for switch in ablation.SWITCHES:
        assert list(ablation.unknown(switch)) == []
        assert switch.config or switch.without


# Knobs


def test_every_knob_is_known_to_the_session(tmp_path: Path) -> None:
    for knob in knobs.KNOBS:
        for name, value in knob.properties.items():
            options_of_session = ort.SessionOptions()
            before = getattr(options_of_session, name)
            setattr(options_of_session, name, knobs.member(ort, value))
            assert getattr(options_of_session, name) != before
        assert set(knob.config) <= set(CONFIG_KEYS)
    assert knobs.KNOBS[0] == knobs.Knob(knobs.KNOBS[0].name)


@pytest.mark.parametrize("engine", ["sardonyx", "onnxruntime"])
def test_a_knob_is_measured(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    assert everything.build(("chain-100-add",), tmp_path) == (("chain-100-add",), [])
    for name in ("I/O binding", "arena shrinkage", "ORT_DISABLE_ALL"):
        (knob,) = (one for one in knobs.KNOBS if one.name == name)
        row = knobs.measure_apart(knob, "chain-100-add", engine, 1, tmp_path, Budget(runs=2, pause_seconds=0.0))
        assert row.error == ""
        assert min(row.median_ms, row.effect, row.spread, row.session_ms) > 0
        assert row.max_rel == 0


# Profiles


def event(name: str, start: int, lasts: int, **arguments: str) -> dict:
    return {"name": name, "ts": start, "dur": lasts, "args": arguments}


def test_profile_counts_the_last_runs() -> None:
    events = [
        event("a_kernel_time", 1, 900, op_name="MatMul"),
        event("model_run", 0, 1000),
        event("a_kernel_time", 2001, 40, op_name="MatMul"),
        event("b_kernel_time", 2041, 20, op_name="MatMul"),
        event("c_kernel_time", 2061, 10, op_name="Unique", host_reason="data decides the size"),
        event("model_run", 2000, 100),
    ]
    found = where.aggregate(events, 1, "kernel", 0.08)
    assert found.milliseconds == pytest.approx({"MatMul": 0.06, "host Unique": 0.01})
    assert found.calls == {"MatMul": 2, "host Unique": 1}
    assert found.run_ms == pytest.approx(0.1)
    by_node = where.aggregate(events, 1, "node", 0.08)
    assert list(by_node.milliseconds) == ["MatMul a", "MatMul b", "host Unique c"]
    lines = where.side_by_side({"one": found, "other": by_node}, top=1).splitlines()
    assert "MatMul" in lines[1]
    assert "85.7%" in lines[1]
    assert "57.1%" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["others", "kernels", "between", "run", "unprofiled"]


# Small calls and start-up


@pytest.mark.parametrize("engine", ["sardonyx", "onnxruntime", "openvino"])
@pytest.mark.parametrize("call", list(small.MODELS))
def test_small_calls_run(call: str, engine: str) -> None:
    pytest.importorskip(engine)
    (row,) = small.measure(call, [engine], 1, 2)
    assert row.error == ""
    assert row.calls >= 2


# Spread


def test_spread_of_runs(tmp_path: Path) -> None:
    everything.build(("chain-100-add",), tmp_path)
    row = spread.measure("chain-100-add", "sardonyx", 2, tmp_path, 4, 1, 0.02)
    assert row.error == ""
    assert row.runs >= 2
    assert row.busy_ratio == pytest.approx(row.busy_ms / row.idle_ms)


def test_the_spread_of_arithmetic_needs_no_model(tmp_path: Path) -> None:
    row = spread.measure("none", spread.FLOOR, 2, tmp_path, 0, 1, 0.02)
    assert row.runs >= 2
    assert row.busy_ratio == pytest.approx(row.busy_ms / row.idle_ms)


def test_the_spread_is_the_late_runs_over_the_usual_one() -> None:
    assert spread.spread([0.002] * 98 + [0.006] * 2) == pytest.approx((2.0, 3.0))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_core_is_busy_only_when_it_is_told_to() -> None:
    before = set(children())
    with spread.busy_core() as let_go_on:
        (program,) = set(children()) - before
        wait_until(lambda: state(program) == "T")
        let_go_on(True)
        wait_until(lambda: state(program) == "R")
        let_go_on(False)
        wait_until(lambda: state(program) == "T")
    assert set(children()) <= before


def children() -> list[int]:
    """The processes that this one has started."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(number) for number in text.split()]


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_scripts_are_programs() -> None:
    for engine in ("onnxruntime", "openvino", "sardonyx"):
        compile(startup.script(engine) or "", engine, "exec")
    assert startup.script("torch") is None


def test_a_program_without_an_answer_is_an_error() -> None:
    assert startup.until_answer("print(1)", [], {}) > 0
    with pytest.raises(RuntimeError, match="KeyError: 5"):
        startup.until_answer("{}[5]", [], {})


def test_processes_with_an_empty_cache_have_figures_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ensure("one-add", tmp_path)
    seen: list[tuple[bool, str]] = []

    def until_answer(program: str, arguments: list[str], environment: dict[str, str]) -> float:
        assert "sardonyx" in program or "onnxruntime" in program
        folder = Path(environment["SARDONYX_CACHE"])
        seen.append((folder.exists() and not any(folder.iterdir()), environment.get("SARDONYX_KERNELS", "as it is")))
        folder.mkdir(exist_ok=True)
        (folder / "kept").touch()
        return 2.0 if "onnxruntime" in program else 1.0

    monkeypatch.setattr(startup, "until_answer", until_answer)
    monkeypatch.setattr(startup, "has_packs", lambda: True)
    monkeypatch.setenv("SARDONYX_KERNELS", "here")
    theirs, ours = startup.process_rows("one-add", [BASELINE, OURS], 1, tmp_path, 2)
    assert (theirs.median_s, theirs.empty_s, theirs.ready_s) == (2.0, 0.0, 0.0)
    assert (ours.median_s, ours.empty_s, ours.ready_s) == (1.0, 1.0, 1.0)
    assert ours.ratio == ours.empty_ratio == ours.ready_ratio == 2.0
    assert [packs for is_empty, packs in seen if is_empty] == ["off", "here"] * 2
    monkeypatch.setattr(startup, "has_packs", lambda: False)
    assert startup.process_rows("one-add", [OURS], 1, tmp_path, 1)[0].ready_s == 0.0


def test_a_session_begins_from_a_file_compiled_ahead(tmp_path: Path) -> None:
    model, threads = registry.get("one-add"), 1
    path = startup.write_tiny(tmp_path)
    engine = ENGINES[COMPILED]
    assert isinstance(engine, CompiledAhead)
    made = engine.compiled(model, path, threads, tmp_path)
    inputs = {tensor.name: np.full(tensor.sized(model.sizes), 2, np.float32) for tensor in model.inputs}
    expected = ENGINES[OURS].load(model, path, threads, False)(inputs)
    for file in (made, path):
        np.testing.assert_array_equal(engine.load(model, file, threads, False)(inputs), expected)
    assert startup.script(COMPILED) == startup.script(KEPT)
