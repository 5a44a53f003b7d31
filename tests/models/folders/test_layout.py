"""Which file of a folder is taken for which part of a model."""

from __future__ import annotations

import pytest

from sardonyx import errors
from sardonyx.models.folders import layout

TRANSFORMERS_JS = [
    f"onnx/{part}{suffix}.onnx"
    for part in ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")
    for suffix in ("", "_fp16", "_q4f16", "_int8", "_quantized", "_bnb4")
]
SENTENCES = ["model", "model_O1", "model_O4", "model_qint8_avx512_vnni", "model_quint8_avx2"]


def choose(names: list[str], role: str = "model", file_name: str | None = None, **more: dict[str, str]) -> str | None:
    return layout.choose(names, role, "the folder", file_name, **more)  # type: ignore[arg-type]


MIXED = ["decoder_model_merged_q4f16.onnx", "encoder_model_fp16.onnx"]
T5 = ["t5_encoder.onnx", "t5_decoder.onnx", "t5_decoder_with_past.onnx"]


@pytest.mark.parametrize(
    ("names", "role", "expected"),
    [
        (["config.json", "model.onnx", "model.onnx_data"], "model", "model.onnx"),
        (["model_quantized.onnx", "model.onnx", "model_fp16.onnx"], "model", "model.onnx"),
        (["onnx/model.onnx", "model.onnx"], "model", "model.onnx"),  # the one nearest to the top
        ([f"onnx/{name}.onnx" for name in SENTENCES], "model", "onnx/model.onnx"),
        (["onnx/model_quantized.onnx"], "model", "onnx/model_quantized.onnx"),
        (["model_optimized.onnx", "encoder_model.onnx"], "model", "model_optimized.onnx"),
        (["bert.onnx"], "model", "bert.onnx"),
        (TRANSFORMERS_JS, "encoder", "onnx/encoder_model.onnx"),
        (TRANSFORMERS_JS, "decoder", "onnx/decoder_model.onnx"),
        (TRANSFORMERS_JS, "decoder_with_past", "onnx/decoder_with_past_model.onnx"),
        (TRANSFORMERS_JS, "decoder_merged", "onnx/decoder_model_merged.onnx"),
        (TRANSFORMERS_JS, "model", None),
        (MIXED, "decoder_merged", "decoder_model_merged_q4f16.onnx"),
        (MIXED, "decoder", None),
        (T5, "encoder", "t5_encoder.onnx"),
        (T5, "decoder", "t5_decoder.onnx"),
        (T5, "decoder_with_past", "t5_decoder_with_past.onnx"),
        (["onnx/text_model.onnx", "onnx/vision_model.onnx"], "text_encoder", "onnx/text_model.onnx"),
        (["onnx/text_model.onnx", "onnx/vision_model_q4.onnx"], "vision_encoder", "onnx/vision_model_q4.onnx"),
        (["config.json"], "model", None),
    ],
)
def test_choices(names: list[str], role: str, expected: str | None) -> None:
    assert choose(names, role) == expected


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["model_quantized.onnx", "model_fp16.onnx"], "model_fp16.onnx, model_quantized.onnx"),
        (["a/model.onnx", "b/model.onnx"], "a/model.onnx, b/model.onnx"),
        (["first.onnx", "second.onnx"], "first.onnx, second.onnx"),
        ([f"{number:02}.onnx" for number in range(15)], "11.onnx and 3 more"),
    ],
)
def test_several_candidates(names: list[str], listed: str) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        choose(names)
    assert listed in str(raised.value)
    assert "file_name=" in str(raised.value)


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("model_fp16.onnx", "onnx/model_fp16.onnx"),
        ("onnx/model_fp16.onnx", "onnx/model_fp16.onnx"),
        ("./onnx/model_fp16.onnx", "onnx/model_fp16.onnx"),
        ("model.onnx", "model.onnx"),
        ("onnx/model.onnx", "onnx/model.onnx"),
    ],
)
def test_names_that_are_given(file_name: str, expected: str) -> None:
    names = ["model.onnx", "onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_int8.onnx"]
    assert choose(names, file_name=file_name) == expected


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(errors.NoSuchFile, match=r"no file model_q4.onnx in the folder\. Its .* are model\.onnx"):
        choose(["model.onnx", "config.json"], file_name="model_q4.onnx")


def test_names_of_a_configuration() -> None:
    assert choose(["model.onnx", "phi.onnx"], "decoder", named={"decoder": "phi.onnx"}) == "phi.onnx"
    with pytest.raises(errors.NoSuchFile, match=r"no file phi\.onnx.*Its ONNX files are model\.onnx"):
        choose(["model.onnx"], "decoder", named={"decoder": "phi.onnx"})
