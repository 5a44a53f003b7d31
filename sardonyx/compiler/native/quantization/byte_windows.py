"""What convolutions of bytes share: the image with its padding, the runs of a window, packed weights, what follows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Address, Argument, Array, Binder, Buffer, Tensor, row_major
from sardonyx.compiler.choice.gemm_choice import Shape, panels_of, tile_shape
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.llvm.kernels.products.bounded_words import DEPTH
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, bounded, takes_bounded
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.pad import surround
from sardonyx.compiler.native.products.bounded_constants import (
    begins_of,
    bounded_words,
    ends_of,
    in_one_array,
    words_of_panel,
)
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.kernel.expr import Input, bitwise_xor
from sardonyx.light_dataclass import dataclass

_I8, _U8 = np.dtype(np.int8), np.dtype(np.uint8)

# Between a byte read as signed and as unsigned.
OFFSET = 128


@dataclass(frozen=True)
class Runs:
    """How a window lies in the image: bytes of a run and the places of the runs' first elements.

    `joined` says that a run goes over all channels of the taps along the last dimension; `product` reads them in its
    words.
    """

    nbytes: int
    taps: tuple[tuple[int, ...], ...]
    joined: bool
    product: str

    @property
    def words(self) -> int:
        """Those of a run."""
        return PRODUCTS[self.product].words(self.nbytes)

    @property
    def slack(self) -> int:
        """Bytes behind a run that are read with its last word."""
        return self.words * PRODUCTS[self.product].depth - self.nbytes

    @staticmethod
    def of(call: ConvolutionCall, product: str) -> Runs:
        windows, channels = call.windows, call.w.shape[1]
        joined = call.group == 1 and (windows.dilations[-1] == 1 or windows.kernel[-1] == 1)
        kernel = (*windows.kernel[:-1], 1) if joined else windows.kernel
        taps = itertools.product(*(range(0, n * d, d) for n, d in zip(kernel, windows.dilations, strict=True)))
        return Runs(channels * (windows.kernel[-1] if joined else 1), tuple(taps), joined, product)


@dataclass(frozen=True, eq=False)
class Finish:
    """The epilogue, its operands as matrices of places by filters, and the results."""

    epilogue: TileEpilogue
    operands: Sequence[Tensor]
    results: Sequence[Tensor]

    def arguments(self, filters: int) -> dict[str, Argument]:
        """Those of kernels."""
        values: dict[str, Argument] = {}
        for stem, tensors in (("operand", self.operands), ("output", self.results)):
            for index, tensor in enumerate(tensors):
                values[f"{stem}{index}"] = Address(tensor.buffer, tensor.offset)
                values[f"{stem}{index}_stride"] = tensor.strides[0] if stem == "operand" else filters
                values.update({f"{stem}{index}_batch{axis}": 0 for axis in range(BATCH_DIMS)})
        return values


@dataclass(frozen=True, eq=False)
class Panels:
    """Weights in panels, what their sums start from, words between groups, panels of a group, and words of a run; of
    bounded words, those of a panel. The groups, and the filters of a panel.
    """

    weights: Tensor
    begin: Tensor
    group_words: int
    count: int
    words: int
    product: str
    groups: int
    lanes: int

    @staticmethod
    def of(binder: Binder, call: ConvolutionCall, runs: Runs, init: Array) -> Panels:
        found = Panels._bounded(binder, call, runs, init) if takes_bounded(binder.target) else None
        if found is not None:
            return found
        filters = call.filters // call.group
        panel = tile_of(binder.target, runs.product, filters).vectors * binder.target.lanes(I32)
        count = panels_of(filters, panel)
        packed = partial(_packed, binder.library, group=call.group, runs=runs, panel=panel)
        weights = binder.derived(call.w, ("runs", call.group, runs, panel), packed)
        starts = np.zeros((call.group, count * panel), np.int32)
        starts[:, :filters] = init.reshape(call.group, filters)
        step = count * panel * len(runs.taps) * runs.words
        return Panels(weights, binder.constant(starts), step, count, runs.words, runs.product, call.group, panel)

    @staticmethod
    def _bounded(binder: Binder, call: ConvolutionCall, runs: Runs, init: Array) -> Panels | None:
        """The panels in bounded words, where they begin, and how many there are up to the end of each run."""
        lanes, filters = binder.target.lanes(I32), call.filters // call.group
        count = panels_of(filters, lanes)
        library, group = binder.library, call.group  # not the binder itself, which keeps what it is told

        def packed(w: Array) -> Array:
            return in_one_array(bounded_words(library, _by_words(w, group, runs), runs.words * DEPTH))

        weights = binder.derived(call.w, ("bounded runs", group, runs), packed)
        words = words_of_panel(weights, call.group * count, len(runs.taps), lanes)
        if words == 0:
            return None
        starts = np.zeros((call.group, count * lanes), np.int32)
        starts[:, :filters] = init.reshape(call.group, filters)
        return Panels(
            weights,
            binder.constant(starts),
            count * lanes * words,
            count,
            words,
            bounded(runs.product),
            call.group,
            lanes,
        )

    @property
    def arguments(self) -> dict[str, Argument]:
        """The weights as kernels take them."""
        values: dict[str, Argument] = {"weights": self.weights, "init": self.begin, "words": self.words}
        values["weights_step"] = self.group_words
        if PRODUCTS[self.product].is_bounded:
            at = self.weights, self.group_words // (self.words * self.lanes) * self.groups, self.words, self.lanes
            values |= {"begins": begins_of(*at), "ends": ends_of(*at)}
        return values


def unsigned_image(binder: Binder, x: Tensor) -> Tensor:
    """Signed bytes as unsigned ones, 128 added."""
    if x.dtype == _U8:
        return x
    kernel = PointwiseKernel([bitwise_xor(Input(_U8, 0), OFFSET)], [_U8])
    return kernel.bind(binder, [replace(x, dtype=_U8, array=None)])[0]


def signed_weights(array: Array) -> Array:
    """Weights as signed bytes, 128 taken from unsigned ones."""
    return array if array.dtype == _I8 else (array ^ np.uint8(OFFSET)).view(np.int8)


def offsets_of(binder: Binder, taps: Sequence[Sequence[int]], image: Tensor) -> Tensor:
    """Where places of a window lie in the image, in bytes from its first one."""
    steps = image.strides[1:-1]
    return binder.constant(np.array([sum(t * s for t, s in zip(tap, steps, strict=True)) for tap in taps], np.int64))


def padded_image(
    binder: Binder, call: ConvolutionCall, padding: Tensor, slack: int, beyond: Sequence[int] = ()
) -> Tensor:
    """The image in channels-last order with its padding, and so many places `beyond` what windows read along each
    dimension; `slack` bytes behind the last one may be read."""
    windows = call.windows
    x = unsigned_image(binder, call.channels_last)
    behind = windows.read_behind()
    behind = tuple(one + more for one, more in zip(behind, beyond or [0] * len(behind), strict=True))
    if not any((*windows.begin, *behind)) and not slack and x.strides[-1] == 1:
        return x
    places = [(0, call.batch), *zip(windows.begin, windows.size, strict=True), (0, call.channels)]
    grown = (first + size + more for first, size, more in zip(windows.begin, windows.size, behind, strict=True))
    shape = (call.batch, *grown, call.channels)
    result = Tensor(_U8, shape, row_major(shape), Buffer(math.prod(shape) + slack))
    surround(binder, x, places, result, padding)
    return result


def tile_of(target: Target, product: str, filters: int) -> Shape:
    """Places and vectors of filters of a tile: of those that fill the registers the one that computes the fewest
    filters which do not exist."""
    usual = tile_shape(target, product)
    if PRODUCTS[product].in_tiles or PRODUCTS[product].is_bounded or target.registers < _MANY_REGISTERS:
        return usual
    shapes = (usual, *(shape for shape in _SHAPES if shape.vectors != usual.vectors))
    return min(shapes, key=lambda shape: panels_of(filters, shape.vectors * target.lanes(I32)) * shape.vectors)


_MANY_REGISTERS = 32
_SHAPES = (Shape(8, 3, 1), Shape(12, 1, 1))


def _packed(library: KernelLibrary, w: Array, group: int, runs: Runs, panel: int) -> Array:
    """Panels of the weights [filters, channels, *kernel]."""
    return pack_b(library, _by_words(w, group, runs), runs.product, panel)


def _by_words(w: Array, group: int, runs: Runs) -> Array:
    """The weights as [group, K, filters]: K in the order of the runs, each padded to whole words."""
    filters = w.shape[0] // group
    last = np.moveaxis(signed_weights(w), 1, -1).reshape(group, filters, len(runs.taps), runs.nbytes)
    matrix = np.zeros((group, filters, len(runs.taps), runs.nbytes + runs.slack), np.int8)
    matrix[..., : runs.nbytes] = last
    return matrix.reshape(group, filters, -1).transpose(0, 2, 1)
