"""Specifications of kernels as text, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernels.spelling import SpellingError, read, spelled
from sardonyx.compiler.llvm.kernels.products.gemm import GemmSpec, emit_gemm
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import Operand, TileEpilogue
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.expr import Constant, Expr, Input, apply


def back(spec: Any) -> Any:
    emit, found = read(json.loads(json.dumps(spelled(emit_gemm, spec))))
    assert emit is emit_gemm
    assert repr(found) == repr(spec)
    return found


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -7, 1 << 70, "", "a word", (), (1, ("two", (3.5,)), None), 0.1, -0.0, math.inf, 1e-320],
)
def test_plain_values(value: object) -> None:
    assert back(value) == value
    assert type(back(value)) is type(value)


def test_what_is_no_number_stays_so() -> None:
    assert math.isnan(back(float("nan")))
    assert math.copysign(1.0, back(-0.0)) == -1.0


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_dtypes(dtype: type) -> None:
    assert back(np.dtype(dtype)) is np.dtype(dtype)


def diamond() -> Expr:
    x = Input(np.dtype(np.float32), 0)
    half = apply("multiply", x, 0.5)
    return apply("add", half, apply("exp", half))


def test_expressions_keep_which_parts_are_one() -> None:
    (found,) = back((diamond(),))
    assert found.args[0] is found.args[1].args[0]
    apart = apply("add", Constant(np.dtype(np.float32), 1.0), Constant(np.dtype(np.float32), 1.0))
    (found,) = back((apart,))
    assert found.args[0] is not found.args[1]


def test_the_text_of_a_canonical_form_comes_back() -> None:
    form = canonical([diamond()])
    found = back(form)
    assert found == form
    assert canonical(found.roots) == form


def test_a_product_with_an_epilogue_has_the_same_key() -> None:
    row = Operand("row", np.dtype(np.float32))
    total = apply("add", Input(np.dtype(np.float32), 0), Input(np.dtype(np.float32), 1))
    spec = GemmSpec("f32", "rows", "packed", 6, 2, epilogue=TileEpilogue((row,), (total,)))
    assert back(spec).epilogue.operands == (row,)
    assert spelled(emit_gemm, spec)["emit"] == "compiler.llvm.kernels.products.gemm:emit_gemm"


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, b"bytes", np.float32(1), object(), int, np.arange(2)])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(SpellingError, match="cannot be spelled"):
        spelled(emit_gemm, (value,))


def test_only_what_a_module_of_the_package_names() -> None:
    with pytest.raises(SpellingError, match="not a name of a module of this package"):
        spelled(lambda target, spec: "", ())
    with pytest.raises(SpellingError, match="not a name of a module of this package"):
        spelled(json.dumps, ())


@pytest.mark.parametrize(
    "change",
    [
        {"emit": "compiler.llvm.kernels.products.gemm:emit_other"},
        {"emit": "compiler.llvm.absent:emit_gemm"},
        {"spec": {"object": 99}},
        {"spec": {"dtype": "float33"}},
        {"spec": {"float": "many"}},
        {"objects": [["compiler.llvm.kernels.products.gemm:GemmSpec", {"no_such_field": 1}]]},
        {"objects": [["compiler.llvm.kernels.products.gemm:NoSpec", {}]]},
        {"objects": [[1]]},
    ],
)
def test_a_line_that_the_package_does_not_understand(change: dict[str, Any]) -> None:
    with pytest.raises(SpellingError):
        read({**spelled(emit_gemm, ()), **change})
