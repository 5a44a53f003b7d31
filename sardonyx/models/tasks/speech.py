"""Speech to text by encoder-decoders: Whisper, Moonshine, Speech2Text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sardonyx import errors
from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.requirements import installed, require
from sardonyx.models.tasks.encoder_decoder import ORTModelForConditionalGeneration


class ORTModelForSpeechSeq2Seq(ORTModelForConditionalGeneration):
    """An encoder-decoder from sound to text. `from_pretrained` gives the class of the model's kind."""

    task = "automatic-speech-recognition-with-past"
    main_input_name = "input_features"
    auto_model_class = AutoClass("AutoModelForSpeechSeq2Seq")
    input_modalities = ("audio",)

    @classmethod
    def _of_kind(cls, config: Any) -> type[Any]:
        """The class of a model's kind."""
        kinds = {"whisper": ORTModelForWhisper, "moonshine": ORTModelForMoonshine}
        return kinds.get(config.model_type, cls) if cls is ORTModelForSpeechSeq2Seq else cls

    def forward(
        self,
        input_features: Array | None = None,
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

        `input_features` is what the feature extractor gives, (batch, bands, frames) for Whisper; the rest is as of
        `ORTModelForSeq2SeqLM.forward`.
        """
        return self._forward(
            input_features,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache if cache is not None else past_key_values,
            use_cache,
            return_dict,
            kwargs,
        )


def _whisper_mixin() -> Any:
    """transformers' own decoding of Whisper: languages, tasks, timestamps, long sound, temperatures."""
    if not installed("torch"):
        return object
    return require("transformers.models.whisper.generation_whisper", "Whisper").WhisperGenerationMixin


class ORTModelForWhisper(_whisper_mixin(), ORTModelForSpeechSeq2Seq):  # type: ignore[misc]
    """Whisper: `generate` takes languages, tasks, timestamps, long sound and temperatures as transformers' does."""

    auto_model_class = AutoClass("WhisperForConditionalGeneration")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # transformers reads from the model how many frames of sound make a state of the encoder.
        convolutions = SimpleNamespace(conv1=SimpleNamespace(stride=(1,)), conv2=SimpleNamespace(stride=(2,)))
        self.model = SimpleNamespace(encoder=convolutions, config=self.config)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `generate` of Whisper, with its arguments.

        `return_token_timestamps=True`, which pipelines pass for times of words, takes a decoder that gives its
        `cross_attentions`, and caches; `errors.InvalidArgument` says how to export one.
        """
        if kwargs.get("return_token_timestamps"):
            self.decoder.require_attentions()
            if not self.decoder.can_use_cache or kwargs.get("use_cache") is False:
                # transformers takes the weights of all positions at each step for those of one, and gives other times.
                raise errors.InvalidArgument(
                    "return_token_timestamps takes a decoder with caches, and use_cache=True: without them there are "
                    "no right times"
                )
        return super().generate(*args, **kwargs)


class ORTModelForMoonshine(ORTModelForSpeechSeq2Seq):
    """Moonshine, which takes the samples themselves: `input_values` (batch, samples)."""

    main_input_name = "input_values"
    auto_model_class = AutoClass("MoonshineForConditionalGeneration")

    def forward(  # type: ignore[override]
        self, input_values: Array | None = None, attention_mask: Array | None = None, *given: Any, **kwargs: Any
    ) -> Any:
        """As of `ORTModelForSpeechSeq2Seq`, with `input_values` (batch, samples) in the place of `input_features`."""
        return super().forward(input_values, attention_mask, *given, **kwargs)
