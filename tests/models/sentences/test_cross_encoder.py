"""Scores of pairs by a small model, against float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra `models-hf` is not installed")

from sardonyx import errors
from sardonyx.models import CrossEncoder
from tests.models.sentences import small_encoder as small

PAIRS = [("the cat", "a dog"), ("red", "big red cat sees the dog"), ("", ""), ("a", "the")]


def folder(path: Path, labels: int, **config: Any) -> Path:
    small.save_model(path / "model.onnx", ("logits",), labels)
    small.save_tokenizer(path)
    (path / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return path


def exact(pair: tuple[str, str], labels: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    first, second = ([small.WORDS.index(word) for word in text.split()] for text in pair)
    ids = [2, *first, 3, *second, 3]
    return (small.TABLE[ids].astype(np.float64) * np.arange(1, len(ids) + 1)[:, None]).sum(0)[:labels]


def test_one_label_by_a_sigmoid(tmp_path: Path) -> None:
    encoder = CrossEncoder(folder(tmp_path, 1))
    scores = encoder.predict(PAIRS, batch_size=3)
    expected = np.array([1 / (1 + np.exp(-exact(pair, 1)[0])) for pair in PAIRS])
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(encoder.predict(PAIRS[1]), scores[1])
    assert encoder.predict([]).shape == (0,)
    ranked = encoder.rank("the cat", ["a dog", "red", "big"], top_k=2, return_documents=True)
    logits = {text: exact(("the cat", text), 1)[0] for text in ("a dog", "red", "big")}
    assert [one["text"] for one in ranked] == sorted(logits, key=lambda text: -logits[text])[:2]


def test_several_labels(tmp_path: Path) -> None:
    encoder = CrossEncoder(folder(tmp_path, 3))
    logits = np.array([exact(pair, 3) for pair in PAIRS])
    np.testing.assert_allclose(encoder.predict(PAIRS), logits, rtol=1e-5, atol=1e-5)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(
        encoder.predict(PAIRS, apply_softmax=True), shares / shares.sum(1, keepdims=True), rtol=1e-3, atol=1e-6
    )
    with pytest.raises(errors.InvalidArgument, match="rank needs a model of one label, and this one has 3"):
        encoder.rank("a", ["the"])


def test_the_activation_of_the_folder(tmp_path: Path) -> None:
    named = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    scores = CrossEncoder(folder(tmp_path, 1, **named)).predict(PAIRS)
    np.testing.assert_allclose(scores, [exact(pair, 1)[0] for pair in PAIRS], rtol=1e-5, atol=1e-5)
    unknown = {"sentence_transformers": {"activation_fn": "mine.Own"}}
    with pytest.raises(errors.NotImplemented, match=r"The activation 'mine\.Own'"):
        CrossEncoder(folder(tmp_path, 1, **unknown))


def test_what_is_no_pair(tmp_path: Path) -> None:
    encoder = CrossEncoder(folder(tmp_path, 1))
    with pytest.raises(errors.InvalidArgument, match=r"sentences\[1\] is no pair of texts"):
        encoder.predict([("a", "the"), ("a",)])  # type: ignore[list-item]


def test_a_model_without_logits(tmp_path: Path) -> None:
    small.write(tmp_path)
    with pytest.raises(errors.InvalidArgument, match="gives no logits, but last_hidden_state"):
        CrossEncoder(tmp_path)
