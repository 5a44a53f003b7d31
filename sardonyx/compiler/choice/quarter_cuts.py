"""What the cuts of products by quarters and by sixteenths have in common: chunks, blocks, and what lies in scratch."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import least_making
from sardonyx.compiler.llvm.target import Target
from sardonyx.light_dataclass import dataclass

WORD = PRODUCTS["f32"].word.nbytes

_LINE = 64
# Elements that rows of sums are longer than they need: a multiple of 4096 bytes apart, they would share cache sets.
_PAD = 16
# A block of a panel may be so large where the nearest cache is smaller: reading it again from the second one is hidden
# behind the multiplications, and each end of a block is a pass over the tiles.
_PANEL_BYTES = 48 << 10


# Nobody changes one: it is not frozen because that makes its construction three times as dear.
@dataclass(kw_only=True)
class QuarterCut:
    """Sizes of a chunk, blocks of rows by groups of panels, by the names of the kernels' arguments; and the bytes of
    scratch that it takes."""

    k: int
    panels: int
    row_block: int
    k_block: int
    group: int
    row_blocks: int
    groups: int
    tile_rows: int
    b_sum_scratch: int
    tile_scratch: int
    scratch: int

    @property
    def chunks(self) -> int:
        return self.row_blocks * self.groups


def laid_in_scratch(sizes: Mapping[str, int]) -> dict[str, int]:
    """Where parts of so many bytes begin, each on a line of the caches, by their names with `_scratch` behind; and
    where the last one ends, as `scratch`."""
    places, end = {}, 0
    for name, nbytes in sizes.items():
        places[f"{name}_scratch"] = end
        end += _whole_lines(nbytes)
    return {**places, "scratch": end}


def row_of_sums(elements: int) -> int:
    """The elements from row to row of sums of A."""
    return _whole_lines(elements * WORD) // WORD + _PAD


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def block_of_k(target: Target, half: int, panel: int) -> int:
    """Elements of K whose words of a panel take the nearest cache, the same for all blocks."""
    most = max(64, max(_PANEL_BYTES, target.caches.l1) // (panel * WORD))
    return -(-half // -(-half // most))


def block_of_rows(upper: int, wished: int, rows: int, more: int = 1) -> tuple[int, int] | None:
    """Rows of a block of the `upper` ones, about `wished`, and of its tiles, at most `rows`: all about equal. There are
    `more` times as many blocks.

    The first tile of every block is one of those that make sums of B (`least_making`). None where no block will do.
    """
    count = max(1, round(upper / wished)) * more
    block = -(-upper // count)
    # No range: that would fix a length that is traced.
    while block > 0:
        tile = -(-block // -(-block // rows))
        last = upper - (-(-upper // block) - 1) * block
        if tile >= least_making(rows) and last >= tile:
            return block, tile
        block -= 1
    return None
