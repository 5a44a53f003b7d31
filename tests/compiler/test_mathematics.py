"""The error of the vector mathematics, in units in the last place, over random bit patterns and special numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sardonyx.compiler.llvm.mathematics.error_function import erf
from sardonyx.compiler.llvm.mathematics.exponentials import exp, gated, sigmoid
from sardonyx.compiler.llvm.mathematics.functions import ONE_OPERAND, TWO_OPERANDS
from sardonyx.compiler.llvm.mathematics.hyperbolic import tanh
from sardonyx.compiler.llvm.mathematics.powers import power
from tests.compiler.vector_calls import VARIANTS, run_vectors

# Bounds that the documentation of the modules states, for float32 and float64.
BOUNDS = {
    "absolute": (0, 0), "acos": (3, 3), "acosh": (4, 4), "asin": (3, 3), "asinh": (4, 4), "atan": (3, 3),
    "atanh": (4, 4), "ceil": (0, 0), "cos": (2, 2), "cosh": (3, 3), "erf": (7, 2), "exp": (2, 2), "expm1": (3, 3),
    "floor": (0, 0), "log": (2, 2), "log1p": (2, 2), "rint": (0, 0), "sigmoid": (4, 2), "sin": (2, 2), "sinh": (3, 3),
    "sqrt": (0.5, 0.5), "tan": (4, 4), "tanh": (6, 3), "trunc": (0, 0),
}  # fmt: skip

NUMPY = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "erf": np.vectorize(math.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip

WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def specials(dtype):
    info = np.finfo(dtype)
    numbers = [0.0, 0.5, 1.0, 2.0, 3.0, 0.25, 1e-10, 88.7, 88.8, 103.9, 104.0, 709.7, 709.8, 745.1, 746.0, 1e5, 1e10]
    numbers += [np.inf, np.pi, np.pi / 2, 22.0, 2.0**23, 2.0**24 + 2, info.tiny, info.smallest_subnormal, info.max]
    return np.array([*numbers, *(-number for number in numbers), np.nan], dtype)


def samples(dtype, count=20000):
    """Random bit patterns, so all magnitudes; more of them where functions bend; special numbers."""
    rng = np.random.default_rng(7)
    integer = np.int32 if dtype == np.float32 else np.int64
    limits = np.iinfo(integer)
    patterns = rng.integers(limits.min, limits.max, count, integer).view(dtype)
    near = [rng.normal(size=count) * scale for scale in (1e-3, 0.3, 1, 5, 100, 700)]
    return np.concatenate([patterns, *(part.astype(dtype) for part in near), (1 + near[0]).astype(dtype),
                           specials(dtype)])  # fmt: skip


def ulps(result, exact, dtype):
    """Errors in units in the last place; where either is not finite, 0 for the right answer, else infinite."""
    rounded = exact.astype(dtype)
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max))
    error = np.abs(result.astype(exact.dtype) - exact) / unit.astype(exact.dtype)
    return np.where(same & ~np.isfinite(error), 0, np.where(np.isnan(error), np.inf, error))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(ONE_OPERAND))
def test_function_stays_within_its_bound(name, dtype, variant):
    x = samples(np.dtype(dtype))
    if name == "erf":
        x = x[::7]  # the oracle is slow
    if name == "sigmoid":
        x = x[~(x < np.log(np.finfo(dtype).tiny))]  # a test of its own has those
    (result,) = run_vectors(variant, lambda k, args: [ONE_OPERAND[name](k, args[0])], [x], [np.dtype(dtype)])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if name == "erf" else WIDER[np.dtype(dtype)])
        exact = NUMPY.get(name, getattr(np, name, None))(wide)
        error = ulps(result, exact, dtype)
    worst = int(error.argmax())
    bound = BOUNDS[name][dtype == np.float64]
    # Half a unit more where the oracle is the same precision rounded once, nothing where it is exact.
    assert error[worst] <= bound + (0.5 if bound else 0), f"{name}({x[worst]!r}) = {result[worst]!r}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["asin", "asinh", "atan", "atanh", "erf", "expm1", "log1p", "rint", "sin", "sinh",
                                  "sqrt", "tan", "tanh", "trunc"])  # fmt: skip
def test_sign_of_zero_is_kept(name, dtype, variant):
    x = np.array([0.0, -0.0], dtype)
    (result,) = run_vectors(variant, lambda k, args: [ONE_OPERAND[name](k, args[0])], [x], [np.dtype(dtype)])
    assert (result == 0).all()
    assert np.signbit(result).tolist() == [False, True]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_and_tanh_reach_one_and_no_more(dtype, variant):
    x = np.concatenate([np.linspace(3, 30, 100_000), [np.inf]]).astype(dtype)
    for function in (erf, tanh):
        (result,) = run_vectors(variant, lambda k, args, f=function: [f(k, args[0])], [x], [np.dtype(dtype)])
        assert result.max() == 1
        assert result[-1] == 1
        (mirrored,) = run_vectors(variant, lambda k, args, f=function: [f(k, args[0])], [-x], [np.dtype(dtype)])
        np.testing.assert_array_equal(mirrored, -result)


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_do_not_depend_on_the_number_of_lanes(variant, lanes):
    x = specials(np.float32)
    for name in ("exp", "erf", "sigmoid", "sin", "log1p", "tanh"):
        emit = lambda k, args, f=ONE_OPERAND[name]: [f(k, args[0])]  # noqa: E731
        (few,) = run_vectors(variant, emit, [x], [x.dtype], lanes)
        (usual,) = run_vectors(variant, emit, [x], [x.dtype])
        np.testing.assert_array_equal(few, usual)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_power(dtype, variant):
    rng = np.random.default_rng(3)
    pairs = [np.array(list(itertools.product(specials(dtype), specials(dtype))), dtype)]
    for base, exponent in ((1, 1), (1, 30), (100, 3), (1e-3, 100), (1e20, 10)):
        pairs.append(np.stack([rng.lognormal(size=4000) * base, rng.normal(size=4000) * exponent], 1).astype(dtype))
    whole = np.stack([rng.normal(size=2000) * 10, rng.integers(-12, 12, 2000)], 1).astype(dtype)
    close = np.stack([1 + rng.normal(size=4000) * 1e-4, rng.normal(size=4000) * 1e5], 1).astype(dtype)
    base, exponent = np.concatenate([*pairs, whole, close]).T.copy()
    (result,) = run_vectors(variant, lambda k, args: [power(k, *args)], [base, exponent], [np.dtype(dtype)])
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(WIDER[np.dtype(dtype)]), exponent.astype(WIDER[np.dtype(dtype)]))
        error = ulps(result, exact, dtype)
    worst = int(error.argmax())
    assert error[worst] <= (1 if dtype == np.float32 else 2), (base[worst], exponent[worst], result[worst])
    zeros = result == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(exact[zeros].astype(dtype)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "oracle"), [("fmod", np.fmod), ("modulo", np.mod)])
def test_remainders_are_exact(name, oracle, dtype, variant):
    rng = np.random.default_rng(5)
    pairs = np.array(list(itertools.product(specials(dtype), specials(dtype))), dtype)
    random = (rng.normal(size=(4000, 2)) * [1000, 3]).astype(dtype)
    a, b = np.concatenate([pairs, random]).T.copy()
    emit = lambda k, args: [TWO_OPERANDS[name](k, *args)]  # noqa: E731
    (result,) = run_vectors(variant, emit, [a, b], [np.dtype(dtype)])
    with np.errstate(all="ignore"):
        expected = oracle(a, b)
    # An infinite divisor of a finite number: NumPy's modulo gives the divisor where the signs differ, as we do.
    np.testing.assert_array_equal(result, expected)


def test_only_floats_and_doubles_are_accepted():
    with pytest.raises(TypeError, match="no mathematics for"):
        run_vectors(VARIANTS[0], lambda k, args: [exp(k, args[0])], [np.ones(4, np.int32)],
                    [np.dtype(np.int32)])  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_goes_from_zero_to_one(dtype, variant):
    """Exactly one and zero at the ends, and no more than the right denormal number before the latter."""
    emit = lambda k, args: [sigmoid(k, args[0])]  # noqa: E731
    highest = np.finfo(dtype).max
    x = np.array([np.inf, highest, 1e10, 40, 0.0, -0.0, -1e10, -highest, -np.inf], dtype)
    (result,) = run_vectors(variant, emit, [x], [np.dtype(dtype)])
    np.testing.assert_array_equal(result, np.array([1, 1, 1, 1, 0.5, 0.5, 0, 0, 0], dtype))
    assert not np.signbit(result).any()
    least = -np.log(np.finfo(dtype).tiny)
    x = -np.linspace(least, least + 30, 1001).astype(dtype)
    (result,) = run_vectors(variant, emit, [x], [np.dtype(dtype)])
    assert (result >= 0).all()
    assert (result <= np.exp(x.astype(WIDER[np.dtype(dtype)])) * (1 + 1e-5) + np.finfo(dtype).smallest_subnormal).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_silu_of_any_number(dtype, variant):
    """x * sigmoid(x) from its largest values down to where it vanishes, and beyond."""
    emit = lambda k, args: [gated(k, args[0], args[0])]  # noqa: E731
    x = np.concatenate([np.linspace(-80, 80, 20_001).astype(dtype), samples(np.dtype(dtype), 2000)])
    x = x[~(x < -80)]
    (result,) = run_vectors(variant, emit, [x], [np.dtype(dtype)])
    with np.errstate(all="ignore"):
        wide = x.astype(WIDER[np.dtype(dtype)])
        error = ulps(result, wide / (1 + np.exp(-wide)), dtype)
    excess = error - np.where(x < -20, 6.5, 4)  # the reduction of the exponent is shorter than that of exp
    worst = int(excess.argmax())
    assert excess[worst] <= 0, (x[worst], result[worst])
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1e3, -1e10, -3e38, 1e10, 3e38], dtype)
    (result,) = run_vectors(variant, emit, [edges], [np.dtype(dtype)])
    expected = [np.nan, np.inf, np.nan, 0.0, -0.0, -0.0, -0.0, -0.0, edges[8], edges[9]]
    np.testing.assert_array_equal(result, np.array(expected, dtype))
    np.testing.assert_array_equal(np.signbit(result[3:8]), [False, True, True, True, True])
