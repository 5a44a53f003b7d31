"""What Optimum's users do: every class by a pipeline, with IO binding and without. Run by test_clients.py.

Prints JSON: for each row how far its answers are from those of the same pipeline on PyTorch.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import small_models
import torch
import transformers
from optimum.onnxruntime import (
    ORTModelForAudioClassification,
    ORTModelForCausalLM,
    ORTModelForCTC,
    ORTModelForCustomTasks,
    ORTModelForFeatureExtraction,
    ORTModelForImageClassification,
    ORTModelForMaskedLM,
    ORTModelForMultipleChoice,
    ORTModelForQuestionAnswering,
    ORTModelForSemanticSegmentation,
    ORTModelForSeq2SeqLM,
    ORTModelForSequenceClassification,
    ORTModelForSpeechSeq2Seq,
    ORTModelForTokenClassification,
    ORTModelForVision2Seq,
    ORTModelForZeroShotImageClassification,
)
from optimum.onnxruntime import pipeline as optimum_pipeline
from PIL import Image

IMAGE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 48, 3), np.uint8))
SOUND = np.sin(np.arange(4000) / 7).astype(np.float32)
SENTENCES = ["the cat sees a big dog", "it was very good"]
QUESTION = {"question": "the dog is ?", "context": "a cat sees the big red dog and they runs"}
GENERATION = {"max_new_tokens": 8, "do_sample": False}

# Optimum cannot bind these on any engine: it takes the logits of segments to be as high and wide as the image, and the
# export of CLIP names the batch of images otherwise in its outputs than in its inputs.
UNBOUND = ("segments", "image and text")

# The task of the pipeline, Optimum's class, transformers' class, the model, and the call.
Call = Callable[[Any], Any]
ROWS: dict[str, tuple[str, Any, Any, str, Call]] = {
    "feature-extraction": (
        "feature-extraction",
        ORTModelForFeatureExtraction,
        transformers.AutoModel,
        "features",
        lambda pipe: pipe(SENTENCES),
    ),
    "text-classification": (
        "text-classification",
        ORTModelForSequenceClassification,
        transformers.AutoModelForSequenceClassification,
        "classes",
        lambda pipe: pipe(SENTENCES, top_k=None),
    ),
    "zero-shot-classification": (
        "zero-shot-classification",
        ORTModelForSequenceClassification,
        transformers.AutoModelForSequenceClassification,
        "classes",
        lambda pipe: pipe(SENTENCES[0], candidate_labels=["good", "bad"], hypothesis_template="it is {}"),
    ),
    "token-classification": (
        "token-classification",
        ORTModelForTokenClassification,
        transformers.AutoModelForTokenClassification,
        "words",
        lambda pipe: pipe(SENTENCES[0]),
    ),
    "question-answering": (
        "question-answering",
        ORTModelForQuestionAnswering,
        transformers.AutoModelForQuestionAnswering,
        "answers",
        lambda pipe: pipe(QUESTION),
    ),
    "fill-mask": (
        "fill-mask",
        ORTModelForMaskedLM,
        transformers.AutoModelForMaskedLM,
        "masks",
        lambda pipe: pipe("the cat [MASK] a dog"),
    ),
    "text-generation": (
        "text-generation",
        ORTModelForCausalLM,
        transformers.AutoModelForCausalLM,
        "text",
        lambda pipe: pipe("the cat", **GENERATION),
    ),
    "text-generation, beams": (
        "text-generation",
        ORTModelForCausalLM,
        transformers.AutoModelForCausalLM,
        "text",
        lambda pipe: pipe("the cat", num_beams=3, **GENERATION),
    ),
    "summarization": (
        "summarization",
        ORTModelForSeq2SeqLM,
        transformers.AutoModelForSeq2SeqLM,
        "translation",
        lambda pipe: pipe(SENTENCES[0], min_length=0, **GENERATION),
    ),
    "translation": (
        "translation_en_to_fr",
        ORTModelForSeq2SeqLM,
        transformers.AutoModelForSeq2SeqLM,
        "translation",
        lambda pipe: pipe(SENTENCES[0], num_beams=3, **GENERATION),
    ),
    "text2text-generation": (
        "text2text-generation",
        ORTModelForSeq2SeqLM,
        transformers.AutoModelForSeq2SeqLM,
        "translation",
        lambda pipe: pipe(SENTENCES[1], **GENERATION),
    ),
    "image-classification": (
        "image-classification",
        ORTModelForImageClassification,
        transformers.AutoModelForImageClassification,
        "images",
        lambda pipe: pipe(IMAGE),
    ),
    "image-segmentation": (
        "image-segmentation",
        ORTModelForSemanticSegmentation,
        transformers.AutoModelForSemanticSegmentation,
        "segments",
        lambda pipe: [[one["label"], np.asarray(one["mask"]).tolist()] for one in pipe(IMAGE)],
    ),
    "zero-shot-image-classification": (
        "zero-shot-image-classification",
        ORTModelForZeroShotImageClassification,
        transformers.AutoModelForZeroShotImageClassification,
        "image and text",
        lambda pipe: pipe(IMAGE, candidate_labels=["cat", "dog"], hypothesis_template="a {}"),
    ),
    "image-to-text": (
        "image-to-text",
        ORTModelForVision2Seq,
        transformers.AutoModelForVision2Seq,
        "captions",
        lambda pipe: pipe(IMAGE, generate_kwargs=GENERATION),
    ),
    "audio-classification": (
        "audio-classification",
        ORTModelForAudioClassification,
        transformers.AutoModelForAudioClassification,
        "sounds",
        lambda pipe: pipe(SOUND),
    ),
}


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for name, (task, ours, theirs, kind, call) in ROWS.items():
        source = folder / kind.replace(" ", "-")
        if not source.exists():
            small_models.write(kind, source)
        others = preprocessors(source)
        with quiet():
            expected = call(transformers.pipeline(task, model=theirs.from_pretrained(source), **others))
            exported = folder / f"{ours.__name__}-{source.name}"
            if not exported.exists():
                made = ours.from_pretrained(source, export=True)
                assert made.providers == ["CPUExecutionProvider"], made.providers
                made.save_pretrained(exported)
            for binding in (None, False) if kind in UNBOUND else (None, True, False):
                model = ours.from_pretrained(exported, provider="CPUExecutionProvider", use_io_binding=binding)
                assert model.providers == ["CPUExecutionProvider"]
                assert model.use_io_binding is bool(binding)
                assert isinstance(model.to("cpu"), ours)
                found[f"{name}, binding {binding}"] = distance(
                    call(optimum_pipeline(task, model=model, **others)), expected
                )
            found[f"{name}, by folder"] = distance(
                call(optimum_pipeline(task, model=str(exported), **others)), expected
            )
    found |= without_pipelines(folder)
    print(json.dumps({"onnxruntime": onnxruntime.__file__, "models": found}))


def without_pipelines(folder: Path) -> dict[str, float]:
    """Classes that no pipeline has, and what the page says of sessions."""
    found = {}
    with quiet():
        source = small_models.write("choices", folder / "choices")
        words = transformers.AutoTokenizer.from_pretrained(source)
        pairs = words([SENTENCES[0]] * 2, ["good", "bad"], padding=True, return_tensors="pt")
        values = {name: value[None] for name, value in pairs.items()}
        expected = transformers.AutoModelForMultipleChoice.from_pretrained(source)(**values).logits
        logits = ORTModelForMultipleChoice.from_pretrained(source, export=True)(**values).logits
        found["multiple-choice"] = distance(logits.tolist(), expected.tolist())
        source = small_models.write("letters", folder / "letters")
        # No pipeline: that of transformers 4.57 asks Optimum's class for an attribute that it has not.
        sound = {"input_values": torch.from_numpy(SOUND)[None]}
        expected = transformers.AutoModelForCTC.from_pretrained(source)(**sound).logits
        found["CTC"] = distance(
            ORTModelForCTC.from_pretrained(source, export=True)(**sound).logits.tolist(), expected.tolist()
        )
        source = small_models.write("speech", folder / "speech")
        heard = transformers.AutoFeatureExtractor.from_pretrained(source)(
            SOUND, sampling_rate=16000, return_tensors="pt"
        )
        reference = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(source)
        speech = ORTModelForSpeechSeq2Seq.from_pretrained(source, export=True)
        for beams in (1, 3):
            expected, tokens = (
                one.generate(heard.input_features, num_beams=beams, **GENERATION) for one in (reference, speech)
            )
            found[f"Whisper, {beams} beams"] = distance(tokens.tolist(), expected.tolist())
        exported = folder / "ORTModelForFeatureExtraction-features"
        values = words(SENTENCES, padding=True, return_tensors="pt")
        expected = transformers.AutoModel.from_pretrained(folder / "features")(**values).last_hidden_state
        custom = ORTModelForCustomTasks.from_pretrained(exported)
        found["custom"] = distance(custom(**values).last_hidden_state.tolist(), expected.tolist())
        arrays = {name: value.numpy() for name, value in values.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = ORTModelForFeatureExtraction.from_pretrained(
            exported,
            provider="CPUExecutionProvider",
            provider_options={"arena_extend_strategy": "kSameAsRequested"},
            session_options=options,
        )
        assert "CPUExecutionProvider" in model.provider_options
        states = model(**arrays).last_hidden_state
        assert isinstance(states, np.ndarray)
        found["numpy"] = distance(states.tolist(), expected.tolist())
        was_taken = False
        with contextlib.suppress(ValueError):
            ORTModelForFeatureExtraction.from_pretrained(exported, provider="CUDAExecutionProvider")
            was_taken = True
        found["a provider that is not there"] = 1.0 if was_taken else 0.0
        for use_cache in (True, False):
            plain = ORTModelForCausalLM.from_pretrained(folder / "text", export=True, use_cache=use_cache)
            assert plain.use_cache is use_cache
            ids = torch.tensor([[7, 8, 9], [0, 10, 11]])
            mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
            reference = transformers.AutoModelForCausalLM.from_pretrained(folder / "text")
            expected = reference.generate(ids, attention_mask=mask, **GENERATION)
            given = {} if use_cache else {"use_cache": False}
            tokens = plain.generate(ids, attention_mask=mask, **GENERATION, **given)
            found[f"left padding, cache {use_cache}"] = distance(tokens.tolist(), expected.tolist())
    return found


def preprocessors(source: Path) -> dict[str, Any]:
    """What a pipeline is given beside the model."""
    found: dict[str, Any] = {}
    if (source / "tokenizer.json").exists():
        found["tokenizer"] = transformers.PreTrainedTokenizerFast.from_pretrained(source)
    if (source / "preprocessor_config.json").exists():
        kind = json.loads((source / "preprocessor_config.json").read_text())
        if "image_processor_type" in kind:
            found["image_processor"] = transformers.AutoImageProcessor.from_pretrained(source)
        else:
            found["feature_extractor"] = transformers.AutoFeatureExtractor.from_pretrained(source)
    return found


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference of numbers in two answers of one form; infinite for forms or texts that differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return max((distance(ours[key], theirs[key]) for key in ours), default=0.0)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        return max((distance(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    if isinstance(ours, int | float | np.number) and isinstance(theirs, int | float | np.number):
        return float(abs(ours - theirs))
    return 0.0 if ours == theirs else math.inf


@contextlib.contextmanager
def quiet() -> Any:
    """Keep what the libraries print from the results."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]))
