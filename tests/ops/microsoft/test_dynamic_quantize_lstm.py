"""DynamicQuantizeLSTM against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.exact_integers import narrow
from tests.ops.microsoft import peer

STEPS, BATCH, SIZE, HIDDEN = 5, 3, 6, 4


def inputs(dtype: type, directions: int, per_channel: bool, optional: bool) -> list[Any]:
    generator = np.random.default_rng(1)
    columns = 4 * HIDDEN

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    def scales() -> np.ndarray:
        shape = (directions, columns) if per_channel else (directions,)
        return (generator.random(shape) * 0.01 + 0.005).astype(np.float32)

    zero = np.zeros((directions, columns) if per_channel else (directions,), dtype)
    zero += 0 if dtype == np.int8 else 128
    return [
        normal(STEPS, BATCH, SIZE),
        narrow(generator, dtype, directions, SIZE, columns),
        narrow(generator, dtype, directions, HIDDEN, columns),
        normal(directions, 2 * columns) if optional else None,
        np.array([5, 2, 4], np.int32) if optional else None,
        normal(directions, BATCH, HIDDEN) if optional else None,
        normal(directions, BATCH, HIDDEN) if optional else None,
        normal(directions, 3 * HIDDEN) if optional else None,
        scales(),
        zero,
        scales(),
        zero,
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("optional", [True, False])
def test_against_onnxruntime(dtype: type, direction: str, per_channel: bool, optional: bool) -> None:
    given = inputs(dtype, 2 if direction == "bidirectional" else 1, per_channel, optional)
    # A state that rounds to another of 256 steps changes what follows by about a hundredth of the gates' range.
    peer.compare(
        "DynamicQuantizeLSTM",
        given,
        [1, 1, 1],
        {"direction": direction, "hidden_size": HIDDEN},
        constants=[1, 2, 8, 9, 10, 11],
        atol=2e-2,
        rtol=2e-2,
    )


def test_clip_and_coupled_gates() -> None:
    given = inputs(np.int8, 1, False, False)
    peer.compare(
        "DynamicQuantizeLSTM",
        given,
        [1, 1, 1],
        {"hidden_size": HIDDEN, "clip": 0.5, "input_forget": 1},
        constants=[1, 2, 8, 9, 10, 11],
        atol=2e-2,
        rtol=2e-2,
    )


def test_an_unknown_direction_is_named() -> None:
    with pytest.raises(Exception, match="direction must be forward"):
        peer.run("DynamicQuantizeLSTM", inputs(np.int8, 1, False, False), [1], {"direction": "up", "hidden_size": 4})
