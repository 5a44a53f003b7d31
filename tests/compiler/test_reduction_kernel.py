"""Reductions over rows against NumPy: forms, axes, strides, dtypes, tails, and memory around the results."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.native.rows.reduction import ReductionKernel
from sardonyx.kernel import expr as e
from sardonyx.kernel.evaluate import evaluate_reduction
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Reduction
from tests.compiler.steps import Memory, new_binder
from tests.compiler.test_pointwise_kernel import inputs_of, random, tensor_like
from tests.compiler.vector_calls import VARIANTS

F32 = np.dtype(np.float32)


def softmax(x):
    raised = e.exp(x - e.reduce("bound", x))
    return raised * (1 / e.reduce("sum", raised))


def layer_norm(x, scale, bias, epsilon=1e-5):
    mean = e.mean(x)
    centred = x - mean
    inverse = 1 / e.sqrt(e.mean(centred * centred) + epsilon)
    return [centred * inverse * scale + bias, mean, inverse]


def check(roots, arrays, axes, variant, *, one_by_one=False, rtol=2e-5, atol=2e-5):
    binder, memory = new_binder(variant), Memory()
    dtypes = [array.dtype for array in arrays]
    inputs = [tensor_like(array) for array in arrays]
    for tensor, array in zip(inputs, arrays, strict=True):
        memory.put(tensor, array)
    outputs = ReductionKernel(roots, dtypes).bind(binder, inputs, axes)
    memory.run(binder, one_by_one=one_by_one)
    wide = [a.astype(np.float64) if a.dtype in (np.float32, np.float16, ml_dtypes.bfloat16) else a for a in arrays]
    leaves = [Input(a.dtype, i) for i, a in enumerate(wide)]
    exact = evaluate_reduction(Reduction(tuple(a.dtype for a in wide), tuple(_widened(roots, leaves))), wide, axes)
    for output, root, wanted in zip(outputs, roots, exact, strict=True):
        result = memory.read(output)
        assert (output.shape, output.dtype) == (wanted.shape, root.dtype)
        if root.dtype.kind in "biu":
            np.testing.assert_array_equal(result, wanted)
        else:
            np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=rtol, atol=atol)
    return binder


def _widened(roots, leaves):
    """The expressions in float64, so that the oracle does not round."""
    made = {}
    for expr in e.walk(roots):
        if isinstance(expr, Input):
            made[id(expr)] = leaves[expr.index]
            continue
        dtype = expr.dtype if expr.dtype.kind in "biu" else np.dtype(np.float64)
        if isinstance(expr, e.Apply):
            made[id(expr)] = e.Apply(dtype, expr.primitive, tuple(made[id(arg)] for arg in expr.args))
        elif isinstance(expr, e.Reduce):
            made[id(expr)] = e.reduce(expr.kind, made[id(expr.arg)])
        elif isinstance(expr, e.Constant):
            made[id(expr)] = e.Constant(dtype, expr.value)
        else:
            made[id(expr)] = e.RowLength(dtype)
    return [made[id(root)] for root in roots]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 515, 1000])
def test_every_length_of_a_row(size, variant):
    a = random((5, size), size)
    (x,) = inputs_of(a)
    check([softmax(x), e.reduce("sum", x), e.reduce("maximum", x)], [a], [-1], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_many_short_rows_lie_side_by_side(size, dtype, variant):
    a = random((71, size), size, np.dtype(dtype))
    a[3, 1], a[4], a[5, 0] = np.nan, -np.inf, np.inf
    (x,) = inputs_of(a)
    tolerance = 1.6e-2 if a.dtype.itemsize == 2 else 2e-5
    roots = [softmax(x), e.reduce("sum", x), e.reduce("maximum", x), x - e.mean(x)]
    check(roots, [a], [-1], variant, rtol=tolerance, atol=tolerance)
    check([e.reduce("sum", x)], [a[::-1, ::-1]], [-1], variant, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", [9, 16, 31, 49, 70, 128])
def test_lanes_of_short_rows_are_combined_together(size, dtype, variant):
    x = random((2, 75, size), size, np.dtype(dtype))
    x[1, 70, size - 1] = np.nan
    wide = Input(x.dtype, 0).cast(np.promote_types(dtype, np.float32))
    largest = e.reduce("maximum", wide)
    roots = [one.cast(dtype) for one in (e.mean(wide), largest + 2 * e.sqrt(e.reduce("sum", wide * wide)))]
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    check(roots, [x], [2], variant, rtol=tolerance, atol=tolerance)
    check([e.mean(wide).cast(dtype)], [x[:, ::2]], [2], variant, one_by_one=True, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("axes", [axes for n in (0, 1, 2, 3, 4) for axes in itertools.combinations(range(4), n)])
def test_every_choice_of_axes(axes, variant):
    a = random((3, 4, 5, 6), 1)
    (x,) = inputs_of(a)
    check([e.reduce("sum", x * x), x - e.mean(x)], [a], axes, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(2, 33, 40), (3, 7, 5), (1, 64, 64), (2, 3, 130), (4, 50, 1)])
def test_softmax_over_a_middle_axis(shape, variant):
    a = random(shape, 3)
    (x,) = inputs_of(a)
    check([softmax(x), x - e.reduce("bound", x) - e.log(e.reduce("sum", e.exp(x)))], [a], [1], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(4, 768), (3, 5, 100), (1, 17), (2, 3)])
def test_layer_norm_with_statistics(shape, variant):
    a, scale, bias = random(shape, 1) + 100, random(shape[-1:], 2), random(shape[-1:], 3)
    x, s, b = inputs_of(a, scale, bias)
    check(layer_norm(x, s, b, 1e-2), [a, scale, bias], [-1], variant, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_skip_layer_norm_gives_the_sum_too(variant):
    a, skip, scale, bias = random((2, 6, 80), 1), random((2, 6, 80), 2), random(80, 3), random(80, 4)
    x, y, s, b = inputs_of(a, skip, scale, bias)
    check([layer_norm(x + y, s, b)[0], x + y], [a, skip, scale, bias], [-1], variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_group_norm_over_channels_and_maps(variant):
    a, scale, bias = random((2, 3, 4, 30), 1), random((3, 4, 1), 2), random((3, 4, 1), 3)
    x, s, b = inputs_of(a, scale, bias)
    check([layer_norm(x, s, b)[0]], [a, scale, bias], [2, 3], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["sum", "product", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint32, np.float16,
                                   ml_dtypes.bfloat16, np.float32, np.float64])  # fmt: skip
def test_kinds_and_dtypes(kind, dtype, variant):
    dtype = np.dtype(dtype)
    a = random((3, 5, 70), 4, dtype)
    if kind == "product":
        a = (1 + random((3, 5, 70), 4) / 100).astype(dtype) if dtype.kind not in "iu" else a % 3 + 1
    (x,) = inputs_of(a)
    tolerance = 1.6e-2 if dtype.itemsize == 2 else 1e-5
    for axes in ([2], [1]):
        check([e.reduce(kind, x)], [a], axes, variant, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_truth_values_have_extremes(variant):
    a = random((6, 40), 5, bool)
    a[2], a[3] = True, False
    (x,) = inputs_of(a)
    check([e.reduce("maximum", x), e.reduce("minimum", x)], [a], [1], variant)
    check([e.reduce("maximum", x), e.reduce("minimum", x)], [a], [0], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("index", [np.s_[:, ::-1], np.s_[::2, ::3], np.s_[::-1, 3:20], np.s_[:, 5:6]])
@pytest.mark.parametrize("axes", [[0], [1], [0, 1]])
def test_strides(axes, index, variant):
    a, b = random((9, 37), 1)[index], random((37, 9), 2).T[index]
    x, y = inputs_of(a, b)
    check([e.reduce("sum", x * y), softmax(x + y)], [a, b], axes, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2]])
def test_permuted_values(axes, order, variant):
    a = random((9, 30, 35), 1).transpose(order)
    b = random(a.shape, 2)
    x, y = inputs_of(a, b)
    check([softmax(x), e.reduce("sum", x)], [a], axes, variant)
    check([softmax(x + y), e.reduce("sum", x)], [a, b], axes, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("axes", [[0], [1], [2], [1, 2]])
def test_inputs_that_broadcast_over_rows_or_within(axes, variant):
    a, b, c = random((4, 6, 20), 1), random((1, 6, 1), 2), random((20,), 3)
    x, y, z = inputs_of(a, b, c)
    check([softmax(x * y + z), e.reduce("sum", y * z), e.exp(y) * e.reduce("maximum", x)], [a, b, c], axes, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_and_infinity(variant):
    a = random((4, 21), 1)
    a[0, 20], a[1, 3], a[2] = np.nan, np.inf, -np.inf
    (x,) = inputs_of(a)
    check([e.reduce("maximum", x), e.reduce("minimum", x), e.reduce("sum", x)], [a], [1], variant)
    check([softmax(x)], [a], [1], variant)
    check([e.reduce("maximum", x)], [a.T.copy()], [0], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_reduce(shape, variant):
    a = random(shape)
    (x,) = inputs_of(a)
    check([e.reduce("sum", x), x * e.reduce("sum", x)], [a], [1], variant)
    binder, memory = new_binder(variant), Memory()
    (largest,) = ReductionKernel([e.reduce("maximum", x)], [F32]).bind(binder, [tensor_like(a)], [1])
    memory.run(binder)
    np.testing.assert_array_equal(memory.read(largest), np.full((shape[0], 1), -np.inf, F32))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("shape", "axes"), [((2000, 300), [1]), ((40, 200, 90), [1]), ((8, 10, 5000), [2]),
                                             ((3, 70_001), [1])])  # fmt: skip
def test_large_work_gives_the_same_in_any_chunks(shape, axes, variant):
    a = random(shape, 1)
    (x,) = inputs_of(a)
    results = []
    for one_by_one in (False, True):
        binder = check([softmax(x)], [a], axes, variant, one_by_one=one_by_one)
        assert binder.steps[0].chunks > 2
        memory = Memory()
        tensor = tensor_like(a)
        memory.put(tensor, a)
        binder = new_binder(variant)
        (output,) = ReductionKernel([softmax(x)], [F32]).bind(binder, [tensor], axes)
        memory.run(binder, one_by_one=one_by_one)
        results.append(memory.read(output).copy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_long_sums_stay_accurate(variant):
    a = np.full((2, 1_000_003), 0.1, F32)
    (x,) = inputs_of(a)
    check([e.reduce("sum", x), e.mean(x)], [a], [1], variant, rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [65_536, 100_003, 1_200_000])
def test_a_single_long_row_is_cut(size):
    a, b = random((1, size), 1), random((1, 1), 2)
    x, y = inputs_of(a, b)
    low, high = e.reduce("minimum", x), e.reduce("maximum", x)
    roots = [e.mean(x), (x - low) / (high - low) * y, e.sqrt(e.reduce("sum", x * x)), x + e.mean(x)]
    for one_by_one in (False, True):
        binder = check(roots, [a, b], [0, 1], VARIANTS[0], one_by_one=one_by_one, rtol=1e-4, atol=1e-4)
        assert len(binder.steps) in (3, 4)
        assert binder.steps[0].chunks > 1
    (whole,) = inputs_of(a.reshape(-1))
    binder = check([e.reduce("sum", whole)], [a.reshape(-1)], [0], VARIANTS[0], rtol=1e-3, atol=1e-2)
    assert len(binder.steps) in (2, 3)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2)])
def test_a_long_row_that_lies_in_memory_in_another_order_is_cut(order):
    a = random((1, 112, 112, 64), 1)
    permuted = a.transpose(np.argsort(order))
    (x,) = inputs_of(permuted)
    roots = [e.reduce("minimum", x), e.reduce("maximum", x)]
    binder = check(roots, [permuted], [0, 1, 2, 3], VARIANTS[0], rtol=0, atol=0)
    assert [step.chunks > 1 for step in binder.steps] == [True, False]


def test_only_rows_with_one_level_of_reductions_are_cut():
    a = random((100_000,), 1)
    (x,) = inputs_of(a)
    assert len(check([softmax(x)], [a], [0], VARIANTS[0]).steps) == 1
    assert len(check([e.reduce("sum", x)], [a[::2]], [0], VARIANTS[0], atol=1e-2).steps) == 1


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="median is no kind of reduction"):
        e.reduce("median", Input(F32, 0))
    with pytest.raises(ValueError, match="sum over rows of bool"):
        ReductionKernel([e.reduce("sum", Input(np.dtype(bool), 0))], [np.dtype(bool)])
