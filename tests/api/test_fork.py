"""Sessions in forked children, also of a process whose other threads run or build sessions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.testing  # here, as a child must not import what a thread is importing
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.compiler.llvm.library import library
from sardonyx.runtime.files.kernel_cache import KernelCache

pytestmark = [
    pytest.mark.machine_neutral,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]

Array = np.ndarray[Any, Any]

PATIENCE = 180.0  # seconds after which a child hangs


def _session(power: int) -> ort.InferenceSession:
    """y = x * x * … + x with `power` products: every power has kernels of its own."""
    steps, last = "", "x"
    for number in range(power):
        steps += f"p{number} = Mul({last}, x) "
        last = f"p{number}"
    text = f"agraph (float[n, 64] x) => (float[n, 64] y) {{ {steps} y = Add({last}, x) }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return ort.InferenceSession(model.SerializeToString(), options)


X = np.linspace(-1, 1, 2048 * 64, dtype=np.float32).reshape(2048, 64)


def _check(session: ort.InferenceSession, power: int) -> None:
    product = X
    for _ in range(power):
        product = product * X
    for _ in range(3):  # the long way, and the short one
        np.testing.assert_allclose(session.run(None, {"x": X})[0], product + X, rtol=1e-5, atol=1e-6)


def _in_child(check: Callable[[], None]) -> int:
    """The exit status of a forked child that makes a check."""
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def _meanwhile(work: Callable[[], None], check: Callable[[], None]) -> None:
    """Make a check while another thread works again and again, without an error."""
    ended: list[bool] = []
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            while not ended:
                work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        check()
    finally:
        ended.append(True)
        thread.join(PATIENCE)
    assert failures == []


def test_a_session_of_the_parent_runs_in_children_while_other_threads_use_it() -> None:
    session = _session(2)
    _check(session, 2)

    def check() -> None:
        assert [_in_child(lambda: _check(session, 2)) for _ in range(5)] == [0] * 5

    _meanwhile(lambda: _check(session, 2), check)
    _check(session, 2)


def test_children_bind_to_new_sizes_while_other_threads_do() -> None:
    session, sizes = _session(2), iter(range(1, 10_000))

    def bind() -> None:
        for _ in range(4):
            size = next(sizes)
            x = X[:size]
            np.testing.assert_allclose(session.run(None, {"x": x})[0], x * x * x + x, rtol=1e-5, atol=1e-6)

    def check() -> None:
        assert [_in_child(bind) for _ in range(8)] == [0] * 8

    _meanwhile(bind, check)


def test_children_compile_while_other_threads_of_the_parent_compile(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library(), "cache", KernelCache(tmp_path))  # an empty one
    powers = iter(range(3, 1000))

    def build() -> None:
        power = next(powers)
        _check(_session(power), power)

    def check() -> None:
        assert [_in_child(build) for _ in range(6)] == [0] * 6

    _meanwhile(build, check)


def test_a_child_calls_back_though_the_parent_did_before() -> None:
    session = _session(1)

    def calls_back() -> None:
        called = threading.Event()
        session.run_async(["y"], {"x": X}, lambda *_: called.set(), None)
        assert called.wait(PATIENCE / 4)

    calls_back()
    assert _in_child(calls_back) == 0
