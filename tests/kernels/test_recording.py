"""What a recorder notes is what sessions ask for, and nothing is computed meanwhile."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import sardonyx as ort
from kernels import examples, machines
from kernels.collecting import asked_for, collect, collected
from kernels.recording import Recorder
from sardonyx.compiler.llvm import library as libraries
from sardonyx.compiler.llvm.library import library, standing_in
from sardonyx.compiler.llvm.target import Caches, host_target

EXAMPLES = {one.name: one for one in examples.small()}


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_it_asks_for_what_a_session_of_this_machine_loads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES[name]
    monkeypatch.setattr(libraries, "_LIBRARIES", {})
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(example.model, options)
    for inputs in example.inputs():
        session.run(None, dict(inputs))
    library().finish()
    loaded = set(library()._addresses)
    del session
    gc.collect()  # its packed weights would be shared
    asked, problem = asked_for(example.model, example.inputs(), host_target(), 2)
    assert problem == ""
    assert set(asked) == loaded


def test_the_library_of_the_process_is_in_its_place_again() -> None:
    before = library()
    recorder = Recorder(host_target())

    def inside() -> None:
        with standing_in(recorder):
            assert library() is recorder
            assert library(purpose="runtime") is not recorder
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    assert library() is before


def test_kernels_of_another_machine_do_nothing_here() -> None:
    """A machine with AMX and one of another architecture; no code of theirs is run."""
    example = EXAMPLES["perceptron"]
    for name in ("amx", "neon"):
        (target, threads), *_ = machines.machines(name)
        recorder = Recorder(target)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        with standing_in(recorder):
            session = ort.InferenceSession(example.model, options)
            (inputs, *_) = example.inputs()
            (result,) = session.run(None, dict(inputs))
        assert result.shape == (1, 5)
        assert recorder.asked
        assert recorder.counts.compiled == 0
    x = np.ones((1, 20), np.float32)
    (real,) = ort.InferenceSession(example.model).run(None, {"x": x})
    assert real.sum() == pytest.approx(1, abs=1e-6)


def test_caches_decide_what_is_asked_for() -> None:
    example = EXAMPLES["digits"]
    target = machines.targets()["avx512"]
    found = [
        set(asked_for(example.model, example.inputs(), replace(target, caches=Caches(32 << 10, 1 << 20, l3)), 1)[0])
        for l3 in (8 << 20, 128 << 20)
    ]
    assert found[0] != found[1]


def test_what_goes_wrong_is_told() -> None:
    example = EXAMPLES["digits"]
    problem = asked_for(example.model, [{"x": np.zeros((1, 2), np.float32)}], machines.targets()["avx2"], 1)[1]
    assert "avx2, 1 threads: InvalidArgument" in problem


def test_collecting_joins_examples(capsys: pytest.CaptureFixture[str]) -> None:
    some = [EXAMPLES["perceptron"], EXAMPLES["linear classifier"]]
    alone = [collected(one, ["avx2", "portable"]) for one in some]
    found = collect(some, ["avx2", "portable"], 1, print)
    assert len(found) >= max(len(one.kernels) for one in alone)
    assert {name for one in found for name in one.names} == {"avx2", "portable"}
    assert "perceptron" in capsys.readouterr().out
