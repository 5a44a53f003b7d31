"""Vectors of texts by a small encoder, against float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra `models-hf` is not installed")

from sardonyx import errors
from sardonyx.models import SentenceEncoder
from sardonyx.models.sentences import text_model
from tests.models.sentences import small_encoder as small

TEXTS = [
    "the cat",
    "A DOG RUNS",
    "",
    "sees big red the a cat dog runs",
    "unheard",
    "the the the the the the the the the",
]
Exact = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def places(states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.arange(1, len(states) + 1)[:, None]


MODES: dict[str, Exact] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: (x * places(x)).sum(0) / places(x).sum(),
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("mode", MODES)
def test_poolings(tmp_path: Path, mode: str, side: str) -> None:
    small.write(tmp_path, {"pooling_mode": mode, "embedding_dimension": small.SIZE})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "padding_side": side}))
    encoder = SentenceEncoder(tmp_path)
    found = encoder.encode(TEXTS)
    assert found.shape == (6, small.SIZE)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [MODES[mode](small.states(text)) for text in TEXTS], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(TEXTS[3]), found[3])


def test_the_order_of_the_caller_and_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(small.WORDS[4:], random.integers(0, 9))) for _ in range(300)]
    encoder = SentenceEncoder(small.write(tmp_path))
    exact = np.array([small.states(text).mean(0) for text in texts])
    monkeypatch.setattr(text_model, "WINDOW", 70)
    for size in (None, 1, 7, 1000):
        np.testing.assert_allclose(encoder.encode(texts, batch_size=size), exact, rtol=1e-5, atol=1e-6)


def test_flags_of_older_configs_and_several_modes(tmp_path: Path) -> None:
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    encoder = SentenceEncoder(small.write(tmp_path, flags))
    exact = [np.concatenate([small.states(text)[0], small.states(text).max(0)]) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(TEXTS), exact, rtol=1e-5, atol=1e-6)
    assert encoder.get_sentence_embedding_dimension() == 2 * small.SIZE


def test_prompts_and_what_they_count(tmp_path: Path) -> None:
    settings = {"prompts": {"query": "the cat ", "hint": "a "}, "default_prompt_name": "hint"}
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    encoder = SentenceEncoder(small.write(tmp_path, pooling, settings=settings))

    def exact(prompt: str) -> np.ndarray[Any, Any]:
        skipped = 1 + len(prompt.split()) if prompt else 0
        return np.array([small.states(prompt + text)[skipped:].mean(0) for text in TEXTS[:3]])

    for found, prompt in (
        (encoder.encode(TEXTS[:3]), "a "),
        (encoder.encode(TEXTS[:3], prompt_name="query"), "the cat "),
        (encoder.encode(TEXTS[:3], prompt="dog "), "dog "),
        (encoder.encode_query(TEXTS[:3]), "the cat "),
        (encoder.encode_document(TEXTS[:3]), ""),
    ):
        np.testing.assert_allclose(found, exact(prompt), rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InvalidArgument, match="no prompt 'passage'; prompts are query, document, hint"):
        encoder.encode(TEXTS, prompt_name="passage")


def test_layers_behind_the_pooling(tmp_path: Path) -> None:
    numpy_file = pytest.importorskip("safetensors.numpy")
    random = np.random.default_rng(1)
    weight, bias = random.standard_normal((4, small.SIZE)), random.standard_normal(4)
    scale, shift = random.standard_normal(4), random.standard_normal(4)
    small.write(tmp_path, more=[("Dense", "2_Dense"), ("LayerNorm", "3_Norm"), ("Dropout", "4"), ("Normalize", "5")])
    for folder, weights, config in (
        ("2_Dense", {"linear.weight": weight, "linear.bias": bias}, {"activation_function": "torch.nn.GELU"}),
        ("3_Norm", {"norm.weight": scale, "norm.bias": shift}, {"dimension": 4}),
    ):
        (tmp_path / folder).mkdir()
        numpy_file.save_file(
            {name: value.astype(np.float32) for name, value in weights.items()}, tmp_path / folder / "model.safetensors"
        )
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    encoder = SentenceEncoder(tmp_path)
    x = np.array([small.states(text).mean(0) for text in TEXTS]) @ weight.T + bias
    erf = np.vectorize(__import__("math").erf)
    x = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale + shift
    exact = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), exact, rtol=1e-4, atol=1e-5)
    assert encoder.get_sentence_embedding_dimension() == 4


def test_shorter_and_scaled_vectors_and_few_bits(tmp_path: Path) -> None:
    encoder = SentenceEncoder(small.write(tmp_path))
    exact = np.array([small.states(text).mean(0) for text in TEXTS])
    cut = exact[:, :3] / np.linalg.norm(exact[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(
        encoder.encode(TEXTS, truncate_dim=3, normalize_embeddings=True), cut, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(encoder.encode(TEXTS, precision="ubinary"), np.packbits(exact > 0, axis=1))
    signed = encoder.encode(TEXTS, precision="binary")
    np.testing.assert_array_equal(signed.astype(int), np.packbits(exact > 0, axis=1).astype(int) - 128)
    bytes_ = encoder.encode(TEXTS, precision="uint8")
    low, high = exact.min(0), exact.max(0)
    assert np.abs(bytes_ - np.floor((exact - low) / (high - low) * 255)).max() <= 1
    with pytest.raises(errors.InvalidArgument, match="give it two texts or more"):
        encoder.encode(TEXTS[0], precision="int8")


def test_states_of_tokens(tmp_path: Path) -> None:
    found = SentenceEncoder(small.write(tmp_path)).encode(TEXTS, output_value="token_embeddings")
    for states, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(states, small.states(text), rtol=1e-6)


def test_a_folder_that_says_nothing_of_vectors(tmp_path: Path) -> None:
    small.save_tokenizer(tmp_path)
    small.save_model(tmp_path / "model.onnx", ("last_hidden_state", "sentence_embedding"))
    own = SentenceEncoder(tmp_path).encode(TEXTS)
    # The longest text, to which nothing is padded.
    np.testing.assert_allclose(own[5], small.states(TEXTS[5], 64).max(0), rtol=1e-5)
    found = SentenceEncoder(tmp_path, pooling="cls", normalize=True).encode(TEXTS)
    exact = np.array([small.states(text, 64)[0] for text in TEXTS])
    np.testing.assert_allclose(found, exact / np.linalg.norm(exact, axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_the_length_can_be_set(tmp_path: Path) -> None:
    encoder = SentenceEncoder(small.write(tmp_path))
    assert encoder.max_seq_length == 8
    encoder.max_seq_length = 4
    exact = [small.states(text, 4).mean(0) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(TEXTS), exact, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InvalidArgument, match="max_seq_length is a number of tokens"):
        encoder.max_seq_length = 0


def test_nothing_and_what_is_no_text(tmp_path: Path) -> None:
    encoder = SentenceEncoder(small.write(tmp_path))
    assert encoder.encode([]).shape == (0, small.SIZE)
    with pytest.raises(errors.InvalidArgument, match=r"sentences\[1\] is no text, but of type int"):
        encoder.encode(["a", 3])  # type: ignore[list-item]
    for options, message in (
        ({"batch_size": 0}, "batch_size is a number of texts"),
        ({"device": "cuda"}, "The device cuda is not there"),
        ({"precision": "int4"}, "no precision 'int4'"),
        ({"output_value": "all"}, "output_value is"),
    ):
        with pytest.raises(errors.InvalidArgument, match=message):
            encoder.encode(["a"], **options)


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match="There is no folder"):
        SentenceEncoder(tmp_path / "nowhere")
    folder = small.write(tmp_path / "a", more=[("CNN", "2_CNN")])
    with pytest.raises(errors.NotImplemented, match="a module 'CNN'; known here are Transformer, Pooling"):
        SentenceEncoder(folder)
    folder = small.write(tmp_path / "b")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(errors.Fail, match="no whole tokenizer"):
        SentenceEncoder(folder)
    folder = small.write(tmp_path / "c", {"pooling_mode": "median"})
    with pytest.raises(errors.Fail, match=r"1_Pooling/config\.json: There is no pooling 'median'; modes are cls"):
        SentenceEncoder(folder)
    folder = small.write(tmp_path / "d", more=[("Dense", "2_Dense")])
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text("{}")
    with pytest.raises(errors.NoSuchFile, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        SentenceEncoder(folder)


def test_similarity(tmp_path: Path) -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 3, 5)).astype(np.float32)
    for name, exact in (
        ("cosine", (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)),
        ("dot", a @ b.T),
        ("euclidean", -np.linalg.norm(a[:, None] - b[None], axis=2)),
        ("manhattan", -np.abs(a[:, None] - b[None]).sum(2)),
    ):
        encoder = SentenceEncoder(small.write(tmp_path, settings={"similarity_fn_name": name}))
        np.testing.assert_allclose(encoder.similarity(a, b), exact, rtol=1e-5, atol=1e-5)
