"""BiasSoftmax against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(1)


@pytest.mark.parametrize(("axis", "bias"), [(3, (2, 1, 1, 6)), (3, (5, 6)), (2, (2, 3, 5, 6)), (-1, (1, 1, 5, 6))])
def test_bias_softmax(axis: int, bias: tuple[int, ...]) -> None:
    data, mask = RNG.standard_normal((2, 3, 5, 6)), RNG.standard_normal(bias)
    (found,) = peer.run(
        "BiasSoftmax",
        [data.astype(np.float32), mask.astype(np.float32)],
        attributes={"axis": axis, "is_inner_broadcast": int(bias[0] == 2)},
    )
    flat = np.exp((data + mask).reshape(*data.shape[: axis % 4], -1))
    exact = (flat / flat.sum(-1, keepdims=True)).reshape(data.shape)
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_a_bias_larger_than_the_data_is_refused() -> None:
    with pytest.raises(Exception, match="does not broadcast to 'data'"):
        peer.run(
            "BiasSoftmax",
            [np.ones((1, 4), np.float32), np.ones((3, 4), np.float32)],
            attributes={"is_inner_broadcast": 0},
        )
