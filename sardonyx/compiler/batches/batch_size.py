"""Which batches may be done in rounds: what does that is imported where there is one."""

from __future__ import annotations

from collections.abc import Sequence

# Inputs with fewer axes are rows of tables or numbers of tokens: a batch of them is one matrix, which is done at once.
_LEAST_RANK = 3


class NotSeparableError(Exception):
    """Why the items of a batch cannot be computed a few at a time."""


def batch_in_rounds(shapes: Sequence[Sequence[int]], wanted: int | None) -> int:
    """How many items inputs of these shapes have, 0 where they are done as a whole.

    So many are `wanted` at a time; None where that is to be found out.
    """
    sizes = {shape[0] if len(shape) else 0 for shape in shapes}
    batch = max(sizes, default=0)
    if wanted == 0 or len(sizes) != 1 or batch < 2 or (wanted is not None and wanted >= batch):
        return 0
    if wanted is None and min(len(shape) for shape in shapes) < _LEAST_RANK:
        return 0
    return batch
