"""ONNX's Attention, and MultiHeadAttention and Attention of com.microsoft, by the attention kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.attention_call import (
    Append,
    Attention,
    Bias,
    Heads,
    few_rows,
    heads_of_cache,
    heads_of_rows,
    storage_reason,
)
from sardonyx.compiler.kernels.attention.heads import appended, new_heads, turn
from sardonyx.compiler.kernels.attention.spans import spans
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

Tensors = Sequence[Tensor | None]


def dtype_reason(facts: Sequence[Fact | None]) -> str | None:
    """Why operands of these types have no attention kernel; all must have the first one's type."""
    types = {numpy_dtype(fact.dtype) if fact.dtype is not None else None for fact in facts if fact is not None}
    if len(types) != 1:
        return f"operands of different types: {', '.join(sorted(map(str, types)))}"
    return storage_reason(next(iter(types)))


def packed_last(binder: Binder, tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it, with the elements of its last axis one after another."""
    return tensor if tensor.strides[-1] == 1 or tensor.shape[-1] <= 1 else contiguous(binder, tensor)


def optional_last(binder: Binder, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else packed_last(binder, tensor)


def mask_rows(tensor: Tensor, masked: float) -> Bias:
    """A mask or bias that broadcasts to (batch, heads, queries, keys) from the right."""
    missing = 4 - len(tensor.shape)
    if missing < 0:
        raise ValueError(f"a mask of shape {tensor.shape} has more than 4 dimensions")
    return Bias(tensor.reshaped((1,) * missing + tensor.shape, (0,) * missing + tensor.strides), masked)


def padding_bias(
    binder: Binder, mask: Tensor | None, batch: int, queries: int, keys: int, masked: float, name: str
) -> list[Bias]:
    """The documented forms of a padding mask; see `ops.microsoft.attention_core.padding_mask`."""
    if mask is None:
        return []
    mask = packed_last(binder, mask)
    shape, strides = mask.shape, mask.strides
    if len(shape) == 1:
        if shape[0] not in (batch, 2 * batch, 3 * batch + 2):
            raise ValueError(f"input '{name}' of {shape[0]} elements does not fit a batch of {batch}")
        return [Bias(spans(binder, mask, batch, keys, has_starts=shape[0] == 2 * batch), masked)]
    if shape == (batch, keys):
        return [Bias(mask.reshaped((batch, 1, 1, keys), (strides[0], 0, 0, 1)), masked)]
    if shape == (batch, queries, keys):
        return [Bias(mask.reshaped((batch, 1, queries, keys), (strides[0], 0, strides[1], 1)), masked)]
    if len(shape) == 4 and shape[0] == batch and shape[2] >= keys and shape[3] >= keys:
        begin = (keys - queries) * strides[2] * mask.dtype.itemsize
        rows = mask.reshaped((batch, shape[1], queries, keys), (strides[0], strides[1], strides[2], 1), begin)
        return [Bias(rows, masked)]
    raise ValueError(f"input '{name}' of shape {shape} is no mask for batch {batch}, {queries} queries and {keys} keys")


@dataclass(frozen=True)
class Masks:
    """What com.microsoft masks scores by: a padding mask, the input called `name`, and a tensor that is added."""

    name: str
    padding: Tensor | None
    added: Tensor | None


def attended(
    binder: Binder,
    parameters: Mapping[str, Any],
    operands: tuple[Heads, Heads, Heads],
    masks: Masks,
    *,
    offset: int,
    append: Append | None = None,
    result: np.dtype[Any] | None = None,
) -> Tensor:
    """Add the attention of queries, keys and values as com.microsoft has it; the output is (batch, rows, width), of
    the operands' type unless another `result` is asked for.

    Parameters: `scale` (0: 1 / sqrt(size)), `mask_filter_value`, `unidirectional`.
    """
    q, k, v = operands
    output = binder.new(result or q.tensor.dtype, (q.batch, q.rows, q.heads * v.size))
    filtered = float(parameters["mask_filter_value"])
    biases = padding_bias(binder, masks.padding, q.batch, q.rows, k.rows, filtered, masks.name)
    if masks.added is not None:
        biases.append(mask_rows(packed_last(binder, masks.added), 0.0))
    Attention(
        q,
        k,
        v,
        heads_of_rows(output, q.heads, "output"),
        float(parameters["scale"]) or 1.0 / math.sqrt(q.size),
        biases,
        right=0 if parameters["unidirectional"] else None,
        offset=offset,
        append=append,
    ).bind(binder)
    return output


@dataclass(frozen=True)
class _Operands:
    """Queries, keys and values; whether the keys and values already are a cache."""

    query: Heads
    key: Heads
    value: Heads
    from_cache: bool = False


@template("multi_head_attention")
class MultiHeadAttentionKernel(NativeKernel):
    """com.microsoft.MultiHeadAttention.

    Parameters: `num_heads`, `scale` (0: 1 / sqrt(size)), `mask_filter_value`, `unidirectional`, and
    `presents` (which of the two caches are wanted).
    """

    rounds_result = True

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = [*inputs, *[None] * (10 - len(inputs))]
        if given[8] is not None or given[9] is not None:
            return "a cache of the longest length (past_sequence_length, cache_indirection)"
        if len(outputs) > 3 and outputs[3] is not None:
            return "the scores as an output"
        mask = given[4]
        if mask is not None and (mask.dtype is None or numpy_dtype(mask.dtype).kind not in "ib"):
            return f"a key_padding_mask of {mask.dtype}"
        return dtype_reason([given[0], given[1], given[2], given[3], given[5], given[6], given[7]])

    def bind(
        self,
        binder: Binder,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        added: Tensor | None = None,
        past_k: Tensor | None = None,
        past_v: Tensor | None = None,
        *declined: None,
        rounded: bool = False,
    ) -> Tensors:
        heads = int(self.parameters["num_heads"])
        operands = _separated(
            packed_last(binder, query), optional_last(binder, key), optional_last(binder, value), heads
        )
        bias = None if bias is None else contiguous(binder, bias)
        operands, append = self._with_bias(binder, operands, bias, past_k, past_v)
        before = 0
        if past_k is not None and past_v is not None and not operands.from_cache:
            before = past_k.shape[2]
        q, k, v = operands.query, operands.key, operands.value
        masks = Masks("key_padding_mask", mask, added)
        result = np.dtype(ml_dtypes.bfloat16) if rounded else None
        output = attended(binder, self.parameters, (q, k, v), masks, offset=before, append=append, result=result)
        wanted_k, wanted_v = self.parameters["presents"]
        return output, k.as_tensor() if wanted_k else None, v.as_tensor() if wanted_v else None

    def _with_bias(
        self, binder: Binder, operands: _Operands, bias: Tensor | None, past_k: Tensor | None, past_v: Tensor | None
    ) -> tuple[_Operands, Append | None]:
        """The operands with the bias added and the past in front of keys and values; a cache has had its bias."""
        q, k, v = operands.query, operands.key, operands.value
        starts = [0, q.heads * q.size, q.heads * (q.size + k.size)]
        if bias is not None:
            expected = q.heads * (q.size + k.size + v.size)
            if bias.size != expected:
                raise ValueError(f"input 'bias' is expected to have {expected} elements, got {bias.size}")
            biased = new_heads(binder, q)
            turn(binder, q, biased, bias=bias, bias_start=starts[0])
            q = biased
        if operands.from_cache:
            return _Operands(q, k, v, True), None
        made = cached(
            binder,
            q,
            (k, v),
            (past_k, past_v),
            (bias, starts[1], starts[2]),
            is_causal=bool(self.parameters["unidirectional"]),
        )
        return _Operands(q, made.key, made.value), made.append


def _placed(binder: Binder, new: Heads, past: Tensor | None, bias: Tensor | None, bias_start: int) -> Heads:
    """Keys or values behind their past, with their bias; those of the input where there is neither."""
    if past is None and bias is None:
        return new
    if past is None:
        target = new_heads(binder, new)
        turn(binder, new, target, bias=bias, bias_start=bias_start)
        return target
    whole = heads_of_cache(appended(binder, past, new))
    before = past.shape[2]
    copy_into(binder, past, whole.positions(0, before).as_tensor())
    target = whole.positions(before, new.rows)
    if bias is None:
        copy_into(binder, new.as_tensor(), target.as_tensor())
    else:
        turn(binder, new, target, bias=bias, bias_start=bias_start)
    return whole


@dataclass(frozen=True)
class Cached:
    """Keys and values with their past in front; with `append`, the kernel of the attention writes them."""

    key: Heads
    value: Heads
    append: Append | None = None


def cached(
    binder: Binder,
    query: Heads,
    new: tuple[Heads, Heads],
    past: tuple[Tensor | None, Tensor | None],
    bias: tuple[Tensor | None, int, int] = (None, 0, 0),
    *,
    is_causal: bool = False,
    has_window: bool = False,
) -> Cached:
    """New keys and values behind their past, if there is one; `bias` is a tensor and where those of each begin.

    The kernel appends them on the way where its form for few rows reads every key.
    """
    added, *starts = bias
    rows = query.heads // max(1, new[0].heads) * query.rows
    sees_all = rows > 0 and not has_window and (new[0].rows <= query.rows or not is_causal)
    appends = (
        added is None and sees_all and few_rows(binder, rows, query.tensor.dtype, max(query.size, new[1].size)) > 0
    )
    old_k, old_v = past
    if appends and old_k is not None and old_v is not None:
        old_k, old_v = contiguous(binder, old_k), contiguous(binder, old_v)
        key, value = appended(binder, old_k, new[0]), appended(binder, old_v, new[1])
        return Cached(heads_of_cache(key), heads_of_cache(value), Append(old_k, old_v, *new))
    with binder.together():
        placed = [
            _placed(binder, one, before, added, start) for one, before, start in zip(new, past, starts, strict=True)
        ]
    return Cached(placed[0], placed[1])


def _of_five(tensor: Tensor, index: int) -> Heads:
    """Operand `index` of (batch, rows, heads, operands, size)."""
    batch, rows, heads, _, size = tensor.shape
    steps = tensor.strides
    return Heads(tensor, batch, rows, heads, size, (steps[0], steps[1], steps[2]), index * steps[3])


def _separated(query: Tensor, key: Tensor | None, value: Tensor | None, heads: int) -> _Operands:
    """The operands of any of the layouts of MultiHeadAttention."""
    if len(query.shape) == 5:
        return _Operands(_of_five(query, 0), _of_five(query, 1), _of_five(query, 2))
    if len(query.shape) != 3:
        raise ValueError(f"input 'query' is expected to have 3 or 5 dimensions, got {len(query.shape)}")
    if key is None:
        width = query.shape[-1] // 3
        if query.shape[-1] % (3 * heads):
            raise ValueError(f"packed 'query' of width {query.shape[-1]} does not hold three times {heads} heads")
        q, k, v = (heads_of_rows(query, heads, "query", part * width, width // heads) for part in range(3))
        return _Operands(q, k, v)
    q = heads_of_rows(query, heads, "query")
    if len(key.shape) == 5:
        return _Operands(q, _of_five(key, 0), _of_five(key, 1))
    if value is None:
        raise ValueError("input 'value' is required with an unpacked 'key'")
    if len(key.shape) == 4:
        return _Operands(q, heads_of_cache(key), heads_of_cache(value), True)
    return _Operands(q, heads_of_rows(key, heads, "key"), heads_of_rows(value, heads, "value"))


@template("attention")
class AttentionKernel(NativeKernel):
    """ONNX's Attention from opset 23 on.

    Parameters: `q_num_heads`, `kv_num_heads`, `scale` (None: 1 / sqrt(size)), `is_causal`, `softcap`, `windows` (keys
    seen before and after, -1: all), and `presents` (which of the two caches are wanted).
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = [*inputs, *[None] * (7 - len(inputs))]
        if len(outputs) > 3 and outputs[3] is not None:
            return "the scores as an output"
        mask = given[3]
        if mask is not None:
            dtype = None if mask.dtype is None else numpy_dtype(mask.dtype)
            if dtype is None or dtype.name not in ("bool", "float16", "float32", "float64", "bfloat16"):
                return f"an attn_mask of {dtype}"
            query = given[0]
            if dtype == np.float64 and (query is None or query.dtype is None or numpy_dtype(query.dtype) != dtype):
                return "an attn_mask wider than the operands"
        return dtype_reason([given[0], given[1], given[2], given[4], given[5]])

    def bind(
        self,
        binder: Binder,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        past_k: Tensor | None = None,
        past_v: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensors:
        if not len(query.shape) == len(key.shape) == len(value.shape) or len(query.shape) not in (3, 4):
            raise ValueError(
                f"Q, K and V must all have rank 3 or 4, not shapes {query.shape}, {key.shape}, {value.shape}"
            )
        if (past_k is None) != (past_v is None):
            raise ValueError("past_key and past_value must be given together")
        before, after = self.parameters["windows"]
        q_heads, kv_heads = int(self.parameters["q_num_heads"]), int(self.parameters["kv_num_heads"])
        q = _heads(packed_last(binder, query), q_heads, "Q")
        new = (
            _heads(packed_last(binder, key), kv_heads, "K"),
            _heads(packed_last(binder, value), kv_heads, "V"),
        )
        made = cached(
            binder,
            q,
            new,
            (past_k, past_v),
            is_causal=bool(self.parameters["is_causal"]),
            has_window=before >= 0 or after >= 0,
        )
        k, v = made.key, made.value
        if len(query.shape) == 3:
            output = binder.new(query.dtype, (q.batch, q.rows, q.heads * v.size))
            place = heads_of_rows(output, q.heads, "Y")
        else:
            output = binder.new(query.dtype, (q.batch, q.heads, q.rows, v.size))
            place = heads_of_cache(output)
        scale = self.parameters["scale"]
        Attention(
            q,
            k,
            v,
            place,
            1.0 / math.sqrt(q.size) if scale is None else float(scale),
            [] if mask is None else [_whole_mask(binder, mask, k.rows)],
            left=None if before < 0 else before,
            right=0 if self.parameters["is_causal"] else None if after < 0 else after,
            offset=0 if past_k is None else past_k.shape[2],
            lengths=None if lengths is None else contiguous(binder, lengths),
            from_end=lengths is not None,
            softcap=float(self.parameters["softcap"]),
            append=made.append,
        ).bind(binder)
        wanted_k, wanted_v = self.parameters["presents"]
        return output, k.as_tensor() if wanted_k else None, v.as_tensor() if wanted_v else None


def _heads(tensor: Tensor, heads: int, name: str) -> Heads:
    return heads_of_cache(tensor) if len(tensor.shape) == 4 else heads_of_rows(tensor, heads, name)


def _whole_mask(binder: Binder, mask: Tensor, keys: int) -> Bias:
    """A mask whose rows have `keys` elements: what is missing at their end rules keys out."""
    given = mask.shape[-1]
    if given > keys:
        raise ValueError(f"an attn_mask of shape {mask.shape} for {keys} keys")
    if given == keys:
        return mask_rows(packed_last(binder, mask), float("-inf"))
    out = False if mask.dtype == np.bool_ else -np.inf
    whole = binder.new(mask.dtype, (*mask.shape[:-1], keys))
    item = mask.dtype.itemsize
    missing = binder.constant(np.full(1, out, mask.dtype)).reshaped(
        (*mask.shape[:-1], keys - given), (0,) * len(mask.shape)
    )
    copy_into(binder, mask, whole.reshaped(mask.shape, whole.strides))
    copy_into(binder, missing, whole.reshaped(missing.shape, whole.strides, given * item))
    return mask_rows(whole, float("-inf"))
