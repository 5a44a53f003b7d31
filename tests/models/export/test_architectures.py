"""Every architecture as ONNX files that agree with PyTorch on sizes that were not traced.

`export_model` compares them itself: other batches and lengths, with and without a past, and padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("torch", reason="the extra `models` is not installed")
pytest.importorskip("onnxscript", reason="the extra `models` is not installed")
pytest.importorskip("transformers", reason="the extra `models` is not installed")

from sardonyx.models.export import export_model
from tests.models.export.tiny_architectures import DECODERS, ENCODER_DECODERS, ENCODERS, HYBRIDS, IS_5, build

# A part of the largest number of an output; float32 leaves this of a few layers.
CLOSE = 1e-5

# Those that take tens of seconds, or differ little from one that is always tried.
HEAVY = {"swin", "detr", "m2m100", "trocr"}


def _named(models: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.models] if name in HEAVY else []) for name in models]


WHOLE = {
    "bert": (["input_ids", "attention_mask", "token_type_ids"], ["logits"]),
    "distilbert": (["input_ids", "attention_mask"], ["logits"]),
    "roberta": (["input_ids", "attention_mask"], ["start_logits", "end_logits"]),
    "deberta": (["input_ids", "attention_mask"], ["logits"]),
    "modernbert": (["input_ids", "attention_mask"], ["logits"]),
    "wav2vec2": (["input_values"], ["logits"]),
    "vit": (["pixel_values"], ["logits"]),
    "swin": (["pixel_values"], ["logits"]),
    "detr": (["pixel_values"], ["logits", "pred_boxes"]),
    "clip": (
        ["pixel_values", "input_ids", "attention_mask"],
        ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"],
    ),
    "siglip": (
        ["pixel_values", "input_ids"],
        ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"],
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str, tmp_path: Path) -> None:
    done = export_model(build(name), tmp_path)
    assert done.task == "text-generation"
    assert done.differences["model.onnx"] < CLOSE
    inputs, outputs = _shapes(tmp_path / "model.onnx")
    caches = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    names = ["input_ids", "attention_mask", "position_ids"]
    assert list(inputs) == [*names, *(f"past_key_values.{one}" for one in caches)]
    assert list(outputs) == ["logits", *(f"present.{one}" for one in caches)]
    whole = "past_sequence_length + sequence_length"
    assert inputs["input_ids"] == inputs["position_ids"] == ["batch_size", "sequence_length"]
    assert inputs["attention_mask"] == ["batch_size", whole]
    heads = 4 if name == "gpt2" else 2
    for one in caches:
        assert inputs[f"past_key_values.{one}"] == ["batch_size", heads, "past_sequence_length", 8]
        assert outputs[f"present.{one}"] == ["batch_size", heads, whole, 8]
    assert outputs["logits"] == ["batch_size", "sequence_length", 97]
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert operators.count("Attention") == 2
    assert "Softmax" not in operators


@pytest.mark.skipif(not IS_5, reason="transformers 4 decides by values whether there is a past")
@pytest.mark.parametrize("name", HYBRIDS)
def test_states_of_convolutions_have_fixed_shapes(name: str, tmp_path: Path) -> None:
    done = export_model(build(name), tmp_path)
    assert done.differences["model.onnx"] < CLOSE
    inputs, outputs = _shapes(tmp_path / "model.onnx")
    assert inputs["past_conv.0"] == outputs["present_conv.0"] == ["batch_size", 32, 3]
    assert inputs["past_key_values.1.key"] == ["batch_size", 2, "past_sequence_length", 8]


@pytest.mark.parametrize("name", _named(ENCODER_DECODERS))
def test_encoders_with_decoders(name: str, tmp_path: Path) -> None:
    done = export_model(build(name), tmp_path)
    assert max(done.differences.values()) < CLOSE
    assert set(done.differences) == {"encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"}
    has_mask = name in ("t5", "bart", "m2m100")
    mask = ["encoder_attention_mask"] if has_mask else []
    read = {"whisper": ["input_features"], "trocr": ["pixel_values"]}.get(name, ["input_ids", "attention_mask"])
    own = [f"{layer}.decoder.{kind}" for layer in range(2) for kind in ("key", "value")]
    cross = [f"{layer}.encoder.{kind}" for layer in range(2) for kind in ("key", "value")]

    inputs, outputs = _shapes(tmp_path / "encoder_model.onnx")
    assert (list(inputs), list(outputs)) == (read, ["last_hidden_state"])
    inputs, outputs = _shapes(tmp_path / "decoder_model.onnx")
    assert list(inputs) == [*mask, "input_ids", "encoder_hidden_states"]
    assert set(outputs) == {"logits", *(f"present.{one}" for one in own + cross)}
    assert outputs["present.0.encoder.key"][2] == "encoder_sequence_length"
    inputs, outputs = _shapes(tmp_path / "decoder_with_past_model.onnx")
    assert set(inputs) == {*mask, "input_ids", *(f"past_key_values.{one}" for one in own + cross)}
    assert list(outputs) == ["logits", *(f"present.{one}" for one in own)]
    assert inputs["past_key_values.1.decoder.value"][2] == "past_decoder_sequence_length"
    assert outputs["present.1.decoder.value"][2] == "past_decoder_sequence_length + decoder_sequence_length"


@pytest.mark.parametrize("name", _named(ENCODERS))
def test_whole_models(name: str, tmp_path: Path) -> None:
    done = export_model(build(name), tmp_path)
    assert done.differences["model.onnx"] < CLOSE
    inputs, outputs = _shapes(tmp_path / "model.onnx")
    assert (list(inputs), list(outputs)) == WHOLE[name]
    free = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    assert free <= {"batch_size", "image_batch_size", "text_batch_size", "sequence_length", "height", "width"}
    assert all(isinstance(dims[0], str) for dims in (*inputs.values(), *outputs.values()))


def _shapes(path: Path) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    graph = onnx.load(path, load_external_data=False).graph
    inputs, outputs = (
        {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
        for values in (graph.input, graph.output)
    )
    return inputs, outputs
