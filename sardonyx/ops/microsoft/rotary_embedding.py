"""Rotary position embeddings (Su et al. 2021): pairs of channels turned by an angle that grows with the position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, expect_rank, same, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """The first 2 * half channels of `x` turned pairwise; the others stay as they are.

    `cos` and `sin` end in (…, half) and broadcast to `x` in front. A pair is channels i and i + half, or 2i and
    2i + 1 where `interleaved`.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        real, imaginary = turned[..., 0::2], turned[..., 1::2]
    else:
        real, imaginary = turned[..., :half], turned[..., half:]
    first, second = real * cos - imaginary * sin, imaginary * cos + real * sin
    if interleaved:
        pairs = np.stack([first, second], axis=-1).reshape(turned.shape)
    else:
        pairs = np.concatenate([first, second], axis=-1)
    return np.concatenate([pairs, rest], axis=-1) if rest.shape[-1] else pairs


def cache_rows(cache: Array, positions: Array, name: str) -> Array:
    """Rows of a cos or sin cache in working precision; ValueError where it has no such row."""
    if positions.size and (positions.min() < 0 or positions.max() >= len(cache)):
        raise ValueError(f"'{name}' has {len(cache)} rows; positions go from {positions.min()} to {positions.max()}")
    return wide(cache)[positions]


class HeadRotation(SameAsFirst):
    """Common to the operators that rotate (batch, length, heads * size) or (batch, heads, length, size)."""

    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "channels are read in pairs"
    interleaved: int = 0
    num_heads: int = 0
    rotary_embedding_dim: int = 0
    is_packed_batching: int = 0
    scale: float = 1.0

    def rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """`x` turned by rows (batch, length, half) of the caches."""
        if x.ndim == 4:
            return rotated(wide(x), cos[:, None], sin[:, None], bool(self.interleaved)).astype(x.dtype)
        if x.ndim != 3:
            raise ValueError(f"input 'input' is expected to have 3 or 4 dimensions, got {x.ndim}")
        size = x.shape[-1] // self.num_heads if self.num_heads else 2 * cos.shape[-1]
        if size == 0 or x.shape[-1] % size or size < 2 * cos.shape[-1]:
            raise ValueError(f"input 'input' of width {x.shape[-1]} does not divide into heads of {size} channels")
        heads = wide(x).reshape(*x.shape[:2], x.shape[-1] // size, size)
        return rotated(heads, cos[:, :, None], sin[:, :, None], bool(self.interleaved)).reshape(x.shape).astype(x.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        expect_rank(inputs[0], (3, 4), "input")
        return [same(inputs[0])]


@operator("RotaryEmbedding", domain=DOMAIN)
class RotaryEmbedding(HeadRotation):
    """Each token turned by the row of its position in the caches.

    position_ids is (batch, length), or one offset from which the positions of every sequence count.
    """

    inputs: ClassVar[str] = "input, position_ids, cos_cache, sin_cache"

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        parameters = {"num_heads": self.num_heads, "interleaved": self.interleaved, "positions_first": True}
        return Template("rotary_embedding", parameters, self.run)

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, positions, cos, sin = inputs
        length = x.shape[2] if x.ndim == 4 else x.shape[1]
        if positions.size == 1 and positions.ndim < 2:
            positions = np.broadcast_to(positions.reshape(()) + np.arange(length), (x.shape[0], length))
        return (self.rotate(x, cache_rows(cos, positions, "cos_cache"), cache_rows(sin, positions, "sin_cache")),)


@operator("MRotaryEmbedding", domain=DOMAIN)
class MRotaryEmbedding(HeadRotation):
    """Rotary embedding with three positions for each token, each serving its share of the channel pairs (Qwen-VL).

    position_ids (3, batch, length). `mrope_layout` 0 gives each position a run of pairs; 1 takes the first position
    everywhere, then the second at every third pair from 1, the third at every third pair from 2. `scale` multiplies
    what is turned, which that of RotaryEmbedding does not in onnxruntime.
    """

    inputs: ClassVar[str] = "input, position_ids, cos_cache, sin_cache"
    mrope_section: tuple[int, ...]
    mrope_layout: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, positions, cos, sin = inputs
        if len(self.mrope_section) != 3 or sum(self.mrope_section) != cos.shape[1]:
            raise ValueError(
                f"attribute 'mrope_section' must be 3 numbers with the sum {cos.shape[1]}, not {self.mrope_section}"
            )
        if positions.ndim != 3 or positions.shape[0] != 3:
            raise ValueError(f"input 'position_ids' must be (3, batch, length), got {positions.shape}")
        stream = self.streams(cos.shape[1])
        scale = np.float32(self.scale)
        mixed = [
            np.take_along_axis(np.moveaxis(cache_rows(cache, positions, name), 0, -1), stream[..., None], -1)[..., 0]
            * scale
            for cache, name in ((cos, "cos_cache"), (sin, "sin_cache"))
        ]
        return (self.rotate(x, *mixed),)

    def streams(self, half: int) -> Array:
        """Which of the three positions serves each pair, as (1, 1, half)."""
        if self.mrope_layout == 0:
            return np.repeat(np.arange(3), self.mrope_section)[None, None]
        stream = np.zeros(half, np.int64)
        for index in (1, 2):
            stream[index : 3 * self.mrope_section[index] : 3] = index
        return stream[None, None]


@operator("GemmaRotaryEmbedding", domain=DOMAIN)
class GemmaRotaryEmbedding(SameAsFirst):
    """q * cos(emb) + q_rot * sin(emb), and the same for k; the angles' cosine and sine are rounded to float16."""

    inputs: ClassVar[str] = "emb, q, q_rot, k, k_rot"
    outputs: ClassVar[str] = "output1, output2"
    host_reason: ClassVar[str] = "one angle serves all heads"

    def run(self, *inputs: Any) -> Sequence[Array]:
        angle, q, q_half, k, k_half = inputs
        cos, sin = (wide(np.asarray(function(angle)).astype(q.dtype))[:, None] for function in (np.cos, np.sin))
        turned = (
            (wide(x) * cos).astype(q.dtype) + (wide(half) * sin).astype(q.dtype)
            for x, half in ((q, q_half), (k, k_half))
        )
        return tuple(turned)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[1]), same(inputs[3])]
