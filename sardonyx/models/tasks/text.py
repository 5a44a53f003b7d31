"""Models of texts: `input_ids`, `attention_mask` and `token_type_ids` of shape (batch, length), int64, go in."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.tasks.one_pass import OnePass


class _OfTexts(OnePass):
    def forward(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        token_type_ids: Array | None = None,
        *,
        return_dict: bool | None = True,
        **others: Array,
    ) -> Any:
        """The model's output for a batch of texts; without `return_dict` a tuple.

        Inputs that are left out are no padding and one segment. `errors.InvalidArgument` for an input that the model
        needs besides.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self._forward(given, others, return_dict)


class ORTModelForSequenceClassification(_OfTexts):
    """Scores of whole texts: `logits` of shape (batch, labels)."""

    task = "text-classification"
    auto_model_class = AutoClass("AutoModelForSequenceClassification")
    output_class = "SequenceClassifierOutput"
    result_names = ("logits",)


class ORTModelForTokenClassification(_OfTexts):
    """Scores of each token: `logits` of shape (batch, length, labels)."""

    task = "token-classification"
    auto_model_class = AutoClass("AutoModelForTokenClassification")
    output_class = "TokenClassifierOutput"
    result_names = ("logits",)


class ORTModelForQuestionAnswering(_OfTexts):
    """Where an answer begins and ends: `start_logits` and `end_logits` of shape (batch, length)."""

    task = "question-answering"
    auto_model_class = AutoClass("AutoModelForQuestionAnswering")
    output_class = "QuestionAnsweringModelOutput"
    result_names = ("start_logits", "end_logits")


class ORTModelForMaskedLM(_OfTexts):
    """Scores of words for each place: `logits` of shape (batch, length, vocabulary)."""

    task = "fill-mask"
    auto_model_class = AutoClass("AutoModelForMaskedLM")
    output_class = "MaskedLMOutput"
    result_names = ("logits",)


class ORTModelForMultipleChoice(_OfTexts):
    """Scores of choices: inputs of shape (batch, choices, length), `logits` of shape (batch, choices)."""

    task = "multiple-choice"
    auto_model_class = AutoClass("AutoModelForMultipleChoice")
    output_class = "MultipleChoiceModelOutput"
    result_names = ("logits",)


class ORTModelForFeatureExtraction(OnePass):
    """Features of texts, images or sounds: `last_hidden_state` of shape (batch, length, width)."""

    task = "feature-extraction"
    output_class = "BaseModelOutputWithPooling"
    result_names = ("last_hidden_state",)
    other_names = ("token_embeddings", "hidden_states", "encoder_last_hidden_state")

    def forward(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        pixel_values: Array | None = None,
        input_features: Array | None = None,
        input_values: Array | None = None,
        *,
        return_dict: bool | None = True,
        **others: Array,
    ) -> Any:
        """The features, and whatever the model gives besides; without `return_dict` a tuple."""
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "pixel_values": pixel_values,
            "input_features": input_features,
            "input_values": input_values,
        }
        return self._forward(given, others, return_dict)
