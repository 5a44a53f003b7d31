"""CumSum and CumProd against the operator's own NumPy form, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.kernels.rows.cumulative import Cumulative
from sardonyx.ops.framework.facts import tensor
from sardonyx.ops.framework.registry import operator_of
from tests.compiler.steps import VARIANTS, bind, outputs_of


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(
    ("shape", "axis"), [((20,), 0), ((1,), 0), ((3, 7), -1), ((5, 70), 0), ((2, 9, 33), 1), ((4, 0), 0)]
)
def test_totals(
    shape: tuple[int, ...], axis: int, exclusive: int, reverse: int, op_type: str, dtype: Any, variant: str
) -> None:
    values = [ir.Value(name="x"), ir.Value(name="axis")]
    attributes = [ir.AttrInt64("exclusive", exclusive), ir.AttrInt64("reverse", reverse)]
    node = ir.Node("", op_type, values, attributes, version=26)
    data = (np.random.default_rng(4).integers(1, 9, shape) / 4 + 0.5).astype(dtype)
    with np.errstate(over="ignore"):
        (expected,) = operator_of(node).run(data, np.array(axis))
    kernel = Cumulative({"exclusive": exclusive, "reverse": reverse, "product": op_type == "CumProd"})
    (found,) = outputs_of(kernel, [data, np.array(axis)], variant, known=[1], one_by_one=True)
    np.testing.assert_array_equal(found, expected)


def test_many_columns_are_shared() -> None:
    data = np.random.default_rng(4).random((50, 4000), np.float32)
    kernel = Cumulative({"exclusive": 0, "reverse": 0, "product": False})
    binder, memory, (result,) = bind(kernel, [data, np.array(0)], known=[1])
    assert binder.steps[0].chunks > 1
    memory.run(binder, one_by_one=True)
    assert result is not None
    np.testing.assert_array_equal(memory.read(result), np.cumsum(data, 0))


def test_what_is_declined() -> None:
    kernel = Cumulative({"exclusive": 0, "reverse": 0, "product": False})
    number, truth, text = (tensor(dtype, [3]) for dtype in (ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.COMPLEX64))
    assert kernel.declines([number, number], [number]) is None
    assert "no kernel" in str(kernel.declines([truth, number], [truth]))
    assert "no kernel" in str(kernel.declines([text, number], [text]))
