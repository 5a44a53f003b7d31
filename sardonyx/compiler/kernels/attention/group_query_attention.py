"""GroupQueryAttention of com.microsoft: rotary embedding and the cache's update as steps before the attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.attention import Tensors, dtype_reason, mask_rows, packed_last
from sardonyx.compiler.kernels.attention.attention_call import Attention, Heads, heads_of_cache, heads_of_rows
from sardonyx.compiler.kernels.attention.heads import Rotary, Start, carry, new_heads, turn
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.microsoft.attention_core import all_cached

# An entry whose past begins this far before its end starts at 0.
_FROM_THE_START = 1 << 40


@template("group_query_attention")
class GroupQueryAttentionKernel(NativeKernel):
    """Parameters: the attributes of the operator, and `presents` (which of the two caches are wanted)."""

    known_inputs = (6,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = [*inputs, *[None] * (16 - len(inputs))]
        if len(outputs) > 3 and outputs[3] is not None:
            return "the scores as an output"
        if any(fact is not None for fact in given[12:16]):
            return "scales of a quantised cache, or normalised queries and keys"
        sink, query = given[11], given[0]
        if (sink is not None or self.parameters["smooth_softmax"] == 1) and (
            query is None or query.dtype is None or numpy_dtype(query.dtype).name not in ("float32", "float64")
        ):
            return "a sink for narrow types"
        if self.parameters["do_rotary"] and (given[7] is None or given[8] is None):
            return "'do_rotary' without the inputs 'cos_cache' and 'sin_cache'"
        return dtype_reason([query, given[1], given[2], given[3], given[4], given[7], given[8], given[10], sink])

    def bind(
        self,
        binder: Binder,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        past_k: Tensor | None,
        past_v: Tensor | None,
        lengths: Tensor,
        total: Tensor,
        cosine: Tensor | None = None,
        sine: Tensor | None = None,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
        sink: Tensor | None = None,
        *declined: None,
    ) -> Tensors:
        assert total.array is not None
        longest = int(total.array.reshape(()))
        q, k, v = self._operands(packed_last(binder, query), key, value, binder)
        held = None if past_k is None or past_v is None else min(past_k.shape[2], past_v.shape[2])
        borrows = all_cached([(one.batch, one.rows) for one in (q, k, v)], held, longest)
        if lengths.size != q.batch or q.rows > longest:
            raise ValueError(
                f"'seqlens_k' of {lengths.size} elements and total length {longest} do not fit batch {q.batch} and "
                f"{q.rows} queries"
            )
        capacity = longest if past_k is None else max(longest, past_k.shape[2])
        is_first = q.rows == longest
        lengths = contiguous(binder, lengths)
        least = 1 if is_first else max(1, q.rows)
        start = Start(lengths, 1, _FROM_THE_START if is_first else q.rows, capacity - q.rows, least, longest)
        # Where no new rows come, all that an entry has is its past.
        end = Start(lengths, 1, 0, capacity, least, longest)
        rotary = None
        if self.parameters["do_rotary"] and cosine is not None and sine is not None:
            if positions is not None and (is_first or positions.shape != (q.batch, q.rows)):
                positions = None if positions.size == 0 else positions.reshaped((1,), (1,))
            rotary = self._rotary(binder, cosine, sine, positions, min(q.size, k.size))
        if rotary is not None:
            turned = new_heads(binder, q)
            turn(binder, q, turned, rotary=rotary, start=start)
            q = turned
        presents = []
        for new, past, how in ((k, past_k, rotary), (v, past_v, None)):
            present = binder.new(query.dtype, (q.batch, k.heads, capacity, new.size))
            past = None if past is None else contiguous(binder, past)
            if past is not None and (past.shape[:2], past.shape[3]) != (present.shape[:2], present.shape[3]):
                raise ValueError(f"a cache of shape {past.shape} does not fit new keys and values {present.shape}")
            carry(binder, past, present, new.rows, end if borrows else start)
            if not borrows:
                place = heads_of_cache(present).positions(0, new.rows)
                turn(binder, new, place, rotary=how, start=start, moves=True)
            presents.append(present)
        output = binder.new(query.dtype, (q.batch, q.rows, q.heads * v.size))
        window = int(self.parameters["local_window_size"])
        causal = bool(self.parameters["causal"])
        Attention(
            q,
            heads_of_cache(presents[0]).positions(0, longest),
            heads_of_cache(presents[1]).positions(0, longest),
            heads_of_rows(output, q.heads, "output"),
            self.parameters["scale"] or 1.0 / math.sqrt(q.size),
            [] if bias is None else [mask_rows(packed_last(binder, bias), 0.0)],
            left=window - 1 if causal and window > 0 else None,
            right=0 if causal else None,
            lengths=lengths,
            length_add=1,
            from_end=not is_first,
            softcap=float(self.parameters["softcap"]),
            sink=self._sink(binder, sink, q),
        ).bind(binder)
        wanted = self.parameters["presents"]
        return output, *(present if want else None for present, want in zip(presents, wanted, strict=True))

    def _operands(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, binder: Binder
    ) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values from three inputs, or all packed in the query."""
        heads, shared = int(self.parameters["num_heads"]), int(self.parameters["kv_num_heads"])
        if key is not None and value is not None:
            return (
                heads_of_rows(query, heads, "query"),
                heads_of_rows(packed_last(binder, key), shared, "key"),
                heads_of_rows(packed_last(binder, value), shared, "value"),
            )
        every = heads_of_rows(query, heads + 2 * shared, "query")
        size = every.size
        return (
            heads_of_rows(query, heads, "query", 0, size),
            heads_of_rows(query, shared, "query", heads * size, size),
            heads_of_rows(query, shared, "query", (heads + shared) * size, size),
        )

    def _rotary(self, binder: Binder, cosine: Tensor, sine: Tensor, positions: Tensor | None, size: int) -> Rotary:
        half = cosine.shape[-1]
        if sine.shape != cosine.shape or size < 2 * half:
            raise ValueError(
                f"heads of {size} channels cannot be turned by caches of shapes {cosine.shape} and {sine.shape}"
            )
        interleaved = bool(self.parameters["rotary_interleaved"])
        return Rotary(contiguous(binder, cosine), contiguous(binder, sine), interleaved, positions)

    def _sink(self, binder: Binder, sink: Tensor | None, query: Heads) -> Tensor | None:
        if sink is not None:
            return contiguous(binder, sink)
        if self.parameters["smooth_softmax"] == 1:
            return binder.constant(np.zeros(query.heads, query.tensor.dtype))
        return None
