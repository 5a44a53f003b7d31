"""Embedding lookups: BERT's sum of three with its normalisation, PyTorch's, and characters to words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Arrangement, Host, Kernel, Template
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, expect_rank, like, wide
from sardonyx.ops.row_kernels import (
    Contents,
    Shapes,
    affine,
    given,
    is_computable,
    leaves,
    row_arrangement,
    rows_template,
    standardized,
)

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


def looked_up(table: Array, ids: Array, name: str) -> Array:
    """Rows of a table; ValueError where an id is not one of them."""
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        raise outside(name, len(table))
    return wide(table[ids])


def outside(name: str, rows: int) -> Exception:
    """The error for an id that is none of a table's rows."""
    return ValueError(f"'{name}' holds an id outside of its table of {rows} rows")


def counts_of_ones(mask: np.dtype[Any], run: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of the reduction that counts the ones of each row of a mask."""
    ones = Input(mask, 0).equals(1).cast(np.dtype(np.int32))

    def arranged(shapes: Shapes, contents: Contents) -> Arrangement:
        shape = given(shapes[0])
        return Arrangement((shape,), (len(shape) - 1,), (shape[:1],))

    return rows_template([mask], [k.reduce("sum", ones)], arranged, run).parameters


@operator("EmbedLayerNormalization", domain=DOMAIN)
class EmbedLayerNormalization(Operator):
    """LayerNormalization(word + position + segment); also each sequence's count of ones in the mask.

    Positions count from 0 unless `position_ids` (batch or 1, sequence) gives them. The third output is the sum
    before the normalisation.
    """

    inputs: ClassVar[str] = (
        "input_ids, segment_ids?, word_embedding, position_embedding, segment_embedding?, gamma, beta, mask?, "
        "position_ids?"
    )
    outputs: ClassVar[str] = "output, mask_index?, embedding_sum?"
    host_reason: ClassVar[str] = "three lookups and a reduction"
    epsilon: float = 1e-12
    mask_index_type: int | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        ids, segments, words, positions, segment_table, gamma, beta, mask, places = padded(inputs, 9)
        if ids.ndim != 2:
            raise ValueError(f"input 'input_ids' is expected to have 2 dimensions, got {ids.ndim}")
        batch, length = ids.shape
        if places is None:
            places = np.arange(length, dtype=np.int32)[None]
        total = looked_up(words, ids, "input_ids") + looked_up(positions, places, "position_ids")
        if segment_table is not None:
            kinds = np.zeros((1, length), np.int32) if segments is None else segments
            total = total + looked_up(segment_table, kinds, "segment_ids")
        y, _, _ = normalized(total, 1, self.epsilon, centred=True)
        y = y * wide(gamma) + wide(beta)
        counts = np.zeros(batch, np.int32) if mask is None else np.count_nonzero(mask == 1, axis=1).astype(np.int32)
        return y.astype(words.dtype), counts, total.astype(words.dtype)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        words, gamma, beta, mask = (inputs[place] if place < len(inputs) else None for place in (2, 5, 6, 7))
        kinds = inputs[4]
        if not all(map(is_computable, filter(None, (words, gamma, beta, kinds)))) or words is None:
            return Host(self.run, self.host_reason)
        parameters = {"sum": self._sum(words, kinds, gamma, beta), "counts": None, "refusal": outside}
        if self.has_output(1):
            # Without a mask the counts are zeros, for which no program is run.
            parameters["counts"] = counts_of_ones(np.dtype(np.int32) if mask is None else mask, self.run)
        return Template("embed_layer_normalization", parameters, self.run)

    def _sum(
        self,
        words: np.dtype[Any],
        kinds: np.dtype[Any] | None,
        gamma: np.dtype[Any] | None,
        beta: np.dtype[Any] | None,
    ) -> Mapping[str, Any]:
        """The rows that are looked up, added and normalised, and their sum where it is wanted."""
        read = [words, words, kinds, gamma, beta]
        word, place, kind, scale, offset = leaves(read)
        assert word is not None
        assert place is not None
        total = word + place if kind is None else word + place + kind.cast(word.dtype)
        y = affine(standardized(total, self.epsilon)[0], scale, offset)
        outputs = [y.cast(words), *([total.cast(words)] if self.has_output(2) else [])]

        def arranged(shapes: Shapes, contents: Contents) -> Arrangement:
            shape = given(shapes[0])
            return row_arrangement(shapes, shape, (len(shape) - 1,), [shape] * (len(outputs) - 1))

        return rows_template(read, outputs, arranged, self.run).parameters

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        ids, words = inputs[0], inputs[2]
        expect_rank(ids, (2,), "input_ids")
        expect_rank(words, (2,), "word_embedding")
        batch, length = dim(ids, 0), dim(ids, 1)
        y = like(words, (batch, length, dim(words, 1)))
        return [y, tensor(ir.DataType.INT32, (batch,)), y]


@operator("TorchEmbedding", domain=DOMAIN)
class TorchEmbedding(Operator):
    """Rows of `weight` at `indices`; the other inputs concern gradients only."""

    inputs: ClassVar[str] = "weight, indices, padding_idx?, scale_grad_by_freq?"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "a lookup"

    def run(self, *inputs: Any) -> Sequence[Array]:
        weight, indices = inputs[0], inputs[1]
        if indices.size and (indices.min() < 0 or indices.max() >= len(weight)):
            raise ValueError(f"'indices' holds an index outside of the {len(weight)} rows of 'weight'")
        return (weight[indices],)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        weight, indices = inputs[0], inputs[1]
        expect_rank(weight, (2,), "weight")
        if indices is None or indices.shape is None:
            return [like(weight, None)]
        return [like(weight, (*indices.shape, dim(weight, 1)))]


@operator("WordConvEmbedding", domain=DOMAIN)
class WordConvEmbedding(Operator):
    """Words as vectors of their characters: lookup, convolution over the characters, tanh, maximum.

    Sequence (words, characters) holds character ids, 0 after a word's end; W is (filters, 1, window, size),
    B (filters), C (ids, size). A word's window slides over its own characters; a word shorter than the window is
    read up to the window's width, and an empty one gives zeros.
    """

    inputs: ClassVar[str] = "Sequence, W, B, C"
    outputs: ClassVar[str] = "Y"
    host_reason: ClassVar[str] = "the length of each word decides its windows"
    char_embedding_size: int | None = None
    conv_window_size: int | None = None
    embedding_size: int | None = None

    def run(self, *inputs: Any) -> Sequence[Array]:
        words, weight, bias, table = inputs
        if words.ndim != 2:
            raise ValueError(f"input 'Sequence' is expected to have 2 dimensions, got {words.ndim}")
        filters, _, window, size = weight.shape
        for name, stated, expected in (
            ("char_embedding_size", self.char_embedding_size, size),
            ("conv_window_size", self.conv_window_size, window),
            ("embedding_size", self.embedding_size, filters),
        ):
            if stated is not None and stated != expected:
                raise ValueError(f"attribute '{name}' is {stated}, but the shape of 'W' says {expected}")
        characters = looked_up(table, words, "Sequence")
        kernel = weight.reshape(filters, window * size)
        result = np.zeros((len(characters), filters), weight.dtype)
        for index, row in enumerate(words):
            length = _length(row)
            if length == 0:
                continue
            last = max(length - window, 0)
            windows = np.stack([characters[index, at : at + window].ravel() for at in range(last + 1)])
            result[index] = np.tanh(windows @ kernel.T + bias).max(axis=0)
        return (result,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        words, weight = inputs[0], inputs[1]
        expect_rank(words, (2,), "Sequence")
        return [like(weight, (dim(words, 0), dim(weight, 0)))]


def _length(word: Array) -> int:
    """How many characters a word has: as onnxruntime counts, those above 0, but none where the first one is 0."""
    return int(np.count_nonzero(word > 0)) if word.size and word[0] > 0 else 0
