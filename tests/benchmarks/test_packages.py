"""Models out of wheels: found, unpacked and measured, all without a network."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from benchmarks import packages
from benchmarks.compare import Settings
from benchmarks.turns import Budget
from benchmarks.zoo import packaged, test_data, wheels
from benchmarks.zoo.inputs import make_inputs
from benchmarks.zoo.packaged import PackagedModel
from benchmarks.zoo.registry import Model, Tensor

FILE = "tiny_voice/data/model.onnx"
INPUTS = (
    Tensor("x", (2, 3), fill="uniform", low=5.0, limit=6.0),
    Tensor("rate", (), "int64", "uniform", 16_000, 16_000),
)
TINY = PackagedModel(Model("tiny", "package", 0, INPUTS, ()), "tiny-voice", "1.2", FILE)
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[2, n] x, int64 rate) => (float[2, n] y) {
    scale = Cast<to = 1>(rate)
    y = Mul(x, scale)
}
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model, in the only place where pip may look."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny_voice-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(FILE, onnx.parser.parse_model(TEXT).SerializeToString())
        archive.writestr("tiny_voice/__init__.py", "raise RuntimeError('nobody runs this')")
        archive.writestr("tiny_voice-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-voice\nVersion: 1.2\n")
        archive.writestr(
            "tiny_voice-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_voice-1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def test_a_model_comes_out_of_its_wheel(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    absent = replace(TINY, model=replace(TINY.model, name="absent"), file="tiny_voice/absent.onnx")
    failures = wheels.ensure([TINY, absent], folder)
    assert failures == {"absent": f"there is no tiny_voice/absent.onnx in {wheel.name}"}
    model = onnx.load(folder / "tiny-1.2" / "model.onnx")
    assert [node.op_type for node in model.graph.node] == ["Cast", "Mul"]
    found, outputs = test_data.load(folder / "tiny-1.2" / "test_data_set_0")
    assert found["rate"] == 16_000
    assert found["x"].dtype == np.float32
    assert 5 <= found["x"].min() < found["x"].max() <= 6
    assert outputs == {}
    wheel.unlink()
    assert wheels.ensure([TINY], folder) == {}  # what is there is not asked for again


def test_what_pip_cannot_download_is_told(wheel: Path, tmp_path: Path) -> None:
    other = replace(TINY, version="9.9")
    failures = wheels.ensure([TINY, other], tmp_path / "packages")
    assert list(failures) == ["tiny"]
    assert failures["tiny"].startswith("pip could not download tiny-voice==9.9: No matching distribution found")
    assert (tmp_path / "packages" / "tiny-1.2" / "model.onnx").exists()


@pytest.mark.parametrize(("tolerance", "is_right"), [(1e-6, True), (-1.0, False)])
def test_a_model_is_measured(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerance: float, is_right: bool
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(packaged, "MODELS", {"tiny": replace(TINY, tolerance=tolerance)})
    assert wheels.ensure([TINY], tmp_path / "packages") == {}
    budget = Budget(runs=2, pause_seconds=0.0)
    rows, _ = packages.measure("tiny", 1, Settings(tmp_path / "packages", ("onnxruntime", "sardonyx"), budget))
    assert [row.engine for row in rows] == ["onnxruntime", "sardonyx"]
    assert all(row.median_ms > 0 and row.min_ratio > 0 for row in rows)
    assert all((row.error == "") == is_right for row in rows)


def test_every_packaged_model_has_inputs_of_its_own_kind() -> None:
    for name, model in packaged.MODELS.items():
        assert name == model.model.name
        assert model.file.endswith(".onnx")
        assert all(np.isfinite(value).all() for value in make_inputs(model.model).values())
