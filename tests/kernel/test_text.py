"""Expressions as text."""

import numpy as np

from sardonyx.kernel import expr as k
from sardonyx.kernel.text import text_of

X, Y = k.Input(np.dtype(np.float32), 0), k.Input(np.dtype(np.float32), 1)


def test_arithmetic_of_one_reader_stands_where_it_is_read():
    assert text_of([(X + Y) * 2], "xy", ["z"]) == ["z: float32 = (x + y) * 2.0"]


def test_a_value_of_several_readers_has_a_line():
    shared = X - 0.5
    found = text_of([shared * k.exp(shared), X < Y], "xy", ["a", "b"])
    assert found == ["t0: float32 = x - 0.5", "a: float32 = t0 * exp(t0)", "b: bool = x < y"]


def test_outputs_may_be_inputs_and_one_may_read_another():
    total = X + Y
    assert text_of([X, total, k.sqrt(total)], "xy", ["a", "b", "c"]) == [
        "b: float32 = x + y",
        "c: float32 = sqrt(b)",
        "a: float32 = x",
    ]


def test_rows_and_casts():
    mean = k.mean(X)
    assert text_of([(X - mean).cast(np.float64)], "x", ["y"]) == [
        "y: float64 = cast(x - (sum_of_row(x) / row_length), float64)"
    ]


def test_long_values_are_divided():
    value = X
    for _ in range(20):
        value = k.tanh(value + 1)
    found = text_of([value], "x", ["y"])
    assert len(found) > 1
    assert max(map(len, found)) < 80
    assert found[-1].startswith("y: float32 = tanh(")
