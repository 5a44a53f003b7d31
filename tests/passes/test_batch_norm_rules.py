"""Normalisation with constant statistics that no convolution takes in: a product and a sum of each channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(12)


def _normalisation(shape: Sequence[int | str]) -> onnx.ModelProto:
    constants = {name: np.abs(RNG.standard_normal(6)).astype(np.float32) + 0.1 for name in ("s", "b", "m", "v")}
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["c"], axis=1),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], epsilon=1e-3),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return make_model(nodes, {"x": shape}, ["y"], constants)


@pytest.mark.parametrize("shape", [["n", 3, "h", "w"], ["n", 3, 7], ["n", 3]])
def test_batch_normalization_is_a_product_and_a_sum(shape: Sequence[int | str]) -> None:
    model = _normalisation(shape)
    after, reports = rewritten(model)
    assert operators(after) == ["Concat", "Mul", "Add", "Relu"]
    assert reports["BatchNormToMulAdd"].changes == 1
    feeds = {"x": RNG.standard_normal([2, 3, 7, 5][: len(shape)]).astype(np.float32)}
    assert_agrees(model, after, feeds)


def test_batch_normalization_of_unknown_channels_stays() -> None:
    after, reports = rewritten(_normalisation(["n", "c", 4]))
    assert operators(after) == ["Concat", "BatchNormalization", "Relu"]
    assert any("channels is not known" in reason for reason in reports["BatchNormToMulAdd"].declined)


def test_batch_normalization_with_stored_factors_is_a_product_and_a_sum() -> None:
    """As quantisation tools write it: the factors are integers behind a DequantizeLinear, as vectors."""
    model = _normalisation(["n", 3, 7])
    for name, step in (("s", 0.03), ("b", 0.02)):
        (index,) = (i for i, one in enumerate(model.graph.initializer) if one.name == name)
        del model.graph.initializer[index]
        numbers = {f"{name}q": np.arange(40, 46, dtype=np.uint8), f"{name}s": np.float32(step), f"{name}z": np.uint8(9)}
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in numbers.items())
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", [*numbers], [name]))
    after, reports = rewritten(model)
    assert operators(after) == ["Concat", "Mul", "Add", "Relu"]
    assert reports["DequantizedVectorFolding"].changes == 2
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 3, 7)).astype(np.float32)})
