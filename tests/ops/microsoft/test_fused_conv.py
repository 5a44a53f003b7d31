"""FusedConv against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(6)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", None),
        ("Sigmoid", None),
        ("Tanh", None),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 1.0]),
        ("HardSigmoid", [0.3, 0.4]),
        ("HardSwish", None),
    ],
)
@pytest.mark.parametrize("residual", [True, False])
def test_activations(activation: str, parameters: list[float] | None, residual: bool) -> None:
    attributes = {"activation": activation, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if parameters:
        attributes["activation_params"] = parameters
    given = [normal(2, 3, 6, 5), normal(4, 3, 3, 3), normal(4), normal(2, 4, 6, 5) if residual else None]
    peer.compare("FusedConv", given, attributes=attributes)


@pytest.mark.parametrize(
    "attributes", [{"group": 4, "strides": [2, 2]}, {"dilations": [2, 2]}, {"auto_pad": "SAME_UPPER"}]
)
def test_windows(attributes: dict[str, object]) -> None:
    depth = 4 // int(attributes.get("group", 1))  # type: ignore[call-overload]
    peer.compare(
        "FusedConv", [normal(1, 4, 9, 8), normal(8, depth, 3, 3)], attributes={"activation": "Relu", **attributes}
    )
