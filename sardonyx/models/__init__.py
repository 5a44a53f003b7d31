"""Hugging Face models on Sardonyx: the classes of Optimum, for today's transformers.

`ORTModelForSequenceClassification.from_pretrained(folder or id)` and its relatives load ONNX models as Optimum,
transformers.js, onnxruntime-genai and sentence-transformers lay them out, take and give NumPy arrays or torch tensors,
and work in `transformers.pipeline`. Every name below is imported when it is first used: the import itself brings
neither transformers nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.models.base import (
        ORTModel,
    )
    from sardonyx.models.sentences.cross_encoder import CrossEncoder
    from sardonyx.models.sentences.encoder import SentenceEncoder
    from sardonyx.models.tasks.audio import (
        ORTModelForAudioClassification,
        ORTModelForAudioFrameClassification,
        ORTModelForAudioXVector,
        ORTModelForCTC,
    )
    from sardonyx.models.tasks.causal_lm import (
        ORTModelForCausalLM,
    )
    from sardonyx.models.tasks.custom import (
        ORTModelForCustomTasks,
    )
    from sardonyx.models.tasks.images import (
        ORTModelForImageClassification,
        ORTModelForImageToImage,
        ORTModelForObjectDetection,
        ORTModelForSemanticSegmentation,
        ORTModelForZeroShotImageClassification,
    )
    from sardonyx.models.tasks.seq2seq import (
        ORTModelForSeq2SeqLM,
    )
    from sardonyx.models.tasks.speech import (
        ORTModelForSpeechSeq2Seq,
    )
    from sardonyx.models.tasks.text import (
        ORTModelForFeatureExtraction,
        ORTModelForMaskedLM,
        ORTModelForMultipleChoice,
        ORTModelForQuestionAnswering,
        ORTModelForSequenceClassification,
        ORTModelForTokenClassification,
    )
    from sardonyx.models.tasks.vision import (
        ORTModelForImageTextToText,
        ORTModelForVision2Seq,
    )

# Where the public names live, relative to this package.
_NAMES = {
    "base": [
        "ORTModel",
    ],
    "sentences.cross_encoder": ["CrossEncoder"],
    "sentences.encoder": ["SentenceEncoder"],
    "tasks.audio": [
        "ORTModelForAudioClassification",
        "ORTModelForAudioFrameClassification",
        "ORTModelForAudioXVector",
        "ORTModelForCTC",
    ],
    "tasks.causal_lm": [
        "ORTModelForCausalLM",
    ],
    "tasks.custom": [
        "ORTModelForCustomTasks",
    ],
    "tasks.images": [
        "ORTModelForImageClassification",
        "ORTModelForImageToImage",
        "ORTModelForObjectDetection",
        "ORTModelForSemanticSegmentation",
        "ORTModelForZeroShotImageClassification",
    ],
    "tasks.seq2seq": [
        "ORTModelForSeq2SeqLM",
    ],
    "tasks.speech": [
        "ORTModelForSpeechSeq2Seq",
    ],
    "tasks.text": [
        "ORTModelForFeatureExtraction",
        "ORTModelForMaskedLM",
        "ORTModelForMultipleChoice",
        "ORTModelForQuestionAnswering",
        "ORTModelForSequenceClassification",
        "ORTModelForTokenClassification",
    ],
    "tasks.vision": [
        "ORTModelForImageTextToText",
        "ORTModelForVision2Seq",
    ],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "CrossEncoder",
    "ORTModel",
    "ORTModelForAudioClassification",
    "ORTModelForAudioFrameClassification",
    "ORTModelForAudioXVector",
    "ORTModelForCTC",
    "ORTModelForCausalLM",
    "ORTModelForCustomTasks",
    "ORTModelForFeatureExtraction",
    "ORTModelForImageClassification",
    "ORTModelForImageTextToText",
    "ORTModelForImageToImage",
    "ORTModelForMaskedLM",
    "ORTModelForMultipleChoice",
    "ORTModelForObjectDetection",
    "ORTModelForQuestionAnswering",
    "ORTModelForSemanticSegmentation",
    "ORTModelForSeq2SeqLM",
    "ORTModelForSequenceClassification",
    "ORTModelForSpeechSeq2Seq",
    "ORTModelForTokenClassification",
    "ORTModelForVision2Seq",
    "ORTModelForZeroShotImageClassification",
    "SentenceEncoder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
