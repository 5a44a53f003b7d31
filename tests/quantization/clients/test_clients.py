"""Optimum and Olive, unmodified, on the compat distribution.

They are no requirements of this project: an interpreter that has them is named by SARDONYX_CLIENTS_PYTHON, or is the
one that runs the tests.
"""

from __future__ import annotations

from pathlib import Path

from tests.client_scripts import results

HERE = Path(__file__).parent


def test_optimum(tmp_path: Path) -> None:
    models = results(HERE / "optimum_presets.py", ["optimum", "datasets", "transformers"], tmp_path)
    assert len(models) == 22
    for name, found in models.items():
        operators = found["operators"]
        if "dynamic" in name:
            assert found["error"] < 0.02, name
            assert operators["MatMulInteger"] >= 14, name
        else:
            # Logits of a model that was never trained are small differences of large numbers.
            assert found["error"] < 0.2, name
            assert operators["QuantizeLinear"] > 30, name
            assert operators["DequantizeLinear"] >= operators["QuantizeLinear"], name
        if "tensorrt" in name:  # symmetric, weights kept in float
            assert "UINT8" not in found["types"], name


def test_olive(tmp_path: Path) -> None:
    models = results(HERE / "olive_passes.py", ["olive", "torch"], tmp_path)
    assert len(models) == 20
    for name, found in models.items():
        operators = found["operators"]
        assert found["error"] < (0.15 if "4 bits" in name else 0.04), name
        expected = {"dynamic": "ConvInteger", "QOperator": "QLinearConv"}.get(name.split()[0], "QuantizeLinear")
        assert ("Transpose" if name == "QNN channels last" else expected) in operators, name
