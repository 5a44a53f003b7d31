"""AttnLSTM against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

STEPS, BATCH, SIZE, HIDDEN, DEPTH, ATTENTION, MEMORY = 5, 3, 4, 3, 6, 2, 7


def inputs(directions: int, layer: int, optional: bool, lengths: bool) -> list[Any]:
    """`layer` is the width of the attention layer, 0 for none."""
    generator = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) * 0.6).astype(np.float32)

    return [
        normal(STEPS, BATCH, SIZE),
        normal(directions, 4 * HIDDEN, SIZE + (layer or DEPTH)),
        normal(directions, 4 * HIDDEN, HIDDEN),
        normal(directions, 8 * HIDDEN) if optional else None,
        np.array([4, 2, 3], np.int32) if lengths else None,
        normal(directions, BATCH, HIDDEN) if optional else None,
        normal(directions, BATCH, HIDDEN) if optional else None,
        normal(directions, 3 * HIDDEN) if optional else None,
        normal(directions, HIDDEN, ATTENTION),
        normal(directions, DEPTH, ATTENTION),
        normal(directions, ATTENTION),
        normal(BATCH, MEMORY, DEPTH),
        np.array([7, 3, 1], np.int32) if lengths else None,
        normal(directions, DEPTH + HIDDEN, layer) if layer else None,
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"clip": 0.3, "input_forget": 1},
        {"activations": ["HardSigmoid", "Relu", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]},
    ],
)
def test_against_onnxruntime(
    direction: str, layer: int, optional: bool, lengths: bool, attributes: dict[str, Any]
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    lists = {key: value * directions if isinstance(value, list) else value for key, value in attributes.items()}
    given = inputs(directions, layer, optional, lengths)
    found = peer.compare("AttnLSTM", given, [1, 1, 1], {"direction": direction, "hidden_size": HIDDEN, **lists})
    assert found[0].shape == (STEPS, directions, BATCH, HIDDEN)


def test_double_is_computed_in_double() -> None:
    given = inputs(1, 5, optional=True, lengths=True)
    single = peer.run("AttnLSTM", given, [1, 1, 1], {"hidden_size": HIDDEN})
    wide = [array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array for array in given]
    double = peer.run("AttnLSTM", wide, [11, 11, 11], {"hidden_size": HIDDEN})
    peer.check([array.astype(np.float32) for array in double], single, 1e-5, 1e-6)
    assert double[0].dtype == np.float64


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (8, None, "input 'QW' is needed"),
        (12, np.array([7, 0, 1], np.int32), "'memory_seq_lens' must be 3 numbers from 1 to 7"),
        (1, np.zeros((1, 12, 9), np.float32), "input 'W' must have 4 \\+ 6 columns"),
    ],
)
def test_wrong_inputs_are_refused(index: int, value: Any, message: str) -> None:
    given = inputs(1, 0, optional=False, lengths=True)
    given[index] = value
    with pytest.raises(Exception, match=message):
        peer.run("AttnLSTM", given, [1], {"hidden_size": HIDDEN})
