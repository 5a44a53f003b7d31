"""Which graphs a model consists of, by its task and what it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sardonyx import errors
from sardonyx.models.export.graphs import Graph
from sardonyx.models.export.kinds import decoder, encoder_decoder, sound, text, vision


def _sound(model: Any) -> encoder_decoder.Reading:
    """Frames of sound, of the one length that such encoders take."""
    if model.main_input_name != "input_features" or not hasattr(model.config, "max_source_positions"):
        raise errors.NotImplemented(
            f"{type(model).__name__} reads {model.main_input_name} of a length that is not known here; models that "
            "read sound are exported where they are made as Whisper is"
        )
    return encoder_decoder.fixed("input_features", sound.frames(model.config, model.get_encoder()))


def _picture(model: Any) -> encoder_decoder.Reading:
    """A picture of the size that the encoder is made for."""
    if model.main_input_name != "pixel_values":
        raise errors.NotImplemented(
            f"{type(model).__name__} reads {model.main_input_name}; models that read pictures are exported where they "
            "take pixel_values of one size"
        )
    return encoder_decoder.fixed("pixel_values", vision.picture(getattr(model.config, "encoder", model.config)))


# What encoders read, by the task of their model.
_READERS = {
    "text2text-generation": encoder_decoder.text,
    "automatic-speech-recognition": _sound,
    "image-to-text": _picture,
}


def graphs(model: Any, task: str) -> list[Graph]:
    """The graphs of a model, in the order in which they run; NotImplemented for a model of no kind that is known."""
    if task == "text-generation":
        return decoder.graphs(model)
    if model.config.is_encoder_decoder and task in _READERS:
        return encoder_decoder.graphs(model, _READERS[task](model))
    if model.config.is_encoder_decoder and task == "feature-extraction":
        raise errors.NotImplemented(
            f"{type(model).__name__} reads one sequence and writes another, which makes no single graph: export it "
            "for text2text-generation, automatic-speech-recognition or image-to-text"
        )
    if text.takes(model, "input_ids") and vision.sees(model):
        return vision.with_texts(model, task)
    for is_kind, made in ((vision.sees, vision.graphs), (sound.hears, sound.graphs)):
        if is_kind(model):
            return made(model, task)
    if text.takes(model, "input_ids"):
        return text.graphs(model, task)
    raise errors.NotImplemented(
        f"{type(model).__name__} takes {model.main_input_name}, which is no text, picture or sound that is known here"
    )


@contextlib.contextmanager
def prepared(model: Any) -> Iterator[None]:
    """While it lasts, a model is in evaluation mode and uses an attention that can be traced.

    `sdpa` of transformers leaves out what caps the scores; models that have such a cap compute attention step by step.
    """
    before = getattr(model.config, "_attn_implementation", None)
    wanted = before
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        wanted = "eager"
    elif before not in (None, "sdpa", "eager"):
        wanted = "sdpa" if model._supports_sdpa else "eager"
    if wanted != before:
        model.set_attn_implementation(wanted)
    is_trained = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(is_trained)
        if wanted != before:
            model.set_attn_implementation(before)
