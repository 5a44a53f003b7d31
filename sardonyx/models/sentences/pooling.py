"""From the vectors of a text's tokens to one vector: the modes of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.models.folders.json_files import Section

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# Of configs before version 5.4, a flag for each mode, in the order that several are put together.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_SMALL = np.float32(1e-9)

Floats = np.ndarray[Any, np.dtype[np.float32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Pooling:
    """One or several modes, whose vectors are put one behind the other.

    With `include_prompt` false, the tokens of a prompt take no part. `errors.InvalidArgument` for an unknown mode, and
    for none.
    """

    def __init__(self, modes: str | Sequence[str] = "mean", include_prompt: bool = True) -> None:
        given = [modes] if isinstance(modes, str) else modes
        if not isinstance(given, list | tuple) or not 0 < len(given) <= len(MODES):
            raise errors.InvalidArgument(
                f"A pooling is a mode, or a list of 1 to {len(MODES)} of them, and not {modes!r:.60}; modes are "
                f"{', '.join(MODES)}"
            )
        self.modes = tuple(given)
        self.include_prompt = include_prompt
        for mode in self.modes:
            if mode not in MODES:
                raise errors.InvalidArgument(f"There is no pooling {mode!r:.60}; modes are {', '.join(MODES)}")

    def __call__(self, states: Floats, mask: Mask, prompt_length: int = 0) -> Floats:
        """Vectors (texts, modes x size) of `states` (texts, tokens, size); `mask` is false at padding."""
        left = mask.argmax(axis=1)  # padding before the first token
        used = mask
        if prompt_length and not self.include_prompt:
            used = mask & (np.arange(mask.shape[1]) >= (left + prompt_length)[:, None])
        found = [self._pooled(mode, states, used, left) for mode in self.modes]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    @staticmethod
    def _pooled(mode: str, states: Floats, mask: Mask, left: np.ndarray[Any, Any]) -> Floats:
        rows = np.arange(len(states))
        if mode == "cls":
            first: Floats = states[rows, mask.argmax(axis=1)]
            return first
        if mode == "lasttoken":
            last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
            # A text without tokens has the vector 0.
            chosen: Floats = states[rows, last] * mask.any(axis=1, keepdims=True)
            return chosen
        if mode == "max":
            largest: Floats = np.where(mask[..., None], states, np.float32(-np.inf)).max(axis=1)
            return largest
        weights = mask.astype(np.float32)
        if mode == "weightedmean":
            weights *= np.arange(1, mask.shape[1] + 1, dtype=np.float32) - left[:, None].astype(np.float32)
        # A product of matrices for each text: one pass over the states, and no copy of them.
        sums: Floats = (weights[:, None, :] @ states)[:, 0]
        total = np.maximum(weights.sum(axis=1, keepdims=True), _SMALL)
        mean: Floats = sums / (np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total)
        return mean


def of_config(config: Section) -> Pooling:
    """The pooling of a module's `config.json`, old or new; `errors.Fail` for one that names no mode."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in FLAGS.items() if config.flag(flag)] or "mean"
    try:
        return Pooling(modes, config.flag("include_prompt", True))
    except errors.InvalidArgument as error:
        raise errors.Fail(f"{config.where}: {error.message}") from None
