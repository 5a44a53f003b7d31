"""Scaled dot-product attention: softmax(scale * Q K' + biases) V for every head, without intermediate tensors.

A chunk of the grid is a group of rows of one key head. "Rows" are the queries of all query heads that share the key
head, one head after the other. Keys are taken in blocks of up to `KEYS` positions: the scores of a block of rows lie
in scratch, whole rows of them, and where there are more keys than one block holds, a running maximum and sum correct
what was accumulated before (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).

Two forms of the products share this frame: `attention_products` multiplies blocks of rows by packed keys and values,
`attention_decode` reads keys and values where they lie, for a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sardonyx.compiler.arguments import kernel
from sardonyx.compiler.kernels.attention.attention_decode import FewRows
from sardonyx.compiler.kernels.attention.attention_frame import Block, Frame, RowTable, Source
from sardonyx.compiler.kernels.attention.attention_products import Blocks
from sardonyx.compiler.kernels.attention.attention_softmax import finish_row, softmax_row, start_row
from sardonyx.compiler.kernels.attention.attention_spec import (
    KEYS,
    AttentionArguments,
    AttentionSpec,
)
from sardonyx.compiler.kernels.attention.attention_tiles import TileBlocks
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import configure, release
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import F64, I64, type_of
from sardonyx.light_dataclass import dataclass


@kernel(AttentionArguments)
def emit_attention(k: Function, a: AttentionArguments, spec: AttentionSpec) -> None:
    """A chunk is a group of rows of a key head."""
    given = a.loaded()
    loops = _Kernel(Frame(k, spec, given))
    key_heads, groups = given["key_heads"], given["groups"]
    if spec.tiles:
        configure(k)
    with k.loop(k["begin"], k["end"]) as chunk:
        rest = chunk // groups
        loops.chunk(rest // key_heads, rest % key_heads, chunk % groups)
    if spec.tiles:
        release(k)
    if spec.appends:
        k.settle_streams()


@dataclass(frozen=True)
class _Visible:
    """Which keys a batch entry has: their number, and the position of its first query."""

    keys: Value
    start: Value


class _Kernel:
    """The loop nest of one chunk."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.k, self.spec, self.given = frame.k, frame.spec, frame.given
        blocks = TileBlocks if frame.spec.tiles else Blocks
        self.form = FewRows(frame) if frame.spec.few_rows else blocks(frame)
        given, k = self.given, self.k
        self.ready_unit, self.ready_count = k.variable(I64, -1), k.variable(I64, -1)
        self.scale = given["scale"].bits_as(F64).to(frame.compute)
        self.key = k.pointer(given["key"], frame.storage)
        self.value = k.pointer(given["value"], frame.storage)

    def chunk(self, batch: Value, head: Value, group: Value) -> None:
        """The rows of one group of one key head."""
        k, given = self.k, self.given
        total = given["group_heads"] * given["queries"]
        begin = group * given["group_rows"]
        end = minimum(k, begin + given["group_rows"], total)
        visible = self._visible(batch)
        key_end = self._key_end(visible, begin, end)
        keys = self.key.offset(batch * given["key_batch"]).offset(head * given["key_head"])
        values = self.value.offset(batch * given["value_batch"]).offset(head * given["value_head"])
        with k.loop(0, k.larger(key_end, 1), KEYS) as start:
            count = minimum(k, KEYS, key_end - start)
            here = Block(
                keys.offset(start * given["key_row"]),
                values.offset(start * given["value_row"]),
                start,
                count,
                first=start.equals(0),
                last=start + KEYS >= key_end,
                biases=self._shared_biases(batch, head, start),
                sources=self._sources(batch, head),
            )
            self._prepare(here, batch * given["key_heads"] + head)
            with k.loop(begin, end, self.frame.rows) as row:
                self._rows(here, visible, batch, head, row, begin, end)

    def _prepare(self, here: Block, unit: Value) -> None:
        """Prepare a block of keys, unless the last chunk of this call left the same one behind."""
        if self.spec.few_rows:
            return
        k = self.k
        ready = unit.equals(self.ready_unit.get()) & here.count.equals(self.ready_count.get()) & here.first
        with k.otherwise(ready):
            self.form.prepare(here)
            self.ready_unit.set(k.select(here.first, unit, -1))
            self.ready_count.set(here.count)

    def _shared_biases(self, batch: Value, head: Value, start: Value) -> tuple[Value, ...]:
        """The addresses of the biases of a key head, from the key `start` on, where they are folded."""
        given, addresses = self.given, []
        for number, name in enumerate(self.spec.biases if self.spec.folded else ()):
            scalar = type_of(np.dtype(name))
            assert scalar is not None
            place = batch * given[f"bias_batch{number}"] + start
            place = place + head * given["group_heads"] * given[f"bias_head{number}"]
            addresses.append(given[f"bias{number}"] + place * scalar.nbytes)
        return tuple(addresses)

    def _sources(self, batch: Value, head: Value) -> tuple[Source, ...]:
        """Where keys and values of a key head come from, where they are appended to a cache."""
        if not self.spec.appends:
            return ()
        given, nbytes = self.given, self.frame.storage.nbytes
        sources = []
        for name, size in (("key", self.spec.head_size), ("value", self.spec.value_size)):
            past, new = (
                given[f"{age}_{name}"]
                + (batch * given[f"{age}_{name}_batch"] + head * given[f"{age}_{name}_head"]) * nbytes
                for age in ("past", "new")
            )
            sources.append(Source(past, new, size * nbytes, given[f"new_{name}_row"] * nbytes))
        return tuple(sources)

    def _visible(self, batch: Value) -> _Visible:
        k, given = self.k, self.given
        if not self.spec.lengths:
            return _Visible(given["keys"], given["offset"])
        scalar = type_of(np.dtype(self.spec.lengths))
        assert scalar is not None
        length = k.pointer(given["lengths"], scalar).load(batch).to(I64) + given["length_add"]
        length = k.larger(minimum(k, given["keys"], length), 0)
        start = k.select(given["from_end"].differs(0), length - given["queries"], given["offset"])
        return _Visible(length, start)

    def _key_end(self, visible: _Visible, begin: Value, end: Value) -> Value:
        """The end of the keys that any row of the chunk sees; not negative."""
        k, given = self.k, self.given
        if not self.spec.right:
            return visible.keys
        queries = given["queries"]
        last = end - 1
        same_head = (begin // queries).equals(last // queries)
        latest = k.select(same_head, last % queries, queries - 1)
        return k.larger(minimum(k, visible.keys, visible.start + latest + given["right"] + 1), 0)

    def _rows(
        self, here: Block, visible: _Visible, batch: Value, head: Value, row: Value, begin: Value, end: Value
    ) -> None:
        """One block of rows against one block of keys."""
        k, frame, given = self.k, self.frame, self.given
        count = minimum(k, frame.rows, end - row)
        kept = (row - begin) * given["keep"]
        table = RowTable(frame, kept)
        lowest, highest = k.variable(I64, 1 << 40), k.variable(I64, 0)
        frame.watch_anew("queries")
        with k.loop(0, self.form.padded(count)) as index:
            place = minimum(k, row + index, end - 1)
            query = place % given["queries"]
            query_head = head * given["group_heads"] + place // given["queries"]
            self._copy_query(index, batch, query, query_head)
            with k.when(index < count):
                low, high = self._limits(visible, query)
                lowest.set(k.smaller(lowest.get(), low))
                highest.set(k.larger(highest.get(), high))
                table.fill(index, self._row_words(batch, query, query_head, low, high))
                with k.when(here.first):
                    table.start(index, self._sink(query_head))
        low = k.larger(lowest.get() - here.start, 0) & -frame.panel
        high = minimum(k, highest.get() - here.start, here.count)
        self.form.scores(here, count, low, high)
        with k.loop(0, count) as index:
            (start_row if self.spec.tiles else softmax_row)(frame, table, here, index, low, high)
        self.form.values(here, table, count, low, high)
        with k.when(here.last), k.loop(0, count) as index:
            finish_row(frame, table, index)

    def _limits(self, visible: _Visible, query: Value) -> tuple[Value, Value]:
        """The first key that a query sees, and the end of those."""
        k, given = self.k, self.given
        low: Value = k.constant(I64, 0)
        high = visible.keys
        if self.spec.left:
            low = k.larger(visible.start + query - given["left"], 0)
        if self.spec.right:
            high = minimum(k, high, visible.start + query + given["right"] + 1)
        return low, high

    def _copy_query(self, index: Value, batch: Value, query: Value, head: Value) -> None:
        """One query times the scale into scratch, zeros up to whole vectors."""
        frame, given = self.frame, self.given
        source = self.k.pointer(given["query"], frame.storage).offset(
            batch * given["query_batch"] + query * given["query_row"] + head * given["query_head"]
        )
        depth = frame.product.depth
        for at, mask in frame.pieces(self.spec.head_size, depth):
            values = widened(source.load(at, frame.lanes * depth, mask), frame.compute) * self.scale
            frame.watch("queries", [values])
            frame.store_words(frame.queries, frame.query_stride, index, at, frame.words(values))

    def _row_words(self, batch: Value, query: Value, head: Value, low: Value, high: Value) -> Mapping[str, Value]:
        """What the later passes need to know of a row."""
        given = self.given

        def address(base: str, index: Value, nbytes: int) -> Value:
            return given[base] + index * nbytes

        place = batch * given["output_batch"] + query * given["output_row"] + head * given["output_head"]
        words = {"output": address("output", place, self.spec.result_type.nbytes), "low": low, "high": high}
        for number, name in enumerate(() if self.spec.folded else self.spec.biases):
            scalar = type_of(np.dtype(name))
            assert scalar is not None
            place = (
                batch * given[f"bias_batch{number}"]
                + head * given[f"bias_head{number}"]
                + query * given[f"bias_row{number}"]
            )
            words[f"bias{number}"] = address(f"bias{number}", place, scalar.nbytes)
        return words

    def _sink(self, head: Value) -> Value | None:
        if not self.spec.sink:
            return None
        sinks: Pointer = self.k.pointer(self.given["sink"], self.frame.compute)
        return sinks.load(head)
