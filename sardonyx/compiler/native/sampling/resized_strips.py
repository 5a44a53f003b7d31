"""Resizing along lines in strips while binding: where it fits, the tables, and how the work is cut."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.compiler.binding import Argument, Array, Binder, Tensor
from sardonyx.compiler.llvm.kernels.sampling.resized_strips import ResizedStripSpec, emit_resized_strips
from sardonyx.compiler.llvm.lookup import has_lookup
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, type_of
from sardonyx.compiler.native.rows.rows import elements_per_chunk, joined_axes, table_words
from sardonyx.light_dataclass import dataclass

# Of each element of the result the places that it reads along an axis, and their weights, [places, taps] both.
Taps = tuple[Array, Array]

# Taps of an element that are written out, at most; vectors of a strip, at least and at most.
_MOST_TAPS, _FEWEST_VECTORS, _MOST_VECTORS = 4, 2, 8
# Registers that the code takes besides the lines that wait and what finds elements across.
_OTHER_REGISTERS = 6


@dataclass(frozen=True)
class _Across:
    """The vectors of a line: where they and their halves begin, and by tap where in these the elements lie."""

    starts: Array
    bases: Array
    indices: Array
    weights: Array


def bind_resized_strips(
    binder: Binder, x: Tensor, result: Tensor, axis: int, down: Taps, across: Taps, *, rounds: bool = False
) -> bool:
    """Add the step that resizes an axis and the one behind it, which is the last one that matters; whether it fits.

    Where each element has one tap of the weight 1, elements are only moved. `rounds`: to the nearest integer.
    """
    target, source, output = binder.target, type_of(x.dtype), type_of(result.dtype)
    taps = down[0].shape[1], across[0].shape[1]
    weighted = taps != (1, 1) or any((weights != 1).any() for _, weights in (down, across))
    if not weighted and x.dtype.itemsize == F32.nbytes:
        source = output = F32
    if source is None or output is None or F64 in (source, output) or max(taps) > _MOST_TAPS:
        return False
    if not has_lookup(target) or x.strides[axis + 1] != 1 or not result.is_contiguous:
        return False
    found = _vectors(target, x.shape[axis + 1], across)
    if found is None:
        return False
    lanes, halves = target.lanes(F32), found.bases.shape[1]
    count = len(found.starts)
    strips = -(-count // _most_vectors(target, taps, weighted=weighted))
    vectors = -(-count // strips)
    whole = count - strips * (vectors - 1)
    size, width, lines = x.shape[axis + 1], len(across[0]), len(down[0])
    spec = ResizedStripSpec(
        *(source, output, *taps, weighted, vectors, whole < strips, halves),
        *(size < lanes, width < lanes),
        rounds,
    )
    item, planes = x.dtype.itemsize, math.prod(x.shape[:axis])
    operations = 2.0 * sum(taps)
    wanted = elements_per_chunk(result.size, x.nbytes / result.size + result.dtype.itemsize, operations)
    places = vectors * lanes
    bands = -(-lines // max(1, min(lines, wanted // places)))
    band = -(-lines // bands)
    items = planes * bands * strips
    per_chunk = max(1, wanted // (band * places))
    tables = {
        "read": down[0] * (x.strides[axis] * item),
        "weights_down": down[1].astype(np.float32),
        "fresh": _fresh(down[0]),
        "starts": found.starts,
        "bases": found.bases,
        "indices": found.indices.astype(np.int32),
        "weights_across": found.weights.astype(np.float32),
    }
    words: dict[str, Argument] = {
        "x": x,
        "y": result,
        "items": items,
        "per_chunk": per_chunk,
        "lines": lines,
        "band": band,
        "bands": bands,
    }
    words |= {"strips": strips, "whole": whole, "size": size, "width": width}
    words |= {name: binder.constant(np.ascontiguousarray(table)) for name, table in tables.items()}
    binder.step(
        emit_resized_strips,
        spec,
        [
            *(words[name] for name in spec.argument_names()),
            *table_words(joined_axes(x.shape[:axis], [[stride * item for stride in x.strides[:axis]]])),
        ],
        reads=(x,),
        writes=(result,),
        chunks=-(-items // per_chunk),
        flops=operations * result.size,
        detail=f"{planes * lines} lines of {size} to {width} elements, strips of {vectors} vectors of {lanes}",
    )
    return True


def _most_vectors(target: Target, taps: tuple[int, int], *, weighted: bool) -> int:
    """How many vectors of a strip registers hold: their lines that wait, and what finds elements across.

    Of the weights across half may come from the nearest cache each time.
    """
    twice = 2 * taps[0] + (3 if weighted else 2) * taps[1]
    return max(_FEWEST_VECTORS, min(_MOST_VECTORS, 2 * (target.registers - _OTHER_REGISTERS) // twice))


def _vectors(target: Target, size: int, across: Taps) -> _Across | None:
    """How the elements of lines of this size are looked up in registers; None where they cannot."""
    places, weights = across
    width, lanes = len(places), target.lanes(F32)
    if min(width, size) < lanes and not target.has_masks:
        return None
    starts = np.minimum(np.arange(0, width, lanes), max(0, width - lanes))
    elements = np.minimum(starts[:, None] + np.arange(lanes), width - 1)
    read = places[elements].transpose(0, 2, 1)  # [vectors, taps, lanes]
    first, last = read.min(axis=(1, 2)), read.max(axis=(1, 2))
    near = np.minimum(first, max(0, size - lanes))
    if (last - near < lanes).all():
        bases, indices = near[:, None], read - near[:, None, None]
    else:
        far = np.minimum(near + lanes, size - lanes)
        if (last - far >= lanes).any():
            return None
        bases = np.stack((near, far), axis=1)
        is_near = read < near[:, None, None] + lanes
        indices = np.where(is_near, read - near[:, None, None], read - far[:, None, None] + lanes)
    return _Across(starts, bases, indices, weights[elements].transpose(0, 2, 1))


def _fresh(places: Array) -> Array:
    """How many of the last taps of each place those of the place before do not hold, as these move on."""
    lines, taps = places.shape
    found = np.full(lines, taps)
    for moved in range(taps - 1, -1, -1):
        same = (places[1:, : taps - moved] == places[:-1, moved:]).all(axis=1)
        found[1:][same] = moved
    return found
