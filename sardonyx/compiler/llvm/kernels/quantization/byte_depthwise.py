"""Depthwise convolution of bytes: every channel has a filter of its own, so that vectors go over channels."""

from __future__ import annotations

from dataclasses import field

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.quantization.byte_convolution import LINE_DIMS
from sardonyx.compiler.llvm.kernels.quantization.tile_writer import Sums, TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, PTR, U8
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ByteDepthwiseSpec:
    """Tiles of `rows` neighbouring places by one vector of channels; the epilogue starts from sums in int32."""

    rows: int
    epilogue: TileEpilogue = field(default_factory=TileEpilogue)


def argument_names(spec: ByteDepthwiseSpec) -> tuple[str, ...]:
    """What the words of the kernel's arguments are, in order. Steps in the image count bytes.

    image, weights, init   addresses: bytes; [taps][padded] and [padded] in int32, what products and sums start from
    offsets, taps          where each tap of a window lies, and how many there are
    filters, padded        channels, and those of whole vectors
    width, step            places of a line, and the step between them
    size1, size2           sizes of the two inner dimensions that lines are counted over
    line_step*             steps along all three
    items, block           lines, and those of a chunk
    """
    names = ["image", "weights", "init", "offsets", "taps", "filters", "padded", "width", "step", "size1", "size2"]
    names += [*(f"line_step{axis}" for axis in range(LINE_DIMS)), "items", "block"]
    return (*names, *spec.epilogue.argument_names())


def emit_byte_depthwise(target: Target, spec: ByteDepthwiseSpec) -> str:
    """The kernel of `spec`; a chunk is a block of lines."""
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    given = {name: words.load(index) for index, name in enumerate(argument_names(spec))}
    lanes = target.lanes(I32)
    image, room = k.pointer(given["image"], U8), k.pointer("scratch", I32)
    writer = TileWriter(k, spec.epilogue, given, I32, 1, spec.rows, room, at_once=True)
    with k.loop(k["begin"] * given["block"], minimum(k, given["items"], k["end"] * given["block"])) as line:
        outer = line // given["size2"]
        start = image
        for axis, place in enumerate((outer // given["size1"], outer % given["size1"], line % given["size2"])):
            start = start.offset(place * given[f"line_step{axis}"])
        with k.loop(0, given["filters"], lanes) as channel, k.loop(0, given["width"], spec.rows) as place:
            here = start.offset(place * given["step"]).offset(channel)

            def sums(height: int, here: Pointer = here, channel: Value = channel) -> Sums:
                return _sums(k, given, here, channel, height)

            rows = minimum(k, given["width"] - place, spec.rows)
            writer.write(channel, given["filters"] - channel, line * given["width"] + place, rows, sums)
    return k.finish()


def _sums(k: Function, given: dict[str, Value], here: Pointer, channel: Value, height: int) -> Sums:
    """The sums of `height` places for a vector of channels."""
    lanes = k.target.lanes(I32)
    weights, offsets = k.pointer(given["weights"], I32).offset(channel), k.pointer(given["offsets"], I64)
    begin = k.pointer(given["init"], I32).offset(channel).load(0, lanes)
    sums = [k.variable(I32.vector(lanes), begin) for _ in range(height)]
    with k.loop(0, given["taps"]) as tap:
        factor = weights.offset(tap * given["padded"]).load(0, lanes)
        line = here.offset(offsets.load(tap))
        for at, total in enumerate(sums):
            total.set(total.get() + line.offset(given["step"] * at).load(0, lanes).to(I32) * factor)
    return {(at, 0): total.get() for at, total in enumerate(sums)}
