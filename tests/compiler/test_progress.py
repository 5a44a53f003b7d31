"""The word to a person who waits for kernels to be compiled."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx import log
from sardonyx.compiler.llvm import library as libraries
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary
from sardonyx.compiler.llvm.target import Target, host_target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.runtime.files.kernel_cache import KernelCache
from tests.api.session_models import FLOAT, model, value


def emit_nothing(target: Target, spec: object) -> str:
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    return k.finish()


class Clock:
    """Every look at it finds it `step` seconds later."""

    def __init__(self, step: float) -> None:
        self.step = step
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return next(self._ticks) * self.step


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.splitlines()


def compile_some(kernels: KernelLibrary, numbers: range) -> None:
    for number in numbers:
        kernels.address(emit_nothing, number)


def test_nothing_is_said_of_two_seconds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), clock=Clock(0.5))
    compile_some(kernels, range(4))
    assert lines(capfd) == []
    kernels.progress.begin()
    compile_some(kernels, range(4, 8))
    assert lines(capfd) == []


def test_one_line_is_said_of_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), clock=Clock(0.5))
    compile_some(kernels, range(40))
    assert lines(capfd) == [
        "sardonyx: compiling kernels for this machine, 4 in 2.0 s so far (kept for the next time)"
    ]  # fmt: skip


def test_it_says_where_nothing_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(None), clock=Clock(3.0))
    compile_some(kernels, range(3))
    assert lines(capfd) == [
        "sardonyx: compiling kernels for this machine, 1 in 3.0 s so far "
        "(not kept: SARDONYX_CACHE names no folder that can be written)"
    ]


def test_what_the_cache_holds_costs_no_patience(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compile_some(KernelLibrary(host_target(), KernelCache(tmp_path)), range(5))
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), clock=Clock(3.0))
    compile_some(kernels, range(5))
    assert lines(capfd) == []


def test_a_higher_threshold_of_the_log_silences_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = log.default_severity()
    log.set_default_severity(3)
    try:
        compile_some(KernelLibrary(host_target(), KernelCache(tmp_path), clock=Clock(3.0)), range(3))
    finally:
        log.set_default_severity(before)
    assert lines(capfd) == []


def test_each_session_waits_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), clock=Clock(3.0))
    monkeypatch.setattr(
        libraries, "_LIBRARIES", {(purpose, kernels.target.key): kernels for purpose in ("models", "runtime")}
    )
    for op_type in ("Exp", "Tanh"):
        source = model([helper.make_node(op_type, ["x"], ["y"])], [value("x", FLOAT, [3])], [value("y", FLOAT, [3])])
        session = ort.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones(3, np.float32)})
        assert len(lines(capfd)) == (1 if op_type == "Exp" else 0)  # the second needs one kernel more
