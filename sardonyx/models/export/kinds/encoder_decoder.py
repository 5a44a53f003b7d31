"""Models that read one sequence and write another: an encoder, a decoder that begins, and one that goes on.

The decoder that begins also gives the keys and values of the encoder's output, which the other one takes: they are
computed once for a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sardonyx.models.export import caches
from sardonyx.models.export.graphs import Arrays, Graph, Input, Sizes, right_padded

ENCODER, DECODER, WITH_PAST = "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"

_BATCH, _READ, _NEW, _PAST = (
    "batch_size",
    "encoder_sequence_length",
    "decoder_sequence_length",
    "past_decoder_sequence_length",
)
# Traced, then tried; `padding` is at the end of the first row.
_ENCODER_SIZES = (
    {_BATCH: 2, _READ: 5, "padding": 2},
    {_BATCH: 3, _READ: 9, "padding": 4},
    {_BATCH: 1, _READ: 3, "padding": 0},
)
_DECODER_SIZES = (
    {_BATCH: 2, _READ: 5, _NEW: 3, "padding": 2},
    {_BATCH: 3, _READ: 9, _NEW: 1, "padding": 4},
    {_BATCH: 1, _READ: 4, _NEW: 6, "padding": 0},
)
_WITH_PAST_SIZES = (
    {_BATCH: 2, _READ: 5, _NEW: 3, _PAST: 4, "padding": 2},
    {_BATCH: 3, _READ: 9, _NEW: 1, _PAST: 6, "padding": 4},
    {_BATCH: 1, _READ: 4, _NEW: 2, _PAST: 1, "padding": 0},
)


@dataclass(frozen=True)
class Reading:
    """What an encoder reads: its inputs with the sizes to try, and whether a mask of them goes to the decoder."""

    inputs: tuple[Input, ...]
    values: Callable[[Sizes, np.random.Generator], Arrays]
    sizes: tuple[Sizes, ...]
    is_masked: bool


def graphs(model: Any, reading: Reading) -> list[Graph]:
    """Three graphs, with Optimum's names of files, inputs and outputs."""
    decoding = _Decoding(model, reading.is_masked)
    encoder = model.get_encoder()
    return [
        Graph(
            ENCODER,
            encoder,
            lambda tensors: {"last_hidden_state": encoder(**tensors).last_hidden_state},
            reading.inputs,
            reading.values,
            reading.sizes,
        ),
        Graph(DECODER, model, decoding.begin, decoding.begin_inputs(), decoding.values, _DECODER_SIZES),
        Graph(WITH_PAST, model, decoding.go_on, decoding.go_on_inputs(), decoding.values, _WITH_PAST_SIZES),
    ]


def text(model: Any) -> Reading:
    """Tokens with a mask."""

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        shape = (sizes[_BATCH], sizes[_READ])
        return {"input_ids": _ids(model, shape, random), "attention_mask": right_padded(*shape, sizes["padding"])}

    inputs = Input("input_ids", (_BATCH, _READ)), Input("attention_mask", (_BATCH, _READ))
    return Reading(inputs, values, _ENCODER_SIZES, is_masked=True)


def fixed(name: str, shape: tuple[int, ...]) -> Reading:
    """Numbers whose sizes the model fixes, all but the batch: pictures, and frames of sound."""

    def values(sizes: Sizes, random: np.random.Generator) -> Arrays:
        return {name: random.standard_normal((sizes[_BATCH], *shape), np.float32)}

    return Reading((Input(name, (_BATCH, *shape)),), values, ({_BATCH: 2}, {_BATCH: 3}, {_BATCH: 1}), is_masked=False)


class _Decoding:
    """The two decoders of a model."""

    def __init__(self, model: Any, is_masked: bool) -> None:
        self._model = model
        self._is_masked = is_masked
        self._own, self._cross, self._width = _plans(model)
        # Before version 5, a decoder that is traced without a mask makes one that is a column too long.
        import transformers

        self._needs_mask = int(transformers.__version__.split(".")[0]) < 5

    def begin_inputs(self) -> tuple[Input, ...]:
        ids, states = Input("input_ids", (_BATCH, _NEW)), Input("encoder_hidden_states", (_BATCH, _READ, self._width))
        return (*self._mask_input(), ids, states)

    def begin(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._run(tensors, caches.empty(), caches.empty(), tensors["encoder_hidden_states"], cross_too=True)

    def go_on_inputs(self) -> tuple[Input, ...]:
        own, cross = self._own.inputs(_BATCH, _PAST), self._cross.inputs(_BATCH, _READ)
        return (*self._mask_input(), Input("input_ids", (_BATCH, _NEW)), *caches.by_layer(own, cross))

    def go_on(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        own, cross = self._own.build(tensors), self._cross.build(tensors)
        read = cross.layers[0].keys
        # Nothing reads its content: the decoder asks for its sizes.
        states = read.new_zeros((read.shape[0], read.shape[2], self._width))
        return self._run(tensors, own, cross, states, cross_too=False)

    def values(self, sizes: Sizes, random: np.random.Generator) -> Arrays:
        batch, read = sizes[_BATCH], sizes[_READ]
        made = {
            "encoder_attention_mask": right_padded(batch, read, sizes["padding"]),
            "input_ids": _ids(self._model, (batch, sizes[_NEW]), random),
            "encoder_hidden_states": random.standard_normal((batch, read, self._width), np.float32),
        }
        if _PAST in sizes:
            made |= self._own.values(sizes, random, _PAST) | self._cross.values(sizes, random, _READ)
        return made

    def _mask_input(self) -> tuple[Input, ...]:
        return (Input("encoder_attention_mask", (_BATCH, _READ)),) if self._is_masked else ()

    def _run(self, tensors: Mapping[str, Any], own: Any, cross: Any, states: Any, cross_too: bool) -> dict[str, Any]:
        from transformers.cache_utils import EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        ids = tensors["input_ids"]
        masks = {"attention_mask": tensors["encoder_attention_mask"]} if self._is_masked else {}
        if self._needs_mask:
            length = ids.shape[1] + (own.layers[0].keys.shape[2] if own.layers else 0)
            masks["decoder_attention_mask"] = ids.new_ones((ids.shape[0], length))
        found = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            decoder_input_ids=ids,
            use_cache=True,
            **{caches.argument(self._model): EncoderDecoderCache(own, cross)},
            **masks,
        )
        kept = caches.of(found)
        made = {"logits": found.logits, **self._own.flat(kept.self_attention_cache)}
        return made | self._cross.flat(kept.cross_attention_cache) if cross_too else made


def _plans(model: Any) -> tuple[caches.Plan, caches.Plan, int]:
    """The decoder's own cache, that of the encoder's output, and how wide the latter is."""
    from transformers.modeling_outputs import BaseModelOutput

    width = _width(model)
    states = torch.zeros((1, 3, width), dtype=model.dtype)
    with torch.no_grad():
        found = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            decoder_input_ids=torch.ones((1, 2), dtype=torch.int64),
            use_cache=True,
        )
    kept = caches.of(found)
    own = caches.plan_of(kept.self_attention_cache, "decoder.")
    return own, caches.plan_of(kept.cross_attention_cache, "encoder."), width


def _width(model: Any) -> int:
    """The size of the encoder's output."""
    config = getattr(model.config, "encoder", None) or model.config
    return int(config.hidden_size)


def _ids(model: Any, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    config = getattr(model.config, "decoder", None) or model.config
    return random.integers(0, config.vocab_size, shape)
