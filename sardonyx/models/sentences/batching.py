"""Which texts run together: those of like lengths, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# Tokens of a batch for each thread, with padding: enough to keep the products of matrices busy, few enough that what
# the layers write is still in the caches when it is read.
TOKENS_OF_THREAD = 256
_LEAST_TOKENS = 512


def batches(
    lengths: Sequence[int], threads: int = 1, most_texts: int | None = None
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Indices of texts that run together, the longest texts first.

    A batch is padded to its longest text; rows times this length are a few hundred tokens for each of
    `threads`, unless it is one text. `most_texts` bounds the rows.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    tokens = max(TOKENS_OF_THREAD * threads, _LEAST_TOKENS)
    at = 0
    while at < len(order):
        rows = max(tokens // max(lengths[order[at]], 1), 1)
        if most_texts is not None:
            rows = min(rows, most_texts)
        yield order[at : at + rows]
        at += rows
