"""The garbage collector while a session is made."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
from onnx import parser

import sardonyx as ort
from sardonyx.runtime.native import collector

MODEL = parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) {y = Relu(x)}'
).SerializeToString()


def test_it_runs_again_afterwards() -> None:
    assert gc.isenabled()
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="broken"), collector.paused():
        raise RuntimeError("broken")
    assert gc.isenabled()
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidProtobuf):
        ort.InferenceSession(b"no model")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        ort.InferenceSession(MODEL)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_sessions_made_at_once_leave_it_on() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=ort.InferenceSession, args=(MODEL,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert gc.isenabled()
