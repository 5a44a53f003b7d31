"""Options of one run."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx import errors
from tests.api import session_models as models

ADD = models.add()
X = np.ones((2, 3), np.float32)
FEED = {"x": X, "y": X}


def test_properties_are_those_of_onnxruntime() -> None:
    theirs = pytest.importorskip("onnxruntime")
    names = ("log_severity_level", "log_verbosity_level", "logid", "terminate", "only_execute_path_to_fetches")
    for name in names:
        assert getattr(ort.RunOptions(), name) == getattr(theirs.RunOptions(), name)
        for value in (True, 0, 3, 1.5, None, "text", b"text", []):
            outcomes = []
            for package in (theirs, ort):
                options = package.RunOptions()
                try:
                    setattr(options, name, value)
                    outcomes.append(getattr(options, name))
                except Exception as error:
                    outcomes.append(type(error).__name__)
            assert outcomes[0] == outcomes[1], f"{name} = {value!r}"


def test_options_are_closed_and_not_pickled() -> None:
    with pytest.raises(AttributeError):
        ort.RunOptions().foo = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(ort.RunOptions())
    with pytest.raises(RuntimeError, match="RunOptions does not have configuration with key: zz"):
        ort.RunOptions().get_run_config_entry("zz")


@pytest.mark.parametrize("given", [5, {}])
def test_other_types_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ort.InferenceSession(ADD).run(None, FEED, given)


def test_a_run_can_be_terminated(capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.RunOptions()
    session = ort.InferenceSession(ADD)
    options.terminate = True
    with pytest.raises(errors.Fail, match=r"FAIL : Exiting due to terminate flag being set to true\.$"):
        session.run(None, FEED, options)
    assert capfd.readouterr().err == ""
    options.terminate = False
    np.testing.assert_array_equal(session.run(None, FEED, options)[0], X + X)


@pytest.mark.parametrize("only", [False, True])
def test_a_run_does_what_its_outputs_need_alone(only: bool, tmp_path: Path) -> None:
    """Whether it is told so or not: a trace names the nodes that ran."""
    text = """<ir_version: 10, opset_import: ["" : 21]> graph (float[n] x) => (string[n] short, string[n] long)
    { a = Cast <to = 8> (x)  short = Identity (a)  b = Cast <to = 1> (a)  c = Neg (b)  long = Cast <to = 8> (c) }"""
    settings = ort.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "trace")
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), settings)
    options = ort.RunOptions()
    options.only_execute_path_to_fetches = only
    assert session.run(["short"], {"x": np.ones(2, np.float32)}, options)[0].tolist() == ["1", "1"]
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = {event["args"]["op_name"] for event in events if event.get("cat") == "Node"}
    assert "Cast" in ran
    assert "Neg" not in ran


def test_a_run_is_terminated_between_its_steps() -> None:
    options = ort.RunOptions()
    session = ort.InferenceSession(models.branches())
    first = session._sess._plan.steps[0]  # type: ignore[union-attr]
    call = first.call

    def then_stop(context: Any, inputs: Any) -> Any:
        options.terminate = True
        return call(context, inputs)

    object.__setattr__(first, "call", then_stop)
    with pytest.raises(errors.Fail, match="terminate flag"):
        session.run(None, {"x": np.ones((1, 4), np.float32), "c": np.array(True)}, options)


CONFIG = [
    ("memory.enable_memory_arena_shrinkage", "cpu:0", True),
    ("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0", True),
    ("memory.enable_memory_arena_shrinkage", "gpu:0", True),
    ("memory.enable_memory_arena_shrinkage", "gpu:0;cpu:0", True),
    ("memory.enable_memory_arena_shrinkage", "cpu:0;foo:0", True),
    ("memory.enable_memory_arena_shrinkage", "cpu:x", True),
    ("memory.enable_memory_arena_shrinkage", "cpu", True),
    ("memory.enable_memory_arena_shrinkage", "foo:0", True),
    ("memory.enable_memory_arena_shrinkage", "cpu:1", True),
    ("memory.enable_memory_arena_shrinkage", "cpu:0", False),
    ("gpu_graph_id", "abc", True),
    ("gpu_graph_id", "-1", True),
    ("unknown", "x", True),
    ("disable_synchronize_execution_providers", "1", True),
]


@pytest.mark.parametrize(("key", "value", "arena"), CONFIG)
def test_config_entries_are_checked_as_by_onnxruntime(key: str, value: str, arena: bool) -> None:
    theirs = pytest.importorskip("onnxruntime")
    outcomes = []
    for package in (theirs, ort):
        settings = package.SessionOptions()
        settings.enable_cpu_mem_arena = arena
        options = package.RunOptions()
        options.add_run_config_entry(key, value)
        assert options.get_run_config_entry(key) == value
        try:
            outcomes.append(package.InferenceSession(ADD, settings).run(None, FEED, options)[0].tolist())
        except Exception as error:
            outcomes.append((type(error).__name__, str(error)))
    assert outcomes[0] == outcomes[1]


def test_a_run_logs_at_its_own_severity(capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.RunOptions()
    options.log_severity_level, options.logid = 0, "RUNTAG"
    settings = ort.SessionOptions()
    settings.logid = "SESSION"
    ort.InferenceSession(ADD, settings).run(None, FEED, options)
    assert re.search(r"\[I:onnxruntime:SESSION, .*\] Running with tag: RUNTAG$", capfd.readouterr().err, re.MULTILINE)


def test_adapters_stand_in_for_initializers(tmp_path: Any) -> None:
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({"w": ort.OrtValue.ortvalue_from_numpy(np.full(3, 9, np.float32))})
    adapter.export_adapter(str(tmp_path / "a.onnx_adapter"))
    loaded = ort.LoraAdapter()
    loaded.Load(str(tmp_path / "a.onnx_adapter"))
    options = ort.RunOptions()
    options.add_active_adapter(loaded)
    session = ort.InferenceSession(models.add_weights(overridable=True))
    zero = np.zeros((1, 3), np.float32)
    assert session.run(None, {"x": zero}, options)[0].tolist() == [[9, 9, 9]]
    assert session.run(None, {"x": zero})[0].tolist() == [[1, 2, 3]]
    with pytest.raises(TypeError):
        options.add_active_adapter(5)  # type: ignore[arg-type]
