import unittest

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import backend
from tests.api.models import add_and_multiply, add_weight

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(params=["path", "bytes", "proto", "session"])
def model(request, tmp_path):
    content = add_and_multiply()
    (tmp_path / "m.onnx").write_bytes(content)
    return {
        "path": lambda: str(tmp_path / "m.onnx"),
        "bytes": lambda: content,
        "proto": lambda: onnx.load_model_from_string(content),
        "session": lambda: sardonyx.InferenceSession(content),
    }[request.param]()


def test_models_run(model):
    for y, z in (backend.prepare(model).run([X]), backend.prepare(model).run(X), backend.run(model, [X])):
        np.testing.assert_array_equal(y, X + X)
        np.testing.assert_array_equal(z, X * X)


def test_one_output_is_a_list_too():
    peer = pytest.importorskip("onnxruntime.backend")
    for package in (peer, backend):
        outputs = package.prepare(add_weight(np.ones(3, np.float32))).run(np.zeros(3, np.float32))
        assert type(outputs) is list
        assert [one.tolist() for one in outputs] == [[1, 1, 1]]


def test_results_are_those_of_onnxruntime():
    peer = pytest.importorskip("onnxruntime.backend")
    proto = onnx.load_model_from_string(add_and_multiply())
    for mine, other in zip(backend.prepare(proto).run(X), peer.prepare(proto).run(X), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert backend.supports_device("CPU") == peer.supports_device("CPU")
    assert backend.supports_device("CUDA") == peer.supports_device("CUDA")
    assert backend.is_compatible(proto)


def test_keywords():
    content = add_and_multiply()
    rep = backend.prepare(content, logid="here", intra_op_num_threads=1, unknown=3)
    assert rep._session.get_session_options().logid == "here"
    with pytest.raises(RuntimeError, match="enable_profiling cannot be set here"):
        backend.prepare(content, enable_profiling=True)
    with pytest.raises(RuntimeError, match="terminate cannot be set here"):
        rep.run([X], terminate=True)
    with pytest.raises(RuntimeError, match="Model expect 1 inputs"):
        rep.run([X, X])
    with pytest.raises(RuntimeError, match="Incompatible device"):
        backend.prepare(content, device="TPU")
    with pytest.raises(NotImplementedError):
        backend.run_node(None, None)


def test_unreleased_opsets_are_skipped():
    proto = onnx.load_model_from_string(add_and_multiply())
    proto.opset_import[0].version = 9999
    with pytest.raises(unittest.SkipTest, match="only released onnx opsets"):
        backend.prepare(proto)
