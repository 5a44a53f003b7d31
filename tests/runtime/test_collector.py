"""The garbage collector while a session is made."""

from __future__ import annotations

import gc
import subprocess
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


def _in_a_new_process(freezes: bool) -> str:
    """Whether what was made in a pause, in that of the first session and in that of the second one counts as old after
    it, and whether what the program has frozen still is."""
    program = f"""
import gc
from sardonyx.runtime.native import collector
freezes, frozen, old = {freezes}, [[]], []
if freezes:
    gc.freeze()
for for_session in (False, True, True):
    with collector.paused(for_session=for_session):
        made = [[number] for number in range(10_000)]
    old.append(any(one is made[-1] for one in gc.get_objects(generation=2)))
print(*old, gc.get_freeze_count() > 0, gc.isenabled())
"""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_what_the_first_session_made_counts_as_old() -> None:
    assert _in_a_new_process(freezes=False) == "False True False False True"


def test_what_a_program_has_frozen_stays_so() -> None:
    assert _in_a_new_process(freezes=True) == "False False False True True"


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
