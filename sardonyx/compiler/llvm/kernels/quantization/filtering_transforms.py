"""The linear transforms of minimal filtering F(4x4, 3x3) in whole numbers: of bytes, of their filters, and back.

Four outputs of three taps are six products, those of polynomials at the points 0, infinity, 1, -1, 2 and -2, in this
order (S. Winograd, "Arithmetic complexity of computations", 1980). The usual coefficients of the taps are fractions
with denominators of up to 24. Here every point's taps are scaled until its coefficients are whole, and the sums of
products by the numbers that make of them 24, 12, 6 and 6 times the outputs: 3 times a power of two.

Along both dimensions transformed bytes are between -12750 and 17340, transformed filters of signed bytes between -6272
and 6243: both fit in 16 bits. Sums of their products are exact modulo 2^32, and so are outputs: 9 is a unit there, and
what is 2^n times an output of fewer than 32 - n bits is shifted back.

An image of ones has the transform 6 at the point 1, and 0 elsewhere: 36 c at the point (1, 1) are c in each output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.llvm.builder import Value

OUTPUTS, TAPS = 4, 3
SIZE = OUTPUTS + TAPS - 1
POINTS = SIZE * SIZE

# The point (1, 1), and what is added there for each one that is added to the outputs.
POINT_OF_ONES, OF_ONES = 2 * SIZE + 2, 36

# What the sums along both dimensions are of an output: 9 times 2 to the power of both shifts. The inverse of 9 modulo
# 2^32, and the bits that are left of an output, its sign included.
SHIFTS = (3, 2, 1, 1)
INVERSE = pow(9, -1, 1 << 32)
BITS_LEFT = 32 - 2 * max(SHIFTS)

# Lines of points that share terms of the taps are transformed together.
PARTS = SIZE // 2
LINES_OF_PART = SIZE // PARTS
POINTS_OF_PART = LINES_OF_PART * SIZE


def of_inputs(d: Sequence[Value]) -> list[Value]:
    """Six neighbouring inputs at the points."""
    even, odd = (d[2] << 2) - d[4], (d[1] << 2) - d[3]
    near, far = d[4] - d[2], (d[3] - d[1]) << 1
    ends = ((d[0] - d[2]) << 2) + near, d[5] - d[3] - (far << 1)
    return [*ends, even + odd, even - odd, near + far, near - far]


def of_taps(g: Sequence[Value]) -> list[Value]:
    """Three taps at the points."""
    return [value for part in range(PARTS) for value in part_of_taps(part, g)]


def part_of_taps(part: int, g: Sequence[Value]) -> list[Value]:
    """The same at the points 2 * part and 2 * part + 1."""
    if part == 0:
        return [g[0] * 6, g[2] * 6]
    near, far = (g[0] + g[2], g[1]) if part == 1 else (g[0] + (g[2] << 2), g[1] << 1)
    return [near + far, near - far]


def of_outputs(m: Sequence[Value]) -> list[Value]:
    """From the sums of products at the points: 24, 12, 6 and 6 times the four outputs."""
    zero, infinity, one, minus_one, two, minus_two = m
    even, odd = one + minus_one, one - minus_one
    far_even, far_odd = two + minus_two, two - minus_two
    return [zero + (even << 2) + far_even, (odd << 1) + far_odd, even + far_even, odd + (far_odd << 1) + infinity]


def along_both(transform: Callable[[Sequence[Value]], list[Value]], square: Sequence[Sequence[Value]]) -> list[Value]:
    """A transform of the columns and then of the rows of a square, given as its columns; row by row."""
    columns = [transform(column) for column in square]
    return [value for row in zip(*columns, strict=True) for value in transform(row)]
