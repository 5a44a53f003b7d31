"""Depthwise convolution of bytes by words: four bytes of a channel, from lines below each other, meet four weights.

A group of lines of the output reads lines of the image at one time. Bytes of four of these become words in scratch
memory, those of a block of channels and all places of a line, padding included. A word of a place meets the weights of
each column of a window, for each line of the group: weights of lines that a window does not reach are 0. So the work of
making words is shared by the columns of a window and by the lines of a group, and three dot products make a sum of
3 x 3. Nothing of the image is copied elsewhere.
"""

from __future__ import annotations

from dataclasses import field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue, writer_of
from sardonyx.compiler.llvm.kernels.products.gemm_product import multiply_bytes
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, PTR, U8, U16, U32, Type
from sardonyx.light_dataclass import dataclass

# Bytes of a word.
DEPTH = 4


@dataclass(frozen=True)
class DepthwiseWordsSpec:
    """Windows of `taps` columns, `stride` places apart, whose columns lie `dilation` apart; `slots` lines of the image
    meet `lines` of the output. A tile has `places` of each of these. A block has `vectors` vectors of channels. Bytes
    of an image that `is_signed` get 128 added. The epilogue starts from sums in int32."""

    taps: int
    stride: int
    dilation: int
    slots: int
    lines: int
    places: int
    vectors: int
    is_signed: bool
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)

    @property
    def words(self) -> int:
        """Those of a channel at a place."""
        return -(-self.slots // DEPTH)

    @property
    def columns(self) -> int:
        """Places of the image that a tile reads."""
        return (self.places - 1) * self.stride + (self.taps - 1) * self.dilation + 1


def argument_names(spec: DepthwiseWordsSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order. Steps in the image count bytes.

    image, padding         addresses: bytes, and the one byte around them, 128 added where they are signed
    weights, init          [taps][words][lines][channels] words and [channels] in int32, what sums start from
    groups                 for each group of lines the first line's number and where the lines of its slots begin in the
                           image, -1 for one outside of it, in int64
    channels, step         channels, and the step between places
    before, inner, padded  columns of padding before a line of the image, those of the line, and all that windows read
    width                  places of a line of the output
    blocks                 blocks of channels; those that would reach beyond the last one begin earlier
    items, block           groups times blocks, and those of a chunk
    """
    names = ("image", "padding", "weights", "init", "groups", "channels", "step", "before", "inner", "padded", "width")
    return (*names, "blocks", "items", "block", *spec.epilogue.argument_names())


def scratch_bytes(lanes: int, spec: DepthwiseWordsSpec, padded: int) -> int:
    """What a thread needs: a block of padding, and the words of a group for a block."""
    channels = lanes * spec.vectors
    return channels * I32.nbytes * (1 + padded * spec.words)


def emit_depthwise_words(target: Target, spec: DepthwiseWordsSpec) -> str:
    """The kernel of `spec`; chunks count blocks of channels fastest, then groups of lines."""
    return _DepthwiseWords(target, spec).text()


class _DepthwiseWords:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: DepthwiseWordsSpec) -> None:
        self.spec = spec
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        words = k.pointer("arguments", I64)
        self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.lanes = target.lanes(I32)
        self.channels = self.lanes * spec.vectors
        self.around = k.pointer("scratch", U8)
        self.room = k.pointer("scratch", I32).offset(self.channels)

    def text(self) -> str:
        k, given = self.k, self.given
        padding = k.splat(k.pointer(given["padding"], U8).load(), self.channels)
        self.around.store(padding)
        groups = k.pointer(given["groups"], I64)
        last = minimum(k, given["items"], k["end"] * given["block"])
        with k.loop(k["begin"] * given["block"], last) as item:
            group = groups.offset(item // given["blocks"] * (1 + self.spec.slots))
            channel = minimum(k, item % given["blocks"] * self.channels, given["channels"] - self.channels)
            self._make_words(group, channel, padding)
            self._write_lines(group.load() * given["width"], channel)
        return k.finish()

    def _make_words(self, group: Pointer, channel: Value, padding: Value) -> None:
        """The words of all places of the group's lines for a block of channels: [place][word][channel]."""
        k, given, spec = self.k, self.given, self.spec
        image = k.pointer(given["image"], U8)
        lines = []
        for slot in range(spec.slots):
            start = group.load(1 + slot)
            outside = start < 0
            address = k.select(outside, self.around.address, image.offset(start + channel).address)
            lines.append((Pointer(address, U8), k.select(outside, k.constant(I64, 0), given["step"]), outside))
        size = spec.words * self.channels
        around = self._interleaved([padding] * min(DEPTH, spec.slots))
        behind = given["before"] + given["inner"]
        for first, end in ((k.constant(I64, 0), given["before"]), (behind, given["padded"])):
            with k.loop(first, end) as place:
                for word in range(spec.words):
                    self.room.store(around, place * size + word * self.channels)
        with k.loop(0, given["inner"]) as place:
            target = self.room.offset((given["before"] + place) * size)
            loaded = [self._loaded(line.offset(place * step), outside) for line, step, outside in lines]
            for word in range(spec.words):
                target.store(self._interleaved(loaded[word * DEPTH : (word + 1) * DEPTH]), word * self.channels)

    def _loaded(self, place: Pointer, outside: Value) -> Value:
        """A block of bytes as unsigned ones."""
        found = place.load(0, self.channels)
        if not self.spec.is_signed:
            return found
        mask = self.k.select(outside, self.k.constant(U8, 0), self.k.constant(U8, 128))
        return found ^ self.k.splat(mask, self.channels)

    def _interleaved(self, lines: list[Value]) -> Value:
        """Words of bytes of up to four lines, in the order of the channels; there are zeros for lines that lack."""
        zeros = self.k.constant(lines[0].type, 0)
        first, second, third, fourth = [*lines, zeros, zeros, zeros][:DEPTH]
        return self._mixed(self._mixed(first, second, U16), self._mixed(third, fourth, U16), U32).bits_as(I32)

    def _mixed(self, one: Value, other: Value, wide: Type) -> Value:
        """Elements of two vectors in turns, two and two as one wider element."""
        count = one.type.lanes
        order = [index + half * count for index in range(count) for half in range(2)]
        return self.k.shuffle(one, other, order).bits_as(wide)

    def _write_lines(self, first: Value, channel: Value) -> None:
        """All lines of the group, whose first place in the result is `first`, for a block of channels."""
        k, given, spec, lanes = self.k, self.given, self.spec, self.lanes
        tiles = (given["width"] + (spec.places - 1)) // spec.places
        weights, init = k.pointer(given["weights"], I32).offset(channel), k.pointer(given["init"], I32).offset(channel)
        for vector in range(spec.vectors):
            begin = init.load(vector * lanes, lanes)
            factors = {
                (tap, word, line): weights.offset(
                    given["channels"] * ((tap * spec.words + word) * spec.lines + line)
                ).load(vector * lanes, lanes)
                for tap in range(spec.taps)
                for word in range(spec.words)
                for line in range(spec.lines)
            }
            writer = writer_of(k, spec.epilogue, given, I32, channel + vector * lanes, [None])
            fixed = writer.fixed(lanes)
            with k.loop(0, tiles) as tile:
                place = minimum(k, tile * spec.places, given["width"] - spec.places)
                source = self.room.offset(place * (spec.stride * spec.words * self.channels) + vector * lanes)
                sums = self._sums(source, begin, factors)
                for line in range(spec.lines):
                    row = first + given["width"] * line + place
                    writer.over_registers([[sums[line, at]] for at in range(spec.places)], row, fixed)

    def _sums(
        self, source: Pointer, begin: Value, factors: dict[tuple[int, int, int], Value]
    ) -> dict[tuple[int, int], Value]:
        """The sums of a tile by line and place."""
        k, spec = self.k, self.spec
        sums = {(line, place): begin for line in range(spec.lines) for place in range(spec.places)}
        for column in range(spec.columns):
            reached = [
                (place, tap)
                for tap in range(spec.taps)
                for place in range(spec.places)
                if place * spec.stride + tap * spec.dilation == column
            ]
            for word in range(spec.words if reached else 0):
                value = source.load((column * spec.words + word) * self.channels, self.lanes)
                for place, tap in reached:
                    for line in range(spec.lines):
                        total = sums[line, place]
                        sums[line, place] = multiply_bytes(k, value, factors[tap, word, line], total)
        return sums
