"""Passes of a Fourier transform of mixed radix over many transforms at once, one in each lane of a vector.

The form is Stockham's: a pass of radix r reads the elements m * s apart, combines r of them, and writes them in the
order in which the next pass reads, so that no pass reorders. An element is two vectors, its real and imaginary part.
"""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64
from sardonyx.light_dataclass import dataclass

# Radices whose butterflies are written out; others are sums over all inputs for every output.
WRITTEN_OUT = (2, 3, 4, 5)


@dataclass(frozen=True)
class Complex:
    """A complex number in every lane."""

    real: Value
    imag: Value

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.real + other.real, self.imag + other.imag)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.real - other.real, self.imag - other.imag)

    def __mul__(self, other: Complex) -> Complex:
        return Complex(
            _rounded_product(self.real, other.real) - _rounded_product(self.imag, other.imag),
            _rounded_product(self.real, other.imag) + _rounded_product(self.imag, other.real),
        )

    def scaled(self, factor: float) -> Complex:
        wide = self.real.function.constant(self.real.type, factor)
        return Complex(_rounded_product(self.real, wide), _rounded_product(self.imag, wide))

    @property
    def turned(self) -> Complex:
        """The number times -i."""
        return Complex(self.imag, -self.real)

    @property
    def conjugate(self) -> Complex:
        return Complex(self.real, -self.imag)


def _rounded_product(a: Value, b: Value) -> Value:
    """a * b, which is not fused with a sum: conjugates then stay conjugates to the last bit, on every machine alike."""
    return a.function.emit(a.type, f"fmul {a.type} {a.name}, {b.name}")


@dataclass(frozen=True)
class Elements:
    """Complex elements in a thread's own memory: `lanes` real parts, then as many imaginary ones, element by element.

    `real` and `imag` are where the parts of the first element lie: exchanged, they make a transform the inverse one.
    """

    real: Pointer
    imag: Pointer
    lanes: int

    def load(self, index: Value | int) -> Complex:
        at = index * (2 * self.lanes)
        return Complex(self.real.load(at, self.lanes), self.imag.load(at, self.lanes))

    def store(self, value: Complex, index: Value | int) -> None:
        at = index * (2 * self.lanes)
        self.real.store(value.real, at)
        self.imag.store(value.imag, at)


def number_at(table: Pointer, index: Value | int, lanes: int) -> Complex:
    """A complex number of a table, in every lane."""
    k = table.function
    at = index * 2
    return Complex(k.splat(table.load(at), lanes), k.splat(table.offset(1).load(at), lanes))


@dataclass(frozen=True)
class Pass:
    """One pass: `groups` (m) of `radix` elements for each of `stride` (s) places; its factors and roots of unity."""

    radix: Value
    groups: Value
    stride: Value
    factors: Pointer
    roots: Pointer


def emit_pass(k: Function, one: Pass, read: Elements, write: Elements) -> None:
    """Do a pass over all elements."""
    for radix in k.choose(one.radix, WRITTEN_OUT):
        _written_out(k, one, radix, read, write)
    known = one.radix <= max(WRITTEN_OUT)
    with k.otherwise(known):
        _summed(k, one, read, write)


def _written_out(k: Function, one: Pass, radix: int, read: Elements, write: Elements) -> None:
    apart = one.groups * one.stride
    with k.loop(0, one.groups) as group:
        factors = [number_at(one.factors, group * (radix - 1) + place, read.lanes) for place in range(radix - 1)]
        with k.loop(0, one.stride) as place:
            first = group * one.stride + place
            results = _BUTTERFLIES[radix]([read.load(first + apart * index) for index in range(radix)])
            goal = group * one.stride * radix + place
            write.store(results[0], goal)
            for index in range(1, radix):
                write.store(results[index] * factors[index - 1], goal + one.stride * index)


def _two(x: list[Complex]) -> list[Complex]:
    return [x[0] + x[1], x[0] - x[1]]


def _three(x: list[Complex]) -> list[Complex]:
    total, difference = x[1] + x[2], (x[1] - x[2]).scaled(math.sqrt(0.75)).turned
    middle = x[0] - total.scaled(0.5)
    return [x[0] + total, middle + difference, middle - difference]


def _four(x: list[Complex]) -> list[Complex]:
    even, odd = x[0] + x[2], x[1] + x[3]
    other, turned = x[0] - x[2], (x[1] - x[3]).turned
    return [even + odd, other + turned, even - odd, other - turned]


def _five(x: list[Complex]) -> list[Complex]:
    near, far = math.tau / 5, 2 * math.tau / 5
    outer, inner = x[1] + x[4], x[2] + x[3]
    outer_difference, inner_difference = x[1] - x[4], x[2] - x[3]
    results = [x[0] + outer + inner]
    halves = []
    for one, two in ((near, far), (far, near)):
        middle = x[0] + outer.scaled(math.cos(one)) + inner.scaled(math.cos(two))
        sign = 1 if one == near else -1
        side = outer_difference.scaled(math.sin(one)) + inner_difference.scaled(sign * math.sin(two))
        halves.append((middle, side.turned))
    (first, first_side), (second, second_side) = halves
    return [*results, first + first_side, second + second_side, second - second_side, first - first_side]


_BUTTERFLIES = {2: _two, 3: _three, 4: _four, 5: _five}


def _summed(k: Function, one: Pass, read: Elements, write: Elements) -> None:
    """Any radix: every output as a sum over the inputs."""
    apart, radix, lanes = one.groups * one.stride, one.radix, read.lanes
    wide = read.real.scalar.vector(lanes)
    with k.loop(0, one.groups) as group, k.loop(0, one.stride) as place, k.loop(0, radix) as output:
        first = group * one.stride + place
        real, imag = k.variable(wide, 0), k.variable(wide, 0)
        turn = k.variable(I64, 0)
        with k.loop(0, radix) as index:
            term = read.load(first + apart * index) * number_at(one.roots, turn.get(), lanes)
            real.set(real.get() + term.real)
            imag.set(imag.get() + term.imag)
            following = turn.get() + output
            turn.set(following - k.select(following >= radix, radix, 0))
        factor = number_at(one.factors, group * radix + output, lanes)
        write.store(Complex(real.get(), imag.get()) * factor, group * one.stride * radix + one.stride * output + place)
