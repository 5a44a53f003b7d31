"""Models of images: `pixel_values` of shape (batch, channels, height, width) go in."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.tasks.one_pass import OnePass


class _OfImages(OnePass):
    main_input_name = "pixel_values"

    def forward(self, pixel_values: Array | None = None, *, return_dict: bool | None = True, **others: Array) -> Any:
        """The model's output for a batch of images; without `return_dict` a tuple.

        A `pixel_mask` that is left out says that images are whole.
        """
        return self._forward({"pixel_values": pixel_values}, others, return_dict)


class ORTModelForImageClassification(_OfImages):
    """Scores of images: `logits` of shape (batch, labels)."""

    task = "image-classification"
    auto_model_class = AutoClass("AutoModelForImageClassification")
    output_class = "ImageClassifierOutput"
    result_names = ("logits",)


class ORTModelForSemanticSegmentation(_OfImages):
    """Scores of each place of an image: `logits` of shape (batch, labels, height, width), or what the model has."""

    task = "semantic-segmentation"
    auto_model_class = AutoClass("AutoModelForSemanticSegmentation")
    output_class = "SemanticSegmenterOutput"


class ORTModelForObjectDetection(_OfImages):
    """Scores and places of objects: `logits` (batch, queries, labels) and `pred_boxes` (batch, queries, 4)."""

    task = "object-detection"
    auto_model_class = AutoClass("AutoModelForObjectDetection")
    result_names = ("logits", "pred_boxes")


class ORTModelForImageToImage(_OfImages):
    """Images from images: `reconstruction` of shape (batch, channels, height, width)."""

    task = "image-to-image"
    auto_model_class = AutoClass("AutoModelForImageToImage")
    output_class = "ImageSuperResolutionOutput"
    result_names = ("reconstruction",)


class ORTModelForZeroShotImageClassification(OnePass):
    """How texts and images agree: `logits_per_image` (images, texts), `logits_per_text`, and embeddings of both."""

    task = "zero-shot-image-classification"
    auto_model_class = AutoClass("AutoModelForZeroShotImageClassification")
    result_names = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")

    def forward(
        self,
        input_ids: Array | None = None,
        pixel_values: Array | None = None,
        attention_mask: Array | None = None,
        *,
        return_dict: bool | None = True,
        **others: Array,
    ) -> Any:
        """The model's output for a batch of texts and a batch of images; without `return_dict` a tuple."""
        given = {"input_ids": input_ids, "pixel_values": pixel_values, "attention_mask": attention_mask}
        return self._forward(given, others, return_dict)
