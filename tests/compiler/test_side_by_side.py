"""Kernels that several threads compile at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx.compiler.llvm import codegen
from sardonyx.compiler.llvm import library as libraries
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.kernels.engine.call import emit_call
from sardonyx.compiler.llvm.kernels.engine.executor import emit_executor
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary
from sardonyx.compiler.llvm.target import Target, host_target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.threads import processors
from tests.api.session_models import FLOAT, model, value

pytestmark = pytest.mark.machine_neutral

PATIENCE = 120.0  # seconds after which a thread hangs


def emit_number(target: Target, spec: int) -> str:
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    return k.finish() + f"; {spec}\n"


def emit_nonsense(target: Target, spec: int) -> str:
    return f"no text of a module, {spec}"


def in_threads(call: Callable[[], None], count: int) -> None:
    """Do a call in so many threads at once; the first error of any of them is raised here."""
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_the_code_is_the_same_as_of_one_thread() -> None:
    target = host_target()
    texts = [
        *(emit_executor(target, (part,)) for part in ("run", "work", "stop")),
        *(emit_call(target, (part,)) for part in ("arrays", "bound")),
    ]
    alone = [compile_object(text, target) for text in texts]

    def compile_all() -> None:
        assert [compile_object(text, target) for text in texts] == alone

    in_threads(compile_all, 6)
    assert codegen._GENERATING._inside == []


def test_texts_that_are_not_valid_are_refused_beside_others() -> None:
    target = host_target()
    right = compile_object(emit_number(target, 1), target)

    def compile_both() -> None:
        for number in range(20):
            with pytest.raises(ValueError, match="is not valid LLVM IR"):
                compile_object(emit_nonsense(target, number), target)
            assert compile_object(emit_number(target, number), target) == right

    in_threads(compile_both, 4)


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_threads_that_ask_for_the_same_kernels_compile_each_once(helpers: int, tmp_path: Path) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), compile_threads=helpers)
    found: Counter[tuple[int, ...]] = Counter()

    def ask() -> None:
        asked = [kernels.kernel(emit_number, number) for number in range(12)]
        found[tuple([kernel.address for kernel in asked])] += 1

    in_threads(ask, 4)
    assert list(found.values()) == [4]
    assert (kernels.counts.compiled, kernels.counts.from_cache) == (12, 0)
    assert len(list(tmp_path.iterdir())) == 12
    again = KernelLibrary(host_target(), KernelCache(tmp_path), compile_threads=helpers)
    assert len({again.address(emit_number, number) for number in range(12)}) == 12
    assert (again.counts.compiled, again.counts.from_cache) == (0, 12)


@pytest.mark.parametrize("helpers", [0, 2])
def test_a_kernel_that_fails_fails_whoever_asks(helpers: int, tmp_path: Path) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path), compile_threads=helpers)
    asked, right = kernels.kernel(emit_nonsense, 1), kernels.kernel(emit_number, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="is not valid LLVM IR"):
            asked.wait()
    with pytest.raises(ValueError, match="is not valid LLVM IR"):
        kernels.address(emit_nonsense, 1)
    assert right.address == kernels.address(emit_number, 1) > 0
    kernels.finish()


def test_all_that_were_asked_for_are_there_in_the_end(tmp_path: Path) -> None:
    kernels = KernelLibrary(host_target(), KernelCache(tmp_path))
    asked = [kernels.kernel(emit_number, number) for number in range(5)]
    assert kernels.counts.compiled == 0  # until somebody needs them
    kernels.finish()
    assert kernels.counts.compiled == 5
    assert len({kernel.address for kernel in asked}) == 5


def session(threads: str) -> Any:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Softmax", ["e"], ["s"])]
    nodes += [helper.make_node("Tanh", ["s"], ["t"]), helper.make_node("ReduceMax", ["t"], ["y"], keepdims=0)]
    source = model(nodes, [value("x", FLOAT, [3, 5])], [value("y", FLOAT, [])])
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.compile_threads", threads)
    return ort.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("threads", "cores", "expected"), [("0", 4, 0), ("3", 1, 3), ("auto", 4, 4), ("auto", 1, 0)])
def test_sessions_say_how_many_threads_compile(
    threads: str, cores: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = host_target()
    found = {purpose: KernelLibrary(target, KernelCache(tmp_path)) for purpose in ("models", "runtime")}
    monkeypatch.setattr(libraries, "_LIBRARIES", {(purpose, target.key): one for purpose, one in found.items()})
    monkeypatch.setattr(processors, "available_processors", lambda: frozenset(range(cores)))
    monkeypatch.setattr(processors, "_core", lambda number: number)
    monkeypatch.setattr(processors, "_quota", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    exponentials = np.exp(np.exp(rows) - np.exp(rows).max(-1, keepdims=True))
    wanted = np.tanh(exponentials / exponentials.sum(-1, keepdims=True)).max()
    np.testing.assert_allclose(session(threads).run(None, {"x": rows})[0], wanted, rtol=1e-5)
    assert [one.compile_threads for one in found.values()] == [expected] * 2
    assert found["models"].counts.compiled > 0


def test_many_sessions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_target()
    found = {purpose: KernelLibrary(target, KernelCache(tmp_path)) for purpose in ("models", "runtime")}
    monkeypatch.setattr(libraries, "_LIBRARIES", {(purpose, target.key): one for purpose, one in found.items()})
    results: list[float] = []
    in_threads(lambda: results.append(float(session("2").run(None, {"x": np.ones((3, 5), np.float32)})[0])), 4)
    assert results == [results[0]] * 4
