"""Group normalisation against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def expected(x: np.ndarray, groups: int, gamma: np.ndarray, beta: np.ndarray, silu: int) -> np.ndarray:
    torch = pytest.importorskip("torch")
    y = torch.nn.functional.group_norm(
        torch.from_numpy(x.astype(np.float64)),
        groups,
        torch.from_numpy(gamma.astype(np.float64)),
        torch.from_numpy(beta.astype(np.float64)),
        1e-5,
    )
    return (torch.nn.functional.silu(y) if silu else y).numpy()


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norm(silu: int, channels_last: int) -> None:
    x, gamma, beta = normal(2, 8, 3, 5), normal(8), normal(8)
    given = np.moveaxis(x, 1, -1) if channels_last else x
    (found,) = peer.run(
        "GroupNorm", [given, gamma, beta], attributes={"groups": 4, "activation": silu, "channels_last": channels_last}
    )
    exact = expected(x, 4, gamma, beta, silu)
    np.testing.assert_allclose(found, np.moveaxis(exact, 1, -1) if channels_last else exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("skip", ["full", "channels", "flat"])
@pytest.mark.parametrize("bias", [True, False])
def test_skip_group_norm(skip: str, bias: bool) -> None:
    x, gamma, beta, added = normal(2, 3, 5, 8), normal(8), normal(8), normal(8) if bias else None
    other = normal(*{"full": (2, 3, 5, 8), "channels": (2, 1, 1, 8), "flat": (2, 8)}[skip])
    found, total = peer.run(
        "SkipGroupNorm", [x, gamma, beta, other, added], 2, attributes={"groups": 2, "activation": 0}
    )
    exact = x + (other.reshape(2, 1, 1, 8) if skip == "flat" else other) + (added if bias else 0)
    np.testing.assert_allclose(total, exact, rtol=1e-6, atol=1e-6)
    normed = expected(np.moveaxis(exact, -1, 1), 2, gamma, beta, 0)
    np.testing.assert_allclose(found, np.moveaxis(normed, 1, -1), rtol=1e-4, atol=1e-5)


def test_groups_must_divide_the_channels() -> None:
    with pytest.raises(Exception, match="8 channels are not divisible by 3 groups"):
        peer.run("GroupNorm", [normal(1, 2, 2, 8), normal(8), normal(8)], attributes={"groups": 3, "activation": 0})
