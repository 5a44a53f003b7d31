"""The arguments of a kernel as a record: binding gives them by name, and the code of the kernel reads them by name.

A class lists the fields, one word of 64 bits after another:

    class Arguments(Record):
        x = Read(F32)
        y = Write(F32)
        items = Size()
        limit = Float(F32)

`Binder.step` takes `Arguments(x=tensor, y=result, items=100, limit=0.5)` and knows from it what the step reads and
writes. The function below `@kernel(Arguments)` is given a record whose `a.x` is a pointer and whose `a.items` is a
value of the kernel language; a field is loaded where the code first asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from sardonyx.compiler.bound_step import Address, Argument, Shifted, Tensor, float_word
from sardonyx.compiler.llvm.types import F64, I64, PTR, U8, Type, type_of

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function, Pointer, Value
    from sardonyx.compiler.llvm.target import Target

# The type of the elements behind a pointer: always the same one, or as the specification says; None: bytes of whatever
# type, which the code casts.
Elements = Type | Callable[[Any], Type] | None

Count = Callable[[Any], int]

Face = TypeVar("Face", covariant=True)


class Words:
    """What a step has of its arguments: the flat words, and the tensors that it reads and writes."""

    __slots__ = ("flat", "reads", "writes")

    def __init__(self) -> None:
        self.flat: list[Argument] = []
        self.reads: list[Tensor] = []
        self.writes: list[Tensor] = []


class Field(Generic[Face]):
    """One word of a record, or several that follow one another."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...

    @overload
    def __get__(self, record: Record, owner: type) -> Face: ...

    def __get__(self, record: Record | None, owner: type) -> Self | Face:
        return self if record is None else record._field(self)

    def size(self, spec: Any) -> int:
        """How many words it takes."""
        return 1

    def add(self, words: Words, value: Any, spec: Any) -> None:
        """Append what binding gives; TypeError if that does not fit the field."""
        raise NotImplementedError

    def read(self, inside: Inside, at: int) -> Face:
        """What the code has of it, in the function that is being written, `at` words from the first one."""
        raise NotImplementedError

    def words(self, inside: Inside, at: int) -> Iterator[tuple[str, Value]]:
        """Its words by name, each loaded here."""
        yield self.name, inside.word(at)


class Size(Field["Value"]):
    """A whole number, such as a size, a stride in elements or bytes, or a flag."""

    def add(self, words: Words, value: Any, spec: Any) -> None:
        if value is None or isinstance(value, Tensor | Address | Shifted):
            raise TypeError(f"'{self.name}' is a number, not {value!r}")
        words.flat.append(value)

    def read(self, inside: Inside, at: int) -> Value:
        return inside.word(at)


def sizes(count: int) -> tuple[Size, ...]:
    """Several sizes, for names on one line: ``rows, columns = sizes(2)``."""
    return tuple(Size() for _ in range(count))


class Float(Field["Value"]):
    """A float, as float64 in memory and of this type in the code."""

    def __init__(self, type_: Type = F64) -> None:
        self.type = type_

    def add(self, words: Words, value: Any, spec: Any) -> None:
        words.flat.append(float_word(value))

    def read(self, inside: Inside, at: int) -> Value:
        wide = inside.word(at).bits_as(F64)
        return wide if self.type == F64 else wide.to(self.type)


class _Pointer(Field["Pointer"]):
    """The address of elements; binding gives a tensor, a place in one (`Shifted`), an `Address`, or None for 0."""

    reads = writes = False

    def __init__(self, elements: Elements = None) -> None:
        self._elements = elements

    def add(self, words: Words, value: Any, spec: Any) -> None:
        tensor = value
        if value is None:
            words.flat.append(0)
            return
        if isinstance(value, Shifted):
            tensor = value.tensor
            words.flat.append(Address(tensor.buffer, tensor.offset + value.nbytes))
        elif isinstance(value, Tensor | Address):
            words.flat.append(value)
        else:
            raise TypeError(f"'{self.name}' is a tensor or an address, not {value!r}")
        if not isinstance(tensor, Tensor):
            return
        if self._elements is not None and type_of(tensor.dtype) != self.type(spec):
            raise TypeError(f"'{self.name}' has elements of {self.type(spec).kind}, not {tensor.dtype}")
        if self.reads:
            words.reads.append(tensor)
        if self.writes:
            words.writes.append(tensor)

    def type(self, spec: Any) -> Type:
        """The type of the elements."""
        chosen = self._elements
        return U8 if chosen is None else chosen if isinstance(chosen, Type) else chosen(spec)

    def read(self, inside: Inside, at: int) -> Pointer:
        return inside.k.pointer(inside.word(at), self.type(inside.spec))


class Read(_Pointer):
    """A tensor that the kernel reads."""

    reads = True


class Write(_Pointer):
    """A tensor that the kernel writes."""

    writes = True


class Update(_Pointer):
    """A tensor that the kernel reads and writes."""

    reads = writes = True


class Table(_Pointer):
    """Constants of the plan that do not count as memory that the step reads, such as a table of places."""


class ErrorSlot(_Pointer):
    """Where the kernel notes data that it must refuse: the address that `Binder.fault` gives, or None."""


class Rest(Field["Pointer"]):
    """All words from here on, as many as binding gives; the code has their address. The last field of a record."""

    def size(self, spec: Any) -> int:
        return 0

    def add(self, words: Words, value: Any, spec: Any) -> None:
        words.flat.extend(value)

    def read(self, inside: Inside, at: int) -> Pointer:
        return inside.words.offset(at)

    def words(self, inside: Inside, at: int) -> Iterator[tuple[str, Value]]:
        return iter(())


class Several(Field[tuple[Face, ...]]):
    """A field as many times as the specification says."""

    def __init__(self, field: Field[Face], count: Count) -> None:
        self._field = field
        self._count = count

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        self._field.name = name

    def size(self, spec: Any) -> int:
        return self._count(spec) * self._field.size(spec)

    def add(self, words: Words, value: Any, spec: Any) -> None:
        values = list(value)
        count = self._count(spec)
        if len(values) != count:
            raise TypeError(f"'{self.name}' has {len(values)} entries, not the {count} of the specification")
        for one in values:
            self._field.add(words, one, spec)

    def read(self, inside: Inside, at: int) -> tuple[Face, ...]:
        apart = self._field.size(inside.spec)
        return tuple(self._field.read(inside, at + index * apart) for index in range(self._count(inside.spec)))

    def words(self, inside: Inside, at: int) -> Iterator[tuple[str, Value]]:
        apart = self._field.size(inside.spec)
        for index in range(self._count(inside.spec)):
            for name, word in self._field.words(inside, at + index * apart):
                yield f"{name}{index}", word


class When(Field[Face | None]):
    """A field that is there if the specification says so; else binding gives None, and the code has None."""

    def __init__(self, field: Field[Face], condition: Callable[[Any], bool]) -> None:
        self._field = field
        self._condition = condition

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        self._field.name = name

    def size(self, spec: Any) -> int:
        return self._field.size(spec) if self._condition(spec) else 0

    def add(self, words: Words, value: Any, spec: Any) -> None:
        if (value is not None) != self._condition(spec):
            raise TypeError(f"'{self.name}' is {value!r}, where the specification says otherwise")
        if value is not None:
            self._field.add(words, value, spec)

    def read(self, inside: Inside, at: int) -> Face | None:
        return self._field.read(inside, at) if self._condition(inside.spec) else None

    def words(self, inside: Inside, at: int) -> Iterator[tuple[str, Value]]:
        return self._field.words(inside, at) if self._condition(inside.spec) else iter(())


Nested = TypeVar("Nested", bound="Record")


class Group(Field[Nested]):
    """The fields of another record."""

    def __init__(self, record: type[Nested]) -> None:
        self._record = record

    def size(self, spec: Any) -> int:
        return sum(field.size(spec) for field in self._record.fields)

    def add(self, words: Words, value: Any, spec: Any) -> None:
        if type(value) is not self._record:
            raise TypeError(f"'{self.name}' is a {self._record.__qualname__}, not {value!r}")
        value.add_to(words, spec)

    def read(self, inside: Inside, at: int) -> Nested:
        return self._record.of(inside, at)

    def words(self, inside: Inside, at: int) -> Iterator[tuple[str, Value]]:
        return iter(self._record.of(inside, at).loaded().items())


class Inside:
    """The arguments in the function that is being written."""

    def __init__(self, k: Function, spec: Any, *, cached: bool = True) -> None:
        self.k = k
        self._cached = cached
        self.spec = spec
        self.words = k.pointer("arguments", I64)
        self._loaded: dict[int, Value] = {}
        self._entry = k._entry

    @property
    def at_entry(self) -> bool:
        """Whether what is loaded now is kept, as everything that follows can use it."""
        return self._cached and self.k._block == "entry" and self.k._entry is self._entry

    def word(self, at: int) -> Value:
        """A word, loaded here unless it was loaded where all that follows can use it."""
        found = self._loaded.get(at)
        if found is None:
            found = self.words.load(at)
            if self.at_entry:
                self._loaded[at] = found
        return found


class Record:
    """The arguments of a kernel; see the module. A class that is derived from another one has its fields first."""

    fields: ClassVar[Sequence[Field[Any]]] = ()

    def __init_subclass__(cls) -> None:
        own = [one for one in vars(cls).values() if isinstance(one, Field)]
        cls.fields = (*cls.fields, *own)

    def __init__(self, **values: Any) -> None:
        """What binding gives; TypeError if a field is missing or a name is no field's."""
        self._values = values
        if values.keys() != {field.name for field in self.fields}:
            missing = [field.name for field in self.fields if field.name not in values]
            others = values.keys() - {field.name for field in self.fields}
            raise TypeError(f"{type(self).__qualname__} lacks {missing or 'nothing'} and has no {sorted(others) or ''}")

    @classmethod
    def of(cls, inside: Inside, at: int = 0) -> Self:
        """The record as the code has it, `at` words from the first argument."""
        record = cls.__new__(cls)
        record._inside, record._at, record._read = inside, at, {}
        return record

    _inside: Inside
    _at: int
    _read: dict[str, Any]

    def of_step(self, emit: Any, spec: Any) -> Words:
        """The words in order, and what they say of memory; TypeError where a value does not fit its field, or the
        kernel that `emit` writes has other arguments."""
        if emit.arguments is not type(self):
            raise TypeError(f"{emit.__name__} takes {emit.arguments.__qualname__}, not {type(self).__qualname__}")
        words = Words()
        self.add_to(words, spec)
        return words

    def add_to(self, words: Words, spec: Any) -> None:
        for field in self.fields:
            field.add(words, self._values[field.name], spec)

    def _field(self, field: Field[Face]) -> Face:
        """What the code has of a field: the same wherever that can be used, else a new one."""
        known: Face | None = self._read.get(field.name)
        if known is not None:
            return known
        found = field.read(self._inside, self._place(field))
        if self._inside.at_entry:
            self._read[field.name] = found
        return found

    def _place(self, wanted: Field[Any]) -> int:
        at = self._at
        for field in self.fields:
            if field is wanted:
                break
            at += field.size(self._inside.spec)
        return at

    def loaded(self) -> Mapping[str, Value]:
        """All words by the names of their fields, loaded here one after the other; those of fields that are repeated
        have the index behind the name."""
        found: dict[str, Value] = {}
        for field in self.fields:
            found.update(field.words(self._inside, self._place(field)))
        return found


Given = TypeVar("Given", bound=Record)


class KernelSource:
    """What writes the text of a kernel, for the library: a function of the target and the specification."""

    __name__: str
    __qualname__: str

    def __init__(self, write: Callable[[Function, Any, Any], None], arguments: type[Record], *, cached: bool) -> None:
        self.arguments = arguments
        self._cached = cached
        self._write = write
        update_wrapper(self, write)

    def __call__(self, target: Target, spec: Any) -> str:
        from sardonyx.compiler.llvm.builder import Function  # which sessions do without whose kernels are all there

        k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
        self._write(k, self.arguments.of(Inside(k, spec, cached=self._cached)), spec)
        return k.finish()


def kernel(
    arguments: type[Given], *, cached: bool = True
) -> Callable[[Callable[[Function, Given, Any], None]], KernelSource]:
    """Make a kernel of a function that writes its body: ``emit_name(k, a, spec)``, with the arguments in `a`.

    Arguments that are not `cached` are loaded wherever the code reads them, so that they take no registers in between.
    The kernel does the chunks from ``k["begin"]`` up to ``k["end"]``; ``k["scratch"]`` is memory of the thread's own.
    """
    return lambda write: KernelSource(write, arguments, cached=cached)
