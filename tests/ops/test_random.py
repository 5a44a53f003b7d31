"""Random operators: distributions, seeds, types; Dropout in all its forms."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.runtime import random_state
from tests.ops.one_node import run_node


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("seed", [{}, {"seed": 3.0}])
def test_bernoulli(dtype: type, seed: dict[str, float]) -> None:
    random_state.set_seed(11)
    p = np.linspace(0, 1, 5).astype(dtype).repeat(4000).reshape(5, 4000)
    (y,) = run_node("Bernoulli", [p], **seed)
    assert y.dtype == dtype
    assert set(np.unique(y).tolist()) == {0.0, 1.0}
    np.testing.assert_allclose(y.astype(np.float64).mean(axis=1), p[:, 0].astype(np.float64), atol=0.03)


def test_normal_and_uniform() -> None:
    random_state.set_seed(5)
    (y,) = run_node("RandomNormal", [], shape=[200, 100], mean=2.0, scale=3.0)
    assert y.dtype == np.float32
    assert abs(y.mean() - 2) < 0.1
    assert abs(y.std() - 3) < 0.1
    (y,) = run_node("RandomUniformLike", [np.zeros((200, 100), np.float64)], low=-1.0, high=3.0)
    assert y.dtype == np.float64
    assert y.min() >= -1
    assert y.max() < 3
    assert abs(y.mean() - 1) < 0.05


def test_multinomial() -> None:
    random_state.set_seed(5)
    (y,) = run_node(
        "Multinomial", [np.log(np.array([[0.1, 0.6, 0.3], [1, 1, 2]], np.float32))], sample_size=20000, dtype=7
    )
    assert y.dtype == np.int64
    counts = np.stack([np.bincount(row, minlength=3) for row in y]) / 20000
    np.testing.assert_allclose(counts, [[0.1, 0.6, 0.3], [0.25, 0.25, 0.5]], atol=0.02)


def test_seeds() -> None:
    def draw(**attributes: float) -> list[float]:
        return list(run_node("RandomNormal", [], shape=[4], **attributes)[0].tolist())

    random_state.set_seed(1)
    first, again = draw(), draw()
    random_state.set_seed(2)
    assert first == again
    assert draw() != first
    assert draw(seed=7.0) == draw(seed=7.0)
    assert draw(seed=7.0) != draw(seed=8.0)


def test_stream_goes_on() -> None:
    stream = random_state.Stream("node", 3.0)
    assert stream.uniform((3,)).tolist() != stream.uniform((3,)).tolist()


@pytest.mark.parametrize("opset", [7, 10])
def test_dropout_of_inference(opset: int) -> None:
    x = np.arange(6, dtype=np.float32)
    y, mask = run_node("Dropout", [x], 2, opset=opset)
    np.testing.assert_array_equal(y, x)
    assert mask.dtype == (np.bool_ if opset == 10 else np.float32)
    assert mask.all()


def test_dropout_of_training() -> None:
    x = np.ones((100, 100), np.float32)
    y, mask = run_node("Dropout", [x, np.float32(0.25).reshape(()), np.array(True)], 2, opset=13, seed=4)
    np.testing.assert_allclose(y, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.02


def test_old_dropout_drops_unless_told() -> None:
    x = np.ones(1000, np.float32)
    (y,) = run_node("Dropout", [x], opset=6, is_test=1)
    np.testing.assert_array_equal(y, x)
    (y,) = run_node("Dropout", [x], opset=6, ratio=0.5)
    assert 300 < (y == 0).sum() < 700
