"""The products of attention for a few rows, as a decoder asks for: keys and values are read once, where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sardonyx.compiler.kernels.attention.attention_frame import Block, Frame, RowTable
from sardonyx.compiler.llvm.builder import Value, minimum
from sardonyx.compiler.llvm.narrow_floats import widened
from sardonyx.compiler.llvm.types import I64

# How far ahead of what is read the next rows are asked for. Prefetchers of some machines stop at every page.
_BYTES_AHEAD = 8 << 10


class FewRows:
    """Scores by dot products, several keys at once; weighted sums along the keys, in a fixed order."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.k, self.given = frame, frame.k, frame.given
        self.rows = frame.spec.few_rows
        self.keys = frame.lanes // self.rows  # keys of one group: rows * keys sums fill one vector
        if self.keys * self.rows != frame.lanes:
            raise ValueError(f"{self.rows} rows do not divide {frame.lanes} lanes")

    def prepare(self, here: Block) -> None:
        """Nothing is packed."""

    def padded(self, count: Value) -> Value:
        return self.k.constant(I64, self.rows)

    def scores(self, here: Block, count: Value, low: Value, high: Value) -> None:
        """The products of the rows of queries and the keys [low, high); keys beyond the block repeat its last one."""
        k, frame, lanes = self.k, self.frame, self.frame.lanes
        pieces = list(frame.written_out(frame.spec.head_size))
        kept = {}
        if self.rows * len(pieces) <= k.target.registers // 4:
            for row in range(self.rows):
                for at, _ in pieces:
                    kept[row, at] = frame.queries.load(row * frame.query_stride + at, lanes)
        for streams in self._written(here, 0):
            with k.loop(low, high, self.keys) as first:
                self._scores_of_group(here, first, pieces, kept, streams)

    def _scores_of_group(
        self,
        here: Block,
        first: Value,
        pieces: list[tuple[int, Value | None]],
        kept: dict[tuple[int, int], Value],
        streams: bool,
    ) -> None:
        """The scores of the keys of one group; the vectors of queries that are not `kept` are read anew."""
        k, frame, lanes = self.k, self.frame, self.frame.lanes
        sums = [[k.constant(frame.compute.vector(lanes), 0.0)] * self.keys for _ in range(self.rows)]
        for number in range(self.keys):
            place = minimum(k, first + number, here.count - 1) if number else first
            key = self._row(here, 0, place, streams)
            for at, mask in pieces:
                vector = key(at, mask)
                for row in range(self.rows):
                    query = kept.get((row, at))
                    if query is None:
                        query = frame.queries.load(row * frame.query_stride + at, lanes)
                    sums[row][number] = k.fma(query, vector, sums[row][number])
        total = self._lane_sums([vector for row in sums for vector in row])
        for row in range(self.rows):
            part = total
            if self.rows > 1:
                begin = row * self.keys
                part = total.lane(begin) if self.keys == 1 else k.shuffle(total, None, range(begin, begin + self.keys))
            frame.score_row(row).store(part, first)

    def _written(self, here: Block, which: int) -> Iterator[bool]:
        """The code for keys (0) or values (1) that are written past the processor's caches, and for others.

        Large ones are: in the processor's caches they would be gone before the next token reads them, and each line
        would be read from memory only to be overwritten.
        """
        k, given, frame = self.k, self.given, self.frame
        if not here.sources:
            yield False
            return
        nbytes, sizes = frame.storage.nbytes, (frame.spec.head_size, frame.spec.value_size)
        far = given["keys"] * given["key_heads"] * (sum(sizes) * nbytes) > given["near"]
        start = (here.keys, here.values)[which].address
        places = k.emit(I64, f"ptrtoint ptr {start.name} to i64") | (given[("key_row", "value_row")[which]] * nbytes)
        streams = far & (places & (frame.lanes * nbytes - 1)).equals(0)
        with k.when(streams):
            yield True
        with k.otherwise(streams):
            yield False

    def _row(self, here: Block, which: int, place: Value, streams: bool) -> Callable[[int, Value | None], Value]:
        """How the vectors of a row of keys (0) or values (1) are read; they are written to the cache on the way."""
        k, frame = self.k, self.frame
        step = self.given[("key_row", "value_row")[which]]
        read = lies = (here.keys, here.values)[which].offset(place * step)
        if here.sources:
            source, absolute = here.sources[which], here.start + place
            behind = absolute - self.given["past_rows"]
            past = source.past + absolute * source.past_step
            read = k.pointer(k.select(behind < 0, past, source.new + behind * source.new_step), frame.storage)
        size = (frame.spec.head_size, frame.spec.value_size)[which]
        later = read.offset(step * max(1, _BYTES_AHEAD // (size * frame.storage.nbytes)))

        def vector(at: int, mask: Value | None) -> Value:
            later.prefetch(at)
            values = read.load(at, frame.lanes, mask)
            if here.sources and streams and mask is None:
                lies.stream(values, at)
            elif here.sources:
                lies.store(values, at, mask)
            return widened(values, frame.compute)

        return vector

    def _lane_sums(self, vectors: list[Value]) -> Value:
        """A vector whose lane i is the sum of the lanes of vector i; there are as many vectors as lanes."""
        k, lanes = self.k, self.frame.lanes
        segment = lanes
        while segment > 1:
            half, count = segment // 2, len(vectors) // 2
            starts = range(0, lanes, segment)
            low = [base + i for s in starts for base in (s, lanes + s) for i in range(half)]
            high = [lane + half for lane in low]
            vectors = [
                k.shuffle(vectors[i], vectors[i + count], low) + k.shuffle(vectors[i], vectors[i + count], high)
                for i in range(count)
            ]
            segment = half
        return vectors[0]

    def values(self, here: Block, table: RowTable, count: Value, low: Value, high: Value) -> None:
        """Add the weighted values of the keys [low, high) to what the rows have."""
        k, frame = self.k, self.frame
        pieces = list(frame.written_out(frame.spec.value_size))
        budget = k.target.registers // 2
        width = max(1, min(len(pieces), budget // self.rows))
        for start in range(0, len(pieces), width):
            self._columns(here, table, pieces[start : start + width], low, k.larger(high, low), budget)

    def _columns(
        self,
        here: Block,
        table: RowTable,
        pieces: list[tuple[int, Value | None]],
        low: Value,
        high: Value,
        budget: int,
    ) -> None:
        """Some vectors of columns; a few keys at a time, so that independent sums hide the latency of the additions."""
        k, frame, lanes = self.k, self.frame, self.frame.lanes
        ahead = 1
        while 2 * ahead * self.rows * len(pieces) <= budget and ahead < 4:
            ahead *= 2
        wide = frame.compute.vector(lanes)
        sums = {
            (turn, row, at): k.variable(wide, 0.0)
            for turn in range(ahead)
            for row in range(self.rows)
            for at, _ in pieces
        }

        def add(place: Value, turn: int, streams: bool) -> None:
            values = self._row(here, 1, place, streams)
            loaded = [values(at, mask) for at, mask in pieces]
            for row in range(self.rows):
                weight = k.splat(frame.score_row(row).load(place), lanes)
                for (at, _), vector in zip(pieces, loaded, strict=True):
                    variable = sums[turn, row, at]
                    variable.set(k.fma(weight, vector, variable.get()))

        whole = low + ((high - low) & -ahead)
        for streams in self._written(here, 1):
            with k.loop(low, whole, ahead) as place:
                for turn in range(ahead):
                    add(place + turn, turn, streams)
            if ahead > 1:
                with k.loop(whole, high) as place:
                    add(place, 0, streams)
        for row in range(self.rows):
            accumulator = table.accumulator(k.constant(I64, row))
            for at, _ in pieces:
                total = accumulator.load(at, lanes)
                for turn in range(ahead):
                    total = total + sums[turn, row, at].get()
                accumulator.store(total, at)
