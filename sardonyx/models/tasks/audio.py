"""Models of sounds: `input_values` of shape (batch, samples), or `input_features` of spectrograms, go in."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.tasks.one_pass import OnePass


class _OfSounds(OnePass):
    main_input_name = "input_values"

    def forward(
        self,
        input_values: Array | None = None,
        attention_mask: Array | None = None,
        input_features: Array | None = None,
        *,
        return_dict: bool | None = True,
        **others: Array,
    ) -> Any:
        """The model's output for a batch of sounds; without `return_dict` a tuple."""
        given = {"input_values": input_values, "attention_mask": attention_mask, "input_features": input_features}
        return self._forward(given, others, return_dict)


class ORTModelForAudioClassification(_OfSounds):
    """Scores of sounds: `logits` of shape (batch, labels)."""

    task = "audio-classification"
    auto_model_class = AutoClass("AutoModelForAudioClassification")
    output_class = "SequenceClassifierOutput"
    result_names = ("logits",)


class ORTModelForCTC(_OfSounds):
    """Scores of letters for each step of time: `logits` of shape (batch, steps, letters)."""

    task = "automatic-speech-recognition"
    auto_model_class = AutoClass("AutoModelForCTC")
    output_class = "CausalLMOutput"
    result_names = ("logits",)


class ORTModelForAudioFrameClassification(_OfSounds):
    """Scores of each step of time, such as who speaks: `logits` of shape (batch, steps, labels)."""

    task = "audio-frame-classification"
    auto_model_class = AutoClass("AutoModelForAudioFrameClassification")
    output_class = "TokenClassifierOutput"
    result_names = ("logits",)


class ORTModelForAudioXVector(_OfSounds):
    """Features of voices: `logits` and `embeddings` of shape (batch, width)."""

    task = "audio-xvector"
    auto_model_class = AutoClass("AutoModelForAudioXVector")
    output_class = "XVectorOutput"
    result_names = ("logits", "embeddings")
