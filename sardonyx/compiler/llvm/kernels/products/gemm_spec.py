"""What a kernel of matrix multiplication is: its structure, and the words of its arguments."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from sardonyx.compiler.llvm.kernels.products.gemm_batches import BATCH_NAMES
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_windows import NAMES as WINDOW_NAMES
from sardonyx.light_dataclass import dataclass

Layout = Literal["packed", "panels", "rows", "columns", "words", "tiles", "windows", "runs"]


@dataclass(frozen=True)
class GemmSpec:
    """The structure of a kernel; its ``repr`` identifies the compiled code.

    `a` tells along which axis A lies contiguously: "rows" (stride 1 along K) or "columns" (stride 1 along M); "words"
    are rows of the product's words, as `emit_words` writes them; "tiles" are those of sixteen rows after the other, as
    `emit_words_in_tiles` does; "windows" are put together from a convolution's input
    (`gemm_windows`), which holds words where the product has several elements in one; "runs" are rows in tiles of AMX
    that consist of several runs of such words and share most of them with their neighbours: windows of a padded input.
    `b` is "packed", "rows" (stride 1 along N), "columns" (stride 1 along K), or "panels": packed for products by
    vectors, in panels of numbers that become words of tiles while they are multiplied. A tile has `rows` x `vectors`
    vector registers. `few_prefetch`: B is asked for ahead of time also for so few rows that several panels are read at
    once.
    """

    product: str = "f32"
    a: Layout = "rows"
    b: Layout = "packed"
    rows: int = 12
    vectors: int = 2
    unroll: int = 1
    few_prefetch: bool = False
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


RUN_NAMES = ("run_words", "pitch", "places")


def argument_names(spec: GemmSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order. Strides and offsets count elements unless they say so.

    a, b                          addresses
    m, n, k                       sizes
    a_stride                      A's other stride (between rows, or between columns)
    b_stride                      B's other stride (unused for packed panels, which follow one another), or how many
                                  columns its panels of numbers have
    a_batch*, b_batch*            strides of the batch axes
    batch1, batch2                sizes of the two inner batch axes
    row_block, k_block, group     rows, elements of K (a multiple of the product's depth) and panels of a chunk
    row_blocks, groups            how many there are
    strip                         rows (a multiple of the tile's) that see all panels of a chunk before the next
    tile_rows                     rows of the tiles of a strip, at most `rows` of the specification
    a_copy                        row stride in words of the copy of A in scratch (of rows of words those that fill no
                                  tile of AMX); 0 to read A where it lies
    b_copy                        whether panels of B are copied to scratch (B in rows; transposed B always is)
    b_scratch, tile_scratch       byte offsets in scratch
    tile_stride                   elements between rows of the tiles in scratch
    tile_keep                     whether all tiles of a chunk are kept (1), for several blocks of K, or one (0)
    prefetch                      words ahead of those in use, in packed panels, that are asked for
    far                           whether what the epilogue reads and writes is asked for before a tile is multiplied
    begins, ends                  of bounded words: the addresses of where they begin, laid out as they are, and of how
                                  many each panel has; `k` is four for each word of the longest one, in one block

    The geometry of windows follows, `gemm_windows.NAMES`, and behind all arguments their table of runs. That of rows of
    runs is `RUN_NAMES`: words of a run, rows from line to line of the input, and how many of these begin a window, to
    which the rows of the other matrices belong; behind all arguments lies where each run starts, in words.
    """
    names = ["a", "b", "m", "n", "k", "a_stride", "b_stride", *BATCH_NAMES]
    names += ["row_block", "strip", "tile_rows", "k_block", "group", "row_blocks", "groups"]
    names += ["a_copy", "b_copy", "b_scratch", "tile_scratch", "tile_stride", "tile_keep", "prefetch", "far"]
    names += ["begins", "ends"] if PRODUCTS[spec.product].is_bounded else []
    geometry = WINDOW_NAMES if spec.a == "windows" else RUN_NAMES if spec.a == "runs" else ()
    return (*names, *spec.epilogue.argument_names(), *geometry)
