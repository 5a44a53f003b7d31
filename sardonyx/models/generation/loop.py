"""The loop from a prompt to tokens: reading, choosing, stopping."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import as_numpy
from sardonyx.models.generation import selection, torch_hooks
from sardonyx.models.generation.beams import Beams
from sardonyx.models.generation.cache import Cache
from sardonyx.models.generation.processors import Processor, processors_of
from sardonyx.models.generation.sampling import Sampler, generator
from sardonyx.models.generation.settings import Settings
from sardonyx.models.generation.stopping import Stops, require_tokenizer
from sardonyx.models.generation.tables import widened
from sardonyx.runtime.memory import memory

Array = np.ndarray[Any, Any]
P = ParamSpec("P")
T = TypeVar("T")

# Positions behind a prompt that caches and tables of tokens have room for from the start, if so many are asked for:
# what ends a row is mostly a token, and long before a limit such as a generation config may name.
_ROOM = 8192
_CHECKED_BYTES = 64 << 20


class Steps(Protocol):
    """What the loop asks of a model: `Decoder`, or the decoder of an encoder-decoder."""

    @property
    def vocabulary(self) -> int | None: ...

    @property
    def positions(self) -> int | None: ...

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> Cache: ...

    def read(
        self, ids: Any, cache: Cache, attention_mask: Array | None = None, others: Mapping[str, Any] | None = None
    ) -> Array: ...

    def step(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array: ...

    def follow(self, tokens: Sequence[int], cache: Any) -> Array: ...

    def follow_greedily(self, tokens: Sequence[int], cache: Any) -> list[int]: ...

    def keep(self, cache: Any) -> None: ...


class Streamer(Protocol):
    """What transformers' streamers are: `put` gets the prompt, then the tokens of each step, then comes `end`."""

    def put(self, value: Any) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Generated:
    """What came out: `sequences` (rows, tokens), int64, the prompt included, with padding behind what ended early.

    `sequences_scores` (rows), float32, are the scores of beams, else None. `cache` holds all tokens but those that were
    chosen last, for a prompt that begins with the same ones; beams have none that could go on, and it is None where it
    was not asked for.
    """

    sequences: Array
    sequences_scores: Array | None
    cache: Cache | None


def _memory_told(function: Callable[P, T]) -> Callable[P, T]:
    """A function with `errors.Fail` in the place of a MemoryError."""

    @functools.wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise errors.Fail(
                f"There is not enough memory for so many rows and tokens: {error}. Ask for fewer beams or sequences, "
                "or for fewer new tokens"
            ) from error

    return told


@_memory_told
def generate(
    model: Steps,
    ids: Any,
    settings: Settings,
    *,
    attention_mask: Any = None,
    processors: Iterable[Callable[..., Any]] | None = None,
    stopping: Iterable[Callable[..., Any]] | None = None,
    streamer: Streamer | None = None,
    cache: Cache | None = None,
    tokenizer: Any = None,
    seed: int | None = None,
    others: Mapping[str, Any] | None = None,
    gives_cache: bool = True,
) -> Generated:
    """Tokens behind a prompt (rows, tokens), or (tokens), by greedy search, sampling or beams, as `settings` say.

    `attention_mask` is 0 where the prompt is padding, at the beginning of shorter rows; None means that there is none,
    but for tokens that are `pad_token_id` and end no row. `processors` and `stopping` are transformers' logits
    processors and stopping criteria, applied behind those of the settings. `cache` is what an earlier call gave: what
    it holds of the beginning of the prompt is not read again. `tokenizer` is needed for stop strings. `seed` fixes what
    is drawn. `others` are further inputs of the model. Without `gives_cache`, the buffers of this call serve a later
    one, which begins sooner.

    Calls may come from several threads at once, each with a cache of its own. An exception of a streamer, Ctrl-C among
    them, ends the loop between two tokens: model and cache stay usable.

    Raises `errors.InvalidArgument` for a prompt without tokens or outside of the vocabulary, for more tokens than the
    model has positions, for a tokenizer with more tokens than the model, for a cache that serves another call, and for
    arguments that do not go together;
    `errors.NotImplemented` for settings that are not ours (`Settings.unsupported`).
    """
    settings.require_supported()
    require_tokenizer(tokenizer, model.vocabulary)
    prompt = _prompt(ids)
    mask = _mask(attention_mask, prompt, settings)
    most, least = settings.lengths(prompt.shape[1], model.positions)
    each = settings.num_beams if settings.num_beams > 1 else settings.num_return_sequences
    if each > 1 and (streamer is not None or cache is not None):
        raise errors.InvalidArgument("A streamer and a cache of an earlier call go with one sequence for each prompt")
    _require_streamer(streamer)
    _require_memory(len(prompt) * each, model.vocabulary or 1)
    padding = None if mask is None else np.repeat((mask == 0).cumprod(axis=1).sum(axis=1), each)
    changes = processors_of(settings, prompt.shape[1], most, least, model.vocabulary, padding)
    given = torch_hooks.processor_of(processors)
    if given is not None:
        changes.append(given)
    stops = Stops(settings, tokenizer, torch_hooks.criterion_of(stopping))
    room = min(most - 1, prompt.shape[1] + _ROOM)
    held = model.cache(len(prompt), room, spread=each) if cache is None else cache
    with held.in_use():
        if cache is not None:
            _go_back(cache, prompt, mask, room + 1)
        logits = model.read(prompt[:, held.length :], held, mask, others)
        if each > 1:
            held.fan_out(each)
            logits = np.repeat(logits, each, axis=0)
        run = _Run(model, held, settings, changes, stops, others)
        chance = generator(seed) if settings.do_sample else None
        if settings.num_beams > 1:
            keep = max(2, 1 + len(settings.eos_token_id))
            found = run.beams(prompt, logits, most, None if chance is None else Sampler(settings, chance, keep))
        else:
            sampler = None if chance is None else Sampler(settings, chance)
            found = run.one_by_one(np.repeat(prompt, each, axis=0), logits, most, sampler, streamer)
    if gives_cache and settings.num_beams == 1:
        return replace(found, cache=held)
    if cache is None:
        model.keep(held)
    return found


@dataclass(frozen=True)
class _Run:
    """What stays from token to token."""

    model: Steps
    cache: Cache
    settings: Settings
    changes: list[Processor]
    stops: Stops
    others: Mapping[str, Any] | None

    def one_by_one(
        self, prompt: Array, logits: Array, most: int, sampler: Sampler | None, streamer: Streamer | None
    ) -> Generated:
        """Greedy search, or sampling: each row goes its own way."""
        rows, length = prompt.shape
        padding = self.settings.padding
        tokens = widened(prompt, min(most, length + _ROOM), padding)
        written = tokens.data
        going = np.ones(rows, bool)
        cache, stops = self.cache, self.stops
        follow = self._follow()
        follow_greedily = None if self.changes or sampler is not None or self.others else self.model.follow_greedily
        # For a streamer: many arrays are made at once, the next one last, and it cannot write to them.
        columns: list[Array] = []
        shown = tokens.T
        shown.flags.writeable = False
        some_ended = False
        if streamer is not None:
            streamer.put(prompt)
        chosen = self._chosen(prompt, logits, sampler)
        while True:
            if some_ended and stops.has_ends:
                chosen = [token if goes else padding for token, goes in zip(chosen, going, strict=True)]
            if length == tokens.shape[1]:
                tokens = widened(tokens, min(most, 2 * length), padding)
                written, columns, shown = tokens.data, [], tokens.T
                shown.flags.writeable = False
            for row, token in enumerate(chosen):
                written[row, length] = token
            length += 1
            if streamer is not None:
                columns = columns or list(shown[length - 1 : length + 63][::-1])
                streamer.put(columns.pop())
            if stops.may_end(chosen):
                ended = stops.ended(tokens[:, :length])
                if ended.any():
                    going &= ~ended
                    some_ended = True
            if length == most or (some_ended and not going.any()):
                break
            if follow_greedily is not None:
                chosen = follow_greedily(chosen, cache)
            else:
                chosen = self._chosen(tokens[:, :length], follow(chosen, cache), sampler)
        if streamer is not None:
            streamer.end()
        return Generated(tokens[:, :length], None, None)

    def _chosen(self, tokens: Array, logits: Array, sampler: Sampler | None) -> list[int]:
        """The next token of each row. A list: the little that comes then is quicker with Python's numbers."""
        for change in self.changes:
            change(tokens, logits)
        found: list[int] = (selection.best(logits) if sampler is None else sampler.draw(logits)).tolist()
        return found

    def _follow(self) -> Callable[[Sequence[int], Cache], Array]:
        """The step for tokens that were chosen: the short one where the model has it."""
        if self.others is None:
            return self.model.follow
        return lambda tokens, cache: self.model.step(np.array(tokens)[:, None], cache, None, None, self.others)

    def beams(self, prompt: Array, logits: Array, most: int, sampler: Sampler | None) -> Generated:
        """Beam search, or beams that are drawn."""
        beams = Beams(self.settings, prompt, most, sampler)
        follow = self._follow()
        while True:
            chosen = beams.step(logits, self.changes, self.stops)
            if chosen is None:
                break
            rows, tokens = chosen
            self.cache.reorder(rows)
            logits = follow(tokens, self.cache)
        sequences, scores = beams.result()
        return Generated(sequences, scores, None)


def _require_memory(rows: int, vocabulary: int) -> None:
    """`errors.Fail` where not even the logits of so many rows fit into memory."""
    if rows * vocabulary * 4 > _CHECKED_BYTES:
        memory.require(3 * 4 * rows * vocabulary, f"the logits of {rows} rows")  # and what beams make of them


def _require_streamer(streamer: object) -> None:
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise errors.InvalidArgument(
            f"A streamer has the methods put and end, and {type(streamer).__name__} has not both: pass such as "
            "transformers' TextStreamer"
        )


def _prompt(ids: Any) -> Array:
    prompt = as_numpy(ids, "The prompt")
    if prompt.ndim == 1:
        prompt = prompt[None]
    if prompt.ndim != 2 or not prompt.size:
        raise errors.InvalidArgument(
            f"The prompt has shape {list(prompt.shape)}, which is no token at all; it must be (rows, tokens), with one "
            "or more of each"
            if not prompt.size
            else f"The prompt has shape {list(prompt.shape)}; it must be (rows, tokens)"
        )
    if prompt.dtype.kind not in "iu":
        raise errors.InvalidArgument(f"The tokens of a prompt must be whole numbers, not {prompt.dtype}")
    return prompt.astype(np.int64, copy=False)


def _mask(given: Any, prompt: Array, settings: Settings) -> Array | None:
    """The mask of a prompt; None where it hides nothing."""
    if given is None:
        pad = settings.pad_token_id
        if pad is None or pad in settings.eos_token_id:
            return None
        mask: Array = (prompt != pad).astype(np.int64)
    else:
        mask = as_numpy(given, "attention_mask")
        mask = mask[None] if mask.ndim == 1 else mask
        if mask.shape != prompt.shape:
            raise errors.InvalidArgument(
                f"attention_mask has shape {list(mask.shape)}, the prompt {list(prompt.shape)}: they must be equal"
            )
        mask = (mask != 0).astype(np.int64)
    return None if mask.all() else mask


def _go_back(cache: Cache, prompt: Array, mask: Array | None, most: int) -> None:
    """Let a cache hold what it knows of a prompt, but for its last token, with room for all."""
    rows, length = prompt.shape
    if cache.rows != rows:
        raise errors.InvalidArgument(f"The cache is of {cache.rows} rows, the prompt has {rows}")
    known = min(cache.matching(prompt, mask), length - 1)
    cache.crop(known if known == cache.length or cache.can_crop else 0)
    cache.reserve(most - 1)
