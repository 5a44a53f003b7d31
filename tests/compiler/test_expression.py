"""Every primitive of every dtype as vector code, against its meaning in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.llvm.expression import emit_expression, supported
from sardonyx.kernel import expr as e
from sardonyx.kernel.evaluate import PRIMITIVES, evaluate, working_dtype
from sardonyx.kernel.expr import Apply, Input
from sardonyx.kernel.integers import to_integers
from sardonyx.kernel.program import Pointwise
from tests.compiler.vector_calls import VARIANTS, run_vectors

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = [np.dtype(np.bool_), *INTEGERS, *FLOATS]
BINARY = {
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "fmod", "gated", "less", "less_equal",
    "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "modulo", "multiply", "power", "shift_left",
    "shift_right", "subtract",
}  # fmt: skip


def is_float(dtype):
    return dtype in FLOATS


def samples(dtype, seed, count=400):
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, count).astype(bool)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        edge = [limits.min, limits.max, 0, 1, 2, 3, 7, limits.max - 1]
        small = rng.integers(max(-9, limits.min), 10, count // 2)
        large = rng.integers(limits.min, limits.max, count // 2, dtype, endpoint=True)
        return np.concatenate([np.array(edge, dtype), small.astype(dtype), large]).astype(dtype)
    edge = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-7, 6e4, -6e4, 3e-8, 65520.0]
    with np.errstate(over="ignore"):
        return np.concatenate([edge, rng.normal(size=count) * 3, rng.normal(size=count) * 300]).astype(dtype)


def paired(first, second):
    """Every edge of one array against each of the other's, and then the two side by side."""
    a, b = np.meshgrid(first[:15], second[:15])
    size = min(first.size, second.size)
    return np.concatenate([a.ravel(), first[:size]]), np.concatenate([b.ravel(), second[:size]])


def compared(result, expected, rtol, atol=0.0):
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
    else:
        wide = np.float64
        np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


# A unit in the last place of the dtype, a few of them for what is computed in it.
TOLERANCE = {np.dtype(np.float16): 2e-3, BFLOAT16: 1.6e-2, np.dtype(np.float32): 6e-7, np.dtype(np.float64): 1e-15}


def run(variant, roots, arrays):
    return run_vectors(variant, lambda k, args: emit_expression(k, roots, args), arrays, [root.dtype for root in roots])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_primitives_of_a_dtype(dtype, variant):
    """All primitives in one kernel, so that each dtype and target is compiled once."""
    a, b = paired(samples(dtype, 1), samples(dtype, 2))
    inputs = (Input(dtype, 0), Input(dtype, 1))
    roots, names = [], []
    for name in sorted(PRIMITIVES):
        if name in ("where", "cast"):
            continue
        root = e.apply(name, *inputs[: 2 if name in BINARY else 1])
        if supported([root]) is None:
            roots.append(root)
            names.append(name)
    assert len(roots) >= (15 if dtype != np.bool_ else 10)
    results = run(variant, roots, [a, b])
    expected = evaluate(Pointwise((dtype, dtype), tuple(roots)), [a, b])
    for name, result, wanted in zip(names, results, expected, strict=True):
        try:
            # A sigmoid that is denormal may be zero; half of the least number may be rounded to it.
            least = float(np.finfo(working_dtype(dtype)).tiny) if name in ("gated", "sigmoid") else 0.0
            if name == "gated":
                least = 2.0**-24 if dtype == np.float16 else least * 1e5
            compared(result, wanted, TOLERANCE.get(dtype, 0) * (10 if name == "erf" else 1), least)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts_from_a_dtype(source, variant):
    x = samples(source, 4)
    targets = [dtype for dtype in DTYPES if dtype != source]
    if is_float(source):
        x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        for dtype in targets:
            values = x
            if is_float(source) and not is_float(dtype) and dtype != np.bool_:
                # NumPy leaves results outside the range undefined.
                limits = np.iinfo(dtype)
                wide = x.astype(np.float64)
                values = x[(wide > limits.min - 1.0) & (wide < min(limits.max + 1.0, 2.0**53))]
            (result,) = run(variant, [Input(source, 0).cast(dtype)], [values])
            np.testing.assert_array_equal(result, values.astype(dtype), err_msg=f"{source} to {dtype}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_floats_that_an_integer_does_not_hold_become_the_evaluators(source, variant):
    edges = [float(1 << bits) for bits in (7, 8, 15, 16, 31, 32, 63, 64)]
    numbers = [*edges, *(edge * 1.5 for edge in edges), 300.7, 5e9, 1e30, np.inf, np.nan, 0.0]
    x = np.array(
        [*numbers, *(-number for number in numbers), *(np.nextafter(source(edge), source(0)) for edge in edges)]
    )
    for dtype in INTEGERS:
        (result,) = run(variant, [Input(np.dtype(source), 0).cast(dtype)], [x.astype(source)])
        np.testing.assert_array_equal(result, to_integers(x.astype(source), dtype), err_msg=str(dtype))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_float16_and_bfloat16_survives_the_way_through_float32(variant):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), BFLOAT16):
        x = patterns.view(dtype)
        wide, same = run(variant, [Input(dtype, 0).cast(np.float32), Input(dtype, 0)], [x])
        np.testing.assert_array_equal(wide, x.astype(np.float32))
        np.testing.assert_array_equal(same.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_rounding_to_float16_is_exact(source, variant):
    """Midpoints between neighbours, just beside them, denormal results and overflow."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(every[np.isfinite(every)].astype(np.float64))
    middle = (finite[1:] + finite[:-1]) / 2
    nudge = np.abs(middle) * (1e-6 if source == np.float32 else 1e-15) + (1e-40 if source == np.float32 else 0)
    x = np.concatenate([middle, middle + nudge, middle - nudge, [65519.99, 65520.0, 1e30, -1e30]]).astype(source)
    (result,) = run(variant, [Input(x.dtype, 0).cast(np.float16)], [x])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, x.astype(np.float16))


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_and_constants(variant):
    rng = np.random.default_rng(0)
    condition, x = rng.integers(0, 2, 100).astype(bool), rng.normal(size=100).astype(np.float32)
    a, b = Input(condition.dtype, 0), Input(x.dtype, 1)
    roots = [e.where(a, b, -1.0), e.where(b < 0, 0.1 * b, b), e.maximum(b, 0), e.minimum(b, 0.25), 1 / b, 2.0 - b]
    roots += [e.power(b, number) for number in (0, 1, 2, 3, -1, 4, -2)] + [e.power(e.absolute(b), 0.5)]
    results = run(variant, roots, [condition, x])
    expected = evaluate(Pointwise((a.dtype, b.dtype), tuple(roots)), [condition, x])
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_survives_clipping_and_roots_keep_their_special_cases(variant):
    x = np.array([np.nan, -0.0, -np.inf, np.inf, 4.0], np.float32)
    b = Input(x.dtype, 0)
    clipped, root = run(variant, [e.minimum(e.maximum(b, -1), 1), e.power(b, 0.5)], [x])
    np.testing.assert_array_equal(clipped, [np.nan, 0, -1, 1, 1])
    np.testing.assert_array_equal(root, [np.nan, 0, np.inf, np.inf, 2])  # as C99; NumPy takes the root here
    assert not np.signbit(root[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_integer_powers_of_constants(variant):
    x = samples(np.dtype(np.int32), 9)
    b = Input(x.dtype, 0)
    roots = [e.power(b, number) for number in (0, 1, 2, 3, 5, 10, -1, -2)]
    expected = evaluate(Pointwise((x.dtype,), tuple(roots)), [x])
    for result, wanted in zip(run(variant, roots, [x]), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_shared_subexpressions_are_emitted_once():
    from sardonyx.compiler.llvm.builder import Function
    from sardonyx.compiler.llvm.target import host_target
    from sardonyx.compiler.llvm.types import F32, PTR

    k = Function("kernel", host_target(), [("p", PTR)])
    x = Input(np.dtype(np.float32), 0)
    root = e.sqrt(x)
    value = k.pointer("p", F32).load(0, 4)
    values = emit_expression(k, [root + root, root * 2.0, root], [value])
    assert [str(one.type) for one in values] == ["<4 x float>"] * 3
    assert k.finish().count("call <4 x float> @llvm.sqrt") == 1


def test_float16_is_rounded_once():
    x = np.array([2048.0, 1.0], np.float16)
    b = Input(x.dtype, 0)
    (result,) = run(VARIANTS[0], [b + 1 - b], [x])
    np.testing.assert_array_equal(result, [1, 1])  # 2049 has no float16


def test_what_has_no_rendering_is_named():
    assert supported([Input(np.dtype(np.float32), 0) + 1]) is None
    power = np.dtype(ml_dtypes.float8_e8m0fnu)
    assert supported([Input(power, 0)]) is None
    assert supported([Input(np.dtype(np.float32), 0).cast(power)]) == "no vector code rounds to float8_e8m0fnu"
    nibble = Input(np.dtype(ml_dtypes.int4), 0)
    assert supported([nibble + nibble]) == "add of int4 has no vector code"
    assert "object" in supported([Input(np.dtype(object), 0)])
    assert "complex64" in supported([Input(np.dtype(np.complex64), 0)])
    assert supported([e.exp(Input(np.dtype(np.int32), 0))]) == "exp of int32 has no vector code"
    wrong = Apply(np.dtype(bool), "subtract", (Input(np.dtype(bool), 0),) * 2)
    assert supported([wrong]) == "subtract of bool has no vector code"
