"""Texts, arguments and folders that no encoder can serve: one typed error each."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models import CrossEncoder, SentenceEncoder
from tests.models.sentences import small_encoder as small

pytest.importorskip("tokenizers", reason="the extra `models-hf` is not installed")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder(small.write(tmp_path_factory.mktemp("encoder")))


def _scorer(folder: Path, config: dict[str, Any] | None = None) -> Path:
    small.save_model(folder / "model.onnx", ("logits",))
    small.save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    return CrossEncoder(_scorer(tmp_path_factory.mktemp("scorer")))


@pytest.mark.parametrize("texts", [None, 5, [None], b"abc", [b"x"], [["a", "b"]], "\ud800", ["a", "\ud800"]], ids=repr)
def test_what_is_no_text(encoder: SentenceEncoder, texts: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        encoder.encode(texts)
    assert encoder.encode("the cat").shape == (small.SIZE,)


@pytest.mark.parametrize(
    "options",
    [
        *({"batch_size": value} for value in (0, -1, 1.5, "a", True)),
        *({"truncate_dim": value} for value in (0, -1, 1.5, "a")),
        {"prompt": 5},
        {"prompt_name": ["x"]},
        {"device": "cuda"},
    ],
    ids=repr,
)
def test_options(encoder: SentenceEncoder, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        encoder.encode(["a"], **options)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"max_seq_length": value} for value in (0, -1, 1.5, "a")),
        *({"truncate_dim": value} for value in (0, -1, "a")),
        *({"pooling": value} for value in (5, [], "median", ["mean", "median"], ["mean"] * 100)),
        *({"prompts": value} for value in (5, {"a": 5})),
        {"default_prompt_name": "no such"},
    ],
    ids=lambda arguments: repr(arguments)[:40],
)
def test_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        SentenceEncoder(small.write(tmp_path), **arguments)


def test_texts_of_any_length(encoder: SentenceEncoder) -> None:
    """None, and far more than the model takes: what is cut off does not count."""
    short, long = encoder.encode(["the cat sees the big dog", "the cat sees the big dog " * 20_000])
    assert np.array_equal(short, long)
    assert encoder.encode("").shape == (small.SIZE,)
    assert encoder.encode(["", " "]).shape == (2, small.SIZE)


def test_scaling_twice_is_scaling_once(tmp_path: Path) -> None:
    encoder = SentenceEncoder(small.write(tmp_path, more=[("Normalize", "2"), ("Normalize", "3")]), normalize=True)
    vectors = encoder.encode(["the cat", "a dog runs"])
    again = encoder.encode(["the cat", "a dog runs"], normalize_embeddings=True)
    np.testing.assert_allclose(again, vectors, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("first", ["a", np.zeros((2, 3, 4)), np.zeros((2, 4))], ids=["text", "three", "size"])
def test_vectors_that_cannot_be_compared(encoder: SentenceEncoder, first: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        encoder.similarity(first, np.zeros((2, 6)))


FILES: dict[str, list[Any]] = {
    "modules.json": [
        "[" * 10_000 + "]" * 10_000,
        "[" * 900 + "]" * 900,
        {"a": 1},
        ["a"],
        [{"type": "x.Pooling"}],
        [{"type": 5, "path": ""}],
        [{"type": "x.Pooling", "path": "1_Pooling"}] * 100_000,
        [{"type": "x.Pooling", "path": "../../elsewhere"}],
        [{"type": "x.Pooling", "path": "/etc"}],
    ],
    "1_Pooling/config.json": [
        [1],
        {"pooling_mode": 5},
        {"pooling_mode": []},
        {"pooling_mode": ["mean"] * 100_000},
        {"pooling_mode_mean_tokens": "x"},
        {"include_prompt": "x"},
    ],
    "config_sentence_transformers.json": [
        {"prompts": [1]},
        {"prompts": {"a": 5}},
        {"default_prompt_name": ["x"]},
        {"truncate_dim": "x"},
        {"truncate_dim": -3},
        {"truncate_dim": 2.5},
        {"similarity_fn_name": 5},
    ],
    "sentence_bert_config.json": [
        {"max_seq_length": "x"},
        {"processing_kwargs": "x"},
        {"processing_kwargs": {"text": 5}},
        {"query_length": "x"},
    ],
    "tokenizer_config.json": [
        {"pad_token": 5},
        {"pad_token": {"content": 5}},
        {"padding_side": "x"},
        {"truncation_side": "x"},
    ],
    "config.json": [
        {"max_position_embeddings": "x"},
        {"model_type": "roberta", "max_position_embeddings": 100, "pad_token_id": "x"},
        {"model_type": [1], "max_position_embeddings": 100},
    ],
    "tokenizer.json": ["{}", "{", "[" * 100_000],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, content) for name, contents in FILES.items() for content in contents],
    ids=lambda value: repr(value)[:40],
)
def test_hostile_files(tmp_path: Path, name: str, content: Any) -> None:
    folder = small.write(tmp_path)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises((errors.Fail, errors.NoSuchFile)):
        SentenceEncoder(folder)


@pytest.mark.parametrize("said", [1e30, -5, 0, float("nan")])
def test_lengths_that_say_no_limit(tmp_path: Path, said: float) -> None:
    folder = small.write(tmp_path)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": said}))
    assert SentenceEncoder(folder).max_seq_length == 32


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = small.write(tmp_path)
    said = json.loads((folder / "tokenizer.json").read_text())
    said["model"]["vocab"]["elephant"] = len(small.WORDS)
    (folder / "tokenizer.json").write_text(json.dumps(said))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(small.WORDS)}))
    encoder = SentenceEncoder(folder)
    with pytest.raises(errors.InvalidArgument, match="belongs to another model"):
        encoder.encode("the elephant")
    assert encoder.encode("the cat").shape == (small.SIZE,)


@pytest.mark.parametrize("pairs", ["ab", ["a"], [("a",)], [("a", 5)], None, 5, [None], [["a", "b", "c"]]], ids=repr)
def test_what_are_no_pairs(scorer: CrossEncoder, pairs: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        scorer.predict(pairs)
    assert scorer.predict([]).shape == (0,)


def test_arguments_of_scores(scorer: CrossEncoder) -> None:
    for options in (
        {"batch_size": 0},
        {"activation_fn": "x"},
        {"activation_fn": lambda x: None},
        {"activation_fn": lambda x: x[:0]},
    ):
        with pytest.raises(errors.InvalidArgument):
            scorer.predict(("a", "b"), **options)  # type: ignore[arg-type]
    for documents, top in ((None, 1), (["a"], 0), (["a"], -1), (["a"], "x"), ([5], 1)):
        with pytest.raises(errors.InvalidArgument):
            scorer.rank("a", documents, top)  # type: ignore[arg-type]
    assert scorer.rank("a", []) == []


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": "x"},
        {"sentence_transformers": {"activation_fn": 5}},
        {"sbert_ce_default_activation_function": ["x"]},
    ],
    ids=repr,
)
def test_hostile_configs_of_scorers(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(errors.Fail, match=r"config\.json"):
        CrossEncoder(_scorer(tmp_path, config))


def test_copies(encoder: SentenceEncoder, scorer: CrossEncoder) -> None:
    expected = encoder.encode("the cat")
    for copied in (copy.copy(encoder), copy.deepcopy(encoder)):
        assert np.array_equal(copied.encode("the cat"), expected)
    for one in (encoder, scorer):
        with pytest.raises(TypeError, match="cannot be pickled: it holds sessions"):
            pickle.dumps(one)


def test_four_threads(encoder: SentenceEncoder) -> None:
    chance = np.random.default_rng(5)
    words = small.WORDS[4:]
    texts = [" ".join(chance.choice(words, 1 + at % 9)) for at in range(50)]
    expected = [encoder.encode(texts, truncate_dim=size) for size in (1, 3, 6)]
    found: dict[int, list[np.ndarray[Any, Any]]] = {}

    def work(number: int) -> None:
        found[number] = [encoder.encode(texts, truncate_dim=size) for _ in range(4) for size in (1, 3, 6)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for at, vectors in enumerate(found[number]):
            assert np.array_equal(vectors, expected[at % 3])
