"""Running sums and products along an axis, element by element in order: the same results for any number of threads."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.kernels.walk import kernel_frame, share
from sardonyx.compiler.llvm.narrow_floats import from_bits, to_bits
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, F16, F32, U8, U16, Type


@dataclass(frozen=True)
class CumulativeSpec:
    """Numbers of `type` are added, or multiplied; an `exclusive` total leaves the element itself out."""

    type: Type
    product: bool = False
    exclusive: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether numbers are stored as 16 bits and added as float32."""
        return self.type in (F16, BF16)

    @property
    def working(self) -> Type:
        """What totals are kept as."""
        return F32 if self.is_narrow else self.type

    @property
    def stored(self) -> Type:
        """What is loaded and stored."""
        return U16 if self.is_narrow else self.type


def emit_cumulative(target: Target, spec: CumulativeSpec) -> str:
    """Totals of columns. Arguments: data, output, items, items per chunk, bytes between the elements of the data along
    the axis, the same of the output, elements along the axis, columns, vectors of columns, bytes between outer places
    (of data and output, both contiguous outside of the axis). Items are outer places times vectors of columns; the
    steps along the axis are negative for totals from the end.
    """
    k, words = kernel_frame(target)
    data, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    data_step, output_step, length, columns, vectors = (words.load(at) for at in range(4, 9))
    data_outer, output_outer = words.load(9), words.load(10)
    lanes = target.lanes(spec.working)
    begin, end = share(k, words.load(2), words.load(3))
    with k.loop(begin, end) as item:
        outer = item // vectors
        first = (item - outer * vectors) * lanes
        left = columns - first
        from_ = data.offset(outer * data_outer + first * spec.type.nbytes)
        to = output.offset(outer * output_outer + first * spec.type.nbytes)
        full = left >= lanes
        with k.when(full):
            _Total(k, spec, lanes).along(from_, to, length, data_step, output_step)
        with k.otherwise(full), k.loop(0, left) as column:
            step = column * spec.type.nbytes
            _Total(k, spec, 1).along(from_.offset(step), to.offset(step), length, data_step, output_step)
    return k.finish()


class _Total:
    """The totals of `lanes` columns."""

    def __init__(self, k: Function, spec: CumulativeSpec, lanes: int) -> None:
        self._k, self._spec, self._lanes = k, spec, lanes
        start = k.constant(spec.working.vector(lanes), 1 if spec.product else 0)
        self._total: Variable = k.variable(start.type, start)

    def along(self, from_: Pointer, to: Pointer, length: Value, data_step: Value, output_step: Value) -> None:
        k, spec = self._k, self._spec
        with k.loop(0, length) as place:
            element = from_.offset(place * data_step).cast(spec.stored).load(0, self._lanes)
            if spec.is_narrow:
                element = from_bits(element, spec.type)
            before = self._total.get()
            after = before * element if spec.product else before + element
            self._total.set(after)
            total = before if spec.exclusive else after
            if spec.is_narrow:
                total = to_bits(k, total, spec.type)
            to.offset(place * output_step).cast(spec.stored).store(total)
