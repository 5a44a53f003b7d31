"""Records of arguments: binding gives them by name, steps have them as words, and code reads them by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.arguments import (
    ErrorSlot,
    Float,
    Group,
    Inside,
    Read,
    Record,
    Rest,
    Several,
    Size,
    Table,
    Update,
    When,
    Words,
    Write,
    kernel,
    sizes,
)
from sardonyx.compiler.binding import Address, Binder, Buffer, float_word, row_major
from sardonyx.compiler.bound_step import Shifted, Tensor
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.llvm.types import F32, F64, I64, PTR


class Pair(Record):
    data = Read(F32)
    step = Size()


class Everything(Record):
    x = Read(F32)
    y = Write(lambda spec: F64 if spec else F32)
    state = Update()
    table = Table(I64)
    error = ErrorSlot()
    items = Size()
    limit = Float(F32)
    pairs = Several(Group(Pair), lambda spec: 2)
    factor = When(Size(), lambda spec: not spec)
    places = Rest()


@kernel(Everything)
def emit_everything(k: Function, a: Everything, spec: bool) -> None:
    """Words of the record, stored where it says."""
    a.y.store(a.limit.to(a.y.scalar))
    a.state.cast(I64).store(a.places.load(1) + a.items + a.pairs[1].step)


def tensor(shape: tuple[int, ...], dtype: type, offset: int = 0) -> Tensor:
    return Tensor(np.dtype(dtype), shape, row_major(shape), Buffer(1024), offset)


def given(**changes: Any) -> dict[str, Any]:
    pairs = [Pair(data=tensor((3,), np.float32), step=step) for step in (1, 2)]
    usual = {
        "x": tensor((2,), np.float32),
        "y": tensor((2,), np.float32),
        "state": tensor((1,), np.int64),
        "table": tensor((1,), np.int64),
        "error": None,
        "items": 7,
        "limit": 0.5,
        "pairs": pairs,
        "factor": 3,
        "places": [10, 20],
    }
    return {**usual, **changes}


def test_the_words_follow_one_another_and_say_what_is_touched() -> None:
    values = given()
    words = Everything(**values).of_step(emit_everything, False)
    first, second = (pair._values["data"] for pair in values["pairs"])
    x, y, state, table = (values[name] for name in ("x", "y", "state", "table"))
    assert words.flat == [x, y, state, table, 0, 7, float_word(0.5), first, 1, second, 2, 3, 10, 20]
    assert words.reads == [x, state, first, second]  # constants of the plan do not count
    assert words.writes == [y, state]


def test_a_place_in_a_tensor_counts_as_all_of_it() -> None:
    whole = tensor((8,), np.float32, offset=16)
    words = Everything(**given(x=Shifted(whole, 4))).of_step(emit_everything, False)
    assert words.flat[0] == Address(whole.buffer, 20)
    assert words.reads[0] is whole


@pytest.mark.parametrize(
    ("changes", "spec", "problem"),
    [
        ({"x": tensor((2,), np.float64)}, False, "'x' has elements of f, not float64"),
        ({}, True, "'y' has elements of f, not float32"),
        ({"factor": None}, False, "'factor' is None, where the specification says otherwise"),
        ({"items": tensor((2,), np.float32)}, False, "'items' is a number"),
        ({"x": 3}, False, "'x' is a tensor or an address, not 3"),
        ({"pairs": []}, False, "'pairs' has 0 entries, not the 2 of the specification"),
        ({"pairs": [1, 2]}, False, "'pairs' is a Pair, not 1"),
    ],
)
def test_values_that_do_not_fit(changes: dict[str, Any], spec: bool, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        Everything(**given(**changes)).of_step(emit_everything, spec)


def test_names_that_are_missing_or_none() -> None:
    values = given()
    del values["items"]
    with pytest.raises(TypeError, match=r"Everything lacks \['items'\]"):
        Everything(**values)
    with pytest.raises(TypeError, match=r"has no \['other'\]"):
        Everything(**given(), other=1)


def test_arguments_of_another_kernel() -> None:
    with pytest.raises(TypeError, match="emit_everything takes Everything, not Pair"):
        Pair(data=tensor((3,), np.float32), step=1).of_step(emit_everything, False)


def test_a_step_has_what_its_record_says() -> None:
    binder = Binder(library())
    values = given()
    binder.step(emit_everything, False, Everything(**values))
    (step,) = binder.steps
    assert step.kernel == "everything"
    assert [one.buffer for one in step.writes] == [values["y"].buffer, values["state"].buffer]
    assert step.arguments[5:7] == [7, float_word(0.5)]


def test_the_code_reads_its_arguments_by_name() -> None:
    y, state = np.zeros(1, np.float32), np.zeros(1, np.int64)
    words = [0, y, state, 0, 0, 7, float_word(0.5), 0, 1, 0, 2, 3, 10, 20]
    library().run(emit_everything, False, words, 1)
    assert (y[0], state[0]) == (0.5, 20 + 7 + 2)


def test_all_words_by_name() -> None:
    k = Function("kernel", host_target(), [("arguments", PTR)])
    names = ["x", "y", "state", "table", "error", "items", "limit", "data0", "step0", "data1", "step1"]
    assert list(Everything.of(Inside(k, False)).loaded()) == [*names, "factor"]
    assert list(Everything.of(Inside(k, True)).loaded()) == names


@kernel(Pair)
def emit_twice(k: Function, a: Pair, spec: tuple[()]) -> None:
    """A field that is first read where not everything that follows can use it, and one that is read before."""
    a.data.store(1.0)
    for index in range(2):
        with k.when(k["begin"] >= index):
            a.data.store(2.0, a.step)


def test_a_field_is_loaded_again_where_its_first_value_is_unknown() -> None:
    text = emit_twice(host_target(), ())
    assert text.count("load i64") == 3  # the address once, the number in each block


@kernel(Pair, cached=False)
def emit_anew(k: Function, a: Pair, spec: tuple[()]) -> None:
    """A field that is read twice."""
    a.data.store(1.0, a.step)
    a.data.store(2.0, a.step)


def test_a_field_that_is_not_kept_is_loaded_wherever_it_is_read() -> None:
    assert emit_anew(host_target(), ()).count("load i64") == 4


class Matrix(Record):
    data = Read(F32)
    rows, columns = sizes(2)
    step = Size()


def test_sizes_on_one_line_are_fields_in_order() -> None:
    assert [field.name for field in Matrix.fields] == ["data", "rows", "columns", "step"]
    values = {"data": None, "rows": 1, "columns": 2, "step": 3}
    words = Words()
    Matrix(**values).add_to(words, ())
    assert words.flat == [0, 1, 2, 3]
