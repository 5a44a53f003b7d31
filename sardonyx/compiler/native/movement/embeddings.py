"""Words, positions and kinds of segments looked up, added and normalised: lookups, and one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.movement.gather import rows_of_table
from sardonyx.compiler.native.rows.reduction import ReductionTemplate
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
_INPUTS, _QUANTIZED_INPUTS = 9, 18


def _no_ids(facts: Sequence[Fact | None]) -> str | None:
    """Why inputs are no ids; None where they are, or are absent."""
    for fact in facts:
        if fact is not None and (fact.dtype is None or numpy_dtype(fact.dtype) not in _IDS):
            return f"ids of {fact.dtype}"
    return None


@template("embed_layer_normalization")
class EmbedLayerNormalizationKernel(NativeKernel):
    """com.microsoft.EmbedLayerNormalization.

    Parameters: `sum`, those of a reduction of the rows of words, positions and segments, gamma and beta, which gives
    the result and the sum; `counts`, those of one of the mask, or None where its output is not wanted; `refusal`,
    which describes an id of an input (by name) that its table of so many rows does not have.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._sum = ReductionTemplate(parameters["sum"])
        self._counts = None if parameters["counts"] is None else ReductionTemplate(parameters["counts"])
        self._refusal: Callable[[str, int], Exception] = parameters["refusal"]

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        given = [*inputs, *[None] * (_INPUTS - len(inputs))]
        return _no_ids((given[0], given[1], given[8])) or self._sum.declines(inputs, outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor | None]:
        given = [*inputs, *[None] * (_INPUTS - len(inputs))]
        ids, *_, gamma, beta, mask, places = given
        parts = self._looked_up(binder, given[:5], "position_ids", places)
        output, total = [*self._sum.bind(binder, *parts, gamma, beta), None][:2]
        assert ids is not None
        return output, self._counted(binder, mask, ids.shape[0]), total

    def _looked_up(
        self, binder: Binder, inputs: Sequence[Tensor | None], name: str, places: Tensor | None = None
    ) -> list[Tensor | None]:
        """The rows of words, of positions, whose ids are called `name`, and of segments, if any."""
        ids, segments, words, positions, kinds = inputs
        assert ids is not None
        assert words is not None
        assert positions is not None
        if len(ids.shape) != 2:
            raise ValueError(f"input 'input_ids' is expected to have 2 dimensions, got {len(ids.shape)}")
        return [
            self._rows(binder, "input_ids", words, ids),
            self._rows(binder, name, positions, places, ids.shape[1]),
            None if kinds is None else self._rows(binder, "segment_ids", kinds, segments, 1),
        ]

    def _rows(self, binder: Binder, name: str, table: Tensor, ids: Tensor | None, first: int = 0) -> Tensor:
        """The rows that ids name; the `first` ones where there are none."""
        if ids is not None:
            return rows_of_table(binder, table, ids, lambda _: self._refusal(name, table.shape[0]))
        if first > table.shape[0]:
            raise self._refusal(name, table.shape[0])
        return table.reshaped((first, table.shape[1]), table.strides)

    def _counted(self, binder: Binder, mask: Tensor | None, batch: int) -> Tensor | None:
        """How many ones each row of the mask has; none without a mask."""
        if self._counts is None:
            return None
        if mask is None:
            return binder.constant(np.zeros(batch, np.int32))
        return self._counts.bind(binder, mask)[0]


@template("embed_layer_normalization_quantized")
class QEmbedLayerNormalizationKernel(EmbedLayerNormalizationKernel):
    """com.microsoft.QEmbedLayerNormalization: rows of bytes are looked up, and become real while they are added.

    Parameters as for real tables; the reduction's inputs are followed by the scales and zero points, single numbers.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return _no_ids(inputs[:2]) or self._sum.declines(inputs, outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor | None]:
        given = [*inputs, *[None] * (_QUANTIZED_INPUTS - len(inputs))]
        ids, *_, gamma, beta, mask = given[:8]
        parts = self._looked_up(binder, given[:5], "positions")
        numbers = [None if one is None else one.reshaped(()) for one in given[8:]]
        (output,) = self._sum.bind(binder, *parts, gamma, beta, *numbers)
        assert ids is not None
        return output, self._counted(binder, mask, ids.shape[0])
