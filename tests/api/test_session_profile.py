"""The profile of a session: the file and events that tools for onnxruntime read."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx import errors
from tests.api import session_models as models

FEED = {"x": np.ones((2, 4), np.float32), "c": np.array(True)}


def profiled(prefix: Path | str, threads: int = 0) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(prefix)
    options.intra_op_num_threads = threads
    return options


def events(tmp_path: Path, source: Any = None) -> list[dict[str, Any]]:
    session = ort.InferenceSession(source or models.branches(), profiled(tmp_path / "trace"))
    session.run(None, FEED)
    return json.loads(Path(session.end_profiling()).read_text())


def test_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    session = ort.InferenceSession(models.branches(), options)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 0
    assert re.fullmatch(r"onnxruntime_profile__\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d{3}\.json", path.name)
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, FEED)
    assert session.end_profiling() == path.name
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    assert all(
        re.match(r'\{"cat" : "\w+","pid" :\d+,"tid" :\d+,"dur" :\d+,"ts" :\d+,"ph" : "X","name" :"', line)
        for line in lines[1:-1]
    )
    size = path.stat().st_size
    assert session.end_profiling() == ""
    session.run(None, FEED)
    assert path.stat().st_size == size


def test_without_profiling_there_is_nothing() -> None:
    session = ort.InferenceSession(models.branches())
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0


def test_the_events_are_those_of_onnxruntime(tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime")
    options = theirs.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "theirs")
    options.graph_optimization_level = theirs.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = theirs.InferenceSession(models.branches(), options)
    session.run(None, FEED)
    expected = json.loads(Path(session.end_profiling()).read_text())
    found = [event for event in events(tmp_path) if event["cat"] != "Compile"]
    assert [(event["cat"], event["name"]) for event in found] == [(event["cat"], event["name"]) for event in expected]
    keys = ("op_name", "provider", "node_index", "output_size", "output_type_shape")
    for ours, other in zip(found, expected, strict=True):
        assert ours.keys() == other.keys()
        if ours["cat"] == "Node":
            assert {key: ours["args"][key] for key in keys} == {key: other["args"][key] for key in keys}
            assert isinstance(ours["args"]["activation_size"], str)
            assert ours["args"]["thread_scheduling_stats"].keys() == other["args"]["thread_scheduling_stats"].keys()


def test_the_arguments_of_a_node(tmp_path: Path) -> None:
    (product,) = [event for event in events(tmp_path) if event["name"] == "mm_kernel_time"]
    arguments = product["args"]
    assert arguments["op_name"] == "MatMul"
    assert (arguments["activation_size"], arguments["parameter_size"], arguments["output_size"]) == ("32", "48", "24")
    assert arguments["input_type_shape"] == [{"float": [2, 4]}, {"float": [4, 3]}]
    assert arguments["output_type_shape"] == [{"float": [2, 3]}]
    main = arguments["thread_scheduling_stats"]["main_thread"]
    assert re.fullmatch(r"session-\d+-intra-op", main["thread_pool_name"])
    assert main["block_size"] == []


def test_the_stages_of_the_build_have_a_category_of_their_own(tmp_path: Path) -> None:
    found = events(tmp_path)
    stages = {event["name"] for event in found if event["cat"] == "Compile"}
    assert {"load", "check", "infer", "optimize", "place", "plan"} <= stages
    assert {event["cat"] for event in found} == {"Session", "Node", "Compile"}


def test_host_steps_say_why(tmp_path: Path) -> None:
    (condition,) = [event for event in events(tmp_path) if event["name"] == "if0_kernel_time"]
    assert condition["args"]["host_reason"]


def test_one_thread_has_no_scheduling(tmp_path: Path) -> None:
    session = ort.InferenceSession(models.branches(), profiled(tmp_path / "one", 1))
    session.run(None, FEED)
    found = json.loads(Path(session.end_profiling()).read_text())
    assert {event["args"]["thread_scheduling_stats"] for event in found if event["cat"] == "Node"} == {""}


def test_loading_a_path_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.branches())
    assert "model_loading_uri" in {event["name"] for event in events(tmp_path, path)}
    assert "model_loading_array" in {event["name"] for event in events(tmp_path)}


def test_rejected_and_failing_runs(tmp_path: Path) -> None:
    session = ort.InferenceSession(models.add(), profiled(tmp_path / "trace"))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(errors.InvalidArgument):
        session.run(None, {"x": x, "y": x.astype(np.float64)})
    with pytest.raises(errors.Fail):
        session.run(None, {"x": x, "y": np.ones((4, 3), np.float32)})
    found = json.loads(Path(session.end_profiling()).read_text())
    names = [event["name"] for event in found if event["cat"] != "Compile"]
    assert names[2:] == ["add0_kernel_time", "SequentialExecutor::Execute", "model_run"]


def test_children_lie_inside_their_parents(tmp_path: Path) -> None:
    found = events(tmp_path)
    by_name = {event["name"]: event for event in found}
    parent, child = by_name["if0_kernel_time"], by_name["Relu_0_kernel_time"]
    assert parent["ts"] <= child["ts"]
    assert child["ts"] + child["dur"] <= parent["ts"] + parent["dur"] + 1
    assert found.index(child) < found.index(parent)


def test_the_file_is_written_when_the_session_goes(tmp_path: Path) -> None:
    session = ort.InferenceSession(models.branches(), profiled(tmp_path / "trace"))
    session.run(None, FEED)
    del session
    gc.collect()
    (path,) = tmp_path.iterdir()
    assert any(event["name"] == "model_run" for event in json.loads(path.read_text()))


def test_the_file_is_written_when_the_process_ends(tmp_path: Path) -> None:
    text = (
        "import builtins, sys, sardonyx as ort\n"
        "from tests.api import session_models as models\n"
        "options = ort.SessionOptions()\n"
        "options.enable_profiling, options.profile_file_prefix = True, sys.argv[1]\n"
        "builtins.kept = ort.InferenceSession(models.add(), options)\n"  # beyond the end of all other modules
    )
    command = [sys.executable, "-c", text, str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = tmp_path.glob("p_*.json")
    assert any(event["name"] == "session_initialization" for event in json.loads(path.read_text()))


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match="profile_file_prefix"):
        ort.InferenceSession(models.branches(), profiled(tmp_path / "no" / "such" / "trace"))


def test_sizes_of_texts(tmp_path: Path) -> None:
    session = ort.InferenceSession(models.identity(8), profiled(tmp_path / "trace"))
    session.run(None, {"x": np.array(["a", "b"], object)})
    nodes = [event for event in json.loads(Path(session.end_profiling()).read_text()) if event["cat"] == "Node"]
    assert [(event["args"]["output_size"], event["args"]["output_type_shape"]) for event in nodes] == [
        ("64", [{"string": [2]}])
    ]
