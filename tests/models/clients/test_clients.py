"""Optimum, sentence-transformers and FastEmbed, unmodified, on the compat distribution.

They are no requirements of this project: an interpreter that has them is named by SARDONYX_CLIENTS_PYTHON, or is the
one that runs the tests.
"""

from __future__ import annotations

from pathlib import Path

from tests.client_scripts import results

HERE = Path(__file__).parent
# Sums of float32 in another order, behind logits of a model that was never trained.
CLOSE = 2e-3


def test_optimum(tmp_path: Path) -> None:
    packages = ["optimum.onnxruntime", "transformers", "PIL"]
    rows = results(HERE / "optimum_models.py", packages, tmp_path)
    assert len(rows) > 60
    assert not {name: gap for name, gap in rows.items() if not gap < CLOSE}


def test_the_commands_of_optimum(tmp_path: Path) -> None:
    rows = results(HERE / "optimum_commands.py", ["optimum.onnxruntime", "transformers"], tmp_path)
    for name, row in rows.items():
        operators = row.get("operators", {})
        if "quantize" in name:
            assert row["error"] < 0.1, name
            assert operators["MatMulInteger"] >= 14, name
        elif "O4" in name:  # half precision
            assert row["error"] < 0.02, name
        else:
            assert row["error"] < CLOSE, name
        if "O2" in name and "operators" in row:
            assert "Attention" in operators or "FusedMatMul" in operators, (name, operators)


def test_sentence_transformers(tmp_path: Path) -> None:
    rows = results(HERE / "sentence_transformers_ways.py", ["sentence_transformers"], tmp_path, ("optimum",))
    assert len(rows) > 60
    assert not {name: gap for name, gap in rows.items() if not gap < 1e-5}


def test_fastembed(tmp_path: Path) -> None:
    rows = results(HERE / "fastembed_models.py", ["fastembed"], tmp_path)
    assert not {name: gap for name, gap in rows.items() if not gap < 1e-5}
