"""The left-hand sides of products that are no plain matrices, and how the kernel reads any of them."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_spec import Layout
from sardonyx.compiler.llvm.kernels.products.gemm_windows import WindowGeometry
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.words import as_tiles, as_words
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class WindowRows:
    """The windows of a convolution as an A of shape [..., M, K], put together while they are multiplied.

    `tensor` is the input, of words where the product has several elements in one; the windows of the next batch begin
    `steps` words further on.
    """

    tensor: Tensor
    geometry: WindowGeometry
    steps: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OverlappingRows:
    """An A of shape [..., M, K] whose rows share memory: each lies together, the next one begins within it.

    `tensor` holds them, of words where the product has several elements in one; `steps` are the strides of the axes
    before K. K is a multiple of the elements that come together.
    """

    tensor: Tensor
    steps: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RunGeometry:
    """Rows that consist of runs of words: where each starts in a row, their words, rows from line to line, and how
    many of these stand for rows of the results."""

    starts: tuple[int, ...]
    run_words: int
    pitch: int
    places: int

    def arguments(self) -> dict[str, int]:
        """The values of `RUN_NAMES`."""
        return {"run_words": self.run_words, "pitch": self.pitch, "places": self.places}

    def table(self) -> Sequence[int]:
        return self.starts


@dataclass(frozen=True, eq=False)
class RunRows:
    """An A of shape [items, 1, M, K] in tiles of AMX, whose rows consist of runs of words of `tensor`.

    There are `rows` of them in an item; `steps` are the strides of the axes before K. M are those that stand for
    results. Sixteen rows are readable wherever a row is.
    """

    tensor: Tensor
    geometry: RunGeometry
    rows: int
    steps: tuple[int, ...]
    shape: tuple[int, ...]


Left = Tensor | WindowRows | OverlappingRows | RunRows


def read_left(binder: Binder, a: Left, product: str) -> tuple[Tensor, Layout]:
    """A as the kernel reads it. Windows are stood for by a tensor of their shape that begins where the first does."""
    if isinstance(a, WindowRows):
        start = a.geometry.start() * a.tensor.dtype.itemsize
        return a.tensor.reshaped(a.shape, (*a.steps, 0, 1), start), "windows"
    if isinstance(a, RunRows):
        return a.tensor.reshaped(a.shape, (*a.steps, 1)), "runs"
    if isinstance(a, OverlappingRows):
        return a.tensor.reshaped(a.shape, (*a.steps, 1)), "words" if PRODUCTS[product].depth > 1 else "rows"
    if PRODUCTS[product].parts > 1:
        return as_tiles(binder, a, product), "tiles"
    if PRODUCTS[product].depth > 1:
        return as_words(binder, a, product), "words"
    return laid_out(binder, a)


def laid_out(binder: Binder, matrix: Tensor) -> tuple[Tensor, Layout]:
    """The matrix with one of its last two strides equal to 1 (copied where it has none), and which."""
    rows, columns = matrix.strides[-2:]
    if columns == 1 or (matrix.shape[-1] == 1 and rows != 1):
        return matrix, "rows"
    if rows == 1 or matrix.shape[-2] == 1:
        return matrix, "columns"
    return contiguous(binder, matrix), "rows"
