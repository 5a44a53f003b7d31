"""Images to text by encoder-decoders: TrOCR, captions, Pix2Struct."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.requirements import require
from sardonyx.models.tasks.encoder_decoder import ORTModelForConditionalGeneration


class _VisionClass(AutoClass):
    """The auto class for images to text: its name in transformers 5 is another."""

    def __init__(self) -> None:
        super().__init__("AutoModelForVision2Seq")

    def __get__(self, instance: object, owner: type) -> Any:
        transformers = require("transformers", f"{owner.__name__}.auto_model_class")
        name = self.name if hasattr(transformers, self.name) else "AutoModelForImageTextToText"
        return getattr(transformers, name)


class ORTModelForVision2Seq(ORTModelForConditionalGeneration):
    """An encoder-decoder from images to text. `from_pretrained` gives the class of the model's kind."""

    task = "image-to-text-with-past"
    main_input_name = "pixel_values"
    auto_model_class = _VisionClass()
    input_modalities = ("image",)

    @classmethod
    def _of_kind(cls, config: Any) -> type[Any]:
        """The class of a model's kind."""
        is_general = cls in (ORTModelForVision2Seq, ORTModelForImageTextToText)
        of_patches = is_general and config.model_type == "pix2struct"
        return ORTModelForPix2Struct if of_patches else cls

    def forward(
        self,
        pixel_values: Array | None = None,
        attention_mask: Array | None = None,
        decoder_input_ids: Array | None = None,
        decoder_attention_mask: Array | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        cache: Any = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits and caches for the decoder's tokens: a `Seq2SeqLMOutput`.

        `pixel_values` is (batch, channels, height, width); the rest is as of `ORTModelForSeq2SeqLM.forward`.
        """
        return self._forward(
            pixel_values,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache if cache is not None else past_key_values,
            use_cache,
            return_dict,
            kwargs,
        )


class ORTModelForImageTextToText(ORTModelForVision2Seq):
    """As `ORTModelForVision2Seq`, by the name that transformers 5 has for it; models that read text as well are not
    served."""

    auto_model_class = AutoClass("AutoModelForImageTextToText")


class ORTModelForPix2Struct(ORTModelForVision2Seq):
    """Pix2Struct, which takes patches of images of any size: `flattened_patches` (batch, patches, values)."""

    main_input_name = "flattened_patches"
    auto_model_class = AutoClass("Pix2StructForConditionalGeneration")

    def forward(  # type: ignore[override]
        self, flattened_patches: Array | None = None, attention_mask: Array | None = None, *given: Any, **kwargs: Any
    ) -> Any:
        """As of `ORTModelForVision2Seq`, with `flattened_patches` in the place of `pixel_values`."""
        return super().forward(flattened_patches, attention_mask, *given, **kwargs)
