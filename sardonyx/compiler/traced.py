"""Numbers that note what is computed from them: how a binding becomes a formula of the sizes of its inputs.

A `Traced` number has the value of one binding, so that all choices are made as ever. It notes the arithmetic and the
outcome of every comparison; whoever wants it as a plain number fixes its value. What comes of it is a function that
computes the same for other numbers, or says that one of the outcomes would be another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeGuard, TypeVar

import numpy as np

Number = int | float


class TraceError(Exception):
    """What a binding does with its sizes cannot be noted."""


class Trace:
    """What was computed from the numbers of one binding, as lines of Python.

    The numbers are given to the function that comes of it in the order in which they were made by `number`.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []  # a name and what it is, or "" and what must hold
        self._known: dict[str, Traced | None] = {}
        self._functions: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor, "inf": math.inf}
        self._parameters: list[str] = []
        self._fixed: dict[str, int] = {}  # parameters that have to be these numbers
        self._count = 0
        self.is_open = True

    def number(self, value: int) -> Traced:
        """A number of which results depend."""
        made = Traced(self, self._name("n"), value)
        self._parameters.append(made.name)
        return made

    def fixed(self, value: int) -> int:
        """A number that stays: it is given, too, and must be this one."""
        name = self._name("n")
        self._parameters.append(name)
        self._fixed[name] = value
        return value

    def made(self, text: str, value: Number) -> Traced:
        """What `text` computes, which is `value` here."""
        known = self._known.get(text)
        if known is None:
            self._require_open()
            known = self._known[text] = Traced(self, self._name("v"), value)
            self._lines.append((known.name, text))
        return known

    def hold(self, text: str, outcome: bool) -> None:
        """Note that a comparison has this outcome."""
        held = text if outcome else f"not {text}"
        if held not in self._known:
            self._require_open()
            self._known[held] = None
            self._lines.append(("", held))

    def call(
        self, function: Callable[..., Sequence[int]], numbers: Sequence[object], values: Sequence[int]
    ) -> Sequence[Any]:
        """What `function` gives for numbers: `values` here. It is called again for others."""
        self._require_open()
        called, given = self._name("f"), self._name("r")
        self._functions[called] = function
        self._lines.append((given, f"{called}({','.join(map(text_of, numbers))})"))
        self._lines.append(("", f"len({given})=={len(values)}"))
        return [self.made(f"{given}[{place}]", value) for place, value in enumerate(values)]

    def function(self, result: str, helpers: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        """The function of the numbers that gives what the text `result` says, or None where an outcome is another."""
        self.is_open = False
        lines = [f"def formula({','.join(self._parameters)}):", *self._body(), f"return {result}"]
        known = {"round": round, "abs": abs, "len": len, "max": max}
        scope: dict[str, Any] = {"__builtins__": known, **self._functions, **helpers}
        exec("\n ".join(lines), scope)
        return scope["formula"]  # type: ignore[no-any-return]

    def _body(self) -> Iterator[str]:
        """The lines of the function up to its result, few ones, as Python takes long to compile them."""
        held: list[str] = []
        if self._fixed:
            held.append(f"({','.join(self._fixed)},)==({','.join(map(repr, self._fixed.values()))},)")
        for name, text in self._lines:
            if not name:
                held.append(text)
                continue
            if held:
                yield f"if not({' and '.join(held)}):return"
                held = []
            yield f"{name}={text}"
        if held:
            yield f"if not({' and '.join(held)}):return"

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _require_open(self) -> None:
        if not self.is_open:
            raise TraceError("a number outlived the binding that it belongs to")


def text_of(number: object) -> str:
    """How a number is written in a function."""
    if type(number) is Traced:
        return number.name
    if isinstance(number, np.generic):
        number = number.item()
    if not isinstance(number, int | float) or number != number:
        raise TraceError(f"{type(number).__name__} is not written in a formula")
    return repr(int(number)) if isinstance(number, bool) else repr(number)


def is_traced(number: object) -> TypeGuard[Traced]:
    return type(number) is Traced


def plain(number: Any) -> Any:
    """The value of a number, traced or not, which is not fixed by that."""
    return number.value if type(number) is Traced else number


Given = TypeVar("Given")
Found = TypeVar("Found")


def called(function: Callable[[Given], Found], given: Given) -> Found:
    """What a function gives for a dataclass, another one of nothing but numbers. Where fields are traced, the formula
    calls it again, whatever comparisons are within."""
    fields = vars(given)
    names = [name for name, value in fields.items() if is_traced(value)]
    if not names:
        return function(given)
    result = type(function(type(given)(**{name: plain(value) for name, value in fields.items()})))

    def again(*numbers: int) -> Sequence[int]:
        values = fields | dict(zip(names, numbers, strict=True))
        return tuple(vars(function(type(given)(**values))).values())

    return result(*computed(again, [fields[name] for name in names]))


def computed(function: Callable[..., Sequence[int]], numbers: Sequence[float]) -> Sequence[int]:
    """What a function of numbers gives, to be called again by the formula where some of them are traced."""
    traces = [number.trace for number in numbers if is_traced(number)]
    if not traces:
        return function(*numbers)
    return traces[0].call(function, numbers, function(*map(plain, numbers)))


def larger(first: Any, second: Any) -> Any:
    """The larger of two numbers, whichever that is for others: `max` would hold fast which one it is."""
    trace = next((number.trace for number in (first, second) if is_traced(number)), None)
    found = max(plain(first), plain(second))
    return found if trace is None else trace.made(f"max({text_of(first)},{text_of(second)})", found)


_NUMBERS = (int, float, np.integer, np.floating)


def _binary(symbol: str, compute: Callable[[Any, Any], Any], swaps: bool = False, neutral: int | None = None) -> Any:
    def method(self: Traced, other: object) -> Any:
        if type(other) is not Traced and not isinstance(other, _NUMBERS):
            return NotImplemented
        value, own = plain(other), self.value
        if type(other) is int and other == neutral and type(own) is int:
            return self
        first, second = (text_of(other), self.name) if swaps else (self.name, text_of(other))
        return self.trace.made(f"{first}{symbol}{second}", compute(value, own) if swaps else compute(own, value))

    return method


def _compared(symbol: str, compute: Callable[[Any, Any], bool]) -> Any:
    def method(self: Traced, other: object) -> Any:
        if type(other) is not Traced and not isinstance(other, _NUMBERS):
            return NotImplemented
        outcome = bool(compute(self.value, plain(other)))
        if other is not self:
            self.trace.hold(f"{self.name}{symbol}{text_of(other)}", outcome)
        return outcome

    return method


def _unary(text: str, compute: Callable[[Any], Any]) -> Any:
    def method(self: Traced) -> Any:
        return self.trace.made(text.format(self.name), compute(self.value))

    return method


class Traced:
    """A number whose use is noted. It is no `int`, so that nothing takes its value unseen."""

    __slots__ = ("name", "trace", "value")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to it

    def __init__(self, trace: Trace, name: str, value: Number) -> None:
        self.trace = trace
        self.name = name
        self.value = value

    def _fixed(self) -> Number:
        """The value, which is the same from now on."""
        self.trace.hold(f"{self.name}=={self.value!r}", True)
        return self.value

    def __index__(self) -> int:
        return operator.index(self._fixed())  # type: ignore[arg-type]

    def __int__(self) -> int:
        return int(self._fixed())

    def __float__(self) -> float:
        return float(self._fixed())

    def __str__(self) -> str:
        return str(self._fixed())

    def __format__(self, spec: str) -> str:
        return format(self._fixed(), spec)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> NoReturn:
        raise TraceError("a table would keep a number beyond the binding that it belongs to")

    def __round__(self, digits: int | None = None) -> Traced:
        if digits is not None:
            raise TraceError("only whole numbers are rounded to")
        return self.trace.made(f"round({self.name})", round(self.value))

    def bit_length(self) -> Traced:
        assert isinstance(self.value, int)
        return self.trace.made(f"{self.name}.bit_length()", self.value.bit_length())

    __repr__ = __str__
    __add__, __radd__ = _binary("+", operator.add, neutral=0), _binary("+", operator.add, True, 0)
    __sub__, __rsub__ = _binary("-", operator.sub), _binary("-", operator.sub, True)
    __mul__, __rmul__ = _binary("*", operator.mul, neutral=1), _binary("*", operator.mul, True, 1)
    __mod__, __rmod__ = _binary("%", operator.mod), _binary("%", operator.mod, True)
    __floordiv__, __rfloordiv__ = _binary("//", operator.floordiv, neutral=1), _binary("//", operator.floordiv, True)
    __truediv__, __rtruediv__ = _binary("/", operator.truediv), _binary("/", operator.truediv, True)
    __lshift__, __rlshift__ = _binary("<<", operator.lshift), _binary("<<", operator.lshift, True)
    __lt__, __le__ = _compared("<", operator.lt), _compared("<=", operator.le)
    __gt__, __ge__ = _compared(">", operator.gt), _compared(">=", operator.ge)
    __eq__, __ne__ = _compared("==", operator.eq), _compared("!=", operator.ne)
    __neg__, __abs__ = _unary("-{}", operator.neg), _unary("abs({})", operator.abs)
    __ceil__, __floor__ = _unary("ceil({})", math.ceil), _unary("floor({})", math.floor)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self
