"""Pointwise kernels against NumPy: shapes, strides, dtypes, chunks, and memory around the results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Buffer, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.kernel import expr as e
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Pointwise
from tests.compiler.steps import Memory, new_binder
from tests.compiler.vector_calls import VARIANTS

F32 = np.dtype(np.float32)


def tensor_like(array):
    """A tensor over a buffer that holds exactly the memory that an array's elements span."""
    item = array.dtype.itemsize
    strides = tuple(stride // item for stride in array.strides)
    low = sum(min(0, (size - 1) * stride) for size, stride in zip(array.shape, strides, strict=True))
    high = sum(max(0, (size - 1) * stride) for size, stride in zip(array.shape, strides, strict=True))
    nbytes = (high - low + 1) * item if array.size else 0
    return Tensor(array.dtype, array.shape, strides, Buffer(nbytes), -low * item)


def check(roots, arrays, variant, *, one_by_one=False, rtol=1e-6):
    binder, memory = new_binder(variant), Memory()
    dtypes = [array.dtype for array in arrays]
    inputs = [tensor_like(array) for array in arrays]
    for tensor, array in zip(inputs, arrays, strict=True):
        memory.put(tensor, array)
    outputs = PointwiseKernel(roots, dtypes).bind(binder, inputs)
    memory.run(binder, one_by_one=one_by_one)
    expected = evaluate(Pointwise(tuple(dtypes), tuple(roots)), arrays)
    for output, wanted in zip(outputs, expected, strict=True):
        result = memory.read(output)
        assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(result, wanted)
        else:
            np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=rtol, atol=1e-6)
    return binder


def random(shape, seed=0, dtype=F32):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return (rng.normal(size=shape) * 3).astype(dtype) if dtype.kind not in "iu" else rng.integers(0, 50, shape, dtype)


def inputs_of(*arrays):
    return [Input(array.dtype, index) for index, array in enumerate(arrays)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 1000])
def test_every_length_of_a_row(size, variant):
    a, b = random(size, 1), random(size, 2)
    x, y = inputs_of(a, b)
    check([x * y + 1, e.exp(-x)], [a, b], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 5), (5,)), ((3, 5), (3, 1)), ((3, 1), (1, 5)), ((2, 3, 4, 5), (3, 1, 5)), ((1,), (7, 33)), ((), (40,)),
        ((4, 1, 6), (3, 1)), ((0, 3), (1, 3)), ((2, 0), (1,)), ((), ()), ((2, 8, 19), (8, 1)), ((5, 64), (5, 64)),
        ((2, 3, 2, 3, 2, 3), (3, 1, 3, 1, 3)),
    ],
)  # fmt: skip
def test_broadcasting(first, second, variant):
    a, b = random(first, 1), random(second, 2)
    x, y = inputs_of(a, b)
    check([x - y, e.where(x < y, x, y)], [a, b], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("index", [
    np.s_[::-1], np.s_[::2], np.s_[:, ::-1], np.s_[:, ::3], np.s_[1:4, 5:20], np.s_[::-2, ::-3], np.s_[:, 4:5],
])  # fmt: skip
def test_strides(index, variant):
    a = random((7, 37), 1)[index]
    b = random((37, 7), 2).T[index]
    x, y = inputs_of(a, b)
    check([x + 2.0 * y], [a, b], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16,
                                   ml_dtypes.bfloat16, np.float32, np.float64])  # fmt: skip
def test_dtypes_in_whole_and_part_vectors(dtype, variant):
    a, b = random((5, 77), 1, dtype), random((5, 1), 2, dtype)
    x, y = inputs_of(a, b)
    tolerance = {2: 1e-2}.get(np.dtype(dtype).itemsize, 1e-6)
    check([x + y, x * y, x < y, x.cast(np.float32), x.cast(np.int64)], [a, b], variant, rtol=tolerance)
    check([x + y], [a[:, ::2], b], variant, rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int16, np.int64, np.float16, np.float32, np.float64])
def test_loops_go_along_the_longest_axis_where_rows_are_short(dtype, variant):
    """As over the two first of each box's numbers."""
    a, b = random((41, 3, 5), 1, dtype)[..., :2], random((41, 1, 2), 2, dtype)
    x, y = inputs_of(a, b)
    binder = check([x + y, x < y], [a, b], variant, rtol=1e-2 if dtype == np.float16 else 1e-6)
    (step,) = binder.steps
    assert step.arguments[4 + 2] == 41  # behind the operands: items, items of a chunk, elements of a row


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("shape", [(300_001,), (3, 100_001), (50_000, 7), (70, 3, 999)])
def test_large_work_is_cut_into_chunks(shape, one_by_one, variant):
    a, b = random(shape, 1), random(shape[-1:], 2)
    x, y = inputs_of(a, b)
    binder = check([x * y - 1], [a, b], variant, one_by_one=one_by_one)
    assert binder.steps[0].chunks > 3


def test_small_work_is_one_chunk():
    a = random((4, 256))
    binder = check([e.sqrt(e.absolute(inputs_of(a)[0]))], [a], VARIANTS[0])
    assert [step.chunks for step in binder.steps] == [1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_gelu_of_a_layer(variant):
    a, bias = random((16, 96), 1), random(96, 2)
    x, y = inputs_of(a, bias)
    z = x + y
    check([0.5 * z * (1 + e.erf(z * 0.5**0.5))], [a, bias], variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_known_of_a_row_is_computed_once_and_right(variant):
    a, variance, scale = random((6, 50), 1), random((6, 1), 2) ** 2, random((), 3)
    x, y, z = inputs_of(a, variance, scale)
    check([x / e.sqrt(y + 1e-5) * z, e.sqrt(y) * z], [a, variance, scale], variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_and_infinity_in_the_last_elements(variant):
    a = random(19)
    a[16:] = [np.nan, np.inf, -np.inf]
    (x,) = inputs_of(a)
    check([e.maximum(x, 0), e.isnan(x), e.exp(x)], [a], variant)


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0, 1.7])
def test_known_exponents_are_taken_into_the_kernel(exponent):
    a = np.abs(random(40))
    binder, memory = new_binder(), Memory()
    x, y = inputs_of(a, a)
    tensor = tensor_like(a)
    memory.put(tensor, a)
    known = binder.constant(np.asarray(exponent, np.float32))
    (output,) = PointwiseKernel([e.power(x, y)], [F32, F32]).bind(binder, [tensor, known])
    memory.run(binder)
    np.testing.assert_allclose(memory.read(output), a**exponent, rtol=1e-6)
    spec_says = binder.steps[0].function
    (other,) = PointwiseKernel([e.power(x, y)], [F32, F32]).bind(binder, [tensor, tensor])
    assert other.shape == (40,)
    # Its operand is contiguous, so this is another kernel in any case; what matters is the body of the first.
    assert binder.steps[1].function != spec_says


def test_results_are_the_same_for_any_chunks():
    a = random((3, 100_001))
    (x,) = inputs_of(a)
    results = []
    for one_by_one in (False, True):
        binder, memory = new_binder(), Memory()
        tensor = tensor_like(a)
        memory.put(tensor, a)
        (output,) = PointwiseKernel([e.tanh(x)], [F32]).bind(binder, [tensor])
        memory.run(binder, one_by_one=one_by_one)
        results.append(memory.read(output).copy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_permuted_values_stay_permuted(order, variant):
    a = random((9, 40, 33), 1)
    permuted = a.transpose(order)
    x, y = inputs_of(a, a)
    binder = check([x + 1], [permuted], variant)
    assert len(binder.steps) == 1
    check([x * y], [permuted, random(permuted.shape[-1:], 2)], variant)
    binder = check([x - y], [permuted, random(permuted.shape, 2)], variant)
    assert len(binder.steps) <= 2  # the permuted one may be copied first
    (result,) = PointwiseKernel([x + 1], [F32]).bind(binder, [tensor_like(permuted)])
    item = permuted.itemsize
    assert [stride * item for stride in result.strides] == list(permuted.strides)


def test_shapes_that_do_not_broadcast_are_named():
    x, y = Input(F32, 0), Input(F32, 1)
    tensors = [tensor_like(random((3,))), tensor_like(random((4,)))]
    with pytest.raises(ValueError, match=r"\(3,\), \(4,\) do not broadcast"):
        PointwiseKernel([x + y], [F32, F32]).bind(new_binder(), tensors)


def test_dtypes_without_vector_code_are_refused():
    with pytest.raises(ValueError, match="complex64"):
        PointwiseKernel([Input(np.dtype(np.complex64), 0)], [np.dtype(np.complex64)])


def test_equal_expressions_have_one_spelling():
    x, y = Input(F32, 0), Input(F32, 1)
    one = canonical([e.exp(x) * e.exp(x) + y])
    shared = e.exp(x)
    other = canonical([shared * shared + y])
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == "i0:float32 exp(0):float32 multiply(1,1):float32 i1:float32 add(2,3):float32 -> 4"
    assert canonical([x + 0.1]) != canonical([x + 0.2])
    assert canonical([x, y]) != canonical([y, x])
