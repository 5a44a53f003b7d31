"""What an algorithm of convolution is to the choice among them, and the rates that predictions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import asks_ahead
from sardonyx.compiler.choice.tuned import tuned
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Algorithm:
    """A way to compute convolutions.

    `predict` tells how many nanoseconds a call takes on one thread, or None where the algorithm cannot do it; it adds
    no steps. `bind` adds the steps and gives the outputs in ONNX's order: one for each output of `call.finish`, best
    as views of channels-last memory (`call.results`, `call.handed_on`).
    """

    name: str
    predict: Callable[[Binder, ConvolutionCall], float | None]
    bind: Callable[[Binder, ConvolutionCall], Sequence[Tensor]]


@dataclass(frozen=True)
class Rates:
    """What predictions are made of. The defaults were measured on AVX-512 machines.

    ghz                clock under vector arithmetic; two multiply-adds of a vector start in a cycle
    l2, l3, memory     bytes a nanosecond of what is copied there, for one thread
    """

    ghz: float = 4.2
    l2: float = 60.0
    l3: float = 30.0
    memory: float = 14.0

    def flops(self, target: Target, product: str = "f32") -> float:
        """Operations a nanosecond at most, with an inner product of vectors; of tiles what products get."""
        kind = PRODUCTS[product]
        at_once = 1.0
        if kind.in_tiles:
            at_once = _TILES_OF_VECTORS if kind.parts == 1 else _TILES_OF_PARTS
        return 4.0 * at_once * target.lanes(kind.word) * kind.depth * self.ghz

    def bytes_of(self, target: Target, nbytes: float) -> float:
        """Bytes a nanosecond from where so many of them stay between two uses."""
        if nbytes <= target.caches.l2 / 2:
            return self.l2
        return self.l3 if nbytes <= target.caches.l3 / 3 else self.memory


# An inner product of tiles does the work of so many vectors of its words in the time of one, loads and stores counted:
# half of what the instruction alone does.
_TILES_OF_VECTORS = 4.0
_TILES_OF_PARTS = 0.9  # of float32, with two elements in a word: nearly twice what its vectors do

# Rows become words in a stream, line by line: in so much of the time that scattered copies of as many bytes take. To
# take numbers apart takes longer than to bring them.
_WORDS_SHARE = 0.6
_PARTS_SHARE = 2.5


def words_ns(target: Target, product: str, nbytes: float) -> float:
    """Nanoseconds until so many bytes of a left-hand side are words, where the product has several elements in one."""
    kind = PRODUCTS[product]
    if kind.depth == 1:
        return 0.0
    share = _WORDS_SHARE if kind.parts == 1 else _PARTS_SHARE
    return share * nbytes / rates().bytes_of(target, nbytes)


def tiles_ns(product: str, results: int) -> float:
    """Nanoseconds for so many results in tiles of parts beside their products: they come and go once more."""
    return _PARTS_OF_RESULTS * 4.0 * results / rates().l2 if PRODUCTS[product].parts > 1 else 0.0


_PARTS_OF_RESULTS = 3.0

# The part of the time for reading weights from far memory that products do not hide.
_EXPOSED = 0.5


def weights_ns(target: Target, nbytes: float) -> float:
    """Nanoseconds that a product waits for so many bytes of weights, which no cache keeps from run to run.

    A core's own prefetchers hide that where memory is near, unless the weights are so many that blocks of K come late.
    """
    if asks_ahead(target):
        return _EXPOSED * nbytes / rates().memory
    return nbytes / rates().l3 if nbytes > target.caches.l3 / 4 else 0.0


def rates() -> Rates:
    """The rates of this machine."""
    return tuned("convolution", Rates)
