"""Convolution of bytes by AMX: exact sums of 32 places by 32 filters, and an epilogue.

Two tiles of places meet a tile of filters at once: four tile registers, see `gemm_tiles`. Of weights that come from
the second cache this reads half as many bytes as a tile of places and two of filters.

Rows of a tile are windows of an image whose channels lie together, read where they lie: neighbouring places of a line
are a fixed step apart, and so are those of the next lines, where the image has lines of its own between them. Which
places are the rows of a tile, and which rows are none, is known before the run and comes as tables.
"""

from __future__ import annotations

from dataclasses import field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, TileEpilogue, writer_of
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, TILES_ACROSS, configure, release
from sardonyx.compiler.llvm.kernels.quantization.byte_panels import Panel, each_panel
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I8, I32, I64, PTR, VOID
from sardonyx.light_dataclass import dataclass

PANEL = SIDE * TILES_ACROSS  # filters of a panel
HIGH = 2  # tiles of places that meet a panel at once
# Words of the table of places for each such pair of tiles, and of the table of stretches for each.
PAIR_WORDS, STRETCH_WORDS = 4, 3

_A, _B = 2, 3  # the registers of places and of filters; sums come before
_LINE = 64
# Cache lines of a panel for each step of K and tile of filters.
LINES_OF_STEP = SIDE * SIDE * I32.nbytes // _LINE


@dataclass(frozen=True)
class ByteTilesSpec:
    """The epilogue starts from sums in int32."""

    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: ByteTilesSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order.

    image, weights, init         addresses: bytes; panels [group][taps * words][panel] of words; what sums start from,
                                 [group][panels * panel] in int32
    offsets, taps, words         where each run of a window lies, how many runs, words of a run (a multiple of 16)
    filters, groups              filters of a group, and groups
    group_step, weights_step     bytes between groups in the image, words between groups of panels
    step                         bytes between the rows of a tile
    places                       address: for each pair of tiles where its two first rows lie in bytes (-1 for the
                                 second where there is one tile), its first stretch and the one behind its last
    stretches                    address: of each the first row in the pair, its place in the result, how many rows
    pairs, block, blocks         pairs; pairs of a chunk; how many such chunks there are
    lines                        cache lines of the next panel that each pair of a chunk asks for in a step
    panels, panel_groups         panels of a chunk; how many such chunks there are
    """
    names = ["image", "weights", "init", "offsets", "taps", "words", "filters", "groups", "group_step", "weights_step"]
    names += ["step", "places", "stretches", "pairs", "block", "blocks", "lines", "panels", "panel_groups"]
    return (*names, *spec.epilogue.argument_names())


def emit_byte_tiles(target: Target, spec: ByteTilesSpec) -> str:
    """The kernel of `spec`; chunks count blocks of pairs fastest, then groups of panels, then groups of channels."""
    return _ByteTiles(target, spec).text()


class _ByteTiles:
    """The kernel while it is written."""

    def __init__(self, target: Target, spec: ByteTilesSpec) -> None:
        self.spec = spec
        k = self.k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        words = k.pointer("arguments", I64)
        given = self.given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
        self.lanes = target.lanes(I32)
        self.offsets = k.pointer(given["offsets"], I64)
        self.places, self.stretches = k.pointer(given["places"], I64), k.pointer(given["stretches"], I64)
        self.sums = k.pointer("scratch", I32)

    def text(self) -> str:
        k, given = self.k, self.given
        panel_words = given["taps"] * given["words"] * PANEL
        configure(k)
        with k.loop(k["begin"], k["end"]) as chunk:
            first_pair = chunk % given["blocks"] * given["block"]
            last_pair = minimum(k, given["pairs"], first_pair + given["block"])
            panels = each_panel(k, given, chunk // given["blocks"], PANEL)
            with panels as panel, k.loop(first_pair, last_pair) as pair:
                line = (pair - first_pair) * given["lines"]
                self._pair(panel, self.places.offset(pair * PAIR_WORDS), line, panel_words)
        release(k)
        return k.finish()

    def _pair(self, panel: Panel, entry: Pointer, line: Value, ahead: Value) -> None:
        """The sums of a pair of tiles and a panel, and their epilogue."""
        k = self.k
        starts = entry.load(0), entry.load(1)
        alone = starts[1] < 0
        with k.when(alone):
            self._multiply([panel.image.offset(starts[0])], panel, line, ahead)
        with k.otherwise(alone):
            self._multiply([panel.image.offset(start) for start in starts], panel, line, ahead)
        whole = panel.left >= PANEL
        with k.loop(entry.load(2), entry.load(3)) as number:
            stretch = self.stretches.offset(number * STRETCH_WORDS)
            tile = self.sums.offset(stretch.load(0) * PANEL)
            place, rows, stride = stretch.load(1), stretch.load(2), k.constant(I64, PANEL)
            with k.when(whole):
                self._writer(panel.column, [None] * (PANEL // self.lanes)).over_rows(tile, stride, place, rows)
            with k.otherwise(whole), k.loop(0, panel.left, self.lanes) as part:
                mask = k.lanes_below(panel.left - part, self.lanes)
                self._writer(panel.column + part, [mask]).over_rows(tile.offset(part), stride, place, rows)

    def _writer(self, column: Value, masks: list[Value | None]) -> EpilogueWriter:
        return writer_of(self.k, self.spec.epilogue, self.given, I32, column, masks)

    def _multiply(self, starts: list[Pointer], panel: Panel, line: Value, ahead: Value) -> None:
        """The sums of tiles of places, whose first rows start there, to scratch.

        Lines of the panel behind are asked for from `line` on.
        """
        k, given = self.k, self.given
        none, row = k.constant(I64, 0), k.constant(I64, PANEL * I32.nbytes)
        last_line = minimum(k, line + given["lines"], LINES_OF_STEP)

        def register(number: int) -> Value:
            return k.constant(I8, number)

        def load(number: int, source: Pointer, stride: Value) -> None:
            k.call("llvm.x86.tileloadd64", VOID, register(number), source.address, stride)

        for column in range(TILES_ACROSS):
            for at in range(len(starts)):
                load(at, panel.init.offset(column * SIDE), none)
            words = k.variable(PTR, panel.words.offset(column * SIDE).address)
            with k.loop(0, given["taps"]) as tap:
                offset = self.offsets.load(tap)
                with k.loop(0, given["words"], SIDE) as word:
                    here = k.pointer(words.get(), I32)
                    load(_B, here, row)
                    for at, start in enumerate(starts):
                        load(_A, start.offset(offset + word * I32.nbytes), given["step"])
                        k.call("llvm.x86.tdpbusd", VOID, *map(register, (at, _A, _B)))
                    # Two columns of tiles ask for the lines of a step, each for a half of them.
                    asked = here.offset(ahead + column * (LINES_OF_STEP * _LINE // I32.nbytes - SIDE))
                    with k.loop(line, last_line) as number:
                        asked.offset(number * (_LINE // I32.nbytes)).prefetch(level=2)
                    words.set(here.offset(PANEL * SIDE).address)
            for at in range(len(starts)):
                place = self.sums.offset(at * SIDE * PANEL + column * SIDE)
                k.call("llvm.x86.tilestored64", VOID, register(at), place.address, row)
