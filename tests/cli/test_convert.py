"""`sardonyx convert`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxscript", reason="the extra `models` is not installed")
pytest.importorskip("transformers", reason="the extra `models` is not installed")

from tests.cli.conftest import Command
from tests.models.export.tiny_architectures import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "bert"
    build("bert").save_pretrained(made)
    return made


def test_a_folder_is_written_beside_the_model(command: Command, folder: Path) -> None:
    outcome = command("convert", folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert (folder.with_name("bert-onnx") / "model.onnx").is_file()
    assert "bert for text-classification, float32, opset 23" in outcome.out
    assert "model.onnx" in outcome.out
    assert "from PyTorch on sizes that were not traced" in outcome.out


def test_json_without_a_comparison(command: Command, folder: Path, tmp_path: Path) -> None:
    outcome = command("convert", folder, "--to", tmp_path / "out", "--no-check", "--opset", 20, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert (report["folder"], report["task"], report["opset"]) == (str(tmp_path / "out"), "text-classification", 20)
    assert set(report["files"]) == {"model.onnx", "config.json"}
    assert report["differences"] == {}


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--task", "text-clasification"], "did you mean text-classification?", 1),
        (["--to", "."], "it is the folder of the model itself", 2),
        (["--to", "config.json"], "it is a file", 1),
        (["--tolerance", "1e-12"], "differs from PyTorch: logits by", 1),
    ],
)
def test_what_goes_wrong_is_one_line(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str, code: int
) -> None:
    monkeypatch.chdir(folder)
    outcome = command("convert", folder, *arguments)
    assert outcome.code == code
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
