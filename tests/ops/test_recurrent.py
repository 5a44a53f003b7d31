"""Recurrent layers against onnxruntime over random attributes, and in their batch-first layout."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.single_node import assert_same, ours, theirs

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _inputs(rng: np.random.Generator, op: str, directions: int) -> list[np.ndarray | None]:
    steps, batch, width, hidden = 5, 3, 4, 6
    gates = GATES[op]

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(-0.8, 0.8, shape).astype(np.float32)

    inputs: list[np.ndarray | None] = [
        draw(steps, batch, width),
        draw(directions, gates * hidden, width),
        draw(directions, gates * hidden, hidden),
        draw(directions, 2 * gates * hidden) if rng.random() < 0.7 else None,
        np.array([5, 2, 4], np.int32) if rng.random() < 0.5 else None,
        draw(directions, batch, hidden) if rng.random() < 0.5 else None,
    ]
    if op == "LSTM":
        inputs += [draw(directions, batch, hidden), draw(directions, 3 * hidden) if rng.random() < 0.5 else None]
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layers_agree_with_onnxruntime(op: str, direction: str) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(len(op) + len(direction))
    directions = 2 if direction == "bidirectional" else 1
    for _ in range(8):
        attributes = {"hidden_size": 6, "direction": direction}
        if op == "GRU":
            attributes["linear_before_reset"] = int(rng.integers(0, 2))
        if op != "RNN" and rng.random() < 0.4:
            count = (3 if op == "LSTM" else 2) * directions
            attributes["activations"] = [str(name) for name in rng.choice(["Sigmoid", "Tanh", "Relu"], count)]
        inputs = _inputs(rng, op, directions)
        outputs = 3 if op == "LSTM" else 2
        expected = theirs(op, *inputs, opset=22, outputs=outputs, **attributes)
        assert_same(ours(op, *inputs, opset=22, outputs=outputs, **attributes), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("op", sorted(GATES))
def test_the_batch_may_come_first(op: str) -> None:
    rng = np.random.default_rng(3)
    x, w, r = (value for value in _inputs(rng, op, 2)[:3])
    assert x is not None
    attributes = {"hidden_size": 6, "direction": "bidirectional"}
    y, last = ours(op, x, w, r, opset=22, outputs=2, **attributes)
    first, final = ours(op, x.swapaxes(0, 1).copy(), w, r, opset=22, outputs=2, layout=1, **attributes)
    np.testing.assert_array_equal(first, y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(final, last.swapaxes(0, 1))


def test_an_unknown_activation_is_named() -> None:
    inputs = _inputs(np.random.default_rng(4), "RNN", 1)[:3]
    with pytest.raises(Exception, match="unknown activation 'Sine'"):
        ours("RNN", *inputs, hidden_size=6, activations=["Sine"])


@pytest.mark.parametrize("op", sorted(GATES))
def test_another_hidden_size_than_that_of_the_weights_is_named(op: str) -> None:
    inputs = _inputs(np.random.default_rng(5), op, 1)[:3]
    message = rf"{op} node.*R must have shape \(1, {7 * GATES[op]}, 7\) .*7 units \(hidden_size\).* not \(1, "
    with pytest.raises(Exception, match=message):
        ours(op, *inputs, hidden_size=7)
