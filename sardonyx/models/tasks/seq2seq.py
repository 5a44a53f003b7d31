"""Text to text: translation, summaries, whatever an encoder-decoder was trained for."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.auto_classes import AutoClass
from sardonyx.models.tasks.encoder_decoder import ORTModelForConditionalGeneration


class ORTModelForSeq2SeqLM(ORTModelForConditionalGeneration):
    """An encoder-decoder of text: T5, BART, M2M100, Marian and their relatives."""

    task = "text2text-generation-with-past"
    main_input_name = "input_ids"
    auto_model_class = AutoClass("AutoModelForSeq2SeqLM")

    def forward(
        self,
        input_ids: Array | None = None,
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

        `input_ids` and `attention_mask` are (batch, length) of the encoder; `encoder_outputs` are its states where
        they are there already. `decoder_input_ids` is (batch, new tokens), `past_key_values`, or `cache` as
        transformers 5 calls it, what an earlier call gave. `logits` is (batch, new tokens, vocabulary).
        """
        return self._forward(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache if cache is not None else past_key_values,
            use_cache,
            return_dict,
            kwargs,
        )
