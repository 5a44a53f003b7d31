"""Tiny models of each task with random weights: their PyTorch weights, their ONNX files, and what they are fed.

A folder has the model as `save_pretrained` writes it, its preprocessors, and ``onnx/model.onnx``.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Where folders lie that another process has made; it gives them to a process with another transformers.
VARIABLE = "SARDONYX_TINY_MODELS"

WORDS = [
    *[
        "the",
        "a",
        "dog",
        "cat",
        "bird",
        "house",
        "tree",
        "runs",
        "sleeps",
        "sings",
        "and",
        "in",
        "on",
        "quickly",
        "red",
        "green",
        "what",
        "where",
        "is",
    ],
    ".",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LABELS = {"id2label": {0: "cold", 1: "warm", 2: "hot"}, "label2id": {"cold": 0, "warm": 1, "hot": 2}}
_NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
_NLI |= {"label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}}
_SOUND = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 4),
    "conv_stride": (5, 4),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "use_weighted_layer_sum": False,
}
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"]
TOKENS = {
    "input_ids": ("batch", "length"),
    "attention_mask": ("batch", "length"),
    "token_type_ids": ("batch", "length"),
}
IMAGE = {"pixel_values": ("batch", None, None, None)}
SOUND = {"input_values": ("batch", "samples")}


@dataclass(frozen=True)
class Tiny:
    """A model: the class and config of transformers, the class of ours, and names with symbols of its dimensions."""

    ours: str
    theirs: str
    config: str
    settings: dict[str, Any]
    inputs: dict[str, tuple[str | None, ...]]
    outputs: dict[str, tuple[str | None, ...]]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # configs of a model of several


def _bert(ours: str, theirs: str, outputs: dict[str, tuple[str | None, ...]], **settings: Any) -> Tiny:
    settings = {**_TEXT, "vocab_size": len(SPECIAL) + len(WORDS), "max_position_embeddings": 64, **settings}
    return Tiny(ours, theirs, "BertConfig", settings, TOKENS, outputs)


def _wav2vec2(ours: str, theirs: str, outputs: dict[str, tuple[str | None, ...]], **settings: Any) -> Tiny:
    return Tiny(ours, theirs, "Wav2Vec2Config", {**_SOUND, "vocab_size": len(LETTERS), **settings}, SOUND, outputs)


MODELS = {
    "text-classification": _bert(
        "ORTModelForSequenceClassification", "BertForSequenceClassification", {"logits": ("batch", None)}, **_NLI
    ),
    "token-classification": _bert(
        "ORTModelForTokenClassification", "BertForTokenClassification", {"logits": ("batch", "length", None)}, **_LABELS
    ),
    "question-answering": _bert(
        "ORTModelForQuestionAnswering",
        "BertForQuestionAnswering",
        {"start_logits": ("batch", "length"), "end_logits": ("batch", "length")},
    ),
    "fill-mask": _bert("ORTModelForMaskedLM", "BertForMaskedLM", {"logits": ("batch", "length", None)}),
    "feature-extraction": _bert(
        "ORTModelForFeatureExtraction",
        "BertModel",
        {"last_hidden_state": ("batch", "length", None), "pooler_output": ("batch", None)},
    ),
    "multiple-choice": Tiny(
        "ORTModelForMultipleChoice",
        "BertForMultipleChoice",
        "BertConfig",
        {**_TEXT, "vocab_size": len(SPECIAL) + len(WORDS), "max_position_embeddings": 64},
        dict.fromkeys(TOKENS, ("batch", "choices", "length")),
        {"logits": ("batch", "choices")},
    ),
    "image-classification": Tiny(
        "ORTModelForImageClassification",
        "ViTForImageClassification",
        "ViTConfig",
        {**_TEXT, "image_size": 32, "patch_size": 8, **_LABELS},
        IMAGE,
        {"logits": ("batch", None)},
    ),
    "image-segmentation": Tiny(
        "ORTModelForSemanticSegmentation",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
            **_LABELS,
        },
        IMAGE,
        {"logits": ("batch", None, None, None)},
    ),
    "object-detection": Tiny(
        "ORTModelForObjectDetection",
        "YolosForObjectDetection",
        "YolosConfig",
        {**_TEXT, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 5, **_LABELS},
        IMAGE,
        {"logits": ("batch", None, None), "pred_boxes": ("batch", None, None)},
    ),
    "zero-shot-image-classification": Tiny(
        "ORTModelForZeroShotImageClassification",
        "CLIPModel",
        "CLIPConfig",
        {"projection_dim": 16},
        {
            "input_ids": ("texts", "length"),
            "pixel_values": ("images", None, None, None),
            "attention_mask": ("texts", "length"),
        },
        {
            "logits_per_image": ("images", "texts"),
            "logits_per_text": ("texts", "images"),
            "text_embeds": ("texts", None),
            "image_embeds": ("images", None),
        },
        parts={
            "text_config": {
                **_TEXT,
                "vocab_size": len(SPECIAL) + len(WORDS),
                "max_position_embeddings": 64,
                "bos_token_id": 2,
                "eos_token_id": 3,
                "pad_token_id": 0,
            },
            "vision_config": {**_TEXT, "image_size": 32, "patch_size": 8},
        },
    ),
    "automatic-speech-recognition": _wav2vec2(
        "ORTModelForCTC", "Wav2Vec2ForCTC", {"logits": ("batch", "steps", None)}, pad_token_id=0
    ),
    "audio-classification": _wav2vec2(
        "ORTModelForAudioClassification",
        "Wav2Vec2ForSequenceClassification",
        {"logits": ("batch", None)},
        classifier_proj_size=16,
        **_LABELS,
    ),
    "audio-frame-classification": _wav2vec2(
        "ORTModelForAudioFrameClassification",
        "Wav2Vec2ForAudioFrameClassification",
        {"logits": ("batch", "steps", None)},
    ),
    "audio-xvector": _wav2vec2(
        "ORTModelForAudioXVector",
        "Wav2Vec2ForXVector",
        {"logits": ("batch", None), "embeddings": ("batch", None)},
        tdnn_dim=(16, 16, 32),
        tdnn_kernel=(5, 3, 1),
        tdnn_dilation=(1, 2, 1),
        xvector_output_dim=16,
    ),
}


def inputs_of(task: str, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a model with these sizes, the last row of a text padded."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray[Any, Any]] = {}
    for name, dims in MODELS[task].inputs.items():
        fixed = (3, 32, 32) if name == "pixel_values" else ()
        shape = tuple(sizes[dim] for dim in dims if dim is not None) + fixed
        if name == "input_ids":
            made[name] = rng.integers(len(SPECIAL), len(SPECIAL) + len(WORDS), shape)
            made[name][..., -1] = 3  # the end, by which CLIP finds what it pools
        elif name in ("attention_mask", "token_type_ids"):
            made[name] = np.full(shape, int(name == "attention_mask"), np.int64)
        else:
            made[name] = rng.standard_normal(shape).astype(np.float32)
    if "attention_mask" in made and task != "zero-shot-image-classification":
        made["attention_mask"][-1, ..., -2:] = 0
    return made


EXAMPLE = {"batch": 2, "length": 8, "choices": 3, "samples": 800, "texts": 3, "images": 2}
OTHER = {"batch": 3, "length": 5, "choices": 2, "samples": 1100, "texts": 2, "images": 1}


def torch_model(task: str, folder: Path) -> Any:
    """The PyTorch model of a folder."""
    theirs = getattr(importlib.import_module("transformers"), MODELS[task].theirs)
    return theirs.from_pretrained(folder, attn_implementation="eager").eval()


def torch_outputs(task: str, model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """What the PyTorch model gives, by name."""
    import torch

    with torch.no_grad():
        found = model(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: found[name].numpy() for name in MODELS[task].outputs}


class Folders:
    """The folders of the models, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, task: str) -> Path:
        folder = self.root / task
        if not (folder / "onnx" / "model.onnx").exists():
            _make(task, folder)
        return folder


def shared_folders(make: Callable[[], Path]) -> Folders:
    """The folders that another process has made, if it has said where, or new ones."""
    given = os.environ.get(VARIABLE)
    return Folders(Path(given) if given else make())


def _make(task: str, folder: Path) -> None:
    import torch
    import transformers

    tiny = MODELS[task]
    torch.manual_seed(0)
    settings: dict[str, Any] = {**tiny.settings, **tiny.parts}
    config = getattr(transformers, tiny.config)(**settings)
    model = getattr(transformers, tiny.theirs)._from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    _save_preprocessors(task, folder)
    (folder / "onnx").mkdir()
    inputs = {name: torch.from_numpy(value) for name, value in inputs_of(task, EXAMPLE).items()}
    dims = {**tiny.inputs, **tiny.outputs}
    with warnings.catch_warnings():  # of an exporter that traces, which takes a tenth of the time of the other one
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Positional(model, tuple(tiny.inputs), tuple(tiny.outputs)),
            tuple(inputs.values()),
            str(folder / "onnx" / "model.onnx"),
            dynamo=False,
            opset_version=17,
            input_names=list(tiny.inputs),
            output_names=list(tiny.outputs),
            dynamic_axes={
                name: {axis: dim for axis, dim in enumerate(one) if dim is not None} for name, one in dims.items()
            },
        )


def _Positional(model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:  # noqa: N802
    """The model with arguments and results by place, as the exporter takes them."""
    import torch

    class Positional(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> tuple[Any, ...]:
            found = self.model(**dict(zip(inputs, values, strict=True)))
            return tuple(found[name] for name in outputs)

    return Positional()


def _save_preprocessors(task: str, folder: Path) -> None:
    import transformers

    names = MODELS[task].inputs
    if "input_ids" in names:
        _save_tokenizer(folder, [name for name in names if name != "pixel_values"])
    size = {"height": 32, "width": 32}
    kinds = {
        "image-classification": ("ViTImageProcessor", {"size": size}),
        "image-segmentation": ("SegformerImageProcessor", {"size": size}),
        "object-detection": ("YolosImageProcessor", {"size": {"shortest_edge": 32, "longest_edge": 32}}),
        "zero-shot-image-classification": ("CLIPImageProcessor", {"size": size, "crop_size": size}),
    }
    if task in kinds:
        name, settings = kinds[task]
        getattr(transformers, name)(**settings).save_pretrained(folder)
    if "input_values" in names:
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    if task == "automatic-speech-recognition":
        (folder / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(LETTERS)}))
        transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)


def _save_tokenizer(folder: Path, names: list[str]) -> None:
    """A tokenizer of whole words, which marks texts and pairs of texts as BERT's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    known = {word: place for place, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", known["[SEP]"]), ("[CLS]", known["[CLS]"]))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=names,
    ).save_pretrained(folder)
