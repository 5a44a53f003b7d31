"""Tiny models that generate, with random weights, and their ONNX files in Optimum's layout.

The files come from torch's older exporter, as Optimum's own do: one graph for a first step, one with caches, and both
in one with an input that chooses.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch

from transformers.cache_utils import DynamicCache, EncoderDecoderCache  # noqa: E402

WORDS = ["hello world, how are you today?", "my name is anna and i live by the sea", "a cat looks at the moon"]
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}


def tokenizer() -> Any:
    """A tokenizer of bytes and a few words, trained on the spot, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(WORDS, trainer)
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    found.chat_template = TEMPLATE
    return found


def spread(model: Any) -> Any:
    """A model whose weights are so large that tokens differ from step to step."""
    chance = torch.Generator().manual_seed(7)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data = torch.randn(weight.shape, generator=chance) * 1.2 / weight.shape[-1] ** 0.5
    model.tie_weights()
    return model.eval().requires_grad_(False)


def gpt2(vocabulary: int) -> Any:
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=128, n_embd=16, n_layer=2, n_head=2, **_IDS)
    return spread(transformers.GPT2LMHeadModel(config))


def llama(vocabulary: int) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **_IDS,
    )
    return spread(transformers.LlamaForCausalLM(config))


def t5(vocabulary: int) -> Any:
    config = transformers.T5Config(
        vocab_size=vocabulary,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=2,
    )
    return spread(transformers.T5ForConditionalGeneration(config))


def bart(vocabulary: int) -> Any:
    config = transformers.BartConfig(
        vocab_size=vocabulary,
        max_position_embeddings=96,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        **_IDS,
        **_SMALL,
    )
    return spread(transformers.BartForConditionalGeneration(config))


def m2m100(vocabulary: int) -> Any:
    config = transformers.M2M100Config(
        vocab_size=vocabulary, max_position_embeddings=96, decoder_start_token_id=2, **_IDS, **_SMALL
    )
    return spread(transformers.M2M100ForConditionalGeneration(config))


def trocr(vocabulary: int) -> Any:
    encoder = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    decoder = transformers.TrOCRConfig(
        vocab_size=vocabulary,
        d_model=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        max_position_embeddings=96,
        **_IDS,
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    for name, value in {**_IDS, "decoder_start_token_id": 2}.items():
        setattr(config, name, value)
    model = spread(transformers.VisionEncoderDecoderModel(config=config))
    model.generation_config = transformers.GenerationConfig(**_IDS, decoder_start_token_id=2)
    return model


def pix2struct(vocabulary: int) -> Any:
    text = {"vocab_size": vocabulary, "hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    text |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    vision = {
        "hidden_size": 16,
        "patch_embed_hidden_size": 12,
        "d_ff": 16,
        "d_kv": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "seq_len": 9,
    }
    config = transformers.Pix2StructConfig(text_config=text, vision_config=vision)
    model = spread(transformers.Pix2StructForConditionalGeneration(config))
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)
    return model


def random_patches(rows: int) -> dict[str, Any]:
    """Patches of two by two pixels with their row and column in front, the last two of the first row padding."""
    patches = torch.randn(rows, 9, 14, generator=torch.Generator().manual_seed(1))
    patches[..., 0], patches[..., 1] = torch.arange(9) // 3 + 1, torch.arange(9) % 3 + 1
    mask = torch.ones(rows, 9)
    mask[0, -2:] = patches[0, -2:] = 0
    return {"flattened_patches": patches, "attention_mask": mask}


# Whisper: 40 tokens of text, then the special ones, then timestamps of 20 ms up to 30 s.
END, START, EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, SILENCE, NO_TIMES, FIRST_TIME = range(40, 50)
_FRAMES = 100


def whisper() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=FIRST_TIME + 1501,
        num_mel_bins=8,
        max_source_positions=_FRAMES // 2,
        max_target_positions=72,
        decoder_start_token_id=START,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **_SMALL,
    )
    model = spread(transformers.WhisperForConditionalGeneration(config))
    model.generation_config = transformers.GenerationConfig(
        max_length=72,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
        begin_suppress_tokens=[3, END],
        suppress_tokens=[1, 2, START, PREVIOUS, SILENCE, TRANSLATE, TRANSCRIBE],
        no_timestamps_token_id=NO_TIMES,
        prev_sot_token_id=PREVIOUS,
        is_multilingual=True,
        max_initial_timestamp_index=50,
        return_timestamps=False,
        lang_to_id={"<|en|>": EN, "<|de|>": DE},
        task_to_id={"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        alignment_heads=[[0, 0], [0, 1]],
    )
    return model


def save_decoder(model: Any, folder: Path, *, with_past: bool = True) -> None:
    """`model.onnx` of a decoder, with or without caches, beside its configs."""
    _save_configs(model, folder)
    ids, mask = torch.tensor([[5, 6], [7, 8]]), torch.ones((2, 5 if with_past else 2), dtype=torch.int64)
    positions = torch.tensor([[3, 4], [3, 4]] if with_past else [[0, 1], [0, 1]])
    values = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    heads, size = _heads(model.config)
    layers = model.config.num_hidden_layers
    names = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    if with_past:
        values |= {f"past_key_values.{name}": torch.randn(2, heads, 3, size) for name in names}

    def call(given: Mapping[str, Any]) -> Mapping[str, Any]:
        past = _cache([given[f"past_key_values.{name}"] for name in names], 2) if with_past else None
        found = model(
            input_ids=given["input_ids"],
            attention_mask=_causal(given["attention_mask"], given["input_ids"].shape[1]),
            position_ids=given["position_ids"],
            past_key_values=past,
            use_cache=with_past,
        )
        caches = _flat(found.past_key_values) if with_past else []
        return {"logits": found.logits, **{f"present.{name}": one for name, one in zip(names, caches, strict=False)}}

    _export(model, call, values, folder / "model.onnx", {"attention_mask": "whole", "past": "past", "present": "whole"})


def save_encoder_decoder(
    model: Any,
    folder: Path,
    read: Mapping[str, Any],
    *,
    merged: bool,
    caches: bool = True,
    attentions: bool = False,
) -> None:
    """The encoder, and the decoder in one file or two, beside the configs; `read` is what the encoder reads.

    With `attentions` the decoder gives its weights of attention over the encoder's states.
    """
    if attentions:
        model = copy.deepcopy(model)
        model.set_attn_implementation("eager")
    _save_configs(model, folder)
    encoder = model.get_encoder()
    _export(model, lambda given: {"last_hidden_state": encoder(**given)[0]}, read, folder / "encoder_model.onnx", {})
    with torch.no_grad():
        states = encoder(**read)[0]
    ids = torch.tensor([[5, 6, 7], [7, 8, 9]])
    is_masked = "attention_mask" in read
    values = {"input_ids": ids, "encoder_hidden_states": states}
    if is_masked:
        values["encoder_attention_mask"] = torch.ones(states.shape[:2], dtype=torch.int64)
    run = _Steps(model, caches, attentions)
    _export(model, run.begin, values, folder / "decoder_model.onnx", {"present": "length"})
    if not caches:
        return
    with torch.no_grad():
        first = run.begin(values)
    later = {
        **{name: value for name, value in values.items() if name != "encoder_hidden_states"},
        "input_ids": ids[:, :1],
    }
    later |= {
        name.replace("present", "past_key_values"): one for name, one in first.items() if name.startswith("present")
    }
    lengths = {"past": "past", "present": "whole", "logits": "1"}  # traced with one token, it is for one alone
    _export(model, lambda given: run.go_on(given, states), later, folder / "decoder_with_past_model.onnx", lengths)
    if merged:
        _merge(folder)


class _Steps:
    """The two calls of a decoder with an encoder's states."""

    def __init__(self, model: Any, caches: bool, attentions: bool) -> None:
        self._model = model
        self._caches = caches
        self._attentions = attentions

    def begin(self, given: Mapping[str, Any]) -> dict[str, Any]:
        states = given["encoder_hidden_states"]
        found = self._run(given, states, None, given["input_ids"])
        return self._named(found, cross_too=True)

    def go_on(self, given: Mapping[str, Any], states: Any) -> dict[str, Any]:
        arrays = [one for name, one in given.items() if name.startswith("past")]
        past = _cache(arrays, 4)
        shown = torch.cat([arrays[0][:, 0, :, 0].long() * 0 + 1, given["input_ids"] * 0 + 1], dim=1)
        cross = arrays[2]
        # Nothing reads the states but for their size.
        states = cross.new_zeros(cross.shape[0], cross.shape[2], states.shape[2])
        return self._named(self._run(given, states, past, shown), cross_too=False)

    def _run(self, given: Mapping[str, Any], states: Any, past: Any, shown: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        mask = given.get("encoder_attention_mask")
        shown = shown * 0 + 1
        # These take 4-D masks of 0 and 1 alone.
        is_plain = self._model.config.model_type in ("vision-encoder-decoder", "pix2struct")
        return self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            decoder_input_ids=given["input_ids"],
            decoder_attention_mask=shown if is_plain else _causal(shown, given["input_ids"].shape[1]),
            past_key_values=past,
            use_cache=self._caches,
            output_attentions=self._attentions,
            **({} if mask is None else {"attention_mask": mask}),
        )

    def _named(self, found: Any, *, cross_too: bool) -> dict[str, Any]:
        made = {"logits": found.logits}
        if self._attentions:
            made |= {f"cross_attentions.{layer}": one for layer, one in enumerate(found.cross_attentions)}
        if self._caches:
            kept = found.past_key_values
            own, cross = _flat(kept.self_attention_cache), _flat(kept.cross_attention_cache)
            for layer in range(len(own) // 2):
                for kind, place in (("key", 0), ("value", 1)):
                    made[f"present.{layer}.decoder.{kind}"] = own[2 * layer + place]
                for kind, place in (("key", 0), ("value", 1)) if cross_too else ():
                    made[f"present.{layer}.encoder.{kind}"] = cross[2 * layer + place]
        return made


def _merge(folder: Path) -> None:
    """Both decoders in one file: an If on `use_cache_branch`, whose branches see the inputs of the graph."""
    first, later = (onnx.load(folder / f"decoder{middle}_model.onnx") for middle in ("", "_with_past"))
    outputs = list(first.graph.output)
    known = {one.name for one in later.graph.output}
    for one in outputs:
        if one.name not in known:  # the encoder's keys stay what they are
            source = one.name.replace("present", "past_key_values")
            later.graph.node.append(helper.make_node("Identity", [source], [one.name]))
            later.graph.output.append(one)
    order = {one.name: place for place, one in enumerate(outputs)}
    branches = []
    for model in (later, first):
        sorted_outputs = sorted(model.graph.output, key=lambda one: order[one.name])
        bare = [helper.make_tensor_value_info(one.name, one.type.tensor_type.elem_type, None) for one in sorted_outputs]
        branches.append(helper.make_graph(model.graph.node, "branch", [], bare, model.graph.initializer))
    inputs = {one.name: one for model in (first, later) for one in model.graph.input}
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    node = helper.make_node(
        "If", ["use_cache_branch"], [one.name for one in outputs], then_branch=branches[0], else_branch=branches[1]
    )
    graph = helper.make_graph([node], "merged", [*inputs.values(), flag], outputs)
    model = helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    onnx.save(model, folder / "decoder_model_merged.onnx")
    for middle in ("", "_with_past"):
        (folder / f"decoder{middle}_model.onnx").unlink()


class _Module(torch.nn.Module):
    def __init__(self, model: Any, call: Callable[..., Any], names: Sequence[str]) -> None:
        super().__init__()
        self.model = model  # so that its weights are those of the module that is exported
        self._call, self._names = call, names

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        return tuple(self._call(dict(zip(self._names, tensors, strict=True))).values())


def _export(
    model: Any, call: Callable[..., Any], values: Mapping[str, Any], path: Path, lengths: Mapping[str, str]
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = list(values)
        outputs = list(call(values))
        axes = {name: _axes(name, value, lengths) for name, value in values.items()}
        axes |= {name: _axes(name, None, lengths) for name in outputs}
        torch.onnx.export(
            _Module(model, call, names).eval(),  # else the model is left in training
            tuple(values.values()),
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,
        )


def _axes(name: str, value: Any, lengths: Mapping[str, str]) -> dict[int, str]:
    found = {0: "batch"}
    if name.startswith(("past", "present")):
        found[2] = "read" if "encoder" in name else lengths[name.partition("_")[0].partition(".")[0]]
    elif name in ("encoder_hidden_states", "encoder_attention_mask", "last_hidden_state"):
        found[1] = "read"
    elif name.startswith("cross_attentions"):
        found |= {2: "length", 3: "read"}
    elif name == "logits" and name in lengths:
        found[1] = lengths[name]
    elif name in ("input_ids", "position_ids", "logits", "flattened_patches"):
        found[1] = "length"
    elif name == "attention_mask":
        found[1] = lengths.get(name, "length")
    return found


def _causal(mask: Any, count: int) -> Any:
    """What is added to the scores of the last `count` tokens under a mask (rows, length): models that make it
    themselves cannot be traced."""
    places = torch.arange(mask.shape[1])
    sees = (places[None] <= places[-count:, None]) & (mask[:, None, None] > 0)
    return torch.where(sees, 0.0, torch.finfo(torch.float32).min)


def _cache(arrays: Sequence[Any], each: int) -> Any:
    layers = [tuple(arrays[place : place + each]) for place in range(0, len(arrays), each)]
    return (DynamicCache if each == 2 else EncoderDecoderCache).from_legacy_cache(tuple(layers))


def _flat(cache: Any) -> list[Any]:
    return [one for layer in cache.layers for one in (layer.keys, layer.values)]


def _heads(config: Any) -> tuple[int, int]:
    heads = config.num_attention_heads
    return getattr(config, "num_key_value_heads", heads), config.hidden_size // heads


def _save_configs(model: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def random_sound(rows: int, frames: int = _FRAMES, seed: int = 0) -> Any:
    """Features (rows, 8, frames) of what may be sound."""
    return torch.tensor(np.random.default_rng(seed).standard_normal((rows, 8, frames)), dtype=torch.float32)


def read_by(kind: str) -> dict[str, Any]:
    """An example of what the encoder of a kind of model reads."""
    if kind == "whisper":
        return {"input_features": random_sound(2)}
    if kind == "trocr":
        return {"pixel_values": torch.zeros((2, 3, 16, 16))}
    if kind == "pix2struct":
        return random_patches(2)
    return {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]), "attention_mask": torch.ones((2, 3), dtype=torch.int64)}
