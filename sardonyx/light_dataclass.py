"""The `dataclass` of modules that every process imports: its classes share their methods but `__init__`.

The standard library's compiles six methods for each frozen class, which takes a millisecond; a session that begins from
an engine loads some fifty of them, and with this decorator a whole process of a small model takes a tenth less. Classes
compare, hash and print as ever, by methods of their own where they have them. That a frozen one stays as it is, the
type checker sees to, and nothing else.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False):
        """As `dataclasses.dataclass`, whose other parameters there are not."""

        def made(one):
            one = dataclasses.dataclass(one, eq=False, repr=False, slots=slots)
            if eq:
                own = vars(one)
                names = [field.name for field in dataclasses.fields(one) if field.compare]
                one._compared = attrgetter(*names) if names else type
                # Python gives a class with an `__eq__` of its own a `__hash__` of None.
                if "__hash__" not in own or (own["__hash__"] is None and "__eq__" in own):
                    one.__hash__ = _hash if frozen else None
                if "__eq__" not in own:
                    one.__eq__ = _is_equal
            if repr and "__repr__" not in vars(one):
                one.__repr__ = _text
            return one

        return made if cls is None else made(cls)


def _is_equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _text(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
