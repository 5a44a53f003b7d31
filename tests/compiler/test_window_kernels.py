"""Pools and their like in every layout and on every instruction set, against their meaning in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, find_template
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.pooling import pool
from sardonyx.kernel import expr as e
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.operator import Operator, find_class
from tests.compiler.steps import VARIANTS, Memory, bind, new_binder
from tests.compiler.steps import outputs_of as steps_outputs

Array = np.ndarray[Any, Any]


def operator(op_type: str, domain: str = "", outputs: int = 1, **attributes: Any) -> Operator:
    """An operator of the newest opset."""
    node = ir.node(op_type, [ir.Value(name="x")], attributes, domain=domain, num_outputs=outputs)
    for index, value in enumerate(node.outputs):
        value.name = f"y{index}"
    import sardonyx.ops.microsoft.channels_last
    import sardonyx.ops.pooling  # noqa: F401

    cls = find_class(domain, op_type, 22)
    assert cls is not None
    return cls(node, 22)


def kernel_of(op: Operator, dtype: np.dtype[Any]) -> NativeKernel:
    lowered = op.lower([dtype])
    assert isinstance(lowered, Template)
    cls = find_template(lowered.name)
    assert cls is not None
    return cls(lowered.parameters)


def placed(binder: Binder, memory: Memory, x: Array, *, by_channels: bool) -> Tensor:
    """An input of a plan that lies in row order or with its channels last."""
    if not by_channels:
        tensor = binder.external(0, x.dtype, x.shape)
    else:
        rank = x.ndim
        last = binder.external(0, x.dtype, (x.shape[0], *x.shape[2:], x.shape[1]))
        tensor = transposed(last, (0, rank - 1, *range(1, rank - 1)))
    memory.put(tensor, x)
    return tensor


def outputs_of(
    op: Operator,
    x: Array,
    variant: str = "",
    *,
    by_channels: bool = False,
    epilogue: Any = None,
    chunks: bool = False,
    copied: bool = False,
) -> list[Array]:
    """What the operator's kernel gives; unless it may be `copied`, an input that lies in rows is taken as it lies."""
    binder, memory = new_binder(variant), Memory()
    tensor = placed(binder, memory, x, by_channels=by_channels)
    kernel = kernel_of(op, x.dtype)
    more = {} if epilogue is None else {"epilogue": epilogue(binder, memory)}
    with pytest.MonkeyPatch.context() as patch:
        if not copied:
            patch.setattr(pool, "_COPIED", 1e-9)
        results = kernel.bind(binder, tensor, **more)
    assert not memory.run(binder, one_by_one=chunks)
    return [memory.read(result).copy() for result in results if result is not None]


def attributes_of(rng: np.random.Generator, rank: int, *, most: int = 4) -> tuple[dict[str, Any], list[int]]:
    """Random attributes of windows, and sizes that they fit into."""
    kernel = [int(one) for one in rng.integers(1, most, rank)]
    dilations = [int(one) for one in rng.integers(1, 4, rank)]
    reach = [(one - 1) * dilation + 1 for one, dilation in zip(kernel, dilations, strict=True)]
    pads = [int(rng.integers(0, one + 1)) for one in reach] + [int(rng.integers(0, one + 1)) for one in reach]
    sizes = [int(rng.integers(max(1, one - 1), one + 9)) for one in reach]
    sizes = [
        max(size, one - pads[axis] - pads[axis + rank])
        for axis, (size, one) in enumerate(zip(sizes, reach, strict=True))
    ]
    found = {
        "kernel_shape": kernel,
        "dilations": dilations,
        "pads": pads,
        "strides": [int(one) for one in rng.integers(1, 4, rank)],
        "ceil_mode": int(rng.integers(0, 2)),
    }
    return found, [max(1, size) for size in sizes]


KINDS: Sequence[tuple[str, dict[str, Any]]] = [
    ("MaxPool", {}),
    ("AveragePool", {"count_include_pad": 0}),
    ("AveragePool", {"count_include_pad": 1}),
    ("LpPool", {"p": 1}),
    ("LpPool", {"p": 2}),
    ("LpPool", {"p": 3}),
]


@pytest.mark.parametrize("by_channels", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pools_are_what_they_mean(variant: str, by_channels: bool) -> None:
    rng = np.random.default_rng(5)
    for turn in range(24):
        rank = 1 + turn % 3
        kind, more = KINDS[turn % len(KINDS)]
        attributes, sizes = attributes_of(rng, rank)
        x = rng.standard_normal((2, int(rng.integers(1, 40)), *sizes)).astype(np.float32)
        op = operator(kind, **attributes, **more)
        with np.errstate(all="ignore"):
            (expected,) = op.run(x.astype(np.float64))
        (found,) = outputs_of(op, x, variant, by_channels=by_channels, chunks=turn % 2 == 0)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6, err_msg=f"{kind} {attributes} {x.shape}")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_dtype_is_pooled(variant: str, dtype: Any) -> None:
    rng = np.random.default_rng(6)
    real = np.dtype(dtype).kind not in "iu"
    for by_channels in (False, True):
        for kind in ("MaxPool", "AveragePool", "LpPool") if real else ("MaxPool",):
            values = rng.standard_normal((2, 70, 9, 30)) if real else rng.integers(-100, 100, (2, 70, 9, 30))
            x = values.astype(dtype)
            op = operator(kind, kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 1])
            (expected,) = op.run(x)
            (found,) = outputs_of(op, x, variant, by_channels=by_channels)
            assert found.dtype == expected.dtype
            steps = 2.0 ** -{2: 7 if dtype is ml_dtypes.bfloat16 else 10, 8: 50}.get(x.itemsize, 50)
            np.testing.assert_allclose(
                found.astype(np.float64), expected.astype(np.float64), rtol=steps, atol=steps / 4
            )


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_maximum_hands_nan_and_infinities_on(variant: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, 20, 12, 33)).astype(np.float32)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        x.reshape(-1)[rng.integers(0, x.size, 100)] = value
    op = operator("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    for by_channels in (False, True):
        np.testing.assert_array_equal(outputs_of(op, x, variant, by_channels=by_channels)[0], op.run(x)[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_nan_is_noticed_wherever_it_is(variant: str) -> None:
    """Each map has NaN in another place; in the last ones there are infinities of both signs instead."""
    x = np.random.default_rng(9).standard_normal((1, 48, 5, 9)).astype(np.float32)
    for channel in range(45):
        x[0, channel].reshape(-1)[channel] = np.nan if channel % 2 else -np.nan
    x[0, 45:, 2, 3], x[0, 45:, 2, 4] = np.inf, -np.inf
    for kernel, stride, by_channels in ((3, 1, True), (2, 2, True), (2, 2, False), (3, 2, False)):
        op = operator("MaxPool", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        np.testing.assert_array_equal(outputs_of(op, x, variant, by_channels=by_channels)[0], op.run(x)[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_combined_in_pairs(variant: str) -> None:
    """Windows two apart, over rows of many vectors, padded at both ends and not."""
    rng = np.random.default_rng(10)
    for kind, kernel, size, pads in (
        ("MaxPool", (3, 3), (21, 75), (1, 1, 1, 1)),
        ("MaxPool", (2, 2), (8, 64), (0, 0, 0, 0)),
        ("AveragePool", (3, 5), (9, 41), (0, 2, 1, 2)),
        ("LpPool", (1, 4), (5, 70), (0, 3, 0, 3)),
        ("MaxPool", (2, 1), (4, 3), (1, 0, 0, 0)),
    ):
        op = operator(kind, kernel_shape=list(kernel), strides=[2, 2], pads=list(pads))
        x = rng.standard_normal((2, 3, *size)).astype(np.float32)
        np.testing.assert_allclose(outputs_of(op, x, variant)[0], op.run(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lines_are_combined_while_they_pass_by(variant: str) -> None:
    """Windows of all sizes over lines of less than a vector up to several strips."""
    rng = np.random.default_rng(15)
    for turn, (size, down, across) in enumerate(itertools.product((7, 32, 33, 64, 130, 300), (1, 3, 9), (1, 2, 5, 9))):
        begin, end, above, below = (int(rng.integers(0, most)) for most in (across, across, down, down))
        if size + begin + end < across:
            continue
        strides = [int(rng.integers(1, 4)), 1 + turn % 2]
        kind = ("MaxPool", "AveragePool")[turn // 2 % 2]
        op = operator(kind, kernel_shape=[down, across], strides=strides, pads=[above, begin, below, end])
        x = rng.standard_normal((1, 3, 11, size)).astype(np.float32)
        if turn % 3 == 0:
            x.reshape(-1)[rng.integers(0, x.size, 3)] = np.nan
        (found,) = outputs_of(op, x, variant, chunks=True)
        np.testing.assert_allclose(found, op.run(x)[0], rtol=1e-5, atol=1e-5, err_msg=f"{kind} {size} {down} {across}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_lines_end_in_shorter_vectors(variant: str) -> None:
    """Windows over lines a little longer than vectors, with and without a NaN in the ends."""
    rng = np.random.default_rng(16)
    for size, (down, across) in itertools.product((17, 20, 23, 24, 34, 36, 40), ((3, 3), (5, 5), (4, 2), (1, 9))):
        begin, end = (int(rng.integers(0, across)) for _ in range(2))
        kind = ("MaxPool", "AveragePool")[size % 2]
        op = operator(kind, kernel_shape=[down, across], pads=[down // 2, begin, 0, end])
        x = rng.standard_normal((1, 2, 6 + size % 2, size)).astype(np.float32)
        x[0, 1, rng.integers(0, 6), -int(rng.integers(1, 6))] = np.nan
        (found,) = outputs_of(op, x, variant, chunks=True)
        np.testing.assert_allclose(found, op.run(x)[0], rtol=1e-5, atol=1e-5, err_msg=f"{kind} {size} {down} {across}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_maxima_are_located(variant: str) -> None:
    rng = np.random.default_rng(8)
    for turn in range(8):
        attributes, sizes = attributes_of(rng, 1 + turn % 3)
        x = rng.integers(-3, 3, (2, 1 + 9 * turn, *sizes)).astype(
            [np.float32, np.int8, np.float16, np.float64][turn % 4]
        )
        if x.dtype == np.float32:
            x.reshape(-1)[rng.integers(0, x.size, 9)] = np.nan
        op = operator("MaxPool", outputs=2, storage_order=turn % 2, **attributes)
        expected = op.run(x)
        found = outputs_of(op, x, variant, by_channels=turn % 3 == 0, chunks=True)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("by_channels", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_epilogue_is_part_of_the_kernel(variant: str, by_channels: bool) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2, 21, 10, 11)).astype(np.float32)
    whole, of_channel = rng.standard_normal((2, 21, 10, 11)), rng.standard_normal((21, 1, 1))
    of_place = rng.standard_normal((10, 1))
    op = operator("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    single = np.dtype(np.float32)
    y, a, b, c = (Input(single, index) for index in range(4))

    def epilogue(binder: Binder, memory: Memory) -> Epilogue:
        operands = [binder.constant(one.astype(np.float32)) for one in (whole, of_channel, of_place)]
        return Epilogue((e.exp(y * b) + a, e.tanh(y) * c), tuple(operands))

    mean = op.run(x.astype(np.float64))[0]
    expected = np.exp(mean * of_channel) + whole, np.tanh(mean) * of_place
    found = outputs_of(op, x, variant, by_channels=by_channels, epilogue=epilogue)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_windows_larger_than_what_is_written_out() -> None:
    rng = np.random.default_rng(10)
    x = rng.standard_normal((1, 35, 3, 150)).astype(np.float32)
    for by_channels in (False, True):
        for width in (17, 32, 64):
            op = operator("AveragePool", kernel_shape=[2, width], strides=[1, 3], pads=[0, 9, 1, 16])
            (found,) = outputs_of(op, x, by_channels=by_channels)
            np.testing.assert_allclose(found, op.run(x.astype(np.float64))[0], rtol=1e-5, atol=1e-6)


def test_long_rows_are_cut() -> None:
    x = np.random.default_rng(11).standard_normal((1, 1, 9001)).astype(np.float32)
    op = operator("MaxPool", kernel_shape=[3], strides=[2], pads=[1, 1])
    (found,) = outputs_of(op, x, chunks=True)
    np.testing.assert_array_equal(found, op.run(x)[0])


def test_an_empty_batch_takes_no_step() -> None:
    op = operator("MaxPool", kernel_shape=[2, 2])
    assert outputs_of(op, np.zeros((0, 3, 4, 4), np.float32))[0].shape == (0, 3, 3, 3)


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than the padded input"):
        outputs_of(operator("MaxPool", kernel_shape=[5, 5]), np.zeros((1, 3, 4, 4), np.float32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_local_responses_are_what_they_mean(variant: str) -> None:
    import sardonyx.ops.normalization  # noqa: F401

    rng = np.random.default_rng(18)
    for turn, shape in enumerate([(2, 7, 5, 6), (1, 40, 3), (1, 1, 4, 4), (2, 33, 2, 2, 2)]):
        x = rng.standard_normal(shape).astype(np.float32)
        op = operator("LRN", size=(3, 4, 5, 1)[turn], beta=(0.75, 0.6, 0.5, 0.75)[turn], alpha=0.3, bias=1.5)
        (expected,) = op.run(x.astype(np.float64))
        for by_channels in (False, True):
            (found,) = outputs_of(op, x, variant, by_channels=by_channels)
            np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)


def test_unpooling_puts_maxima_back() -> None:
    rng = np.random.default_rng(19)
    x = rng.standard_normal((2, 3, 8, 6)).astype(np.float32)
    best, places = operator("MaxPool", outputs=2, kernel_shape=[2, 2], strides=[2, 2]).run(x)
    op = operator("MaxUnpool", kernel_shape=[2, 2], strides=[2, 2])
    lowered = op.lower([best.dtype, places.dtype])
    assert isinstance(lowered, Template)
    cls = find_template(lowered.name)
    assert cls is not None
    kernel = cls(lowered.parameters)
    expected = np.zeros_like(x)
    expected.reshape(-1)[places] = best
    np.testing.assert_array_equal(steps_outputs(kernel, [best, places])[0], expected)
    np.testing.assert_array_equal(op.run(best, places)[0], expected)
    larger = np.array([2, 3, 9, 8])
    (padded,) = steps_outputs(kernel, [best, places, larger], known=(2,))
    np.testing.assert_array_equal(padded, op.run(best, places, larger)[0])
    assert padded.shape == (2, 3, 9, 8)
    wrong = places.copy()
    wrong[1, 2, 3, 2] = x.size
    binder, memory, _ = bind(kernel, [best, wrong])
    assert f"idx={x.size}" in memory.run(binder)[0]
    with pytest.raises(ValueError, match="one shape"):
        bind(kernel, [best, places[:1]])
    with pytest.raises(ValueError, match="must be at least"):
        steps_outputs(kernel, [best, places, np.array([2, 3, 7, 6])], known=(2,))


def test_pools_with_channels_at_the_end() -> None:
    x = np.random.default_rng(20).integers(-99, 99, (2, 7, 8, 21)).astype(np.int8)
    op = operator("NhwcMaxPool", "com.microsoft", kernel_shape=[3, 2], strides=[2, 1])
    np.testing.assert_array_equal(steps_outputs(kernel_of(op, x.dtype), [x])[0], op.run(x)[0])


def test_large_pools_are_cut_into_blocks_and_chunks() -> None:
    x = np.random.default_rng(21).standard_normal((2, 300, 40, 41)).astype(np.float32)
    for attributes in ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, {"kernel_shape": [5, 5]}):
        op = operator("MaxPool", **attributes)
        (expected,) = op.run(x)
        for by_channels in (False, True):
            (found,) = outputs_of(op, x, by_channels=by_channels, chunks=True)
            np.testing.assert_array_equal(found, expected)


def test_small_maps_are_copied_channels_last() -> None:
    x = np.random.default_rng(22).standard_normal((1, 64, 9, 9)).astype(np.float32)
    op = operator("MaxPool", kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    (found,) = outputs_of(op, x, copied=True)
    np.testing.assert_array_equal(found, op.run(x)[0])
