"""Attention and embeddings of quantised BERT models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.kernel.expr import Expr, Input
from sardonyx.kernel.program import Arrangement, Host, Kernel, Template
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import Cost, Operator, operator
from sardonyx.ops.microsoft.attention import MASK_FILTER_VALUE
from sardonyx.ops.microsoft.attention_core import (
    appended,
    attend,
    causal,
    default_scale,
    merge_heads,
    padding_mask,
    split_heads,
)
from sardonyx.ops.microsoft.embedding import counts_of_ones, looked_up, outside
from sardonyx.ops.microsoft.integer_matmul import column_parameter, moved, scaled_product
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import Array, dequantize, integers, one, padded
from sardonyx.ops.microsoft.qlinear_elementwise import are_numbers
from sardonyx.ops.microsoft.rules import DOMAIN, dim, expect_rank, like
from sardonyx.ops.row_kernels import Contents, Shapes, affine, row_arrangement, rows_template, standardized

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


@operator("QAttention", domain=DOMAIN)
class QAttention(Operator):
    """Attention whose projection is an integer product: softmax(Q K^T * scale + masks) V.

    input (batch, length, width), weight (width, 3 * hidden), scales of the weight for the whole or each column.
    """

    inputs: ClassVar[str] = (
        "input, weight, bias, input_scale, weight_scale, mask_index?, input_zero_point?, weight_zero_point?, past?"
    )
    outputs: ClassVar[str] = "output, present?"
    host_reason: ClassVar[str] = "attention with its projection"
    num_heads: int
    unidirectional: int = 0
    do_rotary: int | None = None
    past_present_share_buffer: int | None = None
    mask_filter_value: float | None = None
    scale: float | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = padded(inputs, 9)
        if self.past_present_share_buffer:
            raise errors.NotImplemented("QAttention with past_present_share_buffer: no input tells the past's length")
        columns = weight.shape[1]
        scale = column_parameter(w_scale, columns, "weight_scale")
        assert scale is not None
        projected = scaled_product(
            integers(x, one(x_zero, "input_zero_point")),
            one(x_scale, "input_scale"),
            integers(weight, column_parameter(w_zero, columns, "weight_zero_point")),
            scale,
            bias.astype(np.float32),
        )
        q, k, v = (split_heads(part, self.num_heads, "weight") for part in np.split(projected, 3, axis=-1))
        before = 0
        if past is not None:
            if past.ndim != 5 or past.shape[0] != 2:
                raise ValueError(f"input 'past' must be (2, batch, heads, length, size), got {past.shape}")
            before = past.shape[3]
            k, v = appended(past[0], k), appended(past[1], v)
        batch, length, total = x.shape[0], x.shape[1], before + x.shape[1]
        filter_value = MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value
        attended = attend(
            q,
            k,
            v,
            default_scale(self.scale, q.shape[-1]),
            bias=(padding_mask(mask, batch, length, total, filter_value, "mask_index"),),
            keep=causal(length, total, before) if self.unidirectional else None,
        )
        output = merge_heads(attended.output).astype(bias.dtype)
        return (output, np.stack([k, v]).astype(bias.dtype)) if self.has_output(1) else (output,)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.do_rotary or self.past_present_share_buffer:
            return Host(self.run, "rotary embedding, or a cache of the longest length, inside QAttention")
        parameters = {
            "num_heads": self.num_heads,
            "scale": self.scale or 0.0,
            "mask_filter_value": MASK_FILTER_VALUE if self.mask_filter_value is None else self.mask_filter_value,
            "unidirectional": self.unidirectional,
            "hidden_sizes": lambda columns: (columns // 3,) * 3,
            "present": self.has_output(1),
        }
        return Template("projected_attention_quantized", parameters, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, weight, bias = inputs[:3]
        past = inputs[8] if len(inputs) > 8 else None
        expect_rank(x, (3,), "input")
        expect_rank(weight, (2,), "weight")
        columns = dim(weight, 1)
        if isinstance(columns, int) and columns % (3 * self.num_heads):
            raise ValueError(f"input 'weight' has {columns} columns, no multiple of 3 x {self.num_heads} heads")
        hidden = columns // 3
        total = dim(x, 1) if past is None else dims.add(dim(past, 3), dim(x, 1))
        present = like(bias, (2, dim(x, 0), self.num_heads, total, hidden // self.num_heads))
        return [like(bias, (dim(x, 0), dim(x, 1), hidden)), present]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        x, weight = inputs[0], inputs[1]
        sizes = (dim(x, 0), dim(x, 1), dim(x, 2), dim(weight, 1))
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) != 4:
            return Cost(None, moved([*inputs, *outputs]))
        batch, length, width, columns = numbers
        return Cost(batch * length * columns * (2.0 * width + 4.0 * length / 3), moved([*inputs, *outputs]))


@operator("QEmbedLayerNormalization", domain=DOMAIN)
class QEmbedLayerNormalization(Operator):
    """LayerNormalization(word + position + segment) with every table, gamma and beta quantised.

    The second output counts the ones of each sequence's mask; 0 without a mask.
    """

    inputs: ClassVar[str] = (
        "input_ids, segment_ids?, word_embedding_quant, position_embedding_quant, segment_embedding?, gamma_quant, "
        "beta_quant, mask?, word_embedding_scale, position_embedding_scale, segment_embedding_scale?, gamma_scale, "
        "beta_scale, word_embedding_zero_point, position_embedding_zero_point, segment_embedding_zero_point?, "
        "gamma_zero_point, beta_zero_point"
    )
    outputs: ClassVar[str] = "layernorm_out, mask_index_out"
    epsilon: float = 1e-12
    host_reason: ClassVar[str] = "three lookups and a reduction"

    def run(self, *inputs: Any) -> Sequence[Array]:
        ids, segments, words, positions, kinds, gamma, beta, mask = inputs[:8]
        scales = [None if scale is None else one(scale, "scale") for scale in inputs[8:13]]
        zeros = [one(zero, "zero_point") for zero in inputs[13:18]]
        if ids.ndim != 2:
            raise ValueError(f"input 'input_ids' is expected to have 2 dimensions, got {ids.ndim}")
        places = np.arange(ids.shape[1], dtype=np.int32)[None]

        def real(codes: Array, index: int) -> Array:
            scale = scales[index]
            if scale is None:
                raise ValueError("inputs 'segment_embedding' and 'segment_embedding_scale' must be given together")
            return dequantize(codes, scale, zeros[index])

        total = real(looked_up(words, ids, "input_ids"), 0) + real(looked_up(positions, places, "positions"), 1)
        if kinds is not None:
            if segments is None:
                raise ValueError("inputs 'segment_ids' and 'segment_embedding' must be given together")
            total = total + real(looked_up(kinds, segments, "segment_ids"), 2)
        y, _, _ = normalized(total, 1, self.epsilon, centred=True)
        y = y * real(gamma, 3) + real(beta, 4)
        batch = ids.shape[0]
        counts = np.zeros(batch, np.int32) if mask is None else np.count_nonzero(mask == 1, axis=1).astype(np.int32)
        return y, counts

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        given = padded(inputs, 18)
        _, segments, *codes, mask = given[:8]
        kinds, scales, zeros = codes[2], given[8:13], given[13:18]
        missing = {code is None for code, scale in zip(codes, scales, strict=True) if (code is None) != (scale is None)}
        if missing or (kinds is None) != (segments is None) or not are_numbers(self.node, range(8, 18)):
            return Host(self.run, self.host_reason)
        if any(one is not None and one.name not in ("uint8", "int8") for one in (*codes, *zeros)):
            return Host(self.run, self.host_reason)
        parameters = {"sum": self._sum(codes, scales, zeros), "counts": None, "refusal": outside}
        if self.has_output(1):
            # Without a mask the counts are zeros, for which no program is run.
            parameters["counts"] = counts_of_ones(np.dtype(np.int32) if mask is None else mask, self.run)
        return Template("embed_layer_normalization_quantized", parameters, self.run)

    def _sum(
        self,
        codes: Sequence[np.dtype[Any] | None],
        scales: Sequence[np.dtype[Any] | None],
        zeros: Sequence[np.dtype[Any] | None],
    ) -> Mapping[str, Any]:
        """The rows that are looked up, made real, added and normalised; behind them gamma and beta."""
        read = [*codes, *scales, *zeros]
        numbers, exact = iter(range(len(read))), np.dtype(np.int32)
        inputs = [None if dtype is None else Input(dtype, next(numbers)) for dtype in read]

        def real(index: int) -> Expr | None:
            code, scale, zero = inputs[index], inputs[index + 5], inputs[index + 10]
            if code is None or scale is None:
                return None
            value = code.cast(exact) if zero is None else code.cast(exact) - zero.cast(exact)
            return value.cast(np.float32) * scale.cast(np.float32)

        word, place, kind, scale, offset = map(real, range(5))
        assert word is not None
        assert place is not None
        total = word + place if kind is None else word + place + kind
        y = affine(standardized(total, self.epsilon)[0], scale, offset)

        def arranged(shapes: Shapes, contents: Contents) -> Arrangement:
            shape = shapes[0]
            assert shape is not None
            return row_arrangement(shapes, shape, (len(shape) - 1,))

        return rows_template(read, [y], arranged, self.run).parameters

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        ids, words = inputs[0], inputs[2]
        expect_rank(ids, (2,), "input_ids")
        expect_rank(words, (2,), "word_embedding_quant")
        shape = (dim(ids, 0), dim(ids, 1), dim(words, 1))
        return [tensor(ir.DataType.FLOAT, shape), tensor(ir.DataType.INT32, (dim(ids, 0),))]
