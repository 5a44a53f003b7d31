"""Floats of at most 8 bits and integers of 2 and 4: every bit pattern, as vector code and in whole models."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, parser

import sardonyx as ort
from sardonyx.compiler.llvm.expression import emit_expression, supported
from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Pointwise
from tests.compiler.vector_calls import VARIANTS, run_vectors

_NAMES = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float6_e2m3fn float6_e3m2fn float4_e2m1fn"
FLOATS = tuple(np.dtype(getattr(ml_dtypes, name)) for name in _NAMES.split())
POWER = np.dtype(ml_dtypes.float8_e8m0fnu)
INTEGERS = tuple(np.dtype(getattr(ml_dtypes, name)) for name in ("int4", "uint4", "int2", "uint2"))
TINY = (*FLOATS, *INTEGERS)
SOURCES = tuple(map(np.dtype, ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")))


def every(dtype):
    """Every number of a dtype."""
    info = ml_dtypes.finfo if dtype in (*FLOATS, POWER) else ml_dtypes.iinfo
    return np.arange(1 << info(dtype).bits, dtype=np.uint8).view(dtype)


def near(dtype, source):
    """Numbers of `source` around those of a tiny dtype: also ties, and what it does not hold."""
    rng = np.random.default_rng(3)
    if source == np.bool_:
        return np.array([False, True] * 20)
    if source.kind in "iu":
        limits = np.iinfo(source)
        wide = rng.integers(limits.min, limits.max, 300, source, endpoint=True)
        return np.concatenate([wide, rng.integers(0, 100, 200).astype(source)])
    numbers = np.sort(every(dtype).astype(np.float64))
    edge = [0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 3e9]
    drawn = rng.normal(size=2000) * 10.0 ** rng.uniform(-8, 6, 2000)
    with np.errstate(all="ignore"):
        return np.concatenate([edge, numbers, (numbers[:-1] + numbers[1:]) / 2, drawn]).astype(source)


def assert_same(result, expected):
    """Equal numbers of one sign; NaN equals NaN, whatever its bits are."""
    assert result.dtype == expected.dtype
    if expected.dtype.kind in "biu" or expected.dtype in INTEGERS:
        np.testing.assert_array_equal(result, expected)
        return
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(result, expected)
    holds = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[holds]), np.signbit(expected[holds]))


def run(variant, roots, array):
    assert supported(roots) is None
    dtypes = [root.dtype for root in roots]
    results = run_vectors(variant, lambda k, args: emit_expression(k, roots, args), [array], dtypes)
    expected = evaluate(Pointwise((array.dtype,), tuple(roots)), [array])
    return zip(results, expected, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [*TINY, POWER], ids=str)
def test_every_number_is_read(dtype, variant):
    wanted = [*map(np.dtype, ("float32", "float16", "float64", "int8", "uint8", "int64", "bool")), *TINY]
    roots = [Input(dtype, 0).cast(one) for one in wanted]
    for result, expected in run(variant, roots, every(dtype)):
        assert_same(result, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_numbers_are_rounded_once(source, variant):
    for dtype in TINY:
        for result, expected in run(variant, [Input(source, 0).cast(dtype)], near(dtype, source)):
            assert_same(result, expected)


def kinds_of_steps(session):
    return {step.kind for step in session._session().plan.steps}


@pytest.mark.parametrize("dtype", TINY, ids=str)
@pytest.mark.parametrize("scales", ["one", "along an axis", "blocked"])
def test_quantised_and_back(dtype, scales):
    """Against the formula in float64."""
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    shape = {"one": (), "along an axis": (6,), "blocked": (2, 6)}[scales]
    how = {"one": "", "along an axis": "axis = 1,", "blocked": "axis = 0, block_size = 4,"}[scales]
    model = parser.parse_model(
        f"""<ir_version: 13, opset_import: ["": 25]>
        quantised (float[8, 6] x, float scale) => (uint8[8, 6] q, float[8, 6] y)
        {{ q = QuantizeLinear<{how} output_dtype = {kind}>(x, scale)
           y = DequantizeLinear<{how} output_dtype = 1>(q, scale) }}"""
    )
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, shape))
    model.graph.output[0].type.tensor_type.elem_type = kind
    if dtype in FLOATS[4:6]:
        model.opset_import[0].version = onnx.defs.onnx_opset_version()
    rng = np.random.default_rng(4)
    x = rng.normal(size=(8, 6)).astype(np.float32) * 4
    x.reshape(-1)[:3] = 1e9, -1e9, 0
    scale = np.asarray(rng.uniform(0.3, 0.7, shape), np.float32)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert kinds_of_steps(session) == {"segment"}
    q, y = session.run(None, {"x": x, "scale": scale})
    q = np.asarray(q).view(dtype)
    wide = np.repeat(scale, 4, axis=0) if scales == "blocked" else scale
    quotient = x / wide
    if dtype in INTEGERS:
        info = ml_dtypes.iinfo(dtype)
        expected = np.clip(np.rint(quotient), info.min, info.max).astype(np.int32).astype(dtype)
    else:
        largest = float(ml_dtypes.finfo(dtype).max)
        expected = np.clip(quotient, -largest, largest).astype(dtype)
    assert_same(q, expected)
    np.testing.assert_allclose(y, expected.astype(np.float64) * wide, rtol=1e-6)


def test_zero_points_of_four_bits():
    """Along an axis, in float16 too."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        points (uint4[5, 7] q, float16[5] scale, uint4[5] zero) => (float16[5, 7] y, uint4[5, 7] again)
        { y = DequantizeLinear<axis = 0>(q, scale, zero) again = QuantizeLinear<axis = 0>(y, scale, zero) }"""
    )
    rng = np.random.default_rng(5)
    q, zero = (rng.integers(0, 16, shape).astype(ml_dtypes.uint4) for shape in ((5, 7), 5))
    scale = rng.uniform(0.5, 2, 5).astype(np.float16)
    session = ort.InferenceSession(model.SerializeToString())
    assert kinds_of_steps(session) == {"segment"}
    y, again = session.run(None, {"q": q, "scale": scale, "zero": zero})
    real = (q.astype(np.float64) - zero.astype(np.float64)[:, None]) * scale.astype(np.float64)[:, None]
    np.testing.assert_array_equal(y, real.astype(np.float16))
    np.testing.assert_array_equal(np.asarray(again).view(ml_dtypes.uint4), q)


# Inputs, the result, how it is made, and the shapes of the inputs.
_BEFORE = {
    "product": ("float[n, 70] x, float[70, 45] w", "float[n, 45] m", "MatMul(x, w)", ((37, 70), (70, 45))),
    "convolution": (
        "float[1, 9, h, v] x, float[33, 9, 3, 3] w",
        "float[1, 33, a, b] m",
        "Conv(x, w)",
        ((1, 9, 13, 11), (33, 9, 3, 3)),
    ),
    "pool": ("float[2, 20, h, v] x", "float[2, 20, a, b] m", "MaxPool<kernel_shape = [3, 3]>(x)", ((2, 20, 9, 9),)),
    "softmax": ("float[n, 70] x", "float[n, 70] m", "Softmax(x)", ((5, 70),)),
}


@pytest.mark.parametrize("kernels", ["", "portable"])
@pytest.mark.parametrize("name", list(_BEFORE))
@pytest.mark.parametrize("dtype", [FLOATS[0], FLOATS[6], INTEGERS[0]], ids=str)
def test_quantised_where_it_is_made(dtype, name, kernels):
    """The result and its quantised form come out of one kernel."""
    inputs, result, made, shapes = _BEFORE[name]
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    model = parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 23]> before ({inputs}) => ({result}, {result[:-1]}y)
        {{ m = {made} s = Constant<value_float = 0.25>() y = QuantizeLinear<output_dtype = {kind}>(m, s) }}"""
    )
    model.graph.output[1].type.tensor_type.elem_type = kind
    rng = np.random.default_rng(6)
    arrays = [rng.normal(size=shape).astype(np.float32) / 2 for shape in shapes]
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert kinds_of_steps(session) == {"segment"}
    m, y = session.run(None, dict(zip("xw", arrays, strict=False)))
    limits = ml_dtypes.finfo(dtype) if dtype in FLOATS else ml_dtypes.iinfo(dtype)
    quotient = m / np.float32(0.25)
    rounded = np.rint(quotient) if dtype in INTEGERS else quotient
    assert_same(np.asarray(y).view(dtype), np.clip(rounded, float(limits.min), float(limits.max)).astype(dtype))
