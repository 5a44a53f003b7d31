"""The windows of a deformable convolution as rows of a matrix: taps are interpolated where they were moved."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, vector_loop, working_type
from sardonyx.compiler.llvm.kernels.sampling.taps import TapsSpec, axis_taps, interpolated
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass

_TAPS = TapsSpec("linear", "zeros", True)


@dataclass(frozen=True)
class DeformedSpec:
    """Elements of `type` in `rank` spatial dimensions; each tap times a mask, if there is one."""

    type: Type
    rank: int
    masked: bool


def emit_deformed_columns(target: Target, spec: DeformedSpec) -> str:
    """Rows of windows, [items, places, groups, taps, channels of a group], in the working type.

    Arguments: the input (channels-last), moves, mask, columns, tables (I64), items times places, places of a chunk,
    places of an item, offset groups, taps; channels of all groups, of a group and of a piece, pieces of an offset
    group; elements between items of the input; then for each dimension, the slowest one first: its length, its stride
    in elements, the output's size and the stride between windows. The table holds where each tap lies from a window's
    start, a number for each dimension. Moves are [items, offset groups, taps, rank, places], masks the same without
    rank. Channels go piece by piece, because a piece belongs to one group and to one offset group.
    """
    k, words = kernel_frame(target)
    windows = _Windows(k, spec, words)
    begin, end = share(k, words.load(5), words.load(6))
    with k.loop(begin, end) as number:
        item = number // windows.places
        place = number - item * windows.places
        starts = windows.starts(place)
        with k.loop(0, windows.offset_groups) as group, k.loop(0, windows.taps) as tap:
            windows.tap(item, place, starts, group, tap)
    return k.finish()


class _Windows:
    """The arguments of the kernel, and one tap of one window for all channels of an offset group."""

    def __init__(self, k: Function, spec: DeformedSpec, words: Pointer) -> None:
        self.k, self.spec = k, spec
        self.working = working_type(spec.type)
        self.input, self.moves, self.mask = (
            Elements(k.pointer(words.load(at), U8), spec.type, self.working) for at in range(3)
        )
        self.columns = Elements(k.pointer(words.load(3), U8), self.working, self.working)
        self.table = k.pointer(words.load(4), I64)
        self.places, self.offset_groups, self.taps = (words.load(at) for at in range(7, 10))
        self.channels, self.own, self.piece, self.pieces = (words.load(at) for at in range(10, 14))
        self.item_step = words.load(14)
        axes = [words.offset(15 + 4 * axis) for axis in range(spec.rank)]
        self.lengths, self.steps, self.sizes, self.strides = ([axis.load(at) for axis in axes] for at in range(4))

    def starts(self, place: Value) -> list[Value]:
        """Where the window of a place begins, without its padding, in each dimension."""
        found: list[Value] = []
        rest = place
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            above = rest // size
            found.insert(0, (rest - above * size) * stride)
            rest = above
        return found

    def tap(self, item: Value, place: Value, starts: list[Value], group: Value, tap: Value) -> None:
        """The elements of an offset group at one tap."""
        k, spec = self.k, self.spec
        one = (item * self.offset_groups + group) * self.taps + tap
        neighbours = []
        for axis, start in enumerate(starts):
            whole = start + self.table.load(tap * spec.rank + axis)
            moved = self.moves.load((one * spec.rank + axis) * self.places + place)
            neighbours.append(axis_taps(k, _TAPS, whole.to(self.working) + moved, self.lengths[axis]))
        factor = self.mask.load(one * self.places + place) if spec.masked else None
        source = self.input.offset(item * self.item_step)
        row = self.columns.offset((item * self.places + place) * self.taps * self.channels)
        with k.loop(0, self.pieces) as piece:
            channel = (group * self.pieces + piece) * self.piece
            owner = channel // self.own
            to = row.offset((owner * self.taps + tap) * self.own + (channel - owner * self.own))
            from_ = source.offset(channel)

            def body(at: Value, lanes: int, mask: Value | None, from_: Elements = from_, to: Elements = to) -> None:
                value = interpolated(
                    k,
                    neighbours,
                    self.steps,
                    lambda offset: from_.offset(offset.to(I64) + at).load(0, lanes, mask),
                )
                to.store(value if factor is None else value * k.splat(factor, lanes), at, mask)

            vector_loop(k, self.piece, k.target.lanes(self.working), body)
