"""The heart of every attention operator: scores, masks, softmax with its variants, weighted sum, caches.

Queries are (batch, heads, queries, size), keys and values (batch, key heads, keys, size); where there are fewer key
heads, each serves a group of consecutive query heads (Ainslie et al. 2023). Everything is computed in float32 for
narrower types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.operator import Cost
from sardonyx.ops.microsoft.rules import Array, wide
from sardonyx.runtime.memory import memory

# Scores of all queries and keys that are held at once.
_COPIES_OF_SCORES = 4


@dataclass(frozen=True)
class Attended:
    """What attention gives: the weighted values (batch, heads, queries, size), the scores and their softmax."""

    output: Array
    scores: Array  # scaled products with soft-cap, bias and masks: what the softmax reads
    weights: Array


def split_heads(x: Array, heads: int, name: str = "query") -> Array:
    """(batch, length, heads * size) as (batch, heads, length, size), a view."""
    if x.ndim != 3 or x.shape[-1] % heads:
        raise ValueError(
            f"input '{name}' of shape {x.shape} does not divide into {heads} heads of (batch, length, heads * size)"
        )
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def check_new_rows(sizes: Sequence[tuple[int, int]]) -> None:
    """ValueError where queries, keys and values (batch, length) that belong to one another have different sizes."""
    if len(set(sizes)) > 1:
        words = ", ".join(
            f"{name} of batch {batch} and length {length}"
            for name, (batch, length) in zip(("queries", "keys", "values"), sizes, strict=True)
        )
        raise ValueError(f"{words} do not fit together")


def all_cached(sizes: Sequence[tuple[int, int]], capacity: int | None, longest: int) -> bool:
    """Whether no keys and values come with the queries, since a cache of `capacity` rows holds all `longest` of them.

    The sizes are those that `check_new_rows` takes; ValueError where they fit in neither way.
    """
    borrows = capacity is not None and list(sizes[1:]) == [(sizes[0][0], 0)] * 2
    if not borrows:
        check_new_rows(sizes)
    new = sizes[1][1]
    if capacity is not None and longest > capacity + new:
        raise ValueError(f"a total length of {longest} is more than a cache of {capacity} rows and {new} new keys have")
    return borrows


def grouped_heads(
    query: Array, key: Array | None, value: Array | None, num_heads: int, kv_num_heads: int
) -> tuple[Array, Array, Array]:
    """Queries, keys and values as (batch, heads, length, size), from three inputs or all packed in `query`."""
    if key is not None and value is not None:
        return (
            split_heads(wide(query), num_heads),
            split_heads(wide(key), kv_num_heads, "key"),
            split_heads(wide(value), kv_num_heads, "value"),
        )
    every = split_heads(wide(query), num_heads + 2 * kv_num_heads)
    second = num_heads + kv_num_heads
    return every[:, :num_heads], every[:, num_heads:second], every[:, second:]


def merge_heads(x: Array) -> Array:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def products(query: Array, key: Array, scale: float) -> Array:
    """scale * query @ key^T as (batch, heads, queries, keys), key heads shared by groups of query heads."""
    return grouped_matmul(wide(query) * np.float32(scale), np.swapaxes(wide(key), -1, -2))


def capped(scores: Array, softcap: float) -> Array:
    """softcap * tanh(scores / softcap); the scores themselves where it is not above 0."""
    return np.float32(softcap) * np.tanh(scores / np.float32(softcap)) if softcap > 0 else scores


def grouped_matmul(left: Array, right: Array) -> Array:
    """A product for each head, where `right` has one head for each group of heads of `left`."""
    if left.shape[1] == right.shape[1]:
        return np.asarray(np.matmul(left, right))
    batch, heads, rows, inner = left.shape
    shared = right.shape[1]
    if shared == 0 or heads % shared:
        raise ValueError(f"{heads} query heads are not a multiple of {shared} key heads")
    grouped = left.reshape(batch, shared, heads // shared * rows, inner)
    result: Array = np.matmul(grouped, right).reshape(batch, heads, rows, right.shape[-1])
    return result


def require_scores(query: Array, key: Array) -> None:
    """Ask for the memory of all scores, their masks among them; `errors.Fail` where it is not there."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    memory.require(_COPIES_OF_SCORES * pairs * np.dtype(np.float32).itemsize, "the scores of an attention")


def attend(
    query: Array,
    key: Array,
    value: Array,
    scale: float,
    *,
    bias: Sequence[Array | None] = (),
    keep: Array | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
) -> Attended:
    """softmax(scale * query @ key^T, soft-capped, + each bias, where `keep`) @ value.

    `bias` arrays and `keep` broadcast to (batch, heads, queries, keys); a key that `keep` rules out has weight 0, and
    a query without any key gives zeros. `sink` is one logit for each head that takes part in the denominator only.
    """
    require_scores(query, key)
    scores = capped(products(query, key, scale), softcap)
    for added in bias:
        if added is not None:
            if not _broadcasts(added.shape, scores.shape):
                raise ValueError(f"a bias of shape {added.shape} does not fit scores of shape {scores.shape}")
            scores = scores + wide(added)
    if keep is not None:
        scores = np.where(keep, scores, np.float32(-np.inf))
    weights = softmax(scores, sink)
    return Attended(grouped_matmul(weights, wide(value)), scores, weights)


def _broadcasts(shape: Sequence[int], whole: Sequence[int]) -> bool:
    sizes = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(one in (1, size) for one, size in sizes)


def softmax(scores: Array, sink: Array | None = None) -> Array:
    """Softmax over the last axis; rows of only -inf give zeros; `sink` (heads) adds exp(sink) to the denominator."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, wide(sink).reshape(-1, 1, 1))
    top = np.where(np.isneginf(top), np.float32(0), top)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(wide(sink).reshape(-1, 1, 1) - top)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))


def causal(queries: int, keys: int, past: int) -> Array:
    """Which keys a query may see, as (queries, keys): query `i` stands at position past + i."""
    return np.arange(keys) <= np.arange(queries)[:, None] + past


def padding_mask(
    mask: Array | None, batch: int, queries: int, keys: int, filter_value: float, name: str
) -> Array | None:
    """A mask of any of the documented forms as an additive array over (batch, 1, queries, keys).

    Forms: (batch) lengths; (2 * batch) ends, then starts; (3 * batch + 2) lengths and cumulated lengths; (batch, keys)
    and (batch, queries, keys) with 0 where masked; (batch, 1, longest, longest), of which the rows of the queries and
    the columns of the keys count. Masked places get `filter_value`.
    """
    if mask is None:
        return None
    place = np.arange(keys)
    if mask.ndim == 1:
        if mask.shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise ValueError(f"input '{name}' of {mask.shape[0]} elements does not fit a batch of {batch}")
        keep = place < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            keep = keep & (place >= mask[batch:, None])
        keep = keep[:, None, None, :]
    elif mask.ndim == 2 and mask.shape == (batch, keys):
        keep = (mask > 0)[:, None, None, :]
    elif mask.ndim == 3 and mask.shape == (batch, queries, keys):
        keep = (mask > 0)[:, None]
    elif mask.ndim == 4 and mask.shape[0] == batch and mask.shape[2] >= keys and mask.shape[3] >= keys:
        keep = (mask > 0)[:, :, keys - queries : keys, :keys]
    else:
        raise ValueError(
            f"input '{name}' of shape {mask.shape} is no mask for batch {batch}, {queries} queries and {keys} keys"
        )
    return np.where(keep, np.float32(0), np.float32(filter_value))


def default_scale(scale: float | None, head_size: int) -> float:
    """The attribute's scale, or 1 / sqrt(head_size) where it is absent or 0."""
    return scale if scale else 1.0 / math.sqrt(head_size)


def appended(past: Array | None, new: Array) -> Array:
    """A cache of (batch, heads, length, size) and what follows it."""
    return new if past is None else np.concatenate([past, new], axis=-2)


def written(buffer: Array, new: Array, at: int) -> Array:
    """A copy of a cache buffer of (…, longest, size) with `new` at position `at`."""
    end = at + new.shape[-2]
    if end > buffer.shape[-2]:
        raise ValueError(f"a cache of length {buffer.shape[-2]} has no room for positions {at} to {end - 1}")
    result = buffer.copy()
    result[..., at:end, :] = new
    return result


def reordered(cache: Array, indirection: Array | None, past: int) -> Array:
    """The cache of each beam, its first `past` positions gathered from the beams that they came from.

    `cache` is (batch * beams, heads, length, size); `indirection` (batch, beams, longest) names for each beam and
    position the beam of the same batch entry that wrote it.
    """
    if indirection is None or past == 0:
        return cache
    batch, beams = indirection.shape[:2]
    rows = indirection[:, :, :past] + beams * np.arange(batch)[:, None, None]
    rows = rows.reshape(batch * beams, past)
    result = cache.copy()
    result[:, :, :past] = np.swapaxes(np.swapaxes(cache, 1, 2)[rows, np.arange(past)], 1, 2)
    return result


def visible_scores(scores: Array) -> Array:
    """Scores as an output: what is ruled out shows as the lowest float32, as onnxruntime gives it."""
    return np.maximum(scores, np.finfo(np.float32).min)


def attention_cost(batch: Dim, heads: int, queries: Dim, keys: Dim, key_size: Dim, value_size: Dim) -> Cost:
    """Two products for each head, two operations a step; bytes are left to the caller's facts."""
    sizes = (batch, queries, keys, key_size, value_size)
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) != len(sizes):
        return Cost(None, None)
    b, q, k, dk, dv = numbers
    return Cost(2.0 * b * heads * q * k * (dk + dv), None)
