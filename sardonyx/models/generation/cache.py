"""The caches of a decoder's rows, and what they hold: which tokens, at which positions, alike in which rows."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sardonyx import errors

Array = np.ndarray[Any, Any]

# Caches grow by multiples of so many positions.
BLOCK = 64


class Cache(ABC):
    """What a decoder keeps of the tokens that it has read, row by row.

    `rows` are read at a time; there is room for `rows * spread` of them, for `fan_out`. `capacity` is the number of
    positions that fit without growing, `limit` the most that the model can have (None: any number).
    """

    def __init__(self, rows: int, capacity: int, limit: int | None, spread: int = 1) -> None:
        for name, value in (("rows", rows), ("positions", capacity), ("rows for each prompt", spread)):
            if value < 1:
                raise errors.InvalidArgument(f"A cache needs 1 or more {name}, not {value}")
        self.limit = limit
        self._require(capacity)
        self._use = threading.Lock()
        self.rows = rows
        self.most_rows = rows * spread
        self.length = 0
        self._tokens = np.zeros((self.most_rows, capacity), np.int64)
        self._mask = np.zeros((self.most_rows, capacity), np.int64)
        # Numbers of what lies at each position: two rows with the same number there hold the same. Where there is one
        # row, they may stay what they are: all that it becomes holds the same.
        self._contents = np.zeros((self.most_rows, capacity), np.int64)
        self._last_content = 0
        self._numbered = 0  # positions that have their numbers; those behind get them when rows are compared
        self._hidden = np.zeros(self.most_rows, np.int64)  # positions of each row that are padding
        self._coming_hidden = self._hidden.copy()
        self._written = 0  # positions behind it are 0 in the mask
        self._look()

    # What it holds

    @property
    def capacity(self) -> int:
        """Positions that fit without growing."""
        return self._tokens.shape[1]

    @property
    def tokens(self) -> Array:
        """The ids that the filled positions were made of: (rows, length), int64, a view."""
        return self._tokens[: self.rows, : self.length]

    @property
    def mask(self) -> Array:
        """1 where a filled position holds a token, 0 for padding: (rows, length), int64, a view."""
        return self._mask[: self.rows, : self.length]

    def matching(self, ids: Array, mask: Array | None = None) -> int:
        """How many positions at the beginning hold what a prompt (rows, tokens) with this mask begins with."""
        if len(ids) != self.rows:
            return 0
        count = min(self.length, ids.shape[1])
        same = self._tokens[: self.rows, :count] == ids[:, :count]
        same &= self._mask[: self.rows, :count] == (1 if mask is None else mask[:, :count])
        apart = np.flatnonzero(~same.all(axis=0))
        return int(apart[0]) if len(apart) else count

    @property
    def seen(self) -> Array:
        """How many tokens each row holds: (rows, 1)."""
        return self.length - self._hidden[: self.rows, None]

    @property
    def coming(self) -> Array:
        """How many tokens each row holds behind the step that is about to run: (rows,)."""
        return self._written - self._coming_hidden[: self.rows]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While it serves a call of `generate`; `errors.InvalidArgument` where it serves another one."""
        if not self._use.acquire(blocking=False):
            raise errors.InvalidArgument(
                "The cache serves another call of generate, which is not done: give each call a cache of its own"
            )
        try:
            yield
        finally:
            self._use.release()

    # What a step writes

    def reserve(self, positions: int) -> None:
        """Have room for so many positions; `errors.InvalidArgument` for more than the model has."""
        if positions <= self.capacity:
            return
        self._require(positions)
        wanted = max(2 * self.capacity, -(-positions // BLOCK) * BLOCK)
        wanted = positions if self.limit is not None and self.limit < positions else min(wanted, self.limit or wanted)
        added = ((0, 0), (0, wanted - self.capacity))
        grown = [np.pad(one, added) for one in (self._tokens, self._mask, self._contents)]
        self._grow(wanted)
        self._tokens, self._mask, self._contents = grown
        self._look()

    def put(self, ids: Array, mask: Array | None) -> None:
        """Write down the tokens (rows, count) that a step is about to read.

        `mask` is None where all are tokens, else (rows, count), or (rows, length + count), which replaces what is known
        of earlier positions.
        """
        begin, end, rows = self.length, self.length + ids.shape[1], self.rows
        self._tokens[:rows, begin:end] = ids
        if self._written > end:
            self._mask[:, end : self._written] = 0
        self._written = end
        if mask is None:
            self._mask[:rows, begin:end] = 1
            self._coming_hidden[:rows] = self._hidden[:rows]
            return
        if mask.shape == (rows, end):
            self._mask[:rows, :end] = mask
        elif mask.shape == ids.shape:
            self._mask[:rows, begin:end] = mask
        else:
            raise errors.InvalidArgument(
                f"attention_mask has shape {list(mask.shape)}; it must be [{rows}, {end}], or {list(ids.shape)} for "
                "the new tokens alone"
            )
        self._hidden[:rows] = begin - self._mask[:rows, :begin].sum(axis=1)
        self._coming_hidden[:rows] = end - self._mask[:rows, :end].sum(axis=1)

    def put_one(self, tokens: Sequence[int]) -> None:
        """`put` for a token for each row that is no padding; then `length` is 1 more, and that is `advance`.

        It writes element by element through views, which touches little memory: all of it, code of NumPy's too, has to
        come anew behind a run that reads all weights.
        """
        begin = self.length
        if self._written > begin + 1:
            self._mask[:, begin + 1 : self._written] = 0
        self._written = begin + 1
        held, mask, place, step = self._token_view, self._mask_view, begin, self._tokens.shape[1]
        for token in tokens:
            held[place] = token
            mask[place] = 1
            place += step

    def coming_mask(self, count: int) -> Array:
        """The mask of all positions, with those of the step that is about to read `count` tokens: a view."""
        return self._mask[: self.rows, : self.length + count]

    def coming_positions(self, count: int) -> Array:
        """The positions (rows, count) of the tokens that a step is about to read: padding does not count."""
        rows = self.rows
        if count == 1 and self._mask[:rows, self.length].all():
            return self.seen
        new = self._mask[:rows, self.length : self.length + count]
        places = self.seen + np.cumsum(new, axis=1) - 1
        return np.where(new == 0, 1, places)

    def advance(self, count: int) -> None:
        """A step has read `count` tokens."""
        self._hidden[: self.rows] = self._coming_hidden[: self.rows]
        self.length += count

    def renew(self, rows: int) -> None:
        """Be empty, as a new cache for `rows` rows is, which there must be room for."""
        self._mask[:, : self._written] = 0
        self._hidden[:] = self._coming_hidden[:] = 0
        self.rows, self.length, self._written, self._numbered = rows, 0, 0, 0
        self._clear()

    # What rearranges it

    @property
    @abstractmethod
    def can_crop(self) -> bool:
        """Whether it can go back to fewer positions; a state of fixed size knows only where it is."""

    def crop(self, length: int) -> None:
        """Forget all but the first `length` positions; `errors.InvalidArgument` where that is not possible."""
        if length == self.length:
            return
        if not 0 <= length < self.length:
            raise errors.InvalidArgument(f"A cache of {self.length} positions cannot be cut to {length}")
        if length and not self.can_crop:
            raise errors.InvalidArgument(
                "The cache holds states of convolutions or state spaces, which cannot go back to fewer positions: "
                "cut it to 0"
            )
        with self._changing():
            self._crop(length)
        self._hidden[: self.rows] = length - self._mask[: self.rows, :length].sum(axis=1)
        self._numbered = min(self._numbered, length)
        self.length = length

    def reorder(self, rows: Sequence[int]) -> None:
        """Make row i what row `rows[i]` is now; only positions that differ between the two are copied."""
        is_flat = np.shape(rows) == (self.rows,)
        rows = np.asarray(rows).tolist()
        if not is_flat or min(rows) < 0 or max(rows) >= self.rows:
            raise errors.InvalidArgument(f"{rows} does not name a row of {self.rows} for each of them")
        changed = [row for row, source in enumerate(rows) if row != source]
        if not changed:
            return
        self._number()
        differs = self._contents[[rows[row] for row in changed], : self.length]
        differs = differs != self._contents[changed, : self.length]
        places = [row for row, one in zip(changed, differs.any(axis=1).tolist(), strict=True) if one]
        if not places:
            return
        sources, first = [rows[place] for place in places], int(differs.any(axis=0).argmax())
        with self._changing():
            self._move(places, sources, first)
        for table in (self._tokens, self._mask, self._contents):
            table[places, first : self.length] = table[sources, first : self.length]
        self._hidden[places] = self._hidden[sources]

    def fan_out(self, count: int) -> None:
        """Make each row `count` rows that follow each other; there must be room for them."""
        if count == 1:
            return
        wide = self.rows * count
        if wide > self.most_rows:
            raise errors.InvalidArgument(f"A cache for {self.most_rows} rows has no room for {wide}")
        self._number()
        sources = np.arange(wide) // count
        with self._changing():
            self._fan_out(sources)
        for table in (self._tokens, self._mask, self._contents, self._hidden):
            table[:wide] = table[sources]
        self.rows = wide

    def _number(self) -> None:
        """Give the positions that have been read since rows were last compared numbers of their own."""
        begin, end, rows = self._numbered, self.length, self.rows
        made = np.arange(self._last_content + 1, self._last_content + 1 + rows * (end - begin))
        self._contents[:rows, begin:end] = made.reshape(rows, end - begin)
        self._last_content += len(made)
        self._numbered = end

    def _look(self) -> None:
        """Look at the tables as they are now, element by element."""
        self._token_view, self._mask_view = self._tokens.reshape(-1).data, self._mask.reshape(-1).data

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is stopped halfway, as by Ctrl-C, leaves an empty cache and no mixture."""
        try:
            yield
        except BaseException:
            self.length = self._numbered = 0
            self._hidden[:] = 0
            self._clear()
            raise

    def _require(self, positions: int) -> None:
        if self.limit is not None and positions > self.limit:
            raise errors.InvalidArgument(
                f"A cache of {positions} positions is longer than the {self.limit} that the model has. Ask for fewer "
                "new tokens, or shorten the prompt"
            )

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """Have room for `capacity` positions."""

    @abstractmethod
    def _crop(self, length: int) -> None:
        """Let go of what lies behind."""

    @abstractmethod
    def _move(self, places: list[int], sources: list[int], first: int) -> None:
        """Copy positions from `first` of rows `sources` to rows `places`."""

    @abstractmethod
    def _fan_out(self, sources: Array) -> None:
        """Fill row i from row `sources[i]`, which is at or before i, for all rows there will be."""

    @abstractmethod
    def _clear(self) -> None:
        """Be empty, whatever there is."""
