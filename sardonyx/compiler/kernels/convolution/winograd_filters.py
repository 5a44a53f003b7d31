"""Filters transformed for Winograd's algorithm, in the order in which the kernel reads them.

[panels of filters][transformed][channels][filters of a panel]: for each panel one stream, in the order of the products.
They are computed in float64 and rounded once. Or as they are, for `winograd_taps`: [vectors of filters][channels][taps]
[filters of a vector].
"""

from __future__ import annotations

from sardonyx.compiler.arguments import Read, Record, Write, kernel, sizes
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES, TAPS
from sardonyx.compiler.llvm.types import F32, F64, I64
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class FiltersSpec:
    """The scheme for a `stride` and `outputs`; panels of `vectors` registers of float32. With `as_taps` the filters are
    not transformed, and the taps of a channel follow each other."""

    stride: int
    outputs: int
    vectors: int
    as_taps: bool = False


class Arguments(Record):
    source = Read(F32)  # filters [filters, channels, 3, 3]
    packed = Write(F32)
    filters, channels, block, blocks = sizes(4)


@kernel(Arguments)
def emit_winograd_filters(k: Function, a: Arguments, spec: FiltersSpec) -> None:
    """A chunk is `block` channels of a panel. Chunks count the `blocks` of channels fastest.

    Columns behind the last filter are zero.
    """
    given = a.loaded()
    scheme = SCHEMES[spec.stride, spec.outputs]
    lanes = k.target.lanes(F32)
    panel, channels, square = lanes * spec.vectors, a.channels, TAPS * TAPS
    source, packed = a.source, a.packed
    one_filter = channels * square
    places = k.iota(I64, lanes) * one_filter
    with k.loop(k["begin"], k["end"]) as chunk:
        number, first = chunk // given["blocks"], chunk % given["blocks"] * given["block"]
        with k.loop(first, minimum(k, first + given["block"], channels)) as channel, k.loop(0, panel, lanes) as vector:
            column = number * panel + vector
            mask = k.lanes_below(given["filters"] - column, lanes)
            start = source.offset(column * one_filter + channel * square)

            def tap(i: int, j: int, start: Pointer = start, mask: Value = mask) -> Value:
                return start.offset(i * TAPS + j).gather(places, mask).to(F64)

            if spec.as_taps:
                place = packed.offset((number * channels + channel) * (square * panel) + vector)
                for each in range(square):
                    place.store(tap(*divmod(each, TAPS)).to(F32), each * panel)
            else:
                place = packed.offset((number * scheme.filters * channels + channel) * panel + vector)
                for value in scheme.of_taps(k, tap):
                    place.store(value.to(F32))
                    place = place.offset(channels * panel)
