"""`sardonyx quantize`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from tests.cli.conftest import Command
from tests.quantization.search import chain


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs are timed: what they say is not looked at."""
    monkeypatch.setattr("sardonyx.quantization.search.speed._SECONDS", 0.001)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chain.write(tmp_path / "chain.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Samples of the chain, a file each."""
    place = tmp_path / "samples"
    place.mkdir()
    for number, one in enumerate(chain.feeds()):
        np.savez(place / f"{number}.npz", **one)
    return place


def test_a_dynamic_model_is_written_and_told_of(command: Command, model: Path, tmp_path: Path) -> None:
    outcome = command("quantize", model, "--dynamic", "--dim", "n=4", "--chart", tmp_path / "chart.html")
    assert outcome.code == 0
    target = tmp_path / "chain.int8.onnx"
    kinds = [node.op_type for node in onnx.load(target).graph.node]
    assert kinds.count("MatMulInteger") == chain.LAYERS
    for words in ("MatMul: MatMulInteger", "operator Tanh not asked for", "dB", "before", "times as fast", str(target)):
        assert words in outcome.out
    assert "errors are those on random inputs" in outcome.err
    page = (tmp_path / "chart.html").read_text()
    assert page.count('class="bar"') == 4 + chain.LAYERS


@pytest.mark.parametrize("size", [2, 64])
def test_a_file_that_grows_is_told_of(command: Command, tmp_path: Path, size: int) -> None:
    """Scales and nodes take more than bytes save where weights are small."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [numpy_helper.from_array(np.eye(size, dtype=np.float32), "w")],
    )
    source, target = tmp_path / "small.onnx", tmp_path / "small.int8.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), source)
    assert ("larger than the float model" in command("quantize", source, "--dynamic").out) is (size == 2)
    report = json.loads(command("quantize", source, "--dynamic", "--json").out)
    assert report["file_growth"] == max(target.stat().st_size - source.stat().st_size, 0)
    assert (report["file_growth"] > 0) is (size == 2)


def test_errors_are_measured_on_the_test_data(command: Command, model: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number, feeds in enumerate(chain.feeds()):
        np.savez(other / f"{number}.npz", **{name: 3 * array for name, array in feeds.items()})
    target, found = tmp_path / "out.onnx", []
    for more in ([], ["--test-data", other]):
        outcome = command("quantize", model, "--static", "--data", folder, *more, "-o", target, "--json")
        found.append((json.loads(outcome.out)["outputs"][0]["relative"], target.read_bytes()))
    (own, first), (others, second) = found
    assert first == second  # ranges are those of --data alone
    assert others > own  # which the larger numbers leave


def test_a_static_model_as_json(command: Command, model: Path, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    outcome = command("quantize", model, "--static", "--data", folder, "-o", target, "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert report["output"] == str(target)
    assert report["recipe"]["calibration"] == "MinMax"
    assert report["weight_bytes"]["after"] < report["weight_bytes"]["before"]
    assert {one["name"] for one in report["nodes"] if one["how"]} >= {f"product_{at}" for at in range(chain.LAYERS)}
    session = sardonyx.InferenceSession(target)
    reference = sardonyx.InferenceSession(model)
    ours = np.concatenate([session.run(None, one)[0] for one in chain.feeds()]).astype(float)
    exact = np.concatenate([reference.run(None, one)[0] for one in chain.feeds()]).astype(float)
    relative = np.linalg.norm(ours - exact) / np.linalg.norm(exact)
    np.testing.assert_allclose(report["outputs"][0]["relative"], relative, rtol=1e-9)
    assert {layer["op_type"] for layer in report["layers"]} >= {"MatMul"}


def test_a_target_is_searched_for(command: Command, model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.py"
    data.write_text("from tests.quantization.search.chain import feeds\ndef samples():\n    yield from feeds()\n")
    state = tmp_path / "state.json"
    arguments = ["quantize", model, "--dynamic", "--data", data, "--target-error", "0.05", "--state", state, "--json"]
    report = json.loads(command(*arguments).out)
    assert report["reached"]
    assert report["error"] <= 0.05
    assert report["recipe"]["kept_float"] == [f"product_{chain.BAD}"]
    assert json.loads(command(*arguments).out)["evaluations"] == 0


def test_a_metric_is_searched_for(command: Command, model: Path, tmp_path: Path) -> None:
    script = tmp_path / "metric.py"
    script.write_text(
        "import numpy as np\nimport sardonyx\nfrom tests.quantization.search.chain import feeds\n"
        f"exact = sardonyx.InferenceSession({str(model)!r})\n"
        "def metric(session):\n"
        "    pairs = [(session.run(None, one)[0], exact.run(None, one)[0]) for one in feeds()]\n"
        "    return 1 - max(float(np.abs(a - b).max()) for a, b in pairs)\n"
        "samples = feeds\n"
    )
    outcome = command("quantize", model, "--dynamic", "--data", script, "--target-metric", script, "--at-least", "0.9")
    assert outcome.code == 0
    assert "evaluations" in outcome.out


def test_what_cannot_be_reached_is_an_error_with_a_model(command: Command, model: Path, tmp_path: Path) -> None:
    outcome = command("quantize", model, "--dynamic", "--target-error", "1e-9")
    assert outcome.code == 1
    assert "no way of quantising this model reaches the target" in outcome.err
    assert (tmp_path / "chain.int8.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ([], "expected one of --dynamic and --static", 2),
        (["--dynamic", "--static"], "expected one of --dynamic and --static", 2),
        (["--static"], "--static needs samples", 2),
        (["--dynamic", "--calibration", "MinMax"], "--calibration is for --static", 2),
        (["--static", "--calibration", "Max"], "expected one of MinMax, Entropy, Percentile", 2),
        (["--dynamic", "--preset", "avx"], "the presets are", 2),
        (["--dynamic", "--preset", "tensorrt"], "for static", 2),
        (["--dynamic", "--chart", "a.gif"], "ends in .html or .png", 2),
        (["--dynamic", "--at-least", "1"], "--at-least is for --target-metric", 2),
        (["--dynamic", "--target-error", "1", "--target-metric", "a.py"], "not both", 2),
        (["--dynamic", "--data", "absent.py"], "there is no such file", 2),
        (["--dynamic", "--data", "absent"], "absent is no folder", 1),
        (["--dynamic", "--exclude", "produkt_1"], "product_1", 1),
        (["--dynamic", "--op-type", "Conv"], "matches no node", 1),
        (["--dynamic", "-o", "chain.onnx"], "it is the model itself", 2),
        (["--dynamic", "-o", "absent/chain.onnx"], "there is no folder absent", 1),
        (["--dynamic", "--chart", "absent/chart.html"], "there is no folder absent", 1),
        (["--dynamic", "--target-error", "0.1", "--state", "absent/state.json"], "there is no folder absent", 1),
    ],
)
def test_what_is_refused(
    command: Command, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str, code: int
) -> None:
    monkeypatch.chdir(model.parent)
    outcome = command("quantize", "chain.onnx", *arguments)
    assert words in outcome.err
    assert outcome.code == code
    assert not (model.parent / "chain.int8.onnx").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise KeyError('x')", "line 1 failed: KeyError"),
        ("def samples():\n    yield {}\n    raise KeyError('x')", "data.py, line 3 failed: KeyError: 'x'"),
        ("import sys\nsys.exit()", "line 2 failed: SystemExit"),
        ("samples = 3", "expected a function samples"),
        ("def samples():\n    return []", "gives no sample"),
        ("def samples():\n    return [1]", "a sample is a dictionary"),
    ],
)
def test_scripts_that_fail(command: Command, model: Path, tmp_path: Path, text: str, words: str) -> None:
    data = tmp_path / "data.py"
    data.write_text(text)
    outcome = command("quantize", model, "--static", "--data", data)
    assert words in outcome.err
    assert outcome.code in (1, 2)


def test_a_metric_that_fails(command: Command, model: Path, tmp_path: Path) -> None:
    script = tmp_path / "metric.py"
    script.write_text("def metric(session):\n    return session.run(None, {})[0].mean()\n")
    outcome = command("quantize", model, "--dynamic", "--target-metric", script)
    assert outcome.code == 1
    assert "metric.py, line 2 failed: " in outcome.err
    assert outcome.err.count("\n") <= 2
