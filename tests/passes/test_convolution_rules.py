"""What goes into a convolution: factors and addends of its filters, and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(31)
N = helper.make_node
X = {"x": RNG.standard_normal((2, 3, 9, 8)).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", 3, "h", "w"]}
CONSTANTS = {
    "w": RNG.standard_normal((5, 3, 3, 2)).astype(np.float32),
    "b": RNG.standard_normal(5).astype(np.float32),
    "each": RNG.standard_normal((5, 1, 1)).astype(np.float32),
    "with batch": RNG.standard_normal((1, 5, 1, 1)).astype(np.float32),
    "one": np.array(1.5, np.float32),
    "by column": RNG.standard_normal(7).astype(np.float32),
    "more axes": RNG.standard_normal((1, 1, 5, 1, 1)).astype(np.float32),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
    "pads of channels": np.array([0, 1, 0, 0, 0, 0, 0, 0]),
    "cuts": np.array([0, 0, -1, 0, 0, 0, 0, 0]),
    "pads of axes": np.array([1, 2, 3, 0]),
    "axes": np.array([-1, 2]),
    "nothing": np.array(0, np.float32),
    "something": np.array(2, np.float32),
}


def model(*nodes: Any, opset: int = 17) -> Any:
    used = {name for node in nodes for name in node.input}
    return make_model(nodes, SHAPE, ["y"], {name: CONSTANTS[name] for name in CONSTANTS if name in used}, opset=opset)


@pytest.mark.parametrize("bias", [["b"], []], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", ["Mul", "Add"])
@pytest.mark.parametrize("operand", ["each", "with batch", "one"])
def test_a_number_for_each_filter_goes_in(bias: list[str], kind: str, operand: str) -> None:
    before = model(N("Conv", ["x", "w", *bias], ["c"], strides=[2, 1]), N(kind, [operand, "c"], ["y"]))
    after, _ = rewritten(before)
    assert operators(after) == ["Conv"]
    assert_agrees(before, after, X)


def test_a_factor_and_then_an_addend_go_in() -> None:
    nodes = N("Conv", ["x", "w"], ["c"]), N("Mul", ["c", "each"], ["m"]), N("Add", ["m", "with batch"], ["y"])
    before = model(*nodes)
    after, _ = rewritten(before)
    assert operators(after) == ["Conv"]
    assert_agrees(before, after, X)


@pytest.mark.parametrize("operand", ["by column", "more axes"])
def test_other_operands_stay(operand: str) -> None:
    before = model(N("Conv", ["x", "w"], ["c"]), N("Mul", ["c", operand], ["y"]))
    after, reports = rewritten(before)
    assert operators(after) == ["Conv", "Mul"]
    assert "not one number for each filter" in str(reports["ConvMulFusion"].declined)
    assert_agrees(before, after, X)


def test_a_convolution_that_others_read_stays() -> None:
    before = model(
        N("Conv", ["x", "w"], ["c"]),
        N("Mul", ["c", "each"], ["m"]),
        N("Relu", ["c"], ["r"]),
        N("Sub", ["m", "r"], ["y"]),
    )
    after, _ = rewritten(before)
    assert operators(after).count("Mul") == 1
    assert_agrees(before, after, X)


PADDED = [
    (["x", "pads"], {}, {}, 17),
    (["x", "pads", "nothing"], {"mode": "constant"}, {"pads": [1, 0, 0, 1]}, 17),
    (["x", "pads of axes", "", "axes"], {}, {"auto_pad": "VALID"}, 18),
    (["x"], {"pads": [0, 0, 1, 0, 0, 0, 2, 1]}, {"dilations": [2, 1]}, 10),
]


@pytest.mark.parametrize(("inputs", "pad", "convolution", "opset"), PADDED)
def test_zeros_become_pads(inputs: list[str], pad: dict[str, Any], convolution: dict[str, Any], opset: int) -> None:
    before = model(N("Pad", inputs, ["p"], **pad), N("Conv", ["p", "w", "b"], ["y"], **convolution), opset=opset)
    after, _ = rewritten(before)
    assert operators(after) == ["Conv"]
    assert_agrees(before, after, X)


KEPT = [
    (["x", "pads", "something"], {}, {}, "something other than zeros"),
    (["x", "pads"], {"mode": "edge"}, {}, "something other than zeros"),
    (["x", "pads"], {}, {"auto_pad": "SAME_UPPER"}, "chooses its own pads"),
    (["x", "cuts"], {}, {}, "cuts something off"),
]


@pytest.mark.parametrize(("inputs", "pad", "convolution", "reason"), KEPT)
def test_other_padding_stays(inputs: list[str], pad: dict[str, Any], convolution: dict[str, Any], reason: str) -> None:
    before = model(N("Pad", inputs, ["p"], **pad), N("Conv", ["p", "w"], ["y"], **convolution))
    after, reports = rewritten(before)
    assert operators(after) == ["Pad", "Conv"]
    assert reason in str(reports["Pad_Fusion"].declined)
    assert_agrees(before, after, X)


def test_padding_of_channels_stays() -> None:
    narrow = {"x": X["x"][:, :2]}
    nodes = N("Pad", ["x", "pads of channels"], ["p"]), N("Conv", ["p", "w"], ["y"])
    before = make_model(nodes, {"x": ["n", 2, "h", "w"]}, ["y"], {n: CONSTANTS[n] for n in ("w", "pads of channels")})
    after, reports = rewritten(before)
    assert operators(after) == ["Pad", "Conv"]
    assert "the batch or the channels" in str(reports["Pad_Fusion"].declined)
    assert_agrees(before, after, narrow)
