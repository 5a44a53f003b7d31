"""`export_model`: folders, types, what lies beside the files, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxscript", reason="the extra `models` is not installed")
pytest.importorskip("transformers", reason="the extra `models` is not installed")

import torch

import sardonyx as ort
from sardonyx import errors
from sardonyx.models.export import export_model
from tests.models.export.tiny_architectures import build


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a head of two classes, and a tokenizer's files."""
    folder = tmp_path_factory.mktemp("bert")
    build("bert").save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (folder / "README.md").write_text("notes")
    return folder


def test_a_folder_becomes_one_that_can_be_used(source: Path, tmp_path: Path) -> None:
    told: list[str] = []
    done = export_model(source, tmp_path / "out", progress=told.append)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "model.onnx", "tokenizer_config.json", "vocab.txt"]
    assert sorted(path.name for path in done.files) == names
    assert (done.task, done.model_type, done.dtype, done.opset) == ("text-classification", "bert", "float32", 23)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"
    assert [one.split()[0] for one in told] == ["loading", "tracing", "writing", "comparing"]


def test_half_numbers_and_another_opset(source: Path, tmp_path: Path) -> None:
    done = export_model(source, tmp_path, "feature-extraction", dtype="float16", opset=20)
    assert (done.task, done.dtype) == ("feature-extraction", "float16")
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == 20
    session = ort.InferenceSession(tmp_path / "model.onnx")
    assert [value.name for value in session.get_outputs()] == ["last_hidden_state", "pooler_output"]
    assert {value.type for value in session.get_outputs()} == {"tensor(float16)"}
    ids = np.arange(6).reshape(1, 6)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    assert session.run(None, feeds)[0].shape == (1, 6, 32)


def test_an_id_is_had_from_the_cache_of_the_hub(source: Path, tmp_path: Path) -> None:
    stored = tmp_path / "hub" / "models--someone--something"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("0123")
    shutil.copytree(source, stored / "snapshots" / "0123")
    hub = {"cache_dir": tmp_path / "hub", "local_files_only": True}
    done = export_model("someone/something", tmp_path / "out", check=False, **hub)
    names = sorted(path.name for path in done.files)
    assert names == ["config.json", "model.onnx", "tokenizer_config.json", "vocab.txt"]
    assert done.differences == {}


def test_a_model_that_differs_leaves_no_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.Fail, match=r"differs from PyTorch: logits by .*, for the sizes batch_size = 2"):
        export_model(source, tmp_path, tolerance=1e-12)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "text-clasification"}, "did you mean text-classification"),
        ({"task": "object-detection"}, "no class for object-detection of the model type bert; tasks of this type are"),
        ({"dtype": "int8"}, "dtype is int8; expected one of float32, float16, bfloat16"),
        ({"opset": 12}, "opset is 12; expected 18 to 23"),
    ],
)
def test_arguments_that_are_none(source: Path, tmp_path: Path, settings: dict[str, object], words: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=words):
        export_model(source, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_folders_that_hold_no_model(source: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match=r"has no config.json: expected a model of transformers, found nothing"):
        export_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(errors.NoSuchFile, match=r"no weights of a PyTorch model .*, found config.json"):
        export_model(tmp_path, tmp_path / "out")
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(errors.Fail, match="cannot load the weights"):
        export_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(errors.InvalidArgument, match="cannot read the config"):
        export_model(tmp_path, tmp_path / "out")
    with pytest.raises(errors.NoSuchFile, match=r"There is no folder .*absent: .* has config.json, model.safetensors"):
        export_model(tmp_path, tmp_path / "out", subfolder="absent")
    with pytest.raises(errors.NoSuchFile, match="is no folder, and cannot be had as a model's id"):
        export_model(str(tmp_path / "absent"), tmp_path / "out", local_files_only=True)
    with pytest.raises(errors.InvalidArgument, match="model is a Linear; expected a model of transformers"):
        export_model(torch.nn.Linear(2, 2), tmp_path / "out")


def test_an_encoder_decoder_without_a_head_names_its_tasks(tmp_path: Path) -> None:
    with pytest.raises(errors.NotImplemented, match="export it for text2text-generation"):
        export_model(build("bart").model, tmp_path)
