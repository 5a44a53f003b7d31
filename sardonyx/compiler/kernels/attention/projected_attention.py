"""Attention of com.microsoft, which projects its input first: a matrix product, then the attention over its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.attention import (
    Masks,
    Tensors,
    attended,
    dtype_reason,
)
from sardonyx.compiler.kernels.attention.attention_call import Heads, heads_of_cache, heads_of_rows
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Input
from sardonyx.ops.framework.facts import Fact


@template("projected_attention")
class ProjectedAttentionKernel(NativeKernel):
    """Parameters: `num_heads`, `scale` (0: 1 / sqrt(size)), `mask_filter_value`, `unidirectional`, `present` (whether
    the cache is wanted) and `hidden_sizes`, a function from the columns of the weights to the widths of Q, K and V.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._product = MatMulKernel({})

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = [*inputs, *[None] * (7 - len(inputs))]
        if given[6] is not None:
            return "a cache of the longest length (past_sequence_length)"
        mask = given[3]
        if mask is not None and (mask.dtype is None or numpy_dtype(mask.dtype).kind not in "ib"):
            return f"a mask_index of {mask.dtype}"
        problem = dtype_reason([given[0], given[1], given[2], given[4], given[5]])
        return problem or self._product.declines(given[:2], ())

    def bind(
        self,
        binder: Binder,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        past: Tensor | None = None,
        added: Tensor | None = None,
        *declined: None,
    ) -> Tensors:
        if len(x.shape) != 3:
            raise ValueError(f"input 'input' is expected to have 3 dimensions, got {len(x.shape)}")
        epilogue = None
        if bias is not None:
            if bias.shape != weights.shape[1:]:
                raise ValueError(f"input 'bias' is expected to have shape {weights.shape[1:]}, got {bias.shape}")
            epilogue = Epilogue((Input(x.dtype, 0) + Input(bias.dtype, 1),), (bias,))
        (projected,) = self._product.bind(binder, x, weights, epilogue=epilogue)
        assert projected is not None
        return self.attended(binder, projected, mask, past, added)

    def attended(
        self, binder: Binder, projected: Tensor, mask: Tensor | None, past: Tensor | None, added: Tensor | None
    ) -> Tensors:
        """The attention over queries, keys and values side by side, (batch, length, columns), and the cache."""
        heads = int(self.parameters["num_heads"])
        widths = self.parameters["hidden_sizes"](projected.shape[-1])
        if any(width % heads for width in widths):
            raise ValueError(f"{heads} heads do not divide the widths {widths} of queries, keys and values")
        starts = (0, widths[0], widths[0] + widths[1])
        q, k, v = (
            heads_of_rows(projected, heads, "weights", first, width // heads)
            for first, width in zip(starts, widths, strict=True)
        )
        present, k, v, before = self._cached(binder, k, v, past)
        masks = Masks("mask_index", mask, added)
        output = attended(binder, self.parameters, (q, k, v), masks, offset=before)
        return output, present

    def _cached(
        self, binder: Binder, k: Heads, v: Heads, past: Tensor | None
    ) -> tuple[Tensor | None, Heads, Heads, int]:
        """The stacked cache of keys and values, its two halves, and the length of the past."""
        if past is None and not self.parameters["present"]:
            return None, k, v, 0
        before = 0
        if past is not None:
            if len(past.shape) != 5 or past.shape[0] != 2 or past.shape[1:3] != (k.batch, k.heads):
                raise ValueError(f"input 'past' must be (2, batch, heads, length, size), got {past.shape}")
            before, past = past.shape[3], contiguous(binder, past)
        if k.size != v.size:
            raise ValueError(f"keys of {k.size} channels and values of {v.size} cannot be stacked in one cache")
        present = binder.new(k.tensor.dtype, (2, k.batch, k.heads, before + k.rows, k.size))
        halves = []
        for index, new in enumerate((k, v)):
            half = heads_of_cache(_half(present, index))
            if past is not None:
                copy_into(binder, _half(past, index), half.positions(0, before).as_tensor())
            copy_into(binder, new.as_tensor(), half.positions(before, new.rows).as_tensor())
            halves.append(half)
        return present, halves[0], halves[1], before


def _half(stacked: Tensor, index: int) -> Tensor:
    shape, strides = stacked.shape[1:], stacked.strides[1:]
    return stacked.reshaped(shape, strides, index * stacked.strides[0] * stacked.dtype.itemsize)
