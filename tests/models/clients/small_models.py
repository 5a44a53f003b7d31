"""Small models with random weights, as transformers saves them, each with its tokenizer or its processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("the a cat dog house runs sees big small red blue on", "under and or not is was it they we you good bad very")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
VOCABULARY = {word: at for at, word in enumerate([*SPECIAL, *" ".join(WORDS).split()])}
ENTAILMENT = ["contradiction", "neutral", "entailment"]
SIZE = 48  # of the vocabulary, with some ids that no word has
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
ENDS = {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}


def tokenizer(with_types: bool = True) -> Any:
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if with_types:
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    names = ["input_ids", "attention_mask"]
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"] if with_types else names,
        model_max_length=64,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="<s>",
        eos_token="</s>",
    )


def bert(labels: list[str] | None = None) -> Any:
    names = (
        {}
        if labels is None
        else {"id2label": dict(enumerate(labels)), "label2id": {b: a for a, b in enumerate(labels)}}
    )
    return hf.BertConfig(vocab_size=SIZE, pad_token_id=0, **SMALL, **names)


def gpt2(**more: Any) -> Any:
    return hf.GPT2Config(vocab_size=SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=64, **ENDS, **more)


def t5() -> Any:
    return hf.T5Config(
        vocab_size=SIZE,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=6,
    )


def vit(**more: Any) -> Any:
    sizes = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    return hf.ViTConfig(image_size=32, patch_size=8, **sizes, **more)


def wav2vec2(**more: Any) -> Any:
    sizes = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    return hf.Wav2Vec2Config(
        vocab_size=SIZE,
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **sizes,
        **more,
    )


def whisper() -> Any:
    return hf.WhisperConfig(
        vocab_size=SIZE,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=80,
        max_source_positions=1500,
        max_target_positions=64,
        decoder_start_token_id=5,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **ENDS,
    )


def clip() -> Any:
    sizes = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
    text = {"vocab_size": SIZE, **SMALL, "max_position_embeddings": 32, **ENDS}
    vision = {"image_size": 32, "patch_size": 8, **sizes}
    return hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


def segformer() -> Any:
    return hf.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[3, 3],
        strides=[2, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
        num_labels=3,
    )


def vision_to_text() -> Any:
    # Its decoder looks at what the encoder saw.
    decoder = gpt2(add_cross_attention=True, is_decoder=True)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit(), decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 5, 0, 6
    return hf.VisionEncoderDecoderModel(config)


def _image_processor(size: int = 32) -> Any:
    return hf.ViTImageProcessor(size={"height": size, "width": size})


def _clip_images() -> Any:
    return hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def _sound_processor() -> Any:
    return hf.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=False)


# The model and what is saved beside it.
MAKERS: dict[str, Any] = {
    "features": lambda: (hf.BertModel(bert()), [tokenizer()]),
    "classes": lambda: (
        hf.BertForSequenceClassification(bert(ENTAILMENT)),
        [tokenizer()],
    ),
    "words": lambda: (hf.BertForTokenClassification(bert(["O", "B-X", "I-X"])), [tokenizer()]),
    "answers": lambda: (hf.BertForQuestionAnswering(bert()), [tokenizer()]),
    "masks": lambda: (hf.BertForMaskedLM(bert()), [tokenizer()]),
    "choices": lambda: (hf.BertForMultipleChoice(bert()), [tokenizer()]),
    "text": lambda: (hf.GPT2LMHeadModel(gpt2()), [tokenizer(with_types=False)]),
    "translation": lambda: (hf.T5ForConditionalGeneration(t5()), [tokenizer(with_types=False)]),
    "images": lambda: (hf.ViTForImageClassification(vit(num_labels=3)), [_image_processor()]),
    "segments": lambda: (
        hf.SegformerForSemanticSegmentation(segformer()),
        [hf.SegformerImageProcessor(size={"height": 32, "width": 32})],
    ),
    "captions": lambda: (vision_to_text(), [tokenizer(with_types=False), _image_processor()]),
    "image and text": lambda: (
        hf.CLIPModel(clip()),
        [hf.CLIPProcessor(_clip_images(), tokenizer(with_types=False))],
    ),
    "sounds": lambda: (hf.Wav2Vec2ForSequenceClassification(wav2vec2(num_labels=3)), [_sound_processor()]),
    "letters": lambda: (hf.Wav2Vec2ForCTC(wav2vec2()), [tokenizer(with_types=False), _sound_processor()]),
    "speech": lambda: (
        hf.WhisperForConditionalGeneration(whisper()),
        [tokenizer(with_types=False), hf.WhisperFeatureExtractor(feature_size=80)],
    ),
}


def write(kind: str, folder: Path) -> Path:
    """The folder, with a model of a kind in it; weights are larger than usual, so that answers differ by a margin."""
    torch.manual_seed(0)
    model, others = MAKERS[kind]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(folder)
    for other in others:
        other.save_pretrained(folder)
    return folder


class States(torch.nn.Module):
    """An encoder with tensors in and a tensor out, as exporters want it; eager attention is what they can write."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state


class Logits(torch.nn.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        kind = hf.AutoModelForSequenceClassification
        self.model = kind.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits


def export_states(folder: Path, path: Path) -> None:
    """Write the encoder of a folder as ONNX, for any number of texts and tokens."""
    _export(States(folder), path, "last_hidden_state", {0: "batch", 1: "sequence"})


def export_logits(folder: Path, path: Path) -> None:
    """Write the classifier of a folder as ONNX."""
    _export(Logits(folder), path, "logits", {0: "batch"})


def _export(model: torch.nn.Module, path: Path, output: str, axes: dict[int, str]) -> None:
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        model,
        tuple(torch.ones(2, 5, dtype=torch.int64) for _ in names),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=names,
        output_names=[output],
        dynamic_axes={**{name: {0: "batch", 1: "sequence"} for name in names}, output: axes},
    )
