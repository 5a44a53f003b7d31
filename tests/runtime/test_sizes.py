"""Symbolic sizes evaluate to what their expression says."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from sardonyx.compiler.sizes import size_of
from sardonyx.runtime.sizes import Operation, Symbol, evaluate

SYMBOLS = {"batch": 5, "past": 3, "seq": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch", 5),
        ("past + seq", 5),
        ("2*batch - 1", 9),
        ("(batch + 3)//2", 4),
        ("(batch - 7)//2", -1),
        ("max(batch, 7)", 7),
        ("min(batch, 7, seq)", 2),
        ("mod(batch, 3)", 2),
        ("batch**2", 25),
    ],
)
def test_expression_of_symbols(text: str, expected: int) -> None:
    size = size_of(ir.SymbolicDim(text))
    assert size is not None
    assert evaluate(size, SYMBOLS) == expected


def test_arithmetic_of_dimensions_survives() -> None:
    length = ir.SymbolicDim("past") + ir.SymbolicDim("seq")
    size = size_of((length * 4 - 7) // 2 + 1)
    assert size is not None
    assert evaluate(size, SYMBOLS) == (5 * 4 - 7) // 2 + 1


def test_number_and_unknown() -> None:
    assert size_of(7) == 7
    assert size_of(ir.SymbolicDim(None)) is None


def test_name_that_is_no_expression_is_one_symbol() -> None:
    assert size_of(ir.SymbolicDim("encoder length?")) == Symbol("encoder length?")


def test_missing_symbol_is_an_error() -> None:
    with pytest.raises(KeyError, match="seq"):
        evaluate(Operation("add", (1, Symbol("seq"))), {})
