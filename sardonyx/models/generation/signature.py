"""What each input and output of a decoder is: its tokens, its mask, its caches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sardonyx import errors
from sardonyx.api.values import element_types

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
# The scalar input of a decoder whose caches are written in place: how many positions are filled.
PAST_LENGTH = "past_length"
# The input of a merged export that chooses the graph with caches or the one without.
USE_CACHE = "use_cache_branch"
# The output of the likeliest tokens, which sessions are asked to add (`sardonyx.greedy_tokens`).
GREEDY_TOKENS = "greedy_tokens"
_LOGITS = ("logits", "lm_logits")

# What begins the name of a cache that goes in, and what may take its place in the name of the one that comes out.
_BEGINNINGS = (
    ("past_key_values", ("present", "present_key_values", "present_key_value_states")),
    ("past_key_value", ("present_key_value", "present")),
    ("past", ("present",)),
    ("cache_params", ("present",)),
    ("cache", ("present", "new_cache", "cache_out", "updated_cache")),
)
_CACHE = re.compile(r"^(past|cache)(?!.*(length|position|branch|mask)$)", re.IGNORECASE)


class Argument(Protocol):
    """An input or an output as a session tells it."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def shape(self) -> list[int | str | None]: ...


@dataclass(frozen=True)
class State:
    """One cache: what goes in is called `given`, what comes out `made`.

    `shape` has None for dimensions that are not fixed. `axis` is the one that has an element for each position; it is
    None for a state whose size stays, as those of convolutions and of state spaces do. `fewest` is the number of
    positions below which the model takes no such cache.
    """

    given: str
    made: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    axis: int | None
    fewest: int = 0

    def sized(self, rows: int, positions: int, head_size: int | None) -> tuple[int, ...]:
        """The shape for so many rows and positions; `head_size` stands for any other dimension that is not fixed.

        `errors.InvalidArgument` where such a dimension is left.
        """
        known = {0: rows, self.axis: max(positions, self.fewest)}
        sizes = [known.get(place, size) for place, size in enumerate(self.shape)]
        sizes = [head_size if size is None else size for size in sizes]
        if any(size is None for size in sizes):
            raise errors.InvalidArgument(
                f"The cache '{self.given}' has dimensions that neither the model nor its configuration fixes: "
                f"{list(self.shape)}. Give the configuration (head_dim, or hidden_size and num_attention_heads)"
            )
        return tuple(size for size in sizes if size is not None)


@dataclass(frozen=True)
class Signature:
    """A decoder's inputs and outputs.

    `dtypes` are those of all inputs by name. `vocabulary` is the last dimension of the logits, None where the model
    does not fix it; `rows` and `step` are the batch and the number of tokens that the model was exported for, None
    where any will do. `others` are the inputs that are neither tokens nor mask nor positions nor caches. With
    `masks_new`, the mask is of the tokens of a step alone, as that of models whose states have no positions. With
    `greedy`, there is an output of the likeliest tokens (rows, positions of the logits).
    """

    logits: str
    states: tuple[State, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    vocabulary: int | None
    rows: int | None
    step: int | None
    others: tuple[str, ...]
    masks_new: bool = False
    greedy: bool = False

    @staticmethod
    def of(
        inputs: Sequence[Argument], outputs: Sequence[Argument], fewest: Mapping[str, int] | None = None
    ) -> Signature:
        """The signature of a session; `errors.InvalidArgument` where it is none of a decoder.

        `fewest` are the positions that caches need to have, by the names of the inputs.
        """
        by_name = {one.name: one for one in inputs}
        if IDS not in by_name:
            raise errors.InvalidArgument(
                f"The model is no decoder of tokens: it has no input '{IDS}', but {', '.join(by_name) or 'none'}"
            )
        logits = next((one for one in outputs if one.name in _LOGITS), outputs[0] if outputs else None)
        if logits is None or len(logits.shape) != 3:
            raise errors.InvalidArgument(
                "The model is no decoder of tokens: it has no output 'logits' of shape (batch, tokens, vocabulary), "
                f"but {', '.join(f'{one.name} {one.shape}' for one in outputs)}"
            )
        states = tuple(
            _states(inputs, [one for one in outputs if one.name not in (logits.name, GREEDY_TOKENS)], fewest or {})
        )
        known = {IDS, MASK, POSITIONS, PAST_LENGTH, USE_CACHE, *(state.given for state in states)}
        batch, step = _fixed(by_name[IDS].shape)
        return Signature(
            logits.name,
            states,
            {one.name: _dtype(one) for one in inputs},
            _fixed(logits.shape)[-1],
            batch,
            step,
            tuple(name for name in by_name if name not in known),
            _masks_new(by_name[IDS], by_name.get(MASK), states),
            any(one.name == GREEDY_TOKENS and one.type == "tensor(int64)" for one in outputs),
        )

    @property
    def more(self) -> tuple[str, ...]:
        """The outputs beside logits and caches that a decoder reads."""
        return (GREEDY_TOKENS,) if self.greedy else ()

    def has(self, name: str) -> bool:
        """Whether there is an input of this name."""
        return name in self.dtypes


def _masks_new(ids: Argument, mask: Argument | None, states: Sequence[State]) -> bool:
    if mask is None or len(mask.shape) != 2 or not any(state.axis is None for state in states):
        return False
    return isinstance(mask.shape[1], str) and mask.shape[1] == ids.shape[1]


def _states(inputs: Sequence[Argument], outputs: Sequence[Argument], fewest: Mapping[str, int]) -> Iterator[State]:
    """The caches, in the order of the inputs: pairs by name, else what is left, in order."""
    made = {one.name: one for one in outputs}
    given = [one for one in inputs if _CACHE.match(one.name) and len(one.shape) >= 2]
    pairs: dict[str, Argument] = {}
    for one in given:
        name = next((name for name in _partners(one.name) if name in made), None)
        if name is not None:
            pairs[one.name] = made.pop(name)
    left = [one for one in given if one.name not in pairs]
    rest = [one for one in made.values() if len(one.shape) >= 2]
    if left and len(left) == len(rest) and not pairs:
        pairs = {one.name: other for one, other in zip(left, rest, strict=True)}
    for one in given:
        if one.name in pairs:
            shape = _fixed(one.shape)
            free = [place for place, size in enumerate(shape) if place > 0 and size is None]
            axis = free[0] if free else None
            yield State(one.name, pairs[one.name].name, _dtype(one), shape, axis, fewest.get(one.name, 0))


def _partners(name: str) -> Iterator[str]:
    """Names that the output for the input `name` may have."""
    for beginning, others in _BEGINNINGS:
        if name.startswith(beginning):
            yield from (other + name[len(beginning) :] for other in others)
            yield name[len(beginning) :].lstrip("._")
    yield f"{name}_out"
    yield f"new_{name}"


def _fixed(shape: Sequence[int | str | None]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _dtype(argument: Argument) -> np.dtype[Any]:
    kind = argument.type
    return element_types.by_name(kind[len("tensor(") : -1]).dtype if kind.startswith("tensor(") else np.dtype(object)
