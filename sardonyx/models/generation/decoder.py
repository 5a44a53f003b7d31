"""A decoder-only model as steps over a cache, in the form that its file allows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.models.generation import model_facts, selection
from sardonyx.models.generation.bound_step import SingleStep
from sardonyx.models.generation.cache import BLOCK, Cache
from sardonyx.models.generation.signature import Signature

Array = np.ndarray[Any, Any]

# Tokens of a prompt that are read at once, and the bytes of logits that such a step may make.
CHUNK = 512
LOGITS_BYTES = 64 << 20

# What a session is asked for: it does so where it can.
ENTRIES = {"sardonyx.caches_in_place": "1", "sardonyx.last_logits": "1", "sardonyx.greedy_tokens": "1"}


class Decoder(ABC):
    """Steps of a decoder: tokens and a cache in, the logits of what comes next out.

    `session` is the session; `vocabulary` the number of tokens and `positions` the most that a row may have, where the
    model or its configuration say so. Decoders are made by `open` or `of`.
    """

    # How the caches are kept, in words.
    form: str

    def __init__(self, session: InferenceSession, signature: Signature, config: object) -> None:
        self.session = session
        self.config = config
        self.vocabulary = signature.vocabulary or model_facts.number(config, model_facts.VOCABULARY)
        self.positions = model_facts.number(config, model_facts.POSITIONS)
        self._signature = signature

    @staticmethod
    def open(
        model_path: str | os.PathLike[str],
        config: object = None,
        *,
        session_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> Decoder:
        """A decoder of a model file.

        `config` is the model's configuration: of transformers, or the content of a config.json. Raises the errors of
        `InferenceSession`, and `errors.InvalidArgument` for a model that is no decoder of tokens.
        """
        options = SessionOptions() if session_options is None else session_options._copy()
        for key, value in ENTRIES.items():
            if key not in options._config:
                options.add_session_config_entry(key, value)
        session = InferenceSession(model_path, options, providers, provider_options)
        return Decoder.of(session, config)

    @staticmethod
    def of(session: InferenceSession, config: object = None) -> Decoder:
        """A decoder of a session that is there; `errors.InvalidArgument` where it is none of a decoder of tokens."""
        from sardonyx.models.generation.bound_decoder import BoundDecoder
        from sardonyx.models.generation.growing_decoder import GrowingDecoder
        from sardonyx.models.generation.whole_decoder import WholeDecoder

        fewest = session._session().fewest_positions
        signature = Signature.of(session.get_inputs(), session.get_outputs(), fewest)
        if not signature.states:
            return WholeDecoder(session, signature, config)
        if BoundDecoder.serves(session, signature):
            return BoundDecoder(session, signature, config)
        return GrowingDecoder(session, signature, config)

    @abstractmethod
    def cache(self, rows: int, capacity: int | None = None, *, spread: int = 1) -> Cache:
        """An empty cache for `rows` prompts of the same length; each may become `spread` rows (`Cache.fan_out`).

        `capacity` is the number of positions to have room for at once, rounded up; more grow as they are needed.
        `errors.InvalidArgument` for more positions than the model has.
        """

    def step(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """Read tokens (rows, count) behind those that the cache holds: the logits (rows, vocabulary) of the last one.

        `attention_mask` is 1 for tokens and 0 for padding, (rows, count) or with all earlier columns, too; None means
        no padding. Positions are counted by it if `position_ids` are not given. `others` are further inputs of the
        model by name. The logits are float32 and may be a view that the next step writes over.

        Raises `errors.InvalidArgument` for tokens that do not fit the cache or the vocabulary, or that are none.
        """
        ids = np.asarray(ids)
        self._check(ids, cache)
        count = ids.shape[1]
        most = self._signature.step or count
        if count > most:
            return self._piece_by_piece(most, ids, cache, attention_mask, position_ids, others)
        cache.reserve(cache.length + count)
        cache.put(ids, None if attention_mask is None else np.asarray(attention_mask))
        if position_ids is None:
            position_ids = cache.coming_positions(count)
        logits = self._run(cache, ids, position_ids, others or {})
        cache.advance(count)
        last = logits[:, -1]
        return last if last.dtype == np.float32 else last.astype(np.float32)

    def follow(self, tokens: Sequence[int], cache: Cache) -> Array:
        """`step` for a token for each row, chosen by logits of this model: nothing of them needs to be checked."""
        step = self._follow(tokens, cache)
        return self._stepped(tokens, cache) if step is None else step.logits

    def follow_greedily(self, tokens: Sequence[int], cache: Cache) -> list[int]:
        """The likeliest token behind `follow`, for each row: of equal ones the first; `errors.Fail` for NaN."""
        step = self._follow(tokens, cache)
        if step is not None:
            return step.likeliest()
        found: list[int] = selection.best(self._stepped(tokens, cache)).tolist()
        return found

    def keep(self, cache: Cache) -> None:  # noqa: B027  not all have buffers that are worth it
        """Take a cache that nobody uses any more: a later one may be made of its buffers."""

    def read(
        self,
        ids: Any,
        cache: Cache,
        attention_mask: Array | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Array:
        """`step` for a prompt of any length, in chunks, so that its logits take a bounded amount of memory."""
        return self._piece_by_piece(self._chunk(cache.rows), np.asarray(ids), cache, attention_mask, None, others)

    def _follow(self, tokens: Sequence[int], cache: Cache) -> SingleStep | None:
        """Run a step that is bound for one token for each row; None where none is bound yet."""
        return None

    def _stepped(self, tokens: Sequence[int], cache: Cache) -> Array:
        return self.step(np.array(tokens, np.int64)[:, None], cache)

    def _piece_by_piece(
        self,
        size: int,
        ids: Array,
        cache: Cache,
        mask: Array | None,
        positions: Array | None,
        others: Mapping[str, Any] | None,
    ) -> Array:
        if ids.ndim != 2 or ids.shape[1] <= size:
            return self.step(ids, cache, mask, positions, others)
        known = 0 if mask is None else mask.shape[1] - ids.shape[1]
        logits: Array | None = None
        for begin in range(0, ids.shape[1], size):
            end = begin + size
            logits = self.step(
                ids[:, begin:end],
                cache,
                None if mask is None else mask[:, (0 if known else begin) : known + end],
                None if positions is None else positions[:, begin:end],
                others,
            )
        assert logits is not None
        return logits

    def _chunk(self, rows: int) -> int:
        words = self.vocabulary or 1
        return max(16, min(CHUNK, LOGITS_BYTES // (4 * words * rows) // 16 * 16))

    def _capacity(self, wanted: int | None) -> int:
        """Positions for a cache that was asked for with room for `wanted`."""
        capacity = -(-(wanted or 1) // BLOCK) * BLOCK
        if self.positions is None or (wanted is not None and wanted > self.positions):
            return capacity
        return min(capacity, self.positions)

    def _require_rows(self, rows: int) -> None:
        if self._signature.rows not in (None, rows):
            raise errors.InvalidArgument(
                f"The model was exported for a batch of {self._signature.rows} rows, not for {rows}"
            )

    def _check(self, ids: Array, cache: Cache) -> None:
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise errors.InvalidArgument(
                f"Tokens must be whole numbers of shape (rows, tokens), not {ids.dtype} of shape {list(ids.shape)}"
            )
        if ids.shape[0] != cache.rows:
            raise errors.InvalidArgument(f"The cache has {cache.rows} rows, the tokens have {ids.shape[0]}")
        if not ids.shape[1]:
            raise errors.InvalidArgument("There is no token to read: the prompt has 0 tokens. Give one or more")
        if self.vocabulary is not None and (ids.astype(np.uint64) >= self.vocabulary).any():
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            raise errors.InvalidArgument(
                f"Token {wrong} is outside of the model's vocabulary, which has {self.vocabulary} tokens from 0. The "
                "tokenizer may be that of another model"
            )

    @abstractmethod
    def _run(self, cache: Cache, ids: Array, positions: Array, others: Mapping[str, Any]) -> Array:
        """Logits (rows, tokens or 1, vocabulary) for tokens that the cache has put down; the caches are filled."""
