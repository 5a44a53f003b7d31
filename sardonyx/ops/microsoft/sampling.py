"""Sampling: text generation that draws each token among the likely ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.generation import TokenByToken, number
from sardonyx.ops.microsoft.generation_models import Bodies
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim
from sardonyx.runtime.random_state import stream_of

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


class MinimalStandard:
    """The generator of Park and Miller (1988), x = 16807 x mod (2**31 - 1), which onnxruntime draws tokens with."""

    MODULUS = 2**31 - 1

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise ValueError(f"'seed' must not be negative, got {seed}")
        self.state = seed % 2**32 % self.MODULUS or 1

    def uniform(self) -> float:
        """A number of [0, 1) made of two of the generator's, as C++'s generate_canonical makes one of 53 bits."""
        values = self.MODULUS - 1
        low, high = self.draw(), self.draw()
        return min((low + high * float(values)) / float(values) ** 2, math.nextafter(1.0, 0.0))

    def draw(self) -> int:
        self.state = self.state * 16807 % self.MODULUS
        return self.state - 1


@operator("Sampling", domain=DOMAIN)
class Sampling(TokenByToken):
    """Tokens drawn from the smallest set of likely ones whose probabilities add up to `top_p`.

    The scores of the others become `filter_value`. At least `min_tokens_to_keep` and never less than one token stay.
    `custom` 1 keeps the tokens up to the first that brings the sum above `top_p`. With input `seed` the tokens are
    those that onnxruntime draws on Linux; without one they come from the process's own random numbers.
    """

    inputs: ClassVar[str] = (
        "input_ids, max_length, min_length?, repetition_penalty?, vocab_mask?, prefix_vocab_mask?, attention_mask?, "
        "presence_mask?, seed?"
    )
    outputs: ClassVar[str] = "sequences, filtered_logits?"
    temperature: float = 1.0
    top_p: float = 0.0
    filter_value: float = -1e20
    min_tokens_to_keep: int = 0
    presence_penalty: float = 0.0
    custom: int = 0

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        self.stream = stream_of(node.name or node.outputs[0].name or node.op_type)

    def run_bodies(self, bodies: Bodies, inputs: Sequence[Any]) -> Sequence[Any]:
        ids, longest, shortest, penalty, allowed, first_allowed, mask, presence, seed = padded(inputs, 9)
        rules = replace(
            self.rules(shortest, penalty, allowed, first_allowed),
            temperature=self.temperature,
            presence=presence,
            presence_penalty=self.presence_penalty,
        )
        generator = None if seed is None else MinimalStandard(int(number(seed, 0)))
        filtered = np.zeros((len(ids), 0), np.float32)

        def choose(scores: Array) -> Array:
            nonlocal filtered
            filtered = self.filtered(scores)
            points = self.stream.uniform((len(scores),)) if generator is None else None
            return np.array(
                [
                    drawn(row, points[index] if points is not None else generator.uniform())  # type: ignore[union-attr]
                    for index, row in enumerate(filtered)
                ]
            )

        sequences = self.generate(self.model(bodies, ids, mask), rules, int(number(longest, 0)), choose)
        return sequences, filtered

    def filtered(self, scores: Array) -> Array:
        """The scores with `filter_value` for those of tokens that are not among the likely ones."""
        order = np.argsort(-scores if self.custom else scores, axis=1, kind="stable")
        ranked = np.take_along_axis(scores, order, axis=1)
        shares = np.exp(ranked - ranked.max(axis=1, keepdims=True))
        total = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1, dtype=np.float32)
        dropped = np.zeros(scores.shape, np.bool_)
        if self.custom:
            dropped[:, 1:] = total[:, :-1] > np.float32(self.top_p)
        else:
            kept = max(1, self.min_tokens_to_keep)
            dropped[:, :-kept] = total[:, :-kept] <= np.float32(1) - np.float32(self.top_p)
        result = scores.copy()
        np.put_along_axis(result, order, np.where(dropped, np.float32(self.filter_value), ranked), axis=1)
        return result

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        (sequences,) = super().infer(inputs, inference)
        return [sequences, tensor(ir.DataType.FLOAT, (dim(inputs[0], 0), self.words()))]

    def words(self) -> Any:
        """The size of the vocabulary."""
        shape = self.decoder.outputs[0].shape
        known = None if shape is None or len(shape) != 3 else shape[2]
        return self.vocab_size if self.vocab_size > 0 else dim(None, 0) if known is None else known


def drawn(scores: Array, point: float) -> int:
    """The token at `point` of [0, 1) among tokens with probabilities in proportion to exp(scores)."""
    finite = np.isfinite(scores)
    if not finite.any():
        raise ValueError("no token has a finite score to be drawn by; look for NaN in the decoder's logits")
    wide = scores.astype(np.float64)
    limits = np.cumsum(np.where(finite, np.exp(np.where(finite, wide - wide[finite].max(), 0)), 0))
    return min(int(np.searchsorted(limits, point * limits[-1], side="right")), len(scores) - 1)
