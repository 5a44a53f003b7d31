"""A bounded run of the fuzzer, and its seeds unharmed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.graph.load import load_model
from tests.graph.models import run
from tests.robustness.fuzz import Fuzzer, mutant
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
    assert [mutant(number) for number in range(20)] == [mutant(number) for number in range(20)]
    assert len({mutant(number)[1] for number in range(50)}) > 30


def test_mutants_give_typed_errors(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path)
    try:
        found = {number: outcome for number in range(1500) if (outcome := fuzzer.run(number))}
    finally:
        fuzzer.close()
    assert found == {}
