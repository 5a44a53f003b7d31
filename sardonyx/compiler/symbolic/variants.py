"""Guarded variants: one operation's binding as a function of the sizes of its inputs.

A binding whose inputs differ from those of an earlier one only in their sizes makes, as a rule, the same choices; its
steps are the same then but for numbers that follow from the sizes. So it is done with traced numbers, which note what
is computed from them. The function that comes of it gives the numbers of the steps for all sizes for which every
comparison of the binding has the same outcome: these are its guards.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Buffer, Tensor
from sardonyx.compiler.bound_step import Look, contents_of
from sardonyx.compiler.recording import Bind, Describe, Recording, SymbolicContents, Tensors, record
from sardonyx.compiler.symbolic.template import StepNumbers, StepTemplate, taken_apart
from sardonyx.compiler.traced import Trace, plain, text_of
from sardonyx.light_dataclass import dataclass

# A value as numbers: its kind, and unless it is the model's own the bytes of its buffer, shape, strides, offset and
# elements.
Entry = tuple[int, ...]

# Elements of a tensor, at most, that are numbers of a variant.
_MOST_ELEMENTS = 16


class Kind(NamedTuple):
    """What is known of a value without its numbers. One of the model's own constants has none, but looks as it does."""

    memory: str
    dtype: np.dtype[Any]
    rank: int
    is_known: bool
    elements: int
    own_look: tuple[int, Look] | None


class Kinds:
    """Numbers the kinds of a segment's values. `lasting` are the contents that live as long as it does."""

    def __init__(self, lasting: Container[int]) -> None:
        self.lasting = lasting
        self._numbers: dict[Kind, int] = {}
        self._kinds: list[Kind] = []

    def __getitem__(self, number: int) -> Kind:
        return self._kinds[number]

    def number(self, kind: Kind) -> int:
        found = self._numbers.get(kind)
        if found is None:
            self._kinds.append(kind)
            found = self._numbers[kind] = self._kinds.index(kind)
        return found

    def entry(self, tensor: Tensor) -> Entry:
        """A value as numbers."""
        buffer, shape, is_known = tensor.buffer, tensor.shape, tensor.is_known
        if stays(tensor, self.lasting):
            look = buffer.nbytes, tensor.look
            return (self.number(Kind(buffer.kind, tensor.dtype, len(shape), is_known, 0, look)),)
        elements = tensor.elements if has_elements(tensor) else ()
        kind = self.number(Kind(buffer.kind, tensor.dtype, len(shape), is_known, len(elements), None))
        return kind, buffer.nbytes, *shape, *tensor.strides, tensor.offset, *elements

    def tensor(self, entry: Entry, buffer: Buffer | None) -> Tensor:
        """The value of these numbers whose contents nobody knows; `buffer` has it, or a new one."""
        kind = self._kinds[entry[0]]
        shape, strides = entry[2 : 2 + kind.rank], entry[2 + kind.rank : 2 + 2 * kind.rank]
        return Tensor(kind.dtype, shape, strides, buffer or Buffer(entry[1]), entry[2 + 2 * kind.rank])


class Place(NamedTuple):
    """Where an output lies: it is the input `given`, or lies in the buffer of the input `over`, or in the new buffer
    that `new` counts."""

    given: int = -1
    over: int = -1
    new: int = -1


class Sized(NamedTuple):
    """What a variant gives for some sizes: words and numbers of its steps, and its outputs that are no inputs."""

    words: bytes
    numbers: bytes
    nanoseconds: float
    scratch_bytes: int
    outputs: tuple[Entry, ...]


class NoVariantError(Exception):
    """A binding that cannot be a part of a symbolic plan: it makes constants."""


@dataclass(eq=False, slots=True)
class Variant:
    """A binding of operations that are alike, and its function of the numbers of their inputs.

    `reads` has the contents that it depends on, by the place of the input; `places` says where outputs lie.
    """

    template: StepTemplate
    places: Sequence[Place | None]
    reads: Sequence[tuple[int, Hashable]]
    faults: Sequence[Describe]
    constants: Sequence[Array]
    owners: Sequence[Any]  # what keeps the identities alive of contents
    compile: Callable[[], Callable[..., Any]] | None = None  # None: it holds for its own sizes alone
    compute: Callable[..., Any] | None = None

    def sized(self, given: Sequence[Entry]) -> Sized | None:
        """What it gives for inputs of these numbers; None if a guard fails."""
        try:
            if self.compute is None:
                if self.compile is None:
                    return None
                self.compute = self.compile()
                self.compile = None
            found: Sized | None = self.compute(*itertools.chain.from_iterable([one[1:] for one in given]))
        except Exception:  # such as sizes that do not fit each other, which binding tells with the node's name
            return None
        return found


class VariantMaker:
    """Binds operations of one segment for new sizes: as variants that hold for others, too, if that can be."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def bound(self, bind: Bind, binder: Binder, inputs: Tensors) -> tuple[Variant, Sized]:
        """The binding for these inputs. NoVariantError if nothing can be kept of it; errors are those of `bind`."""
        own = binder.beside(is_symbolic=False)
        _, found = record(bind, own, inputs, set(), self._kinds.lasting)
        if found is None:
            raise NoVariantError
        variant, numbers, outputs = self._described(found, inputs)
        return variant, _sized(numbers, outputs)

    def traced(
        self, bind: Bind, binder: Binder, inputs: Tensors, varies: Sequence[bool]
    ) -> tuple[Variant, Sized] | None:
        """The same with a function of those numbers that vary; None if there is none."""
        trace = Trace()
        try:
            symbolic = _symbolic(inputs, trace, iter(varies), self._kinds.lasting)
            _, found = record(bind, binder.beside(is_symbolic=True), symbolic, set(), self._kinds.lasting)
            if found is None or not _can_be_computed(inputs, found, self._kinds.lasting):
                return None
            variant, numbers, outputs = self._described(found, symbolic)
            sized = _sized(numbers, outputs)
            result = _text(numbers, outputs)
        except NoVariantError:
            raise
        except Exception:  # what does not bear traced numbers is bound with plain ones, which tells what is wrong
            return None
        finally:
            trace.is_open = False
        helpers: dict[str, Callable[..., Any]] = {
            "words": struct.Struct(f"{len(numbers.words)}q").pack,
            "numbers": struct.Struct(f"{len(numbers.numbers)}q").pack,
            "sized": Sized._make,
        }
        variant.compile = lambda: trace.function(result, helpers)
        return variant, sized

    def _described(
        self, recording: Recording, inputs: Tensors
    ) -> tuple[Variant, StepNumbers, Sequence[tuple[int, ...]]]:
        """A recording as a variant without a function, its numbers, and the entries of its outputs."""
        template, numbers = taken_apart(recording)
        over = {ref: place for place, ref in recording.input_refs}
        sizes: dict[int, int] = dict(recording.arena)
        new = dict.fromkeys(ref for ref, _ in recording.arena)
        counted = {ref: number for number, ref in enumerate(new)}
        places: list[Place | None] = []
        outputs: list[tuple[int, ...]] = []
        for one in recording.outputs:
            if one is None or one.look is None:
                places.append(None if one is None else Place(given=one.given))
                continue
            if one.array is not None or (one.ref not in over and one.ref not in counted):
                raise NoVariantError
            dtype, shape, strides, offset = one.look
            lies = Place(over=over.get(one.ref, -1), new=counted.get(one.ref, -1))
            below = inputs[lies.over] if lies.over >= 0 else None
            memory, nbytes = ("arena", sizes[one.ref]) if below is None else (below.buffer.kind, below.buffer.nbytes)
            places.append(lies)
            kind = self._kinds.number(Kind(memory, dtype, len(shape), False, 0, None))
            outputs.append((kind, nbytes, *shape, *strides, offset))
        variant = Variant(
            template,
            places,
            [(place, contents_of(inputs[place])) for place in recording.read],
            [describe for _, describe in recording.faults],
            recording.constants,
            recording.owners,
        )
        return variant, numbers, outputs


def _sized(numbers: StepNumbers, outputs: Iterable[Entry]) -> Sized:
    """The numbers for the sizes of the binding that they come from."""
    words, others = (np.array([plain(one) for one in each], np.int64).tobytes() for each in numbers[:2])
    made = tuple([tuple([plain(one) for one in entry]) for entry in outputs])
    return Sized(words, others, plain(numbers.nanoseconds), plain(numbers.scratch_bytes), made)


def _text(numbers: StepNumbers, outputs: Iterable[Entry]) -> str:
    """The same for other sizes, as text of Python."""
    words, others = map(_listed, numbers[:2])
    rest = ",".join(map(text_of, numbers[2:]))
    made = "".join(f"({_listed(entry)})," for entry in outputs)
    return f"sized((words({words}),numbers({others}),{rest},({made})))"


def _listed(numbers: Iterable[object]) -> str:
    return "".join([f"{text_of(number)}," for number in numbers])


def _symbolic(inputs: Tensors, trace: Trace, varies: Iterator[bool], lasting: Container[int]) -> Tensors:
    """The inputs with traced numbers, in the order of their entries."""

    def of(number: int) -> int:
        return trace.number(number) if next(varies) else trace.fixed(number)  # type: ignore[return-value]

    made: list[Tensor | None] = []
    buffers: dict[Buffer, Buffer] = {}
    for one in inputs:
        if one is None or stays(one, lasting):
            made.append(one)
            continue
        given = one.buffer
        nbytes, shape, strides = of(given.nbytes), tuple(map(of, one.shape)), tuple(map(of, one.strides))
        buffer = buffers.setdefault(given, Buffer(nbytes, given.kind, given.index, given.array))
        tensor = Tensor(one.dtype, shape, strides, buffer, of(one.offset), one.array)
        made.append(SymbolicContents(tensor, tuple(map(of, one.elements))) if has_elements(one) else tensor)
    return made


def _can_be_computed(inputs: Tensors, recording: Recording, lasting: Container[int]) -> bool:
    """Whether all that a recording has of sizes is among its numbers."""
    derived = (inputs[one.place] for one in recording.derived)
    return (
        all(one is not None and stays(one, lasting) for one in derived)
        and all(one is None or one.array is None for one in recording.outputs)
        and all(one.dtype != np.object_ for one in recording.constants)
    )


def has_elements(tensor: Tensor) -> bool:
    """Whether its contents are a few numbers, which may be sizes."""
    array = tensor.array
    return array is not None and array.size <= _MOST_ELEMENTS and array.dtype == np.int64


def stays(tensor: Tensor, lasting: Container[int]) -> bool:
    """Whether it is the model's own: what is made of it depends on its sizes."""
    return tensor.buffer.kind == "constant" and (type(tensor) is not Tensor or id(tensor.array) in lasting)
