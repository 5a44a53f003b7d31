"""The models that text generation runs: what their subgraphs are fed from one token to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.microsoft.rules import Array

Bodies = Mapping[str, Callable[..., list[Any]]]


class Model(Protocol):
    """A model of rows = batch * beams sequences; the beams of an entry are next to each other."""

    prompt: Array  # int32 (rows, length)

    def first(self) -> Array:
        """The logits (rows, vocabulary) of the word after the prompt."""

    def following(self, sequences: Array, rows: Array) -> Array:
        """The logits after `sequences` (rows, length), each the continuation of the former row that `rows` names."""


class Gpt:
    """A single decoder: input_ids, position_ids, attention_mask and one past for each layer.

    A past is (2, rows, heads, length, size); the outputs are logits (rows, length, vocabulary) and one present for each
    layer. Pad tokens of the prompt do not count as positions, and are masked where no attention mask is given.
    `init_decoder`, where the node has it, makes the first run.
    """

    def __init__(
        self, bodies: Bodies, decoder: ir.Graph, ids: Array, mask: Array | None, pad_token: int, beams: int = 1
    ) -> None:
        if ids.ndim != 2 or ids.shape[1] == 0:
            raise ValueError(f"input 'input_ids' must be (batch, length), got shape {ids.shape}")
        if len(decoder.inputs) - 3 != len(decoder.outputs) - 1:
            raise errors.NotImplemented("decoders whose past and present share a buffer are not supported")
        self.bodies = bodies
        self.prompt = np.repeat(ids.astype(np.int32), beams, axis=0)
        real = (self.prompt != pad_token).astype(np.int32)
        self.mask = real if mask is None else np.repeat(mask.astype(np.int32), beams, axis=0)
        self.positions = np.where(real > 0, np.cumsum(real, axis=1) - 1, 0).astype(np.int32)
        self.next_positions = real.sum(axis=1, dtype=np.int32)
        self.pasts = [self.empty(value) for value in decoder.inputs[3:]]

    def first(self) -> Array:
        return self.run("init_decoder" if "init_decoder" in self.bodies else "decoder", self.prompt)

    def following(self, sequences: Array, rows: Array) -> Array:
        self.pasts = [past[:, rows] for past in self.pasts]
        # The rows of an entry share its prompt, so that masks and positions stay as they are.
        self.mask = np.concatenate([self.mask, np.ones((len(self.mask), 1), np.int32)], axis=1)
        self.positions = self.next_positions[:, None].copy()
        self.next_positions = self.next_positions + 1
        return self.run("decoder", np.ascontiguousarray(sequences[:, -1:]))

    def run(self, body: str, ids: Array) -> Array:
        logits, *self.pasts = self.bodies[body](ids, self.positions, self.mask, *self.pasts)
        return np.asarray(logits[:, -1], np.float32)

    def empty(self, value: ir.Value) -> Array:
        """A past of length 0; the subgraph's input tells heads and sizes."""
        heads, size = fixed(value, 5, (2, 4), "(2, batch, heads, length, size)")
        return np.zeros((2, len(self.prompt), heads, 0, size), dtype_of(value))


class EncoderDecoder:
    """An encoder that runs once, and a decoder of one token with a past for itself and one of the encoder's output.

    The encoder takes encoder_input_ids, encoder_attention_mask where it has it, and decoder_input_ids; with these it
    gives the logits after them, encoder_hidden_states, and the keys and values of each layer of the decoder: those of
    self-attention first, then those of cross-attention. Without decoder_input_ids it gives the latter only. The decoder
    takes input_ids (all of a sequence unless their length is 1), encoder_attention_mask and encoder_hidden_states where
    it has them, and the same pasts, each (rows, heads, length, size); it gives logits and those of self-attention.
    """

    def __init__(
        self,
        bodies: Bodies,
        encoder: ir.Graph,
        decoder: ir.Graph,
        source: Mapping[str, Array],
        start: Array,
        beams: int = 1,
    ) -> None:
        self.bodies, self.encoder, self.decoder, self.beams = bodies, encoder, decoder, beams
        self.start = start.astype(np.int32)
        self.prompt = np.repeat(self.start, beams, axis=0)
        self.source = {**source, "decoder_input_ids": self.start}
        width = decoder.inputs[0].shape
        self.whole_sequences = width is None or width[1] != 1
        self.layers = len(decoder.outputs) - 1
        self.constant: dict[str, Array] = {}
        self.own: list[Array] = []
        self.cross: list[Array] = []

    def first(self) -> Array:
        outputs = self.bodies["encoder"](*[self.given(value.name) for value in self.encoder.inputs])
        mask = self.source.get("encoder_attention_mask")
        if mask is not None:
            self.constant["encoder_attention_mask"] = np.repeat(mask, self.beams, axis=0)
        if all(value.name != "decoder_input_ids" for value in self.encoder.inputs):
            self.cross = [np.repeat(output, self.beams, axis=0) for output in outputs]
            self.own = [self.empty(value) for value in self.pasts()[: self.layers]]
            return self.run(self.prompt)
        logits, hidden, *states = outputs
        self.constant["encoder_hidden_states"] = np.repeat(hidden, self.beams, axis=0)
        states = [np.repeat(state, self.beams, axis=0) for state in states]
        self.own, self.cross = states[: self.layers], states[self.layers :]
        return np.repeat(np.asarray(logits[:, -1], np.float32), self.beams, axis=0)

    def following(self, sequences: Array, rows: Array) -> Array:
        # The rows of an entry share what comes from the encoder.
        self.own = [state[rows] for state in self.own]
        return self.run(sequences if self.whole_sequences else np.ascontiguousarray(sequences[:, -1:]))

    def run(self, ids: Array) -> Array:
        constants = [self.constant[value.name] for value in self.decoder.inputs[1:] if value.name in self.constant]
        expected = len(self.decoder.inputs) - 1 - len(constants)
        if expected != len(self.own) + len(self.cross):
            raise errors.NotImplemented(
                f"the decoder takes {expected} inputs after its first {1 + len(constants)}, the encoder gives "
                f"{len(self.own) + len(self.cross)} states: past and present that share a buffer are not supported"
            )
        logits, *self.own = self.bodies["decoder"](ids, *constants, *self.own, *self.cross)
        return np.asarray(logits[:, -1], np.float32)

    def given(self, name: str | None) -> Array:
        if name not in self.source:
            raise ValueError(f"the encoder's input '{name}' must be one of {', '.join(sorted(self.source))}")
        return self.source[name]

    def pasts(self) -> Sequence[ir.Value]:
        named = ("encoder_attention_mask", "encoder_hidden_states")
        return [value for value in self.decoder.inputs[1:] if value.name not in named]

    def empty(self, value: ir.Value) -> Array:
        heads, size = fixed(value, 4, (1, 3), "(batch, heads, length, size)")
        return np.zeros((len(self.prompt), heads, 0, size), dtype_of(value))


def fixed(value: ir.Value, rank: int, axes: Sequence[int], expected: str) -> list[int]:
    """The sizes of a subgraph's input along `axes`, which must be numbers."""
    shape = value.shape
    sizes = [] if shape is None or len(shape) != rank else [shape[axis] for axis in axes]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) != len(axes):
        raise ValueError(f"the decoder's input '{value.name}' must be {expected} with known sizes, not {shape}")
    return numbers


def dtype_of(value: ir.Value) -> np.dtype[Any]:
    return np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()


def left_padding(ids: Array, pad_token: int) -> Array:
    """1 from the first token on that is no padding: padding at the end may be the end token, which counts."""
    return (np.cumsum(ids != pad_token, axis=1) > 0).astype(np.int32)
