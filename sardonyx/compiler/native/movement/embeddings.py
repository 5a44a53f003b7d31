"""Words, positions and kinds of segments looked up, added and normalised: lookups, and one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.movement.gather import rows_of_table
from sardonyx.compiler.native.rows.reduction import ReductionTemplate
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
_INPUTS = 9


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
        for fact in (given[0], given[1], given[8]):
            if fact is not None and (fact.dtype is None or numpy_dtype(fact.dtype) not in _IDS):
                return f"ids of {fact.dtype}"
        return self._sum.declines(inputs, outputs)

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        given = [*inputs, *[None] * (_INPUTS - len(inputs))]
        ids, segments, words, positions, kinds, gamma, beta, mask, places = given
        assert ids is not None
        assert words is not None
        assert positions is not None
        if len(ids.shape) != 2:
            raise ValueError(f"input 'input_ids' is expected to have 2 dimensions, got {len(ids.shape)}")
        parts = [
            self._rows(binder, "input_ids", words, ids),
            self._rows(binder, "position_ids", positions, places, ids.shape[1]),
            None if kinds is None else self._rows(binder, "segment_ids", kinds, segments, 1),
        ]
        output, total = [*self._sum.bind(binder, [*parts, gamma, beta]), None][:2]
        return output, self._counted(binder, mask, ids.shape[0]), total

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
        return self._counts.bind(binder, [mask])[0]
