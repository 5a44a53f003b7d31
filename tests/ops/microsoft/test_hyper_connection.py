"""Hyper-connections against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("gates", [(3,), (3, 1), (3, 5)])
@pytest.mark.parametrize("flat", [True, False])
def test_pre_mix(gates: tuple[int, ...], flat: bool) -> None:
    x = normal(2, 4, 15) if flat else normal(2, 4, 3, 5)
    attributes = {"reduction_scale": 0.5, **({"num_branches": 3} if flat else {})}
    peer.compare("HyperConnectionPreMix", [x, normal(2, 4, *gates)], attributes=attributes)


@pytest.mark.parametrize("gates", [(3,), (3, 1), (3, 5)])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("mix", [True, False])
def test_post_mix(gates: tuple[int, ...], flat: bool, mix: bool) -> None:
    x = normal(2, 4, 15) if flat else normal(2, 4, 3, 5)
    given = [x, normal(2, 4, 5), normal(2, 4, *gates), normal(2, 4, 3, 3) if mix else None]
    peer.compare("HyperConnectionPostMix", given, attributes={"num_branches": 3} if flat else {})


def test_gates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Exception, match="do not fit streams"):
        peer.run("HyperConnectionPreMix", [normal(2, 3, 5), normal(2, 4)])
