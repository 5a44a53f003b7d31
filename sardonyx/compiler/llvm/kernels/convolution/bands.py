"""A product of channels and the depthwise windows over its result, in one pass: what it makes never leaves the caches.

A chunk takes a band of lines of the result and a block of its channels. It goes down the lines: those of the product
that the next line of windows reads and that are not there yet are multiplied into a ring of lines in scratch, between
zeros for the padding beside them, and the windows slide over the ring. Lines that two bands read are computed by both.
The last tile of a line is moved back to end with it, as is the last block of the channels, so there are no partial
ones: what they compute twice is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import STRANDS, emit_abreast
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Request, Rows, multiply_tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, Finishing
from sardonyx.compiler.llvm.kernels.windows.folds import Columns, Correlate, Correlating, Row
from sardonyx.compiler.llvm.kernels.windows.frame import Along, Arguments, Spot
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I64
from sardonyx.compiler.llvm.walk import kernel_frame
from sardonyx.kernel.canonical import Canonical
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class BandSpec:
    """The structure of a kernel for float32, whose product may be of words of another type.

    A tile of the product has `rows` places of `vectors` vectors of channels, which are a block. `middle` is what
    becomes of its sums, the first input, with other inputs that are one number for each channel, or for all of them
    where `spread` says so. The windows are `along` each line; `finish` is what becomes of theirs. With `asks_results`
    the product asks for the places of the result, which are far.
    """

    rows: int
    vectors: int
    middle: Canonical
    spread: tuple[bool, ...]
    along: Along
    finish: Finish
    asks_results: bool = False
    product: str = "f32"

    def argument_names(self) -> tuple[str, ...]:
        """The words of the kernel's arguments; strides of x count its words, those of the ring its elements.

        x, x_n, x_h, x_w, depth        the input of the product, and how many words of channels it has
        b, weights                     filters of the product and of the windows, by blocks of channels
        channels, blocks               of the result; how many blocks they are
        out_h, out_w, band, bands      lines of the result, places of one, lines of a band, how many bands
        size_h, begin_h, taps_h, stride_h, dilation_h    lines of the product and the windows across them
        first_w, made_w, reach_w       of a line in the ring: where the product begins, its places, all with padding
        pitch, ring, ring_start        from line to line in the ring, its lines, and where it begins in scratch, in
                                       bytes; before it lies where the lines of a window are
        middle*                        inputs of `middle`
        """
        return (
            *("x", "x_n", "x_h", "x_w", "depth", "b", "weights", "channels", "blocks"),
            *("out_h", "out_w", "band", "bands", "size_h", "begin_h", "taps_h", "stride_h", "dilation_h"),
            *("first_w", "made_w", "reach_w", "pitch", "ring", "ring_start"),
            *(f"middle{index}" for index in range(len(self.spread))),
            *self.finish.names(),
        )


def emit_bands(target: Target, spec: BandSpec) -> str:
    """The kernel of `spec`; a chunk is a block of channels of a band, blocks fastest, then bands, then items."""
    k, words = kernel_frame(target)
    a = Arguments(words, spec.argument_names())
    writer = _Bands(k, a, spec)
    with k.loop(k["begin"], k["end"]) as chunk:
        outer = chunk // a["blocks"]
        item = outer // a["bands"]
        writer.band(item, outer - item * a["bands"], chunk - outer * a["blocks"])
    return k.finish()


class _Bands:
    """Writes the code of a chunk."""

    def __init__(self, k: Function, a: Arguments, spec: BandSpec) -> None:
        self.k, self.a, self.spec = k, a, spec
        self.product = PRODUCTS[spec.product]
        self.lanes = k.target.lanes(F32)
        self.panel = spec.vectors * self.lanes
        self.lines = k.pointer("scratch", I64)  # where in the ring the lines are that a window reads
        self.ring = k.pointer(k.advance(k["scratch"], a["ring_start"], 1), F32)
        self.finishing = Finishing(k, a, spec.finish, self.lanes)
        self.tiles = k.variable(I64, 0)  # of the product so far
        self.is_cheap = Finish(spec.middle).is_cheap

    def band(self, item: Value, band: Value, block: Value) -> None:
        k, a = self.k, self.a
        channel = k.smaller(block * self.panel, a["channels"] - self.panel)
        self._clear_padding()
        first = band * a["band"]
        highest = k.larger(first * a["stride_h"] - a["begin_h"], 0)
        ready = k.variable(I64, highest)
        self.tiles.set(0)
        with k.loop(first, k.smaller(a["out_h"], first + a["band"])) as line:
            top = line * a["stride_h"] - a["begin_h"]
            bottom = k.smaller(top + ((a["taps_h"] - 1) * a["dilation_h"] + 1), a["size_h"])
            start = k.larger(ready.get(), top)
            self.finishing.start_row(Spot(item, block, k.constant(I64, 0), line))
            with k.loop(start, bottom) as made:
                self._make(item, made, block, channel)
            ready.set(k.larger(start, bottom))
            self._slide(item, line, top, block, channel)

    def _line(self, line: Value) -> Value:
        """Where a line of the product lies in the ring."""
        return line % self.a["ring"] * self.a["pitch"]

    def _clear_padding(self) -> None:
        """Zeros beside the lines, where the product never writes."""
        k, a = self.k, self.a
        zero = k.constant(F32.vector(self.lanes), 0)
        with k.loop(0, a["ring"]) as line:
            start = self.ring.offset(line * a["pitch"])
            for begin, end in ((k.constant(I64, 0), a["first_w"]), (a["first_w"] + a["made_w"], a["reach_w"])):
                with k.loop(begin * self.panel, end * self.panel, self.lanes) as at:
                    start.store(zero, at)

    def _request(self, block: Value) -> Request:
        """What a tile asks for: one of the parts, a cache line for each step of K, of the next block's filters."""
        number = self.tiles.get()
        self.tiles.set(number + 1)
        start = self._filters(block + 1).offset(number % self.spec.vectors * (self.a["depth"] * self.lanes))
        return Request(start, 1)

    def _request_results(self, tile: Value, channel: Value) -> Request:
        """What a tile of a line asks for, too: a vector of channels of some places of the line that windows write."""
        a, vectors = self.a, self.spec.vectors
        place, vector = tile // vectors * a["depth"], tile % vectors
        start = self.finishing.result_row().offset(channel + vector * self.lanes)
        step = a["output0_step"]
        return Request(self.k.pointer(self.k.advance(start.address, place * step, 1), F32), 1, step)

    def _filters(self, block: Value) -> Pointer:
        return self.k.pointer(self.a["b"], self.product.word).offset(block * self.a["depth"] * self.panel)

    def _make(self, item: Value, line: Value, block: Value, channel: Value) -> None:
        """One line of the product and what becomes of it."""
        k, a, spec = self.k, self.a, self.spec
        source = k.pointer(a["x"], self.product.word).offset(item * a["x_n"] + line * a["x_h"])
        made = self.ring.offset(self._line(line) + a["first_w"] * self.panel)
        with k.loop(0, a["made_w"], spec.rows) as turn:
            place = k.smaller(turn, a["made_w"] - spec.rows)
            rows = Rows(source.offset(place * a["x_w"]), a["x_w"], True)
            whole = (None,) * spec.vectors
            requests: tuple[Request, ...] = (self._request(block),)
            if spec.asks_results:
                requests = (*requests, self._request_results(turn // spec.rows, channel))
            panels = Panels((self._filters(block),), spec.vectors, whole, self.panel, requests=requests)
            tile = multiply_tile(k, self.product, rows, panels, spec.rows, a["depth"], 1)
            target = made.offset(place * self.panel)
            for vector in range(spec.vectors):
                others = self._others(channel + vector * self.lanes) if self.is_cheap else []
                for row in range(spec.rows):
                    value = tile[row, 0, vector]
                    if self.is_cheap:
                        (value,) = self._finished([value], others)
                    target.store(value, row * self.panel + vector * self.lanes)
        if not self.is_cheap:
            self._finish_line(made, channel)

    def _finish_line(self, made: Pointer, channel: Value) -> None:
        """An expression that would take registers from the product is applied to whole lines."""
        k, a = self.k, self.a
        with k.apart(), k.loop(0, self.panel, self.lanes) as vector:
            others = self._others(channel + vector)
            whole = a["made_w"] - a["made_w"] % STRANDS
            for begin, end, count in ((k.constant(I64, 0), whole, STRANDS), (whole, a["made_w"], 1)):
                with k.loop(begin * self.panel + vector, end * self.panel, self.panel * count) as at:
                    places = [made.offset(at + turn * self.panel) for turn in range(count)]
                    sums = [place.load(0, self.lanes) for place in places]
                    for place, value in zip(places, self._finished(sums, others), strict=True):
                        place.store(value)

    def _others(self, channel: Value) -> list[Value]:
        """The other inputs of `middle` for a vector of channels."""
        k = self.k
        starts = [k.pointer(self.a[f"middle{index}"], F32) for index in range(len(self.spec.spread))]
        return [
            start.load(0) if spread else start.load(channel, self.lanes)
            for start, spread in zip(starts, self.spec.spread, strict=True)
        ]

    def _finished(self, sums: Sequence[Value], others: Sequence[Value]) -> list[Value]:
        """What becomes of some vectors of sums of the same channels, abreast."""
        results = emit_abreast(self.k, self.spec.middle.roots, [[one, *others] for one in sums])
        return [self.k.splat(result, self.lanes) for (result,) in results]

    def _slide(self, item: Value, line: Value, top: Value, block: Value, channel: Value) -> None:
        """One line of windows."""
        k, a, along = self.k, self.a, self.spec.along
        dilation = a["dilation_h"]
        begin = k.larger(dilation - 1 - top, 0) // dilation
        end = k.larger(k.smaller((a["size_h"] - top + (dilation - 1)) // dilation, a["taps_h"]), begin)
        with k.loop(begin, end) as tap:
            self.lines.store(self._line(top + tap * dilation), tap)
        taps = along.taps * self.lanes
        with k.loop(0, self.spec.vectors) as vector:
            lane = vector * self.lanes
            weights = k.pointer(a["weights"], F32).offset((block * self.spec.vectors + vector) * a["taps_h"] * taps)
            with k.loop(0, a["out_w"], along.places) as turn:
                place = k.smaller(turn, a["out_w"] - along.places)
                start = place * (along.stride * self.panel) + lane
                state = Correlating(k, Correlate(F32), along, F32, self.lanes)
                state.begin()
                with k.loop(begin, end) as tap:
                    columns = self._columns(self.ring.offset(self.lines.load(tap) + start))
                    state.row(Row(columns, weights=weights.offset(tap * taps)))
                self.finishing.store(state.finish(), place, channel + lane)

    def _columns(self, seen: Pointer) -> Columns:
        """The columns of a tile from a place in the ring on, none of which is outside."""

        def columns() -> Iterator[tuple[int, int, AbstractContextManager[Value]]]:
            for index, offset in enumerate(self.spec.along.columns):
                yield index, offset, nullcontext(seen.load(offset * self.panel, self.lanes))

        return columns
