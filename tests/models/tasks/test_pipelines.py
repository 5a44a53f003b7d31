"""transformers' own pipelines give with our models what they give with PyTorch's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import models
from tests.models.tiny_models import MODELS, Folders, torch_model

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
pytest.importorskip("torch", reason="the extra `models` is not installed")
image = pytest.importorskip("PIL.Image", reason="the extra `image` is not installed")
pytestmark = pytest.mark.xdist_group("tiny_models")

QUESTION = {"question": "where is the cat ?", "context": "the cat sleeps in the red house . the dog runs"}
SENTENCES = ["the dog runs quickly", "a red bird sings in the tree ."]


def picture() -> Any:
    return image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))


def sound() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(1600).astype(np.float32)


# By pipeline: the task of the model, what is asked, and how.
PIPELINES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "text-classification": (
        "text-classification",
        lambda: SENTENCES,
        {"top_k": None, "batch_size": 2, "padding": True},
    ),
    "zero-shot-classification": (
        "text-classification",
        lambda: SENTENCES[0],
        {"candidate_labels": ["dog", "cat", "tree"], "hypothesis_template": "the {}"},
    ),
    "token-classification": ("token-classification", lambda: SENTENCES[0], {}),
    "question-answering": ("question-answering", lambda: QUESTION, {}),
    "fill-mask": ("fill-mask", lambda: "the [MASK] sleeps in the house", {"top_k": 3}),
    "feature-extraction": ("feature-extraction", lambda: SENTENCES[0], {}),
    "image-classification": ("image-classification", picture, {}),
    "image-segmentation": ("image-segmentation", picture, {}),
    "object-detection": ("object-detection", picture, {"threshold": 0.0}),
    "zero-shot-image-classification": (
        "zero-shot-image-classification",
        picture,
        {"candidate_labels": ["dog", "red house"], "hypothesis_template": "a {}"},
    ),
    "automatic-speech-recognition": ("automatic-speech-recognition", sound, {}),
    "audio-classification": ("audio-classification", sound, {}),
}


def preprocessors(task: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "input_ids" in MODELS[task].inputs:
        found["tokenizer"] = transformers.AutoTokenizer.from_pretrained(folder)
    if "pixel_values" in MODELS[task].inputs:
        found["image_processor"] = transformers.AutoImageProcessor.from_pretrained(folder)
    if "input_values" in MODELS[task].inputs:
        found["feature_extractor"] = transformers.AutoFeatureExtractor.from_pretrained(folder)
    if task == "automatic-speech-recognition":
        found["tokenizer"] = transformers.Wav2Vec2CTCTokenizer.from_pretrained(folder)
    return found


def same(ours: Any, theirs: Any) -> None:
    """Equal answers: numbers nearly, everything else exactly."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(theirs, image.Image):
        assert np.mean(np.asarray(ours) != np.asarray(theirs)) < 0.01  # a pixel where two labels are near
    elif isinstance(theirs, (float, np.floating)):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", list(PIPELINES))
def test_pipelines(name: str, tiny: Folders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "question-answering" and int(transformers.__version__.split(".")[0]) > 4:
        pytest.skip("transformers 5 has no such pipeline")
    task, asked, how = PIPELINES[name]
    folder = tiny(task)
    helpers = preprocessors(task, folder)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model = getattr(models, MODELS[task].ours).from_pretrained(folder)
    with caplog.at_level(logging.WARNING, "transformers"):
        ours = transformers.pipeline(name, model=model, **helpers)
    assert "is not supported" not in caplog.text
    theirs = transformers.pipeline(name, model=torch_model(task, folder), device="cpu", **helpers)
    same(ours(asked(), **how), theirs(asked(), **how))
