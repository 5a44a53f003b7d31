"""Random shapes and attributes: broadcasting, Conv, pools and reductions against float64 of NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from tests.ops.single_node import ours

bounded = settings(max_examples=40, derandomize=True, deadline=None)


def real(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(np.float32)


@bounded
@given(
    mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4),
    st.sampled_from([("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)]),
)
def test_broadcasting(shapes: Any, operation: Any) -> None:
    (op_type, function), (first, second) = operation, shapes.input_shapes
    a, b = real(1, *first), real(2, *second)
    (found,) = ours(op_type, a, b)
    expected = function(a.astype(np.float64), b.astype(np.float64))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@bounded
@given(st.data())
def test_reductions(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    keep = data.draw(st.booleans())
    op_type, function = data.draw(
        st.sampled_from(
            [("ReduceSum", np.sum), ("ReduceMean", np.mean), ("ReduceMax", np.max), ("ReduceProd", np.prod)]
        )
    )
    x = real(3, *shape)
    (found,) = ours(op_type, x, np.array(sorted(axes)), keepdims=int(keep))
    expected = function(x.astype(np.float64), axis=tuple(axes), keepdims=keep)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@bounded
@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_convolutions(groups: int, depth: int, kernel: int, stride: int, pad: int, dilation: int) -> None:
    torch = pytest.importorskip("torch")
    x, w = real(4, 2, groups * depth, 8, 7), real(5, 2 * groups, depth, kernel, kernel)
    (found,) = ours("Conv", x, w, group=groups, strides=[stride] * 2, pads=[pad] * 4, dilations=[dilation] * 2)
    wide = [torch.from_numpy(value.astype(np.float64)) for value in (x, w)]
    expected = torch.nn.functional.conv2d(*wide, None, stride, pad, dilation, groups).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@bounded
@given(
    st.integers(2, 4), st.integers(1, 3), st.integers(0, 1), st.booleans(), st.sampled_from(["MaxPool", "AveragePool"])
)
def test_pools(kernel: int, stride: int, pad: int, ceil: bool, op_type: str) -> None:
    torch = pytest.importorskip("torch")
    x = real(6, 2, 3, 9, 8)
    extra = {"count_include_pad": 1} if op_type == "AveragePool" else {}
    (found,) = ours(
        op_type, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=int(ceil), **extra
    )
    wide, pools = torch.from_numpy(x.astype(np.float64)), torch.nn.functional
    pool = pools.avg_pool2d if op_type == "AveragePool" else pools.max_pool2d
    expected = pool(wide, kernel, stride, pad, ceil_mode=ceil).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)
