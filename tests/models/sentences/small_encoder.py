"""A small encoder in a folder as sentence-transformers lays it out: a table of states, and a tokenizer of words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["the", "a", "cat", "dog", "runs", "sees", "big", "red"]]
SIZE = 6
TABLE = np.random.default_rng(3).standard_normal((len(WORDS), SIZE)).astype(np.float32)


def write(
    folder: Path,
    pooling: dict[str, Any] | None = None,
    more: list[tuple[str, str]] | None = None,
    settings: dict[str, Any] | None = None,
    file: str = "onnx/model.onnx",
) -> Path:
    """The folder; `more` are further modules by kind and folder, `settings` the config of the whole."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder / file)
    save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 32}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *(more or [])]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def save_model(path: Path, outputs: tuple[str, ...] = ("last_hidden_state",), labels: int = 1) -> None:
    """A state is that of its word, times its place among all tokens that are no padding.

    `sentence_embedding` is the largest state, of padding too; `logits` are the first elements of all states' sum.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"]),
        helper.make_node("CumSum", ["attention_mask", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "two"], ["factors"]),
        helper.make_node("Mul", ["states", "factors"], ["last_hidden_state"]),
    ]
    if "sentence_embedding" in outputs:
        nodes.append(helper.make_node("ReduceMax", ["last_hidden_state", "axes"], ["sentence_embedding"], keepdims=0))
    if "logits" in outputs:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["known"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["known", "two"], ["columns"]),
            helper.make_node("Mul", ["last_hidden_state", "columns"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axes"], ["sums"], keepdims=0),
            helper.make_node("Slice", ["sums", "zero", "labels", "axes"], ["logits"]),
        ]
    shapes: dict[str, list[Any]] = {
        "last_hidden_state": ["batch", "sequence", SIZE],
        "sentence_embedding": ["batch", SIZE],
        "logits": ["batch", labels],
    }
    constants = {"one": np.array(1), "two": np.array([2]), "axes": np.array([1]), "zero": np.array([0])}
    constants |= {"table": TABLE, "labels": np.array([labels])}
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    # As published files have it: what the settings below and the caller ask for counts.
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "model_max_length": 512}))


def states(text: str, most: int = 8) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The states of a text, exactly: (tokens, size)."""
    words = [WORDS.index(word) if word in WORDS else 1 for word in text.lower().split()]
    ids = [2, *words[: most - 2], 3]
    return TABLE[ids].astype(np.float64) * np.arange(1, len(ids) + 1)[:, None]
