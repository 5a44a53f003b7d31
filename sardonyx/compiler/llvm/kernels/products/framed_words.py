"""Places of an image as rows of words, with zeros around the image, in one pass."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_packing import copy_rows
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class FramedWordsSpec:
    """A kernel that writes lines of places, whose channels may be `rounded` to the words' already, into a frame."""

    product: str
    rounded: bool = False

    ARGUMENTS = (
        *("source", "item_stride", "line_stride", "stride", "lines", "places", "channels"),
        *("target", "row", "frame_lines", "pitch", "above", "before"),
    )


def emit_framed_words(target: Target, spec: FramedWordsSpec) -> str:
    """The kernel of `spec`: a chunk is a line of the frame, of which each item has `frame_lines` of `pitch` places.

    A place has `row` words, room for whole vectors. The image begins `above` lines below the first one, and `before`
    places behind the first one of a line.
    """
    product = PRODUCTS[spec.product]
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    row, lanes = given["row"], target.lanes(product.word)
    zeros = k.constant(product.word.vector(lanes), 0)

    def clear(place: Pointer, count: Value) -> None:
        with k.loop(0, count * row, lanes) as word:
            place.store(zeros, word)

    source = k.pointer(given["source"], product.packed_a if spec.rounded else product.stored_a)
    frame = k.pointer(given["target"], product.word)
    with k.loop(k["begin"], k["end"]) as chunk:
        item, line = chunk // given["frame_lines"], chunk % given["frame_lines"] - given["above"]
        is_there = (line >= 0) & (line < given["lines"])
        places = k.select(is_there, given["places"], 0)
        before = k.select(is_there, given["before"], 0)
        first = source.offset(item * given["item_stride"] + k.select(is_there, line, 0) * given["line_stride"])
        place = frame.offset(chunk * given["pitch"] * row)
        clear(place, before)
        copy_rows(k, product, first, given["stride"], places, given["channels"], place.offset(before * row), row)
        behind = before + places
        clear(place.offset(behind * row), given["pitch"] - behind)
    return k.finish()
