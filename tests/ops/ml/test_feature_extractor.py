"""ArrayFeatureExtractor at every level: indices from both ends, and those of no feature."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ops.levels import assert_refused, sessions
from tests.ops.one_node import model_of


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("data", ["numbers", "text"])
@pytest.mark.parametrize(
    ("indices", "wanted"), [([0, 2], [0, 2]), ([-1], [2]), ([-3, 1], [0, 1]), ([], []), ([[1, -1]], [1, 2])]
)
def test_features_are_counted_from_both_ends(indices: list[int], wanted: list[int], data: str, known: bool) -> None:
    x = np.array([["a", "b", "c"], ["d", "e", "f"]], object) if data == "text" else np.arange(6, dtype=np.float32)
    x = x.reshape(2, 3)
    model, feeds = extractor(x, np.array(indices, np.int64), known=known)
    for label, session in sessions(model):
        np.testing.assert_array_equal(session.run(None, feeds)[0], x[:, wanted], err_msg=label)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("index", [-4, 3, 2**62])
def test_a_feature_that_is_not_there_is_an_invalid_argument(index: int, known: bool) -> None:
    model, feeds = extractor(np.zeros((2, 3), np.float32), np.array([index]), known=known)
    words = f"idx={index} must be within the inclusive range [-3,2]"
    assert_refused(model, feeds, words)


def extractor(x: np.ndarray, indices: np.ndarray, *, known: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model that picks features by indices that it holds (`known`) or is given, and what it is given."""
    feeds = {"x": x} | ({} if known else {"i": indices})
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    constants = {"i": indices} if known else None
    return model_of([node], feeds, ["y"], opset=17, constants=constants, domains={"ai.onnx.ml": 3}), feeds
