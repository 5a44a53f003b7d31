"""SwiGLU at every level: equal shapes against float64, others refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ops.levels import assert_refused, assert_results, sessions
from tests.ops.one_node import model_of

RNG = np.random.default_rng(12)
UNEQUAL = [((2, 3), (1, 3)), ((2, 3), (2, 1)), ((1, 1), (2, 3)), ((2, 3), (3,)), ((2, 3), ()), ((1, 2, 3), (2, 3))]


def feeds_of(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {name: np.asarray(3 * RNG.standard_normal(shape), dtype) for name, shape in zip("xz", shapes, strict=True)}


def swiglu(feeds: dict[str, np.ndarray], shapes: dict[str, list[str]] | None = None) -> onnx.ModelProto:
    node = helper.make_node("SwiGLU", ["x", "z"], ["y"], alpha=0.5)
    model = model_of([node], feeds, ["y"], opset=28, shapes=shapes)
    model.ir_version = 14
    return model


def named(feeds: dict[str, np.ndarray], *, alike: bool = False) -> dict[str, list[str]]:
    """Names for all sizes: of their own for each input, or the same for both."""
    return {name: [f"{'' if alike else name}d{axis}" for axis in range(array.ndim)] for name, array in feeds.items()}


def product(feeds: dict[str, np.ndarray]) -> np.ndarray:
    x, z = (feeds[name].astype(np.float64) for name in "xz")
    result: np.ndarray = (x / (1 + np.exp(-0.5 * x)) * z).astype(feeds["x"].dtype)
    return result


@pytest.mark.parametrize("shapes", UNEQUAL)
def test_unequal_shapes_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    feeds = feeds_of(shapes)
    for declared in (None, named(feeds)):
        assert_refused(swiglu(feeds, declared), feeds, "SwiGLU needs inputs of one shape")


def test_names_of_sizes_are_no_promise() -> None:
    feeds = feeds_of(((2, 3), (1, 3)))
    assert_refused(swiglu(feeds, named(feeds, alike=True)), feeds, "SwiGLU needs inputs of one shape")


def test_a_refused_run_leaves_the_session_as_it_was() -> None:
    right, wrong = feeds_of(((2, 3), (2, 3))), feeds_of(((2, 3), (1, 3)))
    for label, session in sessions(swiglu(right, named(right))):
        for _ in range(3):
            np.testing.assert_allclose(session.run(None, right)[0], product(right), rtol=1e-5, err_msg=label)
            with pytest.raises(Exception, match="SwiGLU needs inputs of one shape"):
                session.run(None, wrong)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (np.float32, 1e-6), (np.float64, 1e-12)])
@pytest.mark.parametrize("declared", ["numbers", "own names", "same names"])
def test_equal_shapes(dtype: type, tolerance: float, declared: str) -> None:
    given = [feeds_of((shape, shape), dtype) for shape in ((2, 3), (0, 3), (5, 70))]
    given = given[:1] if declared == "numbers" else given
    names = None if declared == "numbers" else named(given[0], alike=declared == "same names")
    assert_results(swiglu(given[0], names), given, [[product(feeds)] for feeds in given], tolerance)


def test_two_halves_of_one_product() -> None:
    """As projections give them: names of sizes that inference has made."""
    x, weight = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 10)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["both"]),
        helper.make_node("Split", ["both"], ["gate", "value"], axis=-1, num_outputs=2),
        helper.make_node("SwiGLU", ["gate", "value"], ["y"], alpha=0.5),
    ]
    model = model_of(nodes, {"x": x}, ["y"], opset=28, shapes={"x": ["n", 4]}, constants={"w": weight})
    model.ir_version = 14
    both = x.astype(np.float64) @ weight
    assert_results(model, [{"x": x}], [[product({"x": both[:, :5], "z": both[:, 5:]}).astype(np.float32)]])
