"""Runs of decoders that count a row's tokens from the first position of its cache on, as GroupQueryAttention does.

Such a model has no place for padding among the tokens that it reads: the mask tells it how many tokens a row has, and
not where they are. Each row is read alone here, without its padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import Array, as_numpy, as_tensor, is_tensor
from sardonyx.models.part import Part
from sardonyx.models.tasks.key_values import CacheName, grows

_Array = np.ndarray[Any, Any]

# Inputs with a column for each token that is read.
_BY_TOKEN = ("input_ids", "inputs_embeds", "position_ids")
_MASK, _LOGITS, _KEPT_LOGITS = "attention_mask", "logits", "num_logits_to_keep"


def run_unpadded(
    part: Part, values: Mapping[str, Array], wanted: Sequence[str], caches: Sequence[CacheName]
) -> dict[str, Array]:
    """As `Part.run`, for tokens (rows, count) of which some are padding, by the mask (rows, earlier + count).

    Logits of padding are 0. The caches of all rows are as long as the mask; a row that has fewer tokens has them in
    front. `errors.InvalidArgument` where all are padding.
    """
    arrays = {name: as_numpy(value, name) for name, value in values.items() if value is not None}
    if _KEPT_LOGITS in arrays:
        arrays[_KEPT_LOGITS] = np.zeros_like(arrays[_KEPT_LOGITS])  # all of them, as the last ones may be padding
    mask = arrays[_MASK] != 0
    rows = len(mask)
    count = next(arrays[name].shape[1] for name in _BY_TOKEN if name in arrays)
    earlier = mask.shape[1] - count
    if not mask[:, earlier:].any():
        raise errors.InvalidArgument("attention_mask is 0 for all tokens: there is none to read")
    found: list[dict[str, _Array]] = []
    for row, shown in enumerate(mask):
        held, kept = int(shown[:earlier].sum()), shown[earlier:]
        given = {name: array[row : row + 1] if array.shape[:1] == (rows,) else array for name, array in arrays.items()}
        given |= {one.input: _lengthened(part, one, given[one.input], count) for one in caches}
        if not kept.any():
            found.append({one.output: given[one.input] for one in caches if one.output is not None})
            continue
        given |= {name: given[name][:, kept] for name in _BY_TOKEN if name in given}
        # As wide as that of all rows: a model may choose tables of rotary embeddings by it.
        given[_MASK] = (np.arange(mask.shape[1])[None] < held + kept.sum()).astype(arrays[_MASK].dtype)
        found.append(part.run(given, wanted))

    made: dict[str, Array] = {}
    for name in wanted:
        if name == _LOGITS:
            width = 1 if part.output_shapes[name][1] == 1 else count
            made[name] = _spread([one.get(name) for one in found], mask[:, earlier:], width)
        else:
            made[name] = np.concatenate([one[name] for one in found])
    if any(is_tensor(value) for value in values.values()):
        return {name: as_tensor(array) for name, array in made.items()}
    return made


def _spread(logits: Sequence[_Array | None], kept: _Array, width: int) -> _Array:
    """The logits of each row where its tokens are, the last ones of `width` columns; None for a row that has none."""
    known = next(one for one in logits if one is not None)
    spread = np.zeros((len(logits), width, *known.shape[2:]), known.dtype)
    for row, one in enumerate(logits):
        if one is not None:
            places = np.flatnonzero(kept[row]) if width > 1 else np.zeros(1, np.int64)
            spread[row, places[-one.shape[1] :]] = one[0]
    return spread


def _lengthened(part: Part, cache: CacheName, array: _Array, count: int) -> _Array:
    """A cache with room for further tokens, as long as the mask says that it is."""
    if not grows(part, cache.input):
        return array
    return np.pad(array, [(0, 0), (0, 0), (0, count), (0, 0)])
