"""Updates written, added, … at places that indices name. An index out of bounds is noted and its update left out.

Updates of one place are applied in the order of the indices: work is shared only where places cannot meet.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.movement.gather import Addressed, IndexedElements
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.compiler.llvm.walk import Row, copy_blob, kernel_frame
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Update:
    """What becomes of an element: replaced (`reduction` "none") or combined with the update, as numbers of `type`.

    `blob` bytes are updated at once, one number where there is a reduction; 0 for rows of a length known at run time.
    """

    blob: int
    reduction: str = "none"
    type: Type = U8

    def combined(self, k: Function, old: Value, new: Value) -> Value:
        if self.reduction in ("min", "max"):
            return k.smaller(old, new) if self.reduction == "min" else k.larger(old, new)
        return old + new if self.reduction == "add" else old * new


@dataclass(frozen=True)
class ScatterSpec:
    """`depth` indices of `index` bits for each row."""

    update: Update
    index: int
    depth: int = 1


def emit_scatter(target: Target, spec: ScatterSpec) -> str:
    """Rows of updates onto the rows of the data that the indices name; a chunk takes some columns of all rows.

    Arguments: data, indices, updates, faults (one for each index of a row), rows, bytes of a row, bytes of a chunk's
    columns (a multiple of an element), and the table (size, stride) of the axes that the indices of a row address.
    """
    k, words = kernel_frame(target)
    data, updates = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
    indices, faults = k.pointer(words.load(1), Type("i", spec.index)), k.pointer(words.load(3), U8)
    rows, row_bytes, width = words.load(4), words.load(5), words.load(6)
    addressed = Addressed(k, words.offset(7), faults, spec.depth)
    first = k["begin"] * width
    count = k.smaller(row_bytes, k["end"] * width) - first
    row = _Updated(k, spec.update, count)
    with k.loop(0, rows) as number:
        offset, good = addressed.place(indices.offset(number * spec.depth))
        with k.when(good):
            row.apply(updates.offset(number * row_bytes + first), data.offset(offset + first))
    return k.finish()


def emit_scatter_elements(target: Target, spec: ScatterSpec) -> str:
    """Elements of updates onto the elements of the data at their place, the coordinate on one axis replaced.

    Arguments: those of `IndexedElements`, the other tensor being the updates.
    """
    k, words = kernel_frame(target)
    blob = spec.update.blob
    updated = _Updated(k, spec.update, k.constant(I64, blob))
    with IndexedElements(k, words, spec.index).each(blob) as (element, update):
        updated.apply(update, element)
    return k.finish()


class _Updated:
    """Applies updates of `count` bytes."""

    def __init__(self, k: Function, update: Update, count: Value) -> None:
        self._k, self._update, self._count = k, update, count
        self._row = Row(k, update.blob, count) if update.reduction == "none" else None

    def apply(self, from_: Pointer, to: Pointer) -> None:
        """Both point to bytes."""
        k, update = self._k, self._update
        if update.reduction == "none":
            if update.blob:
                copy_blob(from_, to, update.blob)
            elif self._row is not None:
                self._row.copy(from_, to)
            return
        new, old = from_.cast(update.type), to.cast(update.type)
        if update.blob:
            old.store(update.combined(k, old.load(), new.load()))
            return
        lanes = k.target.lanes(update.type)
        count = self._count // update.type.nbytes
        whole = count & -lanes
        with k.loop(0, whole, lanes) as at:
            old.store(update.combined(k, old.load(at, lanes), new.load(at, lanes)), at)
        with k.loop(whole, count) as at:
            old.store(update.combined(k, old.load(at), new.load(at)), at)
