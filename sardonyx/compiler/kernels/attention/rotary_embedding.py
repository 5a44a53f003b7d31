"""RotaryEmbedding, of ONNX and of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.attention import Tensors, dtype_reason, packed_last
from sardonyx.compiler.kernels.attention.attention_call import heads_of_cache, heads_of_rows
from sardonyx.compiler.kernels.attention.heads import Rotary, turn
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

Given = TypeVar("Given")


@template("rotary_embedding")
class RotaryEmbeddingKernel(NativeKernel):
    """Parameters: `num_heads` (0: from the caches), `interleaved`, and `positions_first` (com.microsoft's inputs)."""

    def _ordered(self, inputs: Sequence[Given | None]) -> list[Given | None]:
        """The inputs as (input, cosines, sines, positions)."""
        given = [*inputs, *[None] * (4 - len(inputs))]
        if self.parameters.get("positions_first"):
            return [given[0], given[2], given[3], given[1]]
        return given

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = self._ordered(inputs)
        positions = given[3]
        if positions is not None and (positions.dtype is None or numpy_dtype(positions.dtype) != np.int64):
            return "positions that are not int64"
        return dtype_reason(given[:3])

    def bind(self, binder: Binder, x: Tensor, *inputs: Tensor | None) -> Tensors:
        _, cosine, sine, positions = self._ordered((x, *inputs))
        assert cosine is not None
        assert sine is not None
        x = packed_last(binder, x)
        cosine, sine = contiguous(binder, cosine), contiguous(binder, sine)
        rank = len(x.shape)
        if rank not in (3, 4):
            raise ValueError(f"input 'input' is expected to have 3 or 4 dimensions, got {rank}")
        result = binder.new(x.dtype, x.shape)
        half = cosine.shape[-1]
        if rank == 4:
            source, target = heads_of_cache(x), heads_of_cache(result)
        else:
            heads = int(self.parameters["num_heads"]) or x.shape[2] // max(1, 2 * half)
            source, target = (heads_of_rows(tensor, heads, "input") for tensor in (x, result))
        if sine.shape != cosine.shape or source.size < 2 * half:
            raise ValueError(
                f"heads of {source.size} channels cannot be turned by caches of shapes {cosine.shape} and {sine.shape}"
            )
        batch_step = 0
        if positions is None:
            if len(cosine.shape) != 3 or cosine.shape[1] != source.rows or cosine.shape[0] not in (1, source.batch):
                raise ValueError(f"without 'position_ids', caches of shape {cosine.shape} do not fit {x.shape}")
            batch_step = source.rows if cosine.shape[0] > 1 else 0
        elif positions.shape != (source.batch, source.rows) and positions.size != 1:
            raise ValueError(
                f"'position_ids' of shape {positions.shape} do not fit batch {source.batch} and length {source.rows}"
            )
        rotary = Rotary(cosine, sine, bool(self.parameters["interleaved"]), positions, batch_step)
        turn(binder, source, target, rotary=rotary)
        return (result,)
