"""Arithmetic of dimensions."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import sympy

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Dim, known, unknown_dim

B, S, P = (ir.SymbolicDim(name) for name in ("batch", "seq", "past"))


def at(dim: Dim, **symbols: int) -> int | None:
    return dims.evaluate(dim, {"batch": 2, "seq": 5, "past": 7, **symbols})


def test_numbers_stay_numbers() -> None:
    assert dims.add(2, 3) == 5
    assert dims.ceil_divide(7, 2) == 4
    assert dims.modulo(7, 4) == 3
    assert dims.product([2, 3, 4]) == 24
    assert dims.product([B, 0, S]) == 0


def test_equal_expressions_are_equal() -> None:
    assert dims.add(P, S) == dims.add(S, P)
    assert dims.subtract(dims.add(P, S), P) == S
    assert dims.multiply(B, 1) == B
    assert dims.multiply(dims.add(P, S), 2) == dims.add(dims.multiply(2, S), dims.multiply(2, P))
    assert dims.floor_divide(dims.multiply(S, 12), 12) == S


def test_values() -> None:
    assert at(dims.add(P, S)) == 12
    assert at(dims.floor_divide(P, 2)) == 3
    assert at(dims.ceil_divide(P, 2)) == 4
    assert at(dims.modulo(P, 4)) == 3
    assert at(dims.minimum(P, 6)) == 6
    assert at(dims.maximum(P, S)) == 7
    assert at(dims.total([B, S, 1])) == 8


def test_reshapes_divide_out() -> None:
    assert dims.divide_out([B, S, 768], [B, S, 12]) == 64
    assert dims.divide_out([B, S, 768], [768]) == dims.multiply(B, S)
    assert dims.divide_out([4, 3], [5]) is None


def test_unknown_stays_unknown() -> None:
    assert not known(dims.add(unknown_dim(), 1))
    assert not known(dims.floor_divide(S, 0))
    assert dims.evaluate(unknown_dim(), {}) is None
    assert dims.evaluate(S, {}) is None
    assert dims.compare(S, unknown_dim()) is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(3, 2, True), (S, S, True), (dims.add(S, 1), S, True), (S, 0, True), (S, 1, False), (S, P, False), (0, S, False)],
)
def test_at_least(a: Dim, b: Dim, expected: bool) -> None:
    assert dims.at_least(a, b) is expected


def test_compare() -> None:
    assert dims.compare(S, S) == 0
    assert dims.compare(dims.add(S, 1), S) == 1
    assert dims.compare(S, dims.add(S, 1)) == -1
    assert dims.compare(S, P) is None


def test_free_symbols() -> None:
    assert dims.free_symbols(dims.add(P, S)) == {"past", "seq"}
    assert dims.free_symbols(3) == frozenset()


def test_short_cuts_say_what_the_algebra_says() -> None:
    s, t = ir.SymbolicDim("s"), ir.SymbolicDim("t")
    sizes = [-1, 0, 1, 512, s, t, dims.add(s, t), dims.multiply(s, 3), dims.subtract(s, 3), dims.minimum(512, s)]
    for a in sizes:
        for b in sizes:
            if isinstance(a, int) and isinstance(b, int):
                continue
            assert dims.at_least(a, b) == (a == b or dims._at_least(a, b)), (a, b)
            assert dims.compare(a, b) == (0 if a == b else dims._sign(a, b)), (a, b)
    for number in (0, 1, 2, 512):
        assert dims.minimum(number, s) == dims._plain(sympy.Min(number, s._expr))
        assert dims.minimum(s, number) == dims.minimum(number, s)
