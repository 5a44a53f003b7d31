"""sentence-transformers beside Sardonyx. Run by test_clients.py.

`backend="onnx"`, unmodified, where Optimum is installed; and `SentenceEncoder` and `CrossEncoder` on folders that the
package wrote. Prints JSON: for each row how far vectors or scores are from those of the package on PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torchvision") is not None:
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch

import numpy as np
import onnxruntime
import sentence_transformers
import small_models
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, LayerNorm, Normalize, Pooling, Transformer

from sardonyx import models

TEXTS = ["the cat sees a big dog", "it was very good", "", "red house on the blue", "they", "we runs " * 40, " you "]
PAIRS = [("the cat", "a dog runs"), ("it was good", "it was not good or bad"), ("red", "blue " * 70), ("", "a")]
IS_OLD = int(sentence_transformers.__version__.partition(".")[0]) < 6
MODES = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SIZE = 32


def chains() -> Iterator[tuple[str, str, list[Any]]]:
    """The name of a row, its pooling, and what follows it."""
    for mode in MODES:
        yield mode, mode, []
    yield "normalised", "mean", [Normalize()]
    yield "layer norm", "cls", [LayerNorm(SIZE)]
    for activation in (torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU(), torch.nn.ReLU(), torch.nn.Sigmoid()):
        dense = Dense(SIZE, 24, bias=True, activation_function=activation)
        yield f"dense {type(activation).__name__}", "mean", [dense, Normalize()]


def main(folder: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        source = small_models.write("features", folder / "source")
        found = chained(folder, source)
        found |= prompted(folder, source)
        found |= several_modes(folder, source)
        found |= crossed(folder)
        found |= with_onnx_backend(folder)
    rows = {name: float(value) for name, value in found.items()}
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": rows}))


def saved(folder: Path, source: Path, pooling: Pooling, others: list[Any], **settings: Any) -> SentenceTransformer:
    """A model in a folder, with an ONNX file beside its weights."""
    torch.manual_seed(1)
    for other in others:
        for parameter in other.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    transformer = Transformer(str(source), max_seq_length=48)
    model = SentenceTransformer(modules=[transformer, pooling, *others], device="cpu", **settings)
    model.save_pretrained(str(folder))
    (folder / "onnx").mkdir(exist_ok=True)
    made = source.parent / "features.onnx"
    if not made.exists():
        small_models.export_states(source, made)
    (folder / "onnx" / "model.onnx").write_bytes(made.read_bytes())
    return model


def chained(folder: Path, source: Path) -> dict[str, float]:
    """Every pooling and every layer."""
    found = {}
    for name, mode, others in chains():
        target = folder / name.replace(" ", "-")
        model = saved(target, source, Pooling(SIZE, pooling_mode=mode), others)
        encoder = models.SentenceEncoder(target)
        found[name] = apart(encoder.encode(TEXTS), model.encode(TEXTS))
        assert encoder.get_sentence_embedding_dimension() == model.encode("a").shape[-1]
        if name == "normalised":
            found |= options(encoder, model)
    return found


def options(encoder: Any, model: SentenceTransformer) -> dict[str, float]:
    """What `encode` takes."""
    both = encoder, model
    found = {"one text": apart(*(one.encode(TEXTS[0]) for one in both))}
    for given in (
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"prompt": "we runs "},
        {"batch_size": 2},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        *({"precision": name} for name in ("int8", "uint8", "binary", "ubinary")),
    ):
        ours, theirs = (one.encode(TEXTS, **given) for one in both)
        assert type(ours) is type(theirs), (given, type(ours), type(theirs))
        found[f"encode {given}"] = apart(np.stack(list(ours)), np.stack(list(theirs)))
    ours, theirs = (one.encode(TEXTS, output_value="token_embeddings") for one in both)
    found["tokens"] = max(apart(a, b.numpy()) for a, b in zip(ours, theirs, strict=True))
    vectors = model.encode(TEXTS)
    found["similarity"] = apart(
        encoder.similarity(vectors, vectors[:2]), model.similarity(vectors, vectors[:2]).numpy()
    )
    encoder.max_seq_length = model.max_seq_length = 6
    found["cut to 6 tokens"] = apart(*(one.encode(TEXTS) for one in both))
    return found


def prompted(folder: Path, source: Path) -> dict[str, float]:
    """Prompts by name, with and without the prompt's tokens in the pooling, padded on either side."""
    found = {}
    for side in ("right", "left"):
        for included in (True, False):
            for mode in MODES:
                if mode == "weightedmean" and side == "left" and IS_OLD:
                    continue  # which counted positions from the padding on
                target = folder / f"prompt-{side}-{included}-{mode}"
                pooling = Pooling(SIZE, pooling_mode=mode, include_prompt=included)
                prompts = {"query": "we runs ", "document": "the ", "passage": "it "}
                model = saved(target, source, pooling, [], prompts=prompts)
                settings = json.loads((target / "tokenizer_config.json").read_text())
                (target / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": side}))
                model = SentenceTransformer(str(target), device="cpu")
                encoder = models.SentenceEncoder(target)
                name = f"prompt, {side}, {'with' if included else 'without'} its tokens, {mode}"
                pairs = [
                    (encoder.encode(TEXTS, prompt_name="passage"), model.encode(TEXTS, prompt_name="passage")),
                    (encoder.encode_query(TEXTS), model.encode_query(TEXTS)),
                    (encoder.encode_document(TEXTS), model.encode_document(TEXTS)),
                ]
                found[name] = max(apart(a, b) for a, b in pairs)
    return found


def several_modes(folder: Path, source: Path) -> dict[str, float]:
    pooling = Pooling(SIZE, pooling_mode=("cls", "mean"))
    model = saved(folder / "several", source, pooling, [])
    return {"two modes": apart(models.SentenceEncoder(folder / "several").encode(TEXTS), model.encode(TEXTS))}


def crossed(folder: Path) -> dict[str, float]:
    """Scores of pairs: one label, and three."""
    import transformers

    found = {}
    for labels in (1, 3):
        target = folder / f"cross-{labels}"
        small_models.write("classes", target)
        config = transformers.AutoConfig.from_pretrained(target)
        config.num_labels = labels
        torch.manual_seed(labels)
        transformers.BertForSequenceClassification(config).save_pretrained(target)
        model = CrossEncoder(str(target), device="cpu", max_length=40)
        small_models.export_logits(target, target / "model.onnx")
        encoder = models.CrossEncoder(target, max_length=40)
        pairs = [list(pair) for pair in PAIRS]
        found[f"pairs, {labels} labels"] = apart(encoder.predict(PAIRS), model.predict(pairs))
        found[f"one pair, {labels} labels"] = apart(encoder.predict(PAIRS[0]), model.predict(pairs[0]))
        if labels > 1:
            found["softmax"] = apart(
                encoder.predict(PAIRS, apply_softmax=True), model.predict(pairs, apply_softmax=True)
            )
        else:
            ours, theirs = (one.rank("the cat", TEXTS, return_documents=True) for one in (encoder, model))
            assert [one["text"] for one in ours] == [one["text"] for one in theirs]
            found["rank"] = max(abs(a["score"] - b["score"]) for a, b in zip(ours, theirs, strict=True))
    return found


def with_onnx_backend(folder: Path) -> dict[str, float]:
    """`backend="onnx"`: with the ONNX file that is there, exported by Optimum, optimised and quantised."""
    if importlib.util.find_spec("optimum") is None:
        return {}
    found = {}
    target = folder / "normalised"
    expected = SentenceTransformer(str(target), device="cpu").encode(TEXTS)
    model = SentenceTransformer(str(target), device="cpu", backend="onnx")
    assert model[0].auto_model.providers == ["CPUExecutionProvider"]
    found["backend, a file that is there"] = apart(model.encode(TEXTS), expected)
    chosen = {"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"}
    model = SentenceTransformer(str(target), device="cpu", backend="onnx", model_kwargs=chosen)
    found["backend, provider and file"] = apart(model.encode(TEXTS), expected)
    if importlib.util.find_spec("optimum.exporters") is None:
        return found
    os.remove(target / "onnx" / "model.onnx")
    model = SentenceTransformer(str(target), device="cpu", backend="onnx")
    found["backend, exported"] = apart(model.encode(TEXTS), expected)
    model.save_pretrained(str(folder / "saved"))
    found["backend, saved"] = apart(
        SentenceTransformer(str(folder / "saved"), device="cpu", backend="onnx").encode(TEXTS), expected
    )
    found["encoder on what was saved"] = apart(models.SentenceEncoder(folder / "saved").encode(TEXTS), expected)
    from sentence_transformers import export_dynamic_quantized_onnx_model, export_optimized_onnx_model

    export_optimized_onnx_model(model, "O3", str(folder / "saved"))
    fast = {"file_name": "onnx/model_O3.onnx"}
    model = SentenceTransformer(str(folder / "saved"), device="cpu", backend="onnx", model_kwargs=fast)
    # Gelu by tanh: near, and no more.
    found["backend, O3"] = apart(model.encode(TEXTS), expected) * 1e-2
    model = SentenceTransformer(str(folder / "saved"), device="cpu", backend="onnx")
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder / "saved"))
    small = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    model = SentenceTransformer(str(folder / "saved"), device="cpu", backend="onnx", model_kwargs=small)
    # Bytes: near, and no more.
    found["backend, bytes"] = apart(model.encode(TEXTS), expected) * 1e-3
    found["encoder, bytes"] = 1e-3 * apart(
        models.SentenceEncoder(folder / "saved", file_name="model_qint8_avx512_vnni.onnx").encode(TEXTS), expected
    )
    cross = folder / "cross-1"
    pairs = [list(pair) for pair in PAIRS]
    expected = CrossEncoder(str(cross), device="cpu").predict(pairs)
    found["cross encoder, backend"] = apart(
        CrossEncoder(str(cross), device="cpu", backend="onnx").predict(pairs), expected
    )
    return found


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference; infinite for other shapes or types."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    return float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
