"""The decoder of an encoder-decoder as steps over a cache: the encoder's states go in once, and their keys stay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.session import InferenceSession
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.models.generation import model_facts
from sardonyx.models.generation.bound_step import SingleStep, Step
from sardonyx.models.generation.cache import Array, Cache
from sardonyx.models.generation.decoder import Decoder
from sardonyx.models.generation.signature import GREEDY_TOKENS, IDS, PAST_LENGTH, USE_CACHE, Signature
from sardonyx.models.part import Part

STATES, STATES_MASK = "encoder_hidden_states", "encoder_attention_mask"
# Inputs that hold a mask of the decoder's own tokens.
_MASKS = ("attention_mask", "decoder_attention_mask")
_CACHE_POSITION = "cache_position"
# What ends the positions of a decoder, beside the names that decoders without an encoder have.
_POSITIONS = ("max_target_positions", *model_facts.POSITIONS)
# Models with this setting count distances and no positions: any length will do.
_RELATIVE = "relative_attention_num_buckets"


class DecoderFiles:
    """The files of a decoder: one for the first step, one with caches for the others; both may be one and the same.

    `own` and `cross` are the caches of the decoder's tokens and those of the encoder's states: inputs of later steps
    with the outputs of the first one. A decoder without caches has none of them, and reads all tokens again.
    `placed` is a session for the later steps that writes its caches in place (`sardonyx.caches_in_place`); one that
    could not be made so is left out. With it, `later` does without a session.
    """

    def __init__(self, first: Part, later: Part | None = None, placed: InferenceSession | None = None) -> None:
        self.first, self.later = first, first if later is None else later
        self.placed = placed if placed is not None and _is_in_place(placed) else None
        self.signature = Signature.of(first.given, first.made)
        self.dtypes = self.signature.dtypes
        self.later_dtypes = Signature.of(self.later.given, self.later.made).dtypes
        self.shapes = {one.name: one.shape for one in self.later.given}
        given = {_stem(one.name): one.name for one in first.made if one.name.startswith("present")}
        made = {_stem(one.name): one.name for one in self.later.made if one.name.startswith("present")}
        self.own: list[tuple[str, str, str]] = []
        self.cross: list[tuple[str, str]] = []
        for name in self.later_dtypes:
            stem = _stem(name)
            if not name.startswith("past") or stem not in given:
                continue
            if "encoder" in stem or "cross" in stem:
                self.cross.append((name, given[stem]))
            elif stem in made:
                self.own.append((name, given[stem], made[stem]))

    @property
    def has_caches(self) -> bool:
        """Whether the decoder keeps what it has read."""
        return bool(self.own)

    @property
    def is_merged(self) -> bool:
        """Whether an input of the first session chooses between two graphs."""
        return USE_CACHE in self.dtypes


class EncodedCache(Cache):
    """What a decoder keeps of its tokens, and of the states of the encoder, whose length stays."""

    can_crop = True

    def __init__(self, rows: int, capacity: int, limit: int | None, spread: int) -> None:
        super().__init__(rows, capacity, limit, spread)
        self.own: list[Array] = []  # (rows, heads, length, head size), in the order of `DecoderFiles.own`
        self.held: dict[str, Array] = {}  # inputs of later steps that stay from step to step
        # Where `own` are buffers as long as the capacity:
        self.step: Step | None = None
        self.single: SingleStep | None = None

    @property
    def table(self) -> Array:
        """The mask of all positions that there is room for: (rows, capacity)."""
        return self._mask[: self.rows]

    def spread_out(self) -> None:
        """Make buffers as long as the capacity of `own`."""
        shapes = [(*one.shape[:2], self.capacity, one.shape[3]) for one in self.own]
        buffers = [np.zeros(shape, one.dtype) for shape, one in zip(shapes, self.own, strict=True)]
        for buffer, one in zip(buffers, self.own, strict=True):
            buffer[:, :, : self.length] = one[:, :, : self.length]
        self.own = buffers

    def _grow(self, capacity: int) -> None:
        self._leave_buffers()

    def _leave_buffers(self) -> None:
        if self.step is not None:
            self.own = [one[:, :, : self.length] for one in self.own]
            self.step = self.single = None

    def _crop(self, length: int) -> None:
        self._leave_buffers()
        if not length:
            self._clear()
        self.own = [np.ascontiguousarray(one[:, :, :length]) for one in self.own]

    def _move(self, places: list[int], sources: list[int], first: int) -> None:
        # Rows change places with others of the same prompt alone, whose states of the encoder are the same.
        for one in self.own:
            one[places, :, first : self.length] = one[sources, :, first : self.length]

    def _fan_out(self, sources: Array) -> None:
        self._leave_buffers()
        self.own = [one[sources] for one in self.own]
        self.held = {name: one[sources] for name, one in self.held.items()}

    def _clear(self) -> None:
        self.own, self.held, self.step, self.single = [], {}, None, None


class EncodedDecoder(Decoder):
    """Steps of a decoder over the states (rows, length, size) of one batch of inputs, under `mask` (rows, length)."""

    form = "encoder-decoder"

    def __init__(self, files: DecoderFiles, config: object, states: Array, mask: Array | None = None) -> None:
        super().__init__(files.first.session, files.signature, config)
        self._files = files
        self._states = states
        self._states_mask = np.ones(states.shape[:2], np.int64) if mask is None else mask
        self.positions = decoder_positions(config)

    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> EncodedCache:
        if rows != len(self._states):
            raise errors.InvalidArgument(
                f"The decoder has {rows} rows of tokens for the {len(self._states)} inputs that the encoder has read"
            )
        return EncodedCache(rows, self._capacity(capacity), self.positions, spread)

    def read(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """`step`: the prompts of decoders are short, and are read by the graph for the first step at once."""
        return self.step(ids, cache, attention_mask, None, others)

    def step(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """As of `Decoder`; behind the first step tokens go one by one, as the graphs with caches are made for one."""
        ids = np.asarray(ids)
        if self._files.has_caches and cache.length and ids.ndim == 2 and ids.shape[1] > 1:
            return self._piece_by_piece(1, ids, cache, attention_mask, position_ids, others)
        return super().step(ids, cache, attention_mask, position_ids, others)

    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        assert isinstance(cache, EncodedCache)
        if not cache.length:
            cache.held = {STATES: self._states, STATES_MASK: self._states_mask}
        if not self._files.has_caches:
            return self._whole(cache, ids, others)
        return self._later(cache, ids, others) if cache.length else self._first(cache, ids, others)

    def _whole(self, cache: EncodedCache, ids: Array, others: Mapping[str, Any]) -> Array:
        files = self._files
        everything = np.concatenate([cache.tokens, ids], axis=1)
        values = {**cache.held, **self._common(cache, ids, len(everything[0])), **others, IDS: everything}
        logits: Array = files.first.session.run([files.signature.logits], _fed(values, files.dtypes))[0]
        return logits

    def _first(self, cache: EncodedCache, ids: Array, others: Mapping[str, Any]) -> Array:
        files = self._files
        values = {**cache.held, **self._common(cache, ids, ids.shape[1]), **others, IDS: ids}
        if files.is_merged:
            values |= {USE_CACHE: np.array([False]), **self._empty()}
        names = [given for _, given, _ in files.own] + [given for _, given in files.cross]
        logits, *arrays = files.first.session.run([files.signature.logits, *names], _fed(values, files.dtypes))
        cache.own = arrays[: len(files.own)]
        cache.held |= {name: array for (name, _), array in zip(files.cross, arrays[len(files.own) :], strict=True)}
        cache.held = {name: array for name, array in cache.held.items() if name in files.later_dtypes}
        result: Array = logits
        return result

    def _later(self, cache: EncodedCache, ids: Array, others: Mapping[str, Any]) -> Array:
        files = self._files
        if files.placed is not None and not others and self.vocabulary is not None:
            return self._in_place(files.placed, cache, ids)
        values = {**cache.held, **self._common(cache, ids, ids.shape[1]), **others, IDS: ids}
        if USE_CACHE in files.later_dtypes:
            values[USE_CACHE] = np.array([True])
        values |= {name: array for (name, _, _), array in zip(files.own, cache.own, strict=True)}
        names = [made for _, _, made in files.own]
        logits, *cache.own = files.later.session.run([files.signature.logits, *names], _fed(values, files.later_dtypes))
        result: Array = logits
        return result

    def _in_place(self, session: InferenceSession, cache: EncodedCache, ids: Array) -> Array:
        """A step in which nothing is allocated, copied or bound anew."""
        self._require_shown(cache, 1)
        if cache.step is None:
            cache.spread_out()
            cache.step = self._bound(session, cache)
            cache.single = SingleStep(cache.step)
        step = cache.step
        assert step.past is not None
        assert step.positions is not None
        step.ids[...] = ids
        step.past[...] = cache.length
        step.positions[...] = cache.length
        session.run_with_iobinding(step.binding)
        return step.logits

    def _follow(self, tokens: Sequence[int], cache: Cache) -> SingleStep | None:
        assert isinstance(cache, EncodedCache)
        step, begin, session = cache.single, cache.length, self._files.placed
        if step is None or session is None or begin >= cache.capacity:
            return None
        assert step.past is not None
        assert step.positions is not None
        for row, token in enumerate(tokens):
            step.ids[row] = token
        step.past[0] = step.positions[0] = begin
        cache.put_one(tokens)
        step.run(session)
        cache.length = begin + 1
        return step

    def _bound(self, session: InferenceSession, cache: EncodedCache) -> Step:
        files, rows = self._files, cache.rows
        signature = Signature.of(session.get_inputs(), session.get_outputs())
        dtypes = signature.dtypes
        binding = session.io_binding()

        def given(name: str, array: Array) -> Array:
            if name in dtypes:
                array = np.asarray(array, dtypes[name], order="C")
                binding.bind_cpu_input(name, array)
            return array

        def made(name: str, array: Array) -> None:
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

        for (name, _, output), buffer in zip(files.own, cache.own, strict=True):
            value = OrtValue.ortvalue_from_numpy(buffer)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(output, value)
        held = {name: given(name, array) for name, array in cache.held.items()}
        held |= {name: given(name, cache.table) for name in _MASKS}
        kinds = {one.name: one.type for one in session.get_outputs()}
        is_half = kinds[files.signature.logits] == "tensor(float16)"
        logits = np.empty((rows, 1, self.vocabulary or 0), np.float16 if is_half else np.float32)
        made(files.signature.logits, logits)
        greedy = np.empty(logits.shape[:2], np.int64) if signature.greedy else None
        if greedy is not None:
            made(GREEDY_TOKENS, greedy)
        return Step(
            binding,
            given(IDS, np.zeros((rows, 1), dtypes[IDS])),
            given(_CACHE_POSITION, np.zeros(1, np.int64)),
            None,
            None,
            given(PAST_LENGTH, np.zeros((), np.int64)),
            held,
            logits,
            greedy,
        )

    def _require_shown(self, cache: EncodedCache, count: int) -> None:
        """`errors.InvalidArgument` for padding among the decoder's tokens, where no input of the model tells of it."""
        hidden = not cache.coming_mask(count).all()
        if hidden and not any(name in self._files.dtypes for name in _MASKS):
            raise errors.InvalidArgument(
                "The decoder's tokens have padding, and its ONNX file has no mask for them: generate for one input "
                "at a time, or without prompts of different lengths"
            )

    def _common(self, cache: EncodedCache, ids: Array, count: int) -> dict[str, Array]:
        mask = cache.coming_mask(ids.shape[1])
        end = cache.length + ids.shape[1]
        self._require_shown(cache, ids.shape[1])
        positions = np.arange(end - count, end, dtype=np.int64)
        return {**dict.fromkeys(_MASKS, mask), _CACHE_POSITION: positions}

    def _empty(self) -> dict[str, Array]:
        """Caches for the graph of a merged file that reads none: as long as the states, whose length they share."""
        files, rows, length = self._files, self._states.shape[0], self._states.shape[1]
        head_size = model_facts.head_size(self.config) or 1
        found = {}
        for names, positions in ((files.own, 0), (files.cross, length)):
            for name, *_ in names:
                free = [rows, 1, positions, head_size]
                shape = files.shapes[name]
                sizes = [size if isinstance(size, int) else free[axis] for axis, size in enumerate(shape)]
                found[name] = np.zeros(sizes, files.dtypes[name])
        return found


def decoder_positions(config: object) -> int | None:
    """The most positions of a decoder by its model's configuration; None where any number will do."""
    if model_facts.number(config, (_RELATIVE,)) is not None:
        return None
    return model_facts.number(config, _POSITIONS)


def _fed(values: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """What a session takes of these values, in its types."""
    return {name: np.ascontiguousarray(values[name], dtype) for name, dtype in dtypes.items() if name in values}


def _is_in_place(session: InferenceSession) -> bool:
    """Whether a session writes its caches in place, and takes the mask as it is kept here."""
    types = {one.name: one.type for one in session.get_inputs()}
    return PAST_LENGTH in types and all(types.get(name, "tensor(int64)") == "tensor(int64)" for name in _MASKS)


def _stem(name: str) -> str:
    return re.sub(r"^(past|present)(_key_values?)?[._]?", "", name)
