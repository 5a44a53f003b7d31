"""What is computed from traced numbers is computed again by the function that comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.compiler.traced import Trace, Traced, TraceError, called, computed, larger, text_of

WHOLE = st.integers(1, 1 << 40)

COMPUTATIONS: list[Callable[..., Any]] = [
    lambda a, b: a + b - 3 + (5 - a),
    lambda a, b: a * b * 1 * 7 // 1,
    lambda a, b: -(-a // b) % 64,
    lambda a, b: (a / b, 2.5 * a, 1 / b),
    lambda a, b: divmod(a, b),
    lambda a, b: (divmod(10**12, b), 100 % a, 100 // b),
    lambda a, b: (round(a / b), math.ceil(a / b), math.floor(b / a)),
    lambda a, b: (abs(-a), 1 << (b.bit_length() % 8), a << 2),
    lambda a, b: sum([a, b]) + math.prod([a, b, 2]),
    lambda a, b: np.int64(3) * a + b * np.int64(2),
    lambda a, b: 0 + a + 0,
    lambda a, b: (larger(a, b), larger(1, a // b), larger(a / b, 1.0)),
]


def flat(found: Any) -> list[Any]:
    return [one for part in found for one in flat(part)] if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("compute", COMPUTATIONS)
@settings(max_examples=25, deadline=None)
@given(WHOLE, WHOLE, WHOLE, WHOLE)
def test_arithmetic_is_done_again(compute: Callable[..., Any], a: int, b: int, c: int, d: int) -> None:
    trace = Trace()
    found = flat(compute(trace.number(a), trace.number(b)))
    assert [one.value for one in found] == flat(compute(a, b))
    function = trace.function(f"({''.join(f'{text_of(one)},' for one in found)})", {})
    again = function(c, d)
    assert list(again) == flat(compute(c, d))
    assert [*map(type, again)] == [*map(type, map(plainly, flat(compute(c, d))))]


def plainly(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


CHOICES: list[Callable[[Any], Any]] = [
    lambda n: 1 if n < 10 else 2,
    lambda n: 1 if n >= 10 else 2,
    lambda n: 1 if n < 10 else 2,
    lambda n: 1 if n <= 9 else 2,
    lambda n: 1 if n // 10 else 2,
    lambda n: 1 if n // 10 == 0 else 2,
    lambda n: 1 if n // 10 != 0 else 2,
    lambda n: min(n, 10),
    lambda n: max(n, 10) + max(1, n),
    lambda n: (n, 4, 4) == (4, 4, 4),
    lambda n: n in (3, 12),
    lambda n: list(range(n)),
    lambda n: [7] * n,
    lambda n: [*range(20)][n],
    lambda n: f"{n} rows",
    lambda n: str(n),
    lambda n: int(n / 3),
    lambda n: math.sqrt(n),
    lambda n: np.zeros(n).shape,
    lambda n: np.array([n], np.int64).tolist(),
    lambda n: None in (n, 3),
    lambda n: isinstance(n, str),
]


@pytest.mark.parametrize("choose", CHOICES)
def test_another_outcome_is_told(choose: Callable[[Any], Any]) -> None:
    """The function gives what is right, or nothing."""
    for one in range(1, 20):
        trace = Trace()
        found = choose(trace.number(one))
        result = text_of(found) if isinstance(found, Traced) else "'the same'"
        function = trace.function(result, {})
        assert function(one) == (found.value if isinstance(found, Traced) else "the same")
        for other in range(1, 20):
            again, wanted = function(other), choose(other)
            if again is not None:
                assert (again if isinstance(found, Traced) else found) == wanted, (one, other)


def test_most_choices_hold_for_other_numbers() -> None:
    trace = Trace()
    length = trace.number(130)
    assert trace.fixed(64) == 64
    rows = min(length, 512)
    result = 0 if rows * 4 > 8192 else rows * 4
    function = trace.function(text_of(result), {})
    assert function(17, 64) == 68
    assert function(512, 64) == 2048
    assert function(513, 64) is None
    assert function(17, 65) is None


def test_what_keeps_a_number_is_no_formula() -> None:
    trace = Trace()
    number = trace.number(5)
    with pytest.raises(TraceError):
        _ = {number: 1}
    with pytest.raises(TraceError):
        _ = number in {5}
    trace.function("1", {})
    with pytest.raises(TraceError):
        _ = number + 1
    with pytest.raises(TraceError):
        _ = number < 3
    for odd in ("text", None, math.nan, 1j):
        with pytest.raises(TraceError):
            text_of(odd)


@dataclass
class Sizes:
    rows: int
    columns: int


@dataclass
class Cut:
    block: int
    count: int


def cut(sizes: Sizes) -> Cut:
    block = next(block for block in (8, 4, 2, 1) if sizes.rows % block == 0)
    return Cut(block, sizes.rows * sizes.columns // block)


def test_functions_are_called_again() -> None:
    assert called(cut, Sizes(6, 5)) == Cut(2, 15)
    trace = Trace()
    found = called(cut, Sizes(trace.number(6) * 2, 5))
    (most,) = computed(lambda *numbers: [max(numbers)], [found.block, found.count])
    assert [one.value for one in (found.block, found.count, most)] == [4, 15, 15]


def test_functions_are_called_again_in_formulas() -> None:
    trace = Trace()
    found = called(cut, Sizes(trace.number(6) * 2, 5))
    parts = computed(lambda count: range(count % 4), [found.count])
    result = f"({text_of(found.block)},{text_of(found.count)},{','.join(map(text_of, parts))})"
    function = trace.function(result, {})
    assert function(6) == (4, 15, 0, 1, 2)
    assert function(3) == (2, 15, 0, 1, 2)
    assert function(2) is None  # as many numbers as before come no more
