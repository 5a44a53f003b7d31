"""A bounded run of the fuzzer, what it finds and how it says so, and its seeds unharmed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.graph.load import load_model
from tests.graph.models import run
from tests.robustness import fuzz
from tests.robustness.fuzz import Fuzzer, Mutant, mutant
from tests.robustness.sandbox import MEMORY_BYTES, Finding, Outcome, Sandbox, outcome
from tests.robustness.seeds import SEEDS


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_valid_and_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    proto = SEEDS[name]()
    if name != "quantised":
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        onnx.checker.check_model(str(path))
    loaded = load_model(proto, external_folder=tmp_path)
    feeds = {
        value.name or "": np.ones(
            [dim if isinstance(dim, int) else 1 for dim in value.shape or ()],
            np.int64 if value.dtype == ir.DataType.INT64 else np.float32,
        )
        for value in loaded.model.graph.inputs
    }
    outputs = run(loaded, **feeds)
    assert len(outputs) == len(proto.graph.output)
    assert all(np.isfinite(output).all() for output in outputs)


def test_mutants_are_the_same_for_the_same_number() -> None:
    first, again = ([mutant(number) for number in range(20)] for _ in range(2))
    assert [one[:2] for one in first] == [one[:2] for one in again]
    np.testing.assert_equal([one.feeds for one in first], [one.feeds for one in again])
    assert len({mutant(number).data for number in range(50)}) > 30
    assert {mutant(number).feeds is None for number in range(50)} == {True, False}


def test_mutants_give_typed_errors(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path)
    try:
        outcomes = {number: fuzzer.run(mutant(number)) for number in range(1000)}
    finally:
        fuzzer.close()
    assert {number: found.text for number, found in outcomes.items() if not found.typed} == {}


def _misbehave(data: bytes, folder: Path, kernels: str, feeds: object) -> Outcome:
    """Do what the bytes say, in the process of a sandbox."""
    if data == b"hang":
        while True:
            pass
    if data == b"crash":
        os.abort()
    if data == b"memory":
        try:
            np.zeros(2 * MEMORY_BYTES, np.uint8)
        except MemoryError:
            return Outcome("no memory")
    return outcome(data, folder, kernels)


def test_what_a_sandbox_finds(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, _misbehave)
    try:
        assert sandbox.run(b"hang").finding is Finding.HANG
        assert sandbox.run(b"crash").finding is Finding.CRASH
        assert sandbox.run(b"memory").text == "no memory"
        broken = sandbox.run(b"no model")
        assert broken.typed
        assert "InvalidProtobuf" in broken.text
        assert sandbox.run(SEEDS["layers"]().SerializeToString()) == Outcome()
    finally:
        sandbox.close()


def test_the_exit_code_says_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    findings = iter([Finding.NONE, Finding.HANG, Finding.UNTYPED, Finding.HANG])

    class Told:
        def __init__(self, folder: Path) -> None:
            pass

        def run(self, found: Mutant) -> Outcome:
            return Outcome("as told", next(findings))

        def close(self) -> None:
            pass

    monkeypatch.setattr(fuzz, "Fuzzer", Told)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--count", "4", "--seed", "7"])
    assert fuzz.main() == Finding.HANG | Finding.UNTYPED
    assert capsys.readouterr().out.endswith("4 mutants of seed 7: 1 UNTYPED, 2 HANG, 0 CRASH, 0 UNFORESEEN\n")
    monkeypatch.setattr(sys, "argv", ["fuzz", "--count", "0"])
    assert fuzz.main() == 0
    first = capsys.readouterr().out
    assert fuzz.main() == 0
    assert capsys.readouterr().out != first  # another seed
