"""The `dataclass` of modules that every process imports: its classes share their methods.

The standard library's compiles six methods for each frozen class, which takes a millisecond; a session that begins from
an engine loads some fifty of them. With this decorator classes compare, hash and print by functions of all of them, and
an `__init__` is the code of another one with as many fields that has got their names. Methods of their own stay. That
a frozen one stays as it is, the type checker sees to, and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, kw_only=False):
        """As `dataclasses.dataclass`, whose other parameters there are not, nor fields that are no fields (`InitVar`),
        or have a default and are not given."""

        def made(one):
            # Without a text, it would take twice the time to write one from the signature.
            one.__doc__ = one.__doc__ or one.__qualname__
            types = vars(one).get("__annotations__", {})
            if types:
                one.__annotations__ = {name: _marker(kind) for name, kind in types.items()}
            one = dataclasses.dataclass(one, init=False, eq=False, repr=False, slots=slots, kw_only=kw_only)
            if types:
                one.__annotations__ = types
                own_fields = one.__dataclass_fields__
                for name in types.keys() & own_fields.keys():
                    own_fields[name].type = types[name]
            if "__init__" not in vars(one):
                one.__init__ = _LateInit(one)
            if eq:
                own = vars(one)
                names = [field.name for field in dataclasses.fields(one) if field.compare]
                one._comparison_key = attrgetter(*names) if names else type
                # Python gives a class with an `__eq__` of its own a `__hash__` of None.
                if "__hash__" not in own or (own["__hash__"] is None and "__eq__" in own):
                    one.__hash__ = _hash if frozen else None
                if "__eq__" not in own:
                    one.__eq__ = _is_equal
            if repr and "__repr__" not in vars(one):
                one.__repr__ = _text
            return one

        return made if cls is None else made(cls)


def _marker(kind: Any) -> Any:
    """What the standard library is given for a field's type: the texts of ordinary ones, all of which it would search
    for the few words that make something else than a field, stand for `object`."""
    return object if isinstance(kind, str) and not any(word in kind for word in _WORDS) else kind


# In an annotation they say that it is of no field, or that the fields behind it are given by keyword alone.
_WORDS = ("ClassVar", "InitVar", "KW_ONLY")


class _Made:
    """What a field gets that is not given, by the factory that makes it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _LateInit:
    """Stands for the `__init__` of a class until it is asked for: of most classes, a process makes no object."""

    __slots__ = ("_class", "_fields")

    def __init__(self, one: type) -> None:
        self._class = one
        self._fields = [field for field in dataclasses.fields(one) if field.init]
        given = [field for field in self._fields if not field.kw_only]
        optional = [_value(field) is not dataclasses.MISSING for field in given]
        if optional != sorted(optional):
            raise TypeError(f"{one.__qualname__}: a field without a default follows one that has one")

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., None]:
        made = _init(self._class, self._fields)
        if vars(self._class).get("__init__") is self:  # not where another thread was first
            self._class.__init__ = made
        bound: Callable[..., None] = made.__get__(instance, owner)
        return bound


def _value(field: dataclasses.Field[Any]) -> Any:
    """What a field has that is not given, or what makes it; MISSING where it has to be given."""
    return field.default if field.default_factory is dataclasses.MISSING else _Made(field.default_factory)


def _init(one: type, fields: Sequence[dataclasses.Field[Any]]) -> FunctionType:
    """The `__init__` of a class whose objects are made of these fields."""
    keywords = [field for field in fields if field.kw_only]
    if keywords:
        fields = [*(field for field in fields if not field.kw_only), *keywords]
    places = len(fields) - len(keywords)
    values = [_value(field) for field in fields]
    defaults = tuple(value for value in values[:places] if value is not dataclasses.MISSING)
    code = _init_code(tuple(type(value) is _Made for value in values), places, hasattr(one, "__post_init__"))
    own = {f"field_{index}": field.name for index, field in enumerate(fields)}
    parameters, names = (tuple(own.get(name, name) for name in one) for one in (code.co_varnames, code.co_names))
    made = FunctionType(code.replace(co_varnames=parameters, co_names=names), globals(), "__init__", defaults)
    if keywords:
        given = zip(keywords, values[places:], strict=True)
        made.__kwdefaults__ = {field.name: value for field, value in given if value is not dataclasses.MISSING}
    made.__qualname__ = f"{one.__qualname__}.__init__"
    return made


@cache
def _init_code(factories: tuple[bool, ...], places: int, goes_on: bool) -> CodeType:
    """An `__init__` of a field for each of `factories`, which says whether it has one, with names to be replaced; those
    behind the first `places` are given by keyword alone."""
    names = [f"field_{index}" for index in range(len(factories))]
    body = [
        f"self.{name} = {name}.make() if type({name}) is _Made else {name}" if factory else f"self.{name} = {name}"
        for name, factory in zip(names, factories, strict=True)
    ]
    body.append("self.__post_init__()" if goes_on else "pass")
    parameters = ["self", *names[:places], *(["*", *names[places:]] if places < len(names) else [])]
    space: dict[str, Any] = {}
    exec(f"def init({', '.join(parameters)}): {'; '.join(body)}", space)
    code: CodeType = space["init"].__code__
    return code


def _is_equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._comparison_key(self) == self._comparison_key(other)


def _hash(self: Any) -> int:
    return hash(self._comparison_key(self))


def _text(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
