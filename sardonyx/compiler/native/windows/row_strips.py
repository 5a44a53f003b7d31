"""Pools in strips over tensors in ONNX's order while binding: where they fit, how wide strips are, how work is cut."""

from __future__ import annotations

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.kernels.windows.folds import WATCHES, Combine, Fold
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.kernels.windows.row_strips import RowStripSpec, emit_row_strips
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.windows.window_call import Slide, WindowCall
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory import memory

# What it takes to find out at which strips lines begin and end.
_BYTES_PER_STRIP = 80
# Vectors of a strip at most, and strides along a line that shuffles follow.
_MOST_VECTORS, _MOST_STRIDE = 8, 2
# Registers that the code takes besides lines that wait, watches and what is read.
_OTHER_REGISTERS = 4
# Lines that a window has in common with the one above it, and those that it has not: all are written out.
_MOST_LINES = 9

# Nanoseconds for a strip, for a vector of a line, and for combining two vectors.
_STRIP_NS, _LINE_NS, _COMBINED_NS = 12.0, 0.3, 0.2


@dataclass(frozen=True)
class _Strips:
    """How lines are cut: places of a strip, vectors that it reads, and how far behind the first tap they begin."""

    places: int
    count: int
    vectors: int
    lead: int

    @property
    def work(self) -> int:
        return self.count * self.vectors


def strips_fit(target: Target, slide: Slide, fold: Fold, lanes: int) -> bool:
    """Whether maps are gone through in strips: of pools over two dimensions, with masks for the ends of lines.

    `lanes` places make a vector.
    """
    if not target.has_masks or not isinstance(fold, Combine) or not slide.is_flat or slide.output[-1] < 2:
        return False
    if slide.dilation[1:] != [1, 1] or slide.stride[-1] > _MOST_STRIDE or max(slide.kernel[1:]) > _MOST_LINES:
        return False
    strips = _strips(target, slide, lanes)
    # Windows nearly as wide as a strip would read most of a line again for the next one.
    return strips is not None and strips.work * lanes <= 2 * (slide.size[-1] + lanes)


def ns_of_strips(target: Target, slide: Slide, maps: int, lanes: int) -> float:
    """How long the step takes for pools that fit: a rough figure."""
    strips = _strips(target, slide, lanes)
    assert strips is not None
    # A neighbour along the line costs a shuffle besides what combines.
    combined = sum(times * (taps - 1).bit_length() for times, taps in zip((1, 2), slide.kernel[1:], strict=True))
    per_vector = _LINE_NS * slide.stride[1] + _COMBINED_NS * combined
    return maps * (_STRIP_NS * strips.count + slide.output[1] * strips.work * per_vector)


def bind_row_strips(binder: Binder, call: WindowCall) -> None:
    """Add the step for pools that fit; the last dimension lies together in the input and in the results."""
    first, fold = call.results[0], call.fold
    if first.size == 0:
        return
    assert isinstance(fold, Combine)
    target, slide = binder.target, Slide.of(call.windows)
    lanes = call.lanes(target, longest(slide))
    strips = _strips(target, slide, lanes)
    assert strips is not None
    channels, (_, lines, places) = first.shape[-1], slide.output
    _, down, along = (Along(1, *one) for one in zip(slide.kernel, slide.stride, slide.dilation, strict=True))
    begin, size = slide.each(slide.windows.begin, 0), slide.size
    memory.require_tables(_BYTES_PER_STRIP * strips.count, "the strips of rows")
    starts = [turn * strips.places for turn in range(strips.count - 1)] + [places - strips.places]
    columns = [start * along.stride - begin[-1] + strips.lead for start in starts]
    rest = _rest(slide, strips, lanes)
    vectors = [(at, lanes) for at in range(0, (strips.vectors - 1) * lanes, lanes)]
    vectors.append(((strips.vectors - 1) * lanes, rest))
    masked = tuple(
        any(column + at < 0 or column + at + count > size[-1] for column in columns) for at, count in vectors
    )
    results = -(-strips.places // lanes)
    spec = RowStripSpec(
        call.x.dtype.name,
        lanes,
        down,
        along,
        masked,
        strips.lead,
        results,
        rest,
        strips.places == (results - 1) * lanes + rest,
        fold,
        call.finish(slide, by_rows=True),
    )
    words = call.matrices(slide, by_rows=True)
    words["x_c"] = words["x_step"]
    for place, of in ((1, "h"), (2, "w")):
        words |= {f"size_{of}": size[place], f"out_{of}": slide.output[place], f"begin_{of}": begin[place]}
    wanted = call.elements_per_chunk
    bands = -(-lines // max(1, min(lines, wanted // strips.places)))
    band = -(-lines // bands)
    items = first.shape[0] * channels * bands * strips.count
    per_chunk = max(1, wanted // (band * strips.places))
    words |= {"maps": channels, "band": band, "bands": bands, "strip": strips.places, "strips": strips.count}
    detail = (
        f"{lines}x{places} windows of {down.taps}x{along.taps} over {channels} maps, "
        f"strips of {strips.vectors} vectors of {lanes}"
    )
    call.add_step(binder, emit_row_strips, spec, words, items, per_chunk, detail)


def longest(slide: Slide) -> int:
    """Lanes that a vector needs at most: a power of two."""
    return 1 << (max(slide.size[-1], slide.output[-1]) - 1).bit_length()


def _rest(slide: Slide, strips: _Strips, lanes: int) -> int:
    """Lanes of the last vector of a strip: a half of them or a quarter where these hold what it reads and makes."""
    left = (strips.vectors - 1) * lanes
    if slide.stride[-1] > 1 or not left < strips.places <= left + lanes:
        return lanes
    read = strips.places - 1 + slide.kernel[-1] - strips.lead
    if strips.count == 1:
        read = min(read, slide.size[-1] + slide.each(slide.windows.begin, 0)[-1] - strips.lead)
    ending = max(read, strips.places) - left
    return next((short for short in (lanes // 4, lanes // 2) if ending <= short), lanes)


def _strips(target: Target, slide: Slide, lanes: int) -> _Strips | None:
    """The strips that read the fewest vectors, in all: as wide as the registers hold what waits for lines below."""
    taps, stride = slide.kernel[-1], slide.stride[-1]
    size, places, begin = slide.size[-1], slide.output[-1], slide.each(slide.windows.begin, 0)[-1]
    waiting = max(1, slide.kernel[1] - slide.stride[1])
    room = (target.registers - _OTHER_REGISTERS - WATCHES) // waiting
    most = min(_MOST_VECTORS, room)
    found = []
    whole = -(-max(1, min(size, (places - 1) * stride + taps - begin)) // lanes)
    if whole <= most and begin < lanes and -(-places // lanes) <= 2 * _MOST_VECTORS:  # few results are written out
        found.append(_Strips(places, 1, whole, begin))
    for vectors in range(1, most + 1):
        fitting = (vectors * lanes - taps) // stride + 1
        if fitting > 0:
            count = -(-places // fitting)
            found.append(_Strips(min(places, -(-places // count)), count, vectors, 0))
    return min(found, key=lambda one: (one.work, one.count)) if found else None
