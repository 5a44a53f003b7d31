"""Why a run failed whose tokens a model has not, or has no positions for."""

from __future__ import annotations

from typing import Any

from sardonyx import errors
from sardonyx.models.arrays import as_numpy
from sardonyx.models.generation import model_facts


def explained(error: errors.OnnxRuntimeError, ids: Any, config: object, earlier: int = 0) -> errors.OnnxRuntimeError:
    """The error of a run, or one that says what is wrong with its tokens (batch, length), where that can be told.

    `earlier` counts the positions before them.
    """
    if ids is None:
        return error
    tokens = as_numpy(ids, "input_ids")
    if tokens.ndim != 2 or not tokens.size or tokens.dtype.kind not in "iu":
        return error
    words = model_facts.number(config, model_facts.VOCABULARY)
    low, high = int(tokens.min()), int(tokens.max())
    if words is not None and (low < 0 or high >= words):
        return errors.InvalidArgument(
            f"input_ids holds the token {low if low < 0 else high}, and the model's tokens are 0 to {words - 1}: the "
            "tokenizer belongs to another model"
        )
    positions = model_facts.number(config, model_facts.POSITIONS)
    whole = earlier + tokens.shape[1]
    if positions is not None and whole > positions:
        return errors.InvalidArgument(
            f"{whole} tokens need as many positions, and the model has {positions}: shorten the input, as by "
            "truncation=True of the tokenizer"
        )
    return error
