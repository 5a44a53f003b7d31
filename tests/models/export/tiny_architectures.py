"""Tiny models of each architecture with random weights, large enough that a wrong mask shows in what comes out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
import transformers  # noqa: E402

IS_5 = int(transformers.__version__.split(".")[0]) >= 5

_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2}
_SMALL = {"hidden_size": 32, "vocab_size": 97, "max_position_embeddings": 64, **_LAYERS}
_ENCODER = {**_SMALL, "intermediate_size": 64}
_GROUPED = {**_ENCODER, "num_key_value_heads": 2}
_PICTURES = {"hidden_size": 32, "intermediate_size": 64, "image_size": 16, "patch_size": 4}
_PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.2,
}
_READER_AND_WRITER = {**_PAIR, "vocab_size": 97, "max_position_embeddings": 64}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
_WHISPER = {**_PAIR, "vocab_size": 97, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32}
_WAV2VEC2 = {
    **_LAYERS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "vocab_size": 32,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}


def build(name: str) -> Any:
    """A model in evaluation mode; the same numbers each time."""
    torch.manual_seed(0)
    return MODELS[name]().eval()


def _model(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**settings))


def _detr() -> Any:
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    settings = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "num_queries": 5}
    config = transformers.DetrConfig(backbone_config=backbone, **settings, **_PAIR)
    return transformers.DetrForObjectDetection(config)


def _trocr() -> Any:
    decoder = {"d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "init_std": 0.2}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**_PICTURES, **_LAYERS),
        transformers.TrOCRConfig(**decoder, vocab_size=97, max_position_embeddings=64, cross_attention_hidden_size=32),
    )
    return transformers.VisionEncoderDecoderModel(config)


def _pair(family: str) -> Callable[[], Any]:
    """A model of pictures and texts."""

    def made() -> Any:
        text = getattr(transformers, f"{family}TextConfig")(**_ENCODER)
        vision = getattr(transformers, f"{family}VisionConfig")(**_PICTURES, num_hidden_layers=2, num_attention_heads=4)
        config = getattr(transformers, f"{family}Config")(text_config=text.to_dict(), vision_config=vision.to_dict())
        return getattr(transformers, f"{family}Model")(config)

    return made


DECODERS: dict[str, Callable[[], Any]] = {
    "gpt2": _model(
        "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_embd=32, n_head=4, vocab_size=97, n_positions=64,
        initializer_range=0.2,
    ),
    "llama": _model("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "qwen3": _model("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=8, tie_word_embeddings=True),
    "gemma3": _model(
        "Gemma3ForCausalLM", "Gemma3TextConfig", **_GROUPED, head_dim=8, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phi3": _model("Phi3ForCausalLM", "Phi3Config", **_GROUPED, pad_token_id=0),
    "mistral": _model("MistralForCausalLM", "MistralConfig", **_GROUPED, sliding_window=4),
}  # fmt: skip
HYBRIDS: dict[str, Callable[[], Any]] = {
    "lfm2": _model(
        "Lfm2ForCausalLM", "Lfm2Config", **_GROUPED, conv_L_cache=3, layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
    ),
}  # fmt: skip
ENCODER_DECODERS: dict[str, Callable[[], Any]] = {
    "t5": _model(
        "T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        vocab_size=97, decoder_start_token_id=0,
    ),
    "bart": _model("BartForConditionalGeneration", "BartConfig", **_READER_AND_WRITER),
    "m2m100": _model("M2M100ForConditionalGeneration", "M2M100Config", **_READER_AND_WRITER),
    "whisper": _model("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER, **_TOKENS),
    "trocr": _trocr,
}  # fmt: skip
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": _model("BertForSequenceClassification", "BertConfig", **_ENCODER),
    "distilbert": _model(
        "DistilBertForTokenClassification", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64,
        vocab_size=97, max_position_embeddings=64, initializer_range=0.2,
    ),
    "roberta": _model("RobertaForQuestionAnswering", "RobertaConfig", **_ENCODER, type_vocab_size=1),
    "deberta": _model(
        "DebertaForSequenceClassification", "DebertaConfig", **_ENCODER, relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    ),
    "modernbert": _model(
        "ModernBertForMaskedLM", "ModernBertConfig", **_ENCODER, global_attn_every_n_layers=2, local_attention=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    ),
    "wav2vec2": _model("Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAV2VEC2),
    "vit": _model("ViTForImageClassification", "ViTConfig", **_PICTURES, **_LAYERS),
    "swin": _model(
        "SwinForImageClassification", "SwinConfig", image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
        num_heads=[2, 4], window_size=4, initializer_range=0.2,
    ),
    "detr": _detr,
    "clip": _pair("CLIP"),
    "siglip": _pair("Siglip"),
}  # fmt: skip
MODELS = {**DECODERS, **HYBRIDS, **ENCODER_DECODERS, **ENCODERS}
