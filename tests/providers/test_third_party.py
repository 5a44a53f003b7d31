"""A third party's provider, registered by nothing but the entry points of an installed distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENTRY_POINTS = """[sardonyx.execution_providers]
FusedArithmeticExecutionProvider = fused_arithmetic:FusedArithmetic
AbsentExecutionProvider = fused_arithmetic:Absent
BrokenExecutionProvider = no_such_module:Broken
"""

PRELUDE = """
import json, sys, warnings
import numpy as np
import sardonyx as ort
from onnx import TensorProto, helper
F = TensorProto.FLOAT
info = helper.make_tensor_value_info
graph = helper.make_graph(
    [
        helper.make_node("Add", ["x", "y"], ["a"], name="add0"),
        helper.make_node("Mul", ["a", "y"], ["b"], name="mul0"),
        helper.make_node("Relu", ["b"], ["c"], name="relu0"),
        helper.make_node("Mul", ["c", "c"], ["z"], name="mul1"),
        helper.make_node("Add", ["n", "n"], ["m"], name="int0"),
    ],
    "g",
    [info("x", F, ["n"]), info("y", F, ["n"]), info("n", TensorProto.INT64, [])],
    [info("z", F, ["n"]), info("m", TensorProto.INT64, [])],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
NAME = "FusedArithmeticExecutionProvider"
FEED = {"x": np.array([1, -5], np.float32), "y": np.array([2, 3], np.float32), "n": np.array(4)}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the provider's module and the metadata of its distribution."""
    folder = tmp_path_factory.mktemp("site")
    source = Path(__file__).with_name("fused_arithmetic.py")
    (folder / source.name).write_text(source.read_text())
    metadata = folder / "fused_arithmetic-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fused-arithmetic\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(site: Path, code: str) -> tuple[Any, str]:
    """What `code` prints as JSON in its last line, and its stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.getcwd()])}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_it_is_listed_before_the_cpu(site: Path) -> None:
    (available, every), log = run(site, "print(json.dumps([ort.get_available_providers(), ort.get_all_providers()]))")
    assert available == ["FusedArithmeticExecutionProvider", "CPUExecutionProvider"]
    assert {"AbsentExecutionProvider", "CUDAExecutionProvider"} <= set(every)
    assert "BrokenExecutionProvider" not in every
    assert "Failed to load BrokenExecutionProvider from no_such_module:Broken" in log


def test_it_is_used_only_on_request(site: Path) -> None:
    found, _ = run(site, "print(json.dumps(ort.InferenceSession(model).get_providers()))")
    assert found == ["CPUExecutionProvider"]


def test_it_runs_its_partitions_as_steps_of_its_own(site: Path) -> None:
    code = """
options = ort.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
options.log_severity_level = 0
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(model, options, [(NAME, {"scale": 2})])
print(json.dumps([
    session.get_providers(), session.get_provider_options(),
    [value.tolist() for value in session.run(None, FEED)],
    [[part.ep_name, [node.name for node in part.get_nodes()]] for part in session.get_provider_graph_assignment_info()],
    [step.name for step in session._sess._plan.steps],
]))
"""
    (providers, options, results, assigned, steps), log = run(site, code)
    assert providers == ["FusedArithmeticExecutionProvider", "CPUExecutionProvider"]
    assert options["FusedArithmeticExecutionProvider"] == {
        "scale": "2.0",
        "device_id": "0",
        "verbose": "0",
        "mode": "fast",
    }
    # (x + y) * 2 = [6, -4]; * y * 2 = [24, -24]; relu; square * 2
    assert results == [[1152.0, 0.0], 8]
    assert sorted(assigned) == [  # a part of the CPU's is a node
        ["CPUExecutionProvider", ["int0"]],
        ["CPUExecutionProvider", ["relu0"]],
        ["FusedArithmeticExecutionProvider", ["add0", "mul0", "mul1"]],
    ]
    assert steps[0] == "fused_Add_Mul_0"
    assert len(steps) == 4
    assert " Node(s) placed on [FusedArithmeticExecutionProvider]. Number of nodes: 3\n" in log
    assert " Node(s) placed on [CPUExecutionProvider]. Number of nodes: 2\n" in log
    assert "]   Relu (relu0)\n" in log
    assert "FusedArithmeticExecutionProvider declined Add (int0): only float tensors are taken" in log
    assert "Some nodes were not assigned to the preferred execution providers" in log
    assert "Rerunning with verbose output" not in log


def test_nodes_left_for_the_cpu_are_a_warning_or_an_error(site: Path) -> None:
    code = """
ort.InferenceSession(model, None, [NAME])
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
try:
    ort.InferenceSession(model, options, [NAME])
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    (kind, text), log = run(site, code)
    assert kind == "Fail"
    assert "Relu (relu0), Add (int0)" in text
    assert "Rerunning with verbose output on a non-minimal build will show node assignments." in log


def test_compiling_may_be_forbidden(site: Path) -> None:
    code = """
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_model_compile", "1")
on_cpu = ort.InferenceSession(model, options, ["CPUExecutionProvider"]).get_providers()
try:
    ort.InferenceSession(model, options, [NAME])
except Exception as error:
    print(json.dumps([on_cpu, type(error).__name__, str(error)]))
"""
    (on_cpu, kind, text), _ = run(site, code)
    assert on_cpu == ["CPUExecutionProvider"]
    assert kind == "ModelRequiresCompilation"
    assert "session.disable_model_compile" in text
    assert "Add (add0) by FusedArithmeticExecutionProvider" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bogus": 1}, "Invalid FusedArithmeticExecutionProvider option: bogus. Its options are: scale, device_id"),
        ({"scale": "9"}, "scale must be at least 0.5 and at most 4, got 9"),
        ({"device_id": "a"}, "device_id must be a number of type int, got 'a'"),
        ({"verbose": "maybe"}, "verbose must be 0 or 1, got 'maybe'"),
        ({"mode": "slow"}, "mode must be one of fast, exact, got 'slow'"),
    ],
)
def test_bad_options_make_the_session_fall_back(site: Path, options: dict[str, Any], text: str) -> None:
    code = f"""
try:
    ort.InferenceSession(model, None, [(NAME, {options!r})], enable_fallback=0)
except ValueError as error:
    problem = str(error)
providers = ort.InferenceSession(model, None, [(NAME, {options!r})]).get_providers()
print(json.dumps([problem, providers]))
"""
    (problem, providers), _ = run(site, code)
    assert text in problem
    assert providers == ["CPUExecutionProvider"]


def test_good_options_come_back_as_texts(site: Path) -> None:
    code = """
session = ort.InferenceSession(model, None, [NAME], [{"verbose": "true", "mode": "exact", "device_id": 3}])
print(json.dumps(session.get_provider_options()[NAME]))
"""
    found, _ = run(site, code)
    assert found == {"scale": "1.0", "device_id": "3", "verbose": "1", "mode": "exact"}


def test_an_absent_provider_is_only_a_warning(site: Path) -> None:
    code = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    providers = ort.InferenceSession(model, None, ["AbsentExecutionProvider"]).get_providers()
print(json.dumps([providers, [str(item.message) for item in caught]]))
"""
    (providers, caught), _ = run(site, code)
    assert providers == ["CPUExecutionProvider"]
    assert caught[0].startswith("Specified provider 'AbsentExecutionProvider' is not in available provider names.")


def test_two_partitions_of_one_graph_are_traced(site: Path, tmp_path: Path) -> None:
    code = f"""
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = {str(tmp_path / "trace")!r}
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(model, options, [NAME])
session.run(None, FEED)
print(json.dumps(json.load(open(session.end_profiling()))))
"""
    events, _ = run(site, code)
    found = [(event["name"], event["args"]["provider"]) for event in events if event["cat"] == "Node"]
    assert found[0] == ("fused_Add_Mul_0_kernel_time", "FusedArithmeticExecutionProvider")
    assert ("relu0_kernel_time", "CPUExecutionProvider") in found
