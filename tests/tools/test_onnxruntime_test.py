import numpy as np
import pytest

from sardonyx.tools import onnxruntime_test
from tests.api.models import add_and_multiply, add_weight


def test_the_command_runs_a_model(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(add_and_multiply())
    assert onnxruntime_test.main([str(path), "3", "--symbolic_dims", "n=4"]) == 0
    assert "runs: 3" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match=r"Unknown symbolic dims .* 'x': \['n'\]"):
        onnxruntime_test.run_model(str(path))


def test_results_come_back(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(add_weight(np.ones(3, np.float32)))
    x = np.arange(3, dtype=np.float32)
    code, feeds, outputs = onnxruntime_test.run_model(str(path), feeds={"x": x})
    assert (code, list(feeds), outputs[0].tolist()) == (0, ["x"], [1, 2, 3])
    assert onnxruntime_test.run_model(str(path), num_iters=2)[2][0].shape == (3,)
