"""The registry: every model of the zoo with its inputs, its sizes and the way it is made.

Importing this file needs nothing but the standard library; torch is imported when a module is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

Maker = Literal[
    "torchscript", "dynamo", "onnx.helper", "quantize_dynamic", "quantize_static", "matmul_nbits", "package"
]
Fill = Literal["normal", "uniform", "ids", "ones", "padding", "positions", "zeros"]


@dataclass(frozen=True)
class Tensor:
    """An input or output. A dimension is a size, the name of a symbolic one, or a sum of names ("a + b")."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    fill: Fill = "normal"  # how `inputs.make_inputs` draws the values
    limit: float = 0.0  # upper bound of "uniform", exclusive one of "ids"
    low: float = 0.0  # lower bound of both

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every symbolic dimension replaced."""
        return tuple(
            dim if isinstance(dim, int) else sum(sizes[part.strip()] for part in dim.split("+")) for dim in self.shape
        )

    def symbolic_axes(self) -> dict[int, str]:
        return {axis: dim for axis, dim in enumerate(self.shape) if isinstance(dim, str)}


@dataclass(frozen=True)
class Model:
    name: str
    maker: Maker
    opset: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the symbolic dimensions, as benchmarks use them
    other_sizes: Mapping[str, int] = field(default_factory=dict)  # a second choice, to prove that they are symbolic
    architecture: str = ""  # "file.function" in the package `architectures`
    source: str = ""  # the float model that a quantised one is made from
    keep_batch_norm: bool = False  # otherwise the TorchScript exporter folds it into the convolutions


def names() -> list[str]:
    return list(MODELS)


def get(name: str) -> Model:
    if name not in MODELS:
        raise KeyError(f"no model {name!r} in the zoo; it has {', '.join(MODELS)}")
    return MODELS[name]


def torch_module(model: Model) -> nn.Module:
    """The torch module behind a model, with the same weights as its ONNX file."""
    if not model.architecture:
        raise ValueError(f"{model.name} has no torch module")
    file, function = model.architecture.split(".")
    return getattr(importlib.import_module(f"benchmarks.zoo.architectures.{file}"), function)()


# Symbolic dimensions have the names that the `optimum` exporter gives them.
B, S, P = "batch_size", "sequence_length", "past_sequence_length"
BERT_WORDS, GPT2_WORDS, WHISPER_WORDS = 30522, 50257, 51865


def _ids(words: int) -> Tensor:
    return Tensor("input_ids", (B, S), "int64", "ids", words)


def _encoder(
    name: str, architecture: str, hidden: int, *, maker: Maker = "torchscript", opset: int, types: bool, pooled: bool
) -> Model:
    inputs = [_ids(BERT_WORDS), Tensor("attention_mask", (B, S), "int64", "padding")]
    if types:
        inputs.append(Tensor("token_type_ids", (B, S), "int64", "ids", 2))
    outputs = [Tensor("last_hidden_state", (B, S, hidden))]
    if pooled:
        outputs.append(Tensor("pooler_output", (B, hidden)))
    return Model(
        name, maker, opset, tuple(inputs), tuple(outputs), {B: 1, S: 128}, {B: 2, S: 19}, f"text.{architecture}"
    )


def _cache(prefix: str, kinds: Iterable[str], layers: int, lengths: Mapping[str, int | str]) -> tuple[Tensor, ...]:
    """Key and value tensors of `layers` layers with 12 heads of 64, in the order the torch modules take them."""
    return tuple(
        Tensor(f"{prefix}.{layer}.{kind}{part}", (B, 12, lengths[kind], 64))
        for layer in range(layers)
        for kind in kinds
        for part in ("key", "value")
    )


def _gpt2_decode(name: str, maker: Maker = "torchscript", source: str = "") -> Model:
    return Model(
        name,
        maker,
        17,
        (
            _ids(GPT2_WORDS),
            Tensor("attention_mask", (B, f"{P} + {S}"), "int64", "ones"),
            Tensor("position_ids", (B, S), "int64", "positions"),
            *_cache("past_key_values", [""], 12, {"": P}),
        ),
        (Tensor("logits", (B, S, GPT2_WORDS)), *_cache("present", [""], 12, {"": f"{P} + {S}"})),
        {B: 1, S: 1, P: 256},
        {B: 2, S: 3, P: 5},
        "text.gpt2_with_past",
        source,
    )


def _image(
    name: str,
    architecture: str,
    size: int,
    *,
    maker: Maker = "torchscript",
    opset: int = 17,
    keep_batch_norm: bool = False,
    source: str = "",
) -> Model:
    return Model(
        name,
        maker,
        opset,
        (Tensor("input", (B, 3, size, size)),),
        (Tensor("output", (B, 1000)),),
        {B: 1},
        {B: 3},
        f"vision.{architecture}",
        source,
        keep_batch_norm,
    )


def _static_image(model: Model) -> Model:
    return replace(
        model, name=f"{model.name}-int8-qdq", maker="quantize_static", source=model.name, keep_batch_norm=False
    )


def _trees(name: str, rows: int) -> Model:
    return Model(
        name, "onnx.helper", 17, (Tensor("features", (B, 28)),), (Tensor("prediction", (B, 1)),), {B: rows}, {B: 7}
    )


def _transformers() -> list[Model]:
    """Encoders and decoders of text, images and speech."""
    return [
        _encoder("bert-base", "bert_base", 768, opset=17, types=True, pooled=True),
        _encoder("distilbert", "distilbert", 768, opset=14, types=False, pooled=False),
        _encoder("minilm-l6", "minilm_l6", 384, opset=14, types=True, pooled=False),
        Model(
            "gpt2-prefill",
            "torchscript",
            17,
            (
                _ids(GPT2_WORDS),
                Tensor("attention_mask", (B, S), "int64", "padding"),
                Tensor("position_ids", (B, S), "int64", "positions"),
            ),
            (Tensor("logits", (B, S, GPT2_WORDS)),),
            {B: 1, S: 256},
            {B: 2, S: 7},
            "text.gpt2",
        ),
        _gpt2_decode("gpt2-decode"),
        Model(
            "vit-base",
            "torchscript",
            17,
            (Tensor("pixel_values", (B, 3, 224, 224)),),
            (Tensor("logits", (B, 1000)),),
            {B: 1},
            {B: 2},
            "vision.vit_base",
        ),
        Model(
            "whisper-small-encoder",
            "torchscript",
            17,
            (Tensor("input_features", (B, 80, 3000)),),
            (Tensor("last_hidden_state", (B, 1500, 768)),),
            {B: 1},
            {B: 2},
            "speech.whisper_small_encoder",
        ),
        Model(
            "whisper-small-decoder-step",
            "torchscript",
            17,
            (
                _ids(WHISPER_WORDS),
                *_cache(
                    "past_key_values", ["decoder.", "encoder."], 12, {"decoder.": P, "encoder.": f"encoder_{S}_out"}
                ),
            ),
            (Tensor("logits", (B, S, WHISPER_WORDS)), *_cache("present", ["decoder."], 12, {"decoder.": f"{P} + {S}"})),
            {B: 1, S: 1, P: 64, f"encoder_{S}_out": 1500},
            {B: 2, S: 3, P: 5, f"encoder_{S}_out": 11},
            "speech.whisper_small_decoder_step",
        ),
    ]


def _vision() -> list[Model]:
    """Images in: classes, boxes, masks."""
    return [
        _image("resnet50", "resnet50", 224, keep_batch_norm=True),
        _image("mobilenetv2", "mobilenetv2", 224, opset=13),
        _image("efficientnet-b0", "efficientnet_b0", 224, keep_batch_norm=True),
        _image("efficientnet-b4", "efficientnet_b4", 380),
        Model(
            "yolov5s",
            "torchscript",
            17,
            (Tensor("images", (B, 3, "height", "width")),),
            (Tensor("output0", (B, "anchors", 85)),),
            {B: 1, "height": 640, "width": 640},
            {B: 2, "height": 320, "width": 416},
            "yolov5.yolov5s",
        ),
        _image("convnext-tiny", "convnext_tiny", 224),
        _image("swin-tiny", "swin_tiny", 224),
        Model(
            "mobilenetv2-nhwc",
            "torchscript",
            13,
            (Tensor("input", (B, 224, 224, 3)),),
            (Tensor("output", (B, 1000)),),
            {B: 1},
            {B: 3},
            "vision.mobilenetv2_channels_last",
        ),
        Model(
            "unet",
            "torchscript",
            17,
            (Tensor("input", (B, 3, "height", "width")),),
            (Tensor("output", (B, 2, "height", "width")),),
            {B: 1, "height": 256, "width": 256},
            {B: 2, "height": 96, "width": 128},
            "vision.unet",
        ),
    ]


def _sequences() -> list[Model]:
    """A recurrent text model, and a speech model that labels frames."""
    return [
        Model(
            "lstm-text",
            "torchscript",
            17,
            (_ids(BERT_WORDS),),
            (Tensor("logits", (B, 10)),),
            {B: 1, S: 64},
            {B: 3, S: 17},
            "text.lstm_text",
        ),
        Model(
            "wav2vec2-base",
            "torchscript",
            17,
            (Tensor("input_values", (B, "samples")),),
            (Tensor("logits", (B, "frames", 32)),),
            {B: 1, "samples": 48000},
            {B: 2, "samples": 16000},
            "speech.wav2vec2_base",
        ),
    ]


def _dynamo_exports() -> list[Model]:
    """Models from above as the newer exporter writes them."""
    return [
        _image("resnet50-dynamo", "resnet50", 224, maker="dynamo", opset=20),
        _encoder("bert-base-dynamo", "bert_base", 768, maker="dynamo", opset=20, types=True, pooled=True),
        _encoder("minilm-l6-dynamo", "minilm_l6", 384, maker="dynamo", opset=18, types=True, pooled=False),
    ]


def _tiny() -> list[Model]:
    """So small that a run is all overhead."""
    row = (1, 16)
    return [
        Model("one-add", "onnx.helper", 17, (Tensor("x", row), Tensor("y", row)), (Tensor("sum", row),)),
        Model("chain-100-add", "onnx.helper", 17, (Tensor("x", row), Tensor("y", row)), (Tensor("sum", row),)),
    ]


def _quantised(floats: Mapping[str, Model]) -> list[Model]:
    """Models made from others of the zoo."""
    bert = floats["bert-base"]
    return [
        replace(bert, name="bert-base-int8-dynamic", maker="quantize_dynamic", source=bert.name),
        *(_static_image(floats[name]) for name in ("resnet50", "mobilenetv2", "efficientnet-b0")),
        _gpt2_decode("gpt2-decode-int4", "matmul_nbits", "gpt2-decode"),
    ]


def _registry() -> dict[str, Model]:
    models = [
        *_transformers(),
        *_vision(),
        *_sequences(),
        _trees("trees-500", 1),
        _trees("trees-500-rows", 10_000),
        *_dynamo_exports(),
        *_tiny(),
    ]
    floats = {model.name: model for model in models}
    return floats | {model.name: model for model in _quantised(floats)}


MODELS: Mapping[str, Model] = _registry()
