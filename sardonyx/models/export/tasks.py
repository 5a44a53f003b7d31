"""What a model is for: the names of tasks, the auto classes that load models for them, and which one a config means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from sardonyx import errors
from sardonyx.models.requirements import require

# Auto classes by task, the first that knows a model's type; a task that says more stands before one that says less.
AUTO_CLASSES: Mapping[str, tuple[str, ...]] = {
    "text-generation": ("AutoModelForCausalLM",),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    "automatic-speech-recognition": ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC"),
    "image-to-text": ("AutoModelForVision2Seq", "AutoModelForImageTextToText"),
    "fill-mask": ("AutoModelForMaskedLM",),
    "text-classification": ("AutoModelForSequenceClassification",),
    "token-classification": ("AutoModelForTokenClassification",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "multiple-choice": ("AutoModelForMultipleChoice",),
    "image-classification": ("AutoModelForImageClassification",),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "object-detection": ("AutoModelForObjectDetection",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
    "audio-classification": ("AutoModelForAudioClassification",),
    "feature-extraction": ("AutoModel",),
}
_SYNONYMS = {
    "default": "feature-extraction",
    "causal-lm": "text-generation",
    "seq2seq-lm": "text2text-generation",
    "summarization": "text2text-generation",
    "translation": "text2text-generation",
    "masked-lm": "fill-mask",
    "sequence-classification": "text-classification",
    "zero-shot-classification": "text-classification",
    "sentence-similarity": "feature-extraction",
    "image-feature-extraction": "feature-extraction",
    "image-segmentation": "semantic-segmentation",
    "speech2seq-lm": "automatic-speech-recognition",
    "audio-ctc": "automatic-speech-recognition",
    "vision2seq-lm": "image-to-text",
    "image-text-to-text": "image-to-text",
}
# Optimum's suffix: decoders have caches here in any case.
_SUFFIX = "-with-past"


def normal(task: str) -> str:
    """A task's own name; InvalidArgument for what is none, with the nearest."""
    name = task.removesuffix(_SUFFIX)
    name = _SYNONYMS.get(name, name)
    if name in AUTO_CLASSES:
        return name
    near = difflib.get_close_matches(name, [*AUTO_CLASSES, *_SYNONYMS], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise errors.InvalidArgument(f"The task {task} is not known: {hint}Tasks are {', '.join(AUTO_CLASSES)}")


def of_class(name: str, config: Any) -> str | None:
    """The task that a class of transformers, such as BertForMaskedLM, is for; None where no auto class has it."""
    for task, autos in AUTO_CLASSES.items():
        for auto in autos:
            if name in _class_names(auto, config):
                return task
    return None


def of_config(config: Any) -> str:
    """The task of the class that a config names; InvalidArgument where it names none that is known."""
    named = list(getattr(config, "architectures", None) or [])
    for name in named:
        task = of_class(name, config)
        if task is not None:
            return task
    what = f"names {', '.join(named)}" if named else "names no architectures"
    raise errors.InvalidArgument(
        f"The config of the model ({config.model_type}) {what}, from which no task follows: give one of "
        f"{', '.join(AUTO_CLASSES)}"
    )


def auto_class(task: str, config: Any) -> Any:
    """The auto class that loads a model for a task; InvalidArgument where none knows the model's type."""
    named = set(getattr(config, "architectures", None) or [])
    able = [auto for auto in AUTO_CLASSES[task] if _class_names(auto, config)]
    able.sort(key=lambda auto: named.isdisjoint(_class_names(auto, config)))
    if not able:
        others = [name for name, autos in AUTO_CLASSES.items() if any(_class_names(auto, config) for auto in autos)]
        raise errors.InvalidArgument(
            f"transformers has no class for {task} of the model type {config.model_type}; tasks of this type are "
            f"{', '.join(others) or 'none'}"
        )
    return getattr(require("transformers", "The export of a model"), able[0])


def _class_names(auto: str, config: Any) -> tuple[str, ...]:
    """The classes that an auto class has for a config's type; none where this version has no such auto class."""
    found = getattr(require("transformers", "The export of a model"), auto, None)
    if found is None:
        return ()
    mapping = found._model_mapping
    names = mapping._model_mapping.get(config.model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)
