"""What all classes share: loading, devices, providers, saving, and what is said of bad input."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import errors, models
from tests.models.tiny_models import OTHER, Folders, inputs_of

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
pytestmark = pytest.mark.xdist_group("tiny_models")

TASK = "text-classification"
Classifier = models.ORTModelForSequenceClassification


@pytest.fixture(scope="module")
def model(tiny: Folders) -> Any:
    return Classifier.from_pretrained(tiny(TASK))


def logits(model: Any) -> np.ndarray[Any, Any]:
    return np.asarray(model(**inputs_of(TASK, OTHER)).logits)


def test_what_a_model_says_of_itself(model: Any, tiny: Folders) -> None:
    assert model.providers == model.session.get_providers() == ["CPUExecutionProvider"]
    assert model.provider == "CPUExecutionProvider"
    assert model.provider in model.provider_options
    assert model.device == torch.device("cpu")
    assert model.dtype == torch.float32
    assert model.config.id2label[2] == "entailment"
    assert model.main_input_name == "input_ids"
    assert model.model_save_dir == tiny(TASK) / "onnx"
    assert model.path == tiny(TASK) / "onnx" / "model.onnx"
    assert model.input_names == {"input_ids": 0, "attention_mask": 1, "token_type_ids": 2}
    assert model.output_names == {"logits": 0}
    assert not model.can_generate()
    assert Classifier.auto_model_class.__name__ == "AutoModelForSequenceClassification"
    assert Classifier.config_class.__name__ == "AutoConfig"


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), -1, torch.float16, None])
def test_devices_that_are_there(model: Any, device: Any) -> None:
    assert model.to(device) is model
    assert model.to(device=device) is model if device is not torch.float16 else model.to(dtype=device) is model


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", torch.device("cuda", 0), 0, 3])
def test_devices_that_are_not_there(model: Any, device: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"The device .* is not there: models run on the CPU here"):
        model.to(device)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": "CUDAExecutionProvider"}, r"no provider 'CUDAExecutionProvider' here; available are .*CPUExec"),
        ({"providers": "CPUExecutionProvider"}, r"providers is a list of names"),
        ({"providers": []}, r"providers is a list of names"),
        ({"provider_options": [{}, {}]}, r"2 dictionaries for 1 providers"),
        ({"file_name": "model_q4.onnx"}, r"no file model_q4\.onnx in the folder .*onnx/model\.onnx"),
        ({"subfolder": "none"}, r"no folder none in .*its folders are onnx"),
        ({"use_chache": True}, r"takes no argument use_chache"),
    ],
)
def test_bad_arguments(tiny: Folders, options: dict[str, Any], said: str) -> None:
    with pytest.raises((errors.InvalidArgument, errors.NoSuchFile), match=said):
        Classifier.from_pretrained(tiny(TASK), **options)


def test_session_options_and_config(tiny: Folders) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    config = json.loads((tiny(TASK) / "config.json").read_text())
    found = Classifier.from_pretrained(
        tiny(TASK) / "onnx" / "model.onnx",
        config=str(tiny(TASK)),
        session_options=options,
        provider_options={},
        use_io_binding=True,
    )
    assert found.session.get_session_options().intra_op_num_threads == 1
    assert found.use_io_binding
    assert found.config.num_hidden_layers == config["num_hidden_layers"]
    with pytest.raises(errors.InvalidArgument, match="use_io_binding is True or False"):
        found.use_io_binding = None


def test_saved_models_load_again(tiny: Folders, model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    again = Classifier.from_pretrained(tmp_path / "saved")
    assert np.array_equal(logits(again), logits(model))
    again.save_pretrained(tmp_path / "saved")  # where it is already
    assert np.array_equal(logits(Classifier.from_pretrained(tmp_path / "saved")), logits(model))
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.InvalidArgument, match="file is a file"):
        model.save_pretrained(tmp_path / "file")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("after", [0, 2])
def test_saving_that_ends_early_changes_nothing(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, after: int
) -> None:
    """Neither a folder with another model, nor the one that the model is from, nor one that was not there."""
    model.save_pretrained(tmp_path / "own")
    own = Classifier.from_pretrained(tmp_path / "own")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.onnx").write_text("another model")
    (tmp_path / "other" / "README.md").write_text("notes")
    before = _contents(tmp_path)
    real, count = shutil.copyfileobj, 0

    def broken(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count > after:
            target.write(b"half of it")
            raise raised
        real(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", broken)
    for name in ("other", "own", "new"):
        count = 0
        with pytest.raises((KeyboardInterrupt, errors.Fail)):
            (own if name == "own" else model).save_pretrained(tmp_path / name)
    assert _contents(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"own", "other"}
    monkeypatch.undo()
    for name in ("other", "own", "new"):
        own.save_pretrained(tmp_path / name)
        assert np.array_equal(logits(Classifier.from_pretrained(tmp_path / name)), logits(model))
    assert (tmp_path / "other" / "README.md").read_text() == "notes"


def test_two_parts_of_one_name_are_not_saved(model: Any, tiny: Folders, tmp_path: Path) -> None:
    from sardonyx.models.folders.saving import save_parts

    shutil.copy(tiny(TASK) / "onnx" / "model.onnx", tmp_path / "model.onnx")
    with pytest.raises(errors.InvalidArgument, match=r"both would be model\.onnx"):
        save_parts([model.path, tmp_path / "model.onnx"], tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_weights_in_files_of_their_own_are_saved(tiny: Folders, model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tiny(TASK) / "config.json", folder)
    onnx.save(
        onnx.load(tiny(TASK) / "onnx" / "model.onnx"),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    Classifier.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.onnx_data").stat().st_size == (folder / "model.onnx_data").stat().st_size
    assert np.allclose(logits(Classifier.from_pretrained(tmp_path / "saved")), logits(model))


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_links_that_leave_the_folder_are_not_copied(tiny: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny(TASK), tmp_path / "model"))
    (tmp_path / "private").write_text("of this machine")
    (folder / "vocab.txt").symlink_to(tmp_path / "private")
    saved = tmp_path / "saved"
    with pytest.raises(errors.InvalidArgument, match=r"vocab\.txt is a link to .*private, which is not in the model's"):
        Classifier.from_pretrained(folder).save_pretrained(saved)
    assert not saved.exists()
    (folder / "vocab.txt").unlink()
    (folder / "words").write_text("of the model")
    (folder / "vocab.txt").symlink_to("words")
    Classifier.from_pretrained(folder).save_pretrained(saved)
    assert (saved / "vocab.txt").read_text() == "of the model"
    assert not (saved / "vocab.txt").is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_a_snapshot_of_the_hub_is_copied_from_its_store(tiny: Folders, tmp_path: Path) -> None:
    repository = tmp_path / "models--some--model"
    store, snapshot = repository / "blobs", repository / "snapshots" / "1"
    shutil.copytree(tiny(TASK), store)
    (store / "vocab").write_text("of the model")
    for path in [path for path in store.rglob("*") if path.is_file() and path.name != "vocab"]:
        link = snapshot / path.relative_to(store)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (snapshot / "vocab.txt").symlink_to(store / "vocab")
    Classifier.from_pretrained(snapshot).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "vocab.txt").read_text() == "of the model"


def test_folders_without_what_is_needed(tiny: Folders, tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match=r"no config\.json in the folder .* Its files are none"):
        Classifier.from_pretrained(tmp_path)
    shutil.copy(tiny(TASK) / "config.json", tmp_path)
    with pytest.raises(errors.NoSuchFile, match=r"no ONNX file for the model in the folder .* are config\.json"):
        Classifier.from_pretrained(tmp_path)
    for name in ("model_fp16.onnx", "model_quantized.onnx"):
        shutil.copy(tiny(TASK) / "onnx" / "model.onnx", tmp_path / name)
    with pytest.raises(errors.InvalidArgument, match=r"model_fp16\.onnx, model_quantized\.onnx\. Say which one by f"):
        Classifier.from_pretrained(tmp_path)
    assert Classifier.from_pretrained(tmp_path, file_name="model_fp16.onnx").session._model_path.endswith("_fp16.onnx")
    whole = (tmp_path / "model_fp16.onnx").read_bytes()
    (tmp_path / "model_fp16.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.InvalidProtobuf, match=rf"was cut off: the file has {len(whole) // 2} b"):
        Classifier.from_pretrained(tmp_path, file_name="model_fp16.onnx")
    with pytest.raises(errors.NoSuchFile, match=r"no weights of a PyTorch model in the folder"):
        Classifier.from_pretrained(tmp_path, export=True)


def test_weights_of_pytorch_are_exported(tiny: Folders, model: Any, tmp_path: Path, capfd: Any) -> None:
    """As in Optimum, also where nobody asked for it; the model is saved from its temporary folder."""
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny(TASK) / name, tmp_path)
    exported = Classifier.from_pretrained(tmp_path)
    assert "no ONNX file in the folder" in capfd.readouterr().err
    np.testing.assert_allclose(logits(exported), logits(model), rtol=1e-4, atol=1e-4)
    exported.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").exists()
    again = Classifier.from_pretrained(tmp_path / "saved")
    assert np.array_equal(logits(again), logits(exported))
    place = exported.model_save_dir
    assert place.is_dir()
    del exported
    gc.collect()
    assert not place.exists()


def test_configs_that_transformers_does_not_know(tiny: Folders, model: Any, tmp_path: Path) -> None:
    """A session needs none of what is special to a kind of model."""
    said = json.loads((tiny(TASK) / "config.json").read_text()) | {"model_type": "bert_of_tomorrow"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    shutil.copy(tiny(TASK) / "onnx" / "model.onnx", tmp_path)
    found = Classifier.from_pretrained(tmp_path)
    assert (found.config.model_type, found.config.id2label[2]) == ("bert_of_tomorrow", "entailment")
    assert np.array_equal(logits(found), logits(model))
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": ')
    with pytest.raises(errors.Fail, match=r"config\.json cannot be read as JSON"):
        Classifier.from_pretrained(tmp_path)


def test_a_config_of_genai(tiny: Folders, tmp_path: Path) -> None:
    said = {
        "model": {
            "type": "llama",
            "vocab_size": 77,
            "context_length": 99,
            "decoder": {"filename": "llama.onnx", "hidden_size": 32, "num_attention_heads": 4, "head_size": 8},
        }
    }
    (tmp_path / "genai_config.json").write_text(json.dumps(said))
    shutil.copy(tiny(TASK) / "onnx" / "model.onnx", tmp_path / "llama.onnx")
    config = Classifier.from_pretrained(tmp_path).config
    assert (config.model_type, config.vocab_size, config.hidden_size) == ("llama", 77, 32)
    assert (config.max_position_embeddings, config.head_dim) == (99, 8)
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(errors.Fail, match=r"has no model\.type"):
        Classifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "genai_config.json"])
def test_configs_with_values_that_transformers_refuses(
    name: str, tiny: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5 checks types by huggingface_hub, whose errors are no ValueError."""
    transformers = pytest.importorskip("transformers")
    refusal = pytest.importorskip("huggingface_hub.errors").StrictDataclassFieldValidationError

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise refusal("hidden_size", TypeError("expected int, got str"))

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse)
    monkeypatch.setattr(transformers.AutoConfig, "for_model", refuse)
    said = {"model_type": "bert", "model": {"type": "llama", "decoder": {"hidden_size": "wide"}}}
    (tmp_path / name).write_text(json.dumps(said))
    shutil.copy(tiny(TASK) / "onnx" / "model.onnx", tmp_path)
    with pytest.raises(errors.Fail, match=rf"{name} is no config that transformers can .*hidden_size"):
        Classifier.from_pretrained(tmp_path)


def test_a_session_of_the_caller(tiny: Folders, model: Any) -> None:
    session = ort.InferenceSession(tiny(TASK) / "onnx" / "model.onnx")
    found = Classifier(config=model.config, session=session)
    assert np.array_equal(logits(found), logits(model))
    assert found.model_save_dir == tiny(TASK) / "onnx"
    with pytest.raises(errors.InvalidArgument, match="made of a session, or of parts"):
        Classifier(config=model.config)


def test_pushing(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    told: list[Any] = []
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, name, **how: told.append((name, how)))
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "upload_folder",
        lambda self, repo_id, folder_path, commit_message: told.append(sorted(p.name for p in folder_path.iterdir())),
    )
    model.save_pretrained(tmp_path, push_to_hub=True, repository_id="me/model", private=True)
    assert told[0] == ("me/model", {"private": True, "exist_ok": True})
    assert "model.onnx" in told[1]

    def refuse(self: Any, name: str, **how: Any) -> None:
        raise HFValidationError("no such name")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(errors.InvalidArgument, match="neither a folder nor an id of the hub"):
        model.push_to_hub(tmp_path, "a//b")


def test_names_are_late() -> None:
    """The import brings neither transformers nor torch, nor do classes without generation; all names are there."""
    script = (
        "import sys, sardonyx.models as models\n"
        "assert not {'torch', 'transformers', 'numpy', 'tokenizers'} & sys.modules.keys(), sys.modules.keys()\n"
        "models.ORTModelForSequenceClassification, models.ORTModelForCTC, models.ORTModelForImageClassification\n"
        "assert not {'torch', 'transformers', 'tokenizers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    assert set(models.__all__) <= set(dir(models))
    assert all(getattr(models, name).__name__ == name for name in models.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'ORTModelForNothing'"):
        models.ORTModelForNothing  # noqa: B018


def test_without_the_packages(tiny: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(errors.NotFound, match=r"needs the package transformers.*pip install 'sardonyx\[models-hf\]'"):
        Classifier.from_pretrained(tiny(TASK))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(errors.NotFound, match="needs the package huggingface_hub"):
        Classifier.from_pretrained("some/model")
