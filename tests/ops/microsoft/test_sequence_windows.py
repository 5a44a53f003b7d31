"""Windows and time warping against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 1), (0, 2, 2), (1, 4, 3), (1, 5, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_unfold(dim: int, size: int, step: int, dtype: type) -> None:
    x = RNG.integers(0, 99, (4, 5, 6)).astype(dtype)
    peer.compare("UnfoldTensor", [x], attributes={"dim": dim, "size": size, "step": step})


def test_slices_longer_than_the_axis_are_refused() -> None:
    with pytest.raises(Exception, match="slices of 7 every 1 do not fit an axis of 6"):
        peer.run("UnfoldTensor", [np.ones((2, 6), np.float32)], attributes={"size": 7})


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (1, 8, 3), (6, 1), (9, 9)])
@pytest.mark.parametrize("ties", [True, False])
def test_time_warping(shape: tuple[int, ...], ties: bool) -> None:
    costs = RNG.integers(0, 3, shape).astype(np.float32) if ties else RNG.standard_normal(shape).astype(np.float32)
    peer.compare("DynamicTimeWarping", [costs], [6])
