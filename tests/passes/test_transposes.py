"""Transposes: merged, cancelled, unfolded from reshapes and sunk through elementwise operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(12)
N = helper.make_node
X = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", 3, "m"]}


def test_a_transpose_that_moves_nothing_goes() -> None:
    nodes = [N("Transpose", ["x"], ["t"], perm=[0, 1, 2]), N("Relu", ["t"], ["y"])]
    model = make_model(nodes, SHAPE, ["y"])
    after, _ = rewritten(model)
    assert operators(after) == ["Relu"]
    assert_agrees(model, after, X)


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ([0, 2, 1], [0, 2, 1], []),
        ([1, 2, 0], [1, 2, 0], ["Transpose"]),
        (None, None, []),
        ([2, 0, 1], None, ["Transpose"]),
    ],
)
def test_a_transpose_of_a_transpose_is_one_or_none(
    first: list[int] | None, second: list[int] | None, left: list[str]
) -> None:
    nodes = [
        N("Transpose", ["x"], ["a"], **({"perm": first} if first else {})),
        N("Transpose", ["a"], ["b"], **({"perm": second} if second else {})),
        N("Relu", ["b"], ["y"]),
    ]
    model = make_model(nodes, SHAPE, ["y"])
    after, reports = rewritten(model)
    assert operators(after) == [*left, "Relu"]
    assert reports["TransposeChainFusion"].changes == 1
    assert_agrees(model, after, X)


def test_a_transpose_with_other_readers_stays_for_them() -> None:
    nodes = [
        N("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        N("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        N("Relu", ["b"], ["y"]),
        N("Neg", ["a"], ["z"]),
    ]
    model = make_model(nodes, SHAPE, ["y", "z"])
    after, _ = rewritten(model)
    assert sorted(operators(after)) == ["Neg", "Relu", "Transpose"]
    assert_agrees(model, after, X)


def _batched() -> list[onnx.NodeProto]:
    return [
        N("Reshape", ["x", "flat"], ["a"]),
        N("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        N("Reshape", ["b", "back"], ["c"]),
        N("Relu", ["c"], ["y"]),
    ]


def test_a_transpose_of_a_batch_needs_no_reshapes() -> None:
    constants = {"flat": np.array([-1, 3, 4]), "back": np.array([-1, 5, 4, 3])}
    model = make_model(_batched(), {"x": ["n", 5, 3, 4]}, ["y"], constants)
    after, reports = rewritten(model)
    assert operators(after) == ["Transpose", "Relu"]
    assert reports["BatchedTransposeFusion"].changes == 1
    assert list(after.graph.node[0].attribute[0].ints) == [0, 1, 3, 2]
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 5, 3, 4)).astype(np.float32)})


@pytest.mark.parametrize(
    ("flat", "back", "reason"),
    [
        ([-1, 4, 3], [-1, 5, 4, 3], "does not keep the last two"),
        ([-1, 3, 4], [-1, 4, 5, 3], "does not bring back"),
    ],
)
def test_reshapes_that_mix_axes_stay(flat: list[int], back: list[int], reason: str) -> None:
    model = make_model(_batched(), {"x": ["n", 5, 3, 4]}, ["y"], {"flat": np.array(flat), "back": np.array(back)})
    after, reports = rewritten(model)
    assert operators(after) == ["Reshape", "Transpose", "Reshape", "Relu"]
    assert any(reason in text for text in reports["BatchedTransposeFusion"].declined)
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 5, 3, 4)).astype(np.float32)})


def test_transposes_around_an_elementwise_operator_cancel() -> None:
    for middle in (
        [N("Sigmoid", ["a"], ["b"])],
        [N("Mul", ["a", "two"], ["b"])],
        [N("Div", ["two", "a"], ["b"])],
        [N("Clip", ["a", "low", "two"], ["b"])],
    ):
        nodes = [
            N("Transpose", ["x"], ["a"], perm=[2, 0, 1]),
            *middle,
            N("Transpose", ["b"], ["c"], perm=[1, 2, 0]),
            N("Relu", ["c"], ["y"]),
        ]
        constants = {"two": np.array(2, np.float32), "low": np.array(0, np.float32)}
        model = make_model(nodes, SHAPE, ["y"], constants)
        after, reports = rewritten(model)
        assert operators(after) == [middle[0].op_type, "Relu"]
        assert reports["TransposeOptimizer"].changes == 1
        assert_agrees(model, after, X)


def test_two_operands_transposed_alike_cancel() -> None:
    nodes = [
        N("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        N("Transpose", ["z"], ["b"], perm=[0, 2, 1]),
        N("Add", ["a", "b"], ["s"]),
        N("Transpose", ["s"], ["y"], perm=[0, 2, 1]),
    ]
    model = make_model(nodes, {**SHAPE, "z": ["n", 3, "m"]}, ["y"])
    after, _ = rewritten(model)
    assert operators(after) == ["Add"]
    assert_agrees(model, after, {**X, "z": X["x"] * 2})


@pytest.mark.parametrize(
    ("second", "outer", "constant", "reason"),
    [
        ([0, 2, 1], [1, 0, 2], None, "do not cancel"),
        ([1, 0, 2], [0, 2, 1], None, "transposed differently"),
        (None, [0, 2, 1], np.ones((3,), np.float32), "not one number"),
    ],
)
def test_orders_that_do_not_cancel_stay(
    second: list[int] | None, outer: list[int], constant: np.ndarray | None, reason: str
) -> None:
    nodes = [N("Transpose", ["x"], ["a"], perm=[0, 2, 1])]
    if second:
        nodes.append(N("Transpose", ["z"], ["b"], perm=second))
    nodes += [N("Add", ["a", "b"], ["s"]), N("Transpose", ["s"], ["y"], perm=outer)]
    inputs: dict[str, list[int | str]] = {name: [3, 3, 3] for name in ("xz" if second else "x")}
    model = make_model(nodes, inputs, ["y"], {} if constant is None else {"b": constant})
    after, reports = rewritten(model)
    assert operators(after).count("Transpose") == (3 if second else 2)
    assert any(reason in text for text in reports["TransposeOptimizer"].declined)
    assert_agrees(model, after, {name: RNG.standard_normal((3, 3, 3)).astype(np.float32) for name in inputs})


W = {"w": RNG.standard_normal((3, 3, 1, 1)).astype(np.float32), "six": np.array(6, np.float32)}
MAP: dict[str, list[int | str]] = {"x": ["n", 3, "h", "v"]}
LAST = [0, 2, 3, 1]


def _feeds() -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)}


@pytest.mark.parametrize(
    "middle",
    [
        [N("Relu", ["t"], ["y"])],
        [N("Clip", ["t", "", "six"], ["y"])],
        [N("Sub", ["six", "t"], ["y"])],
        [N("Neg", ["t"], ["s"]), N("Sigmoid", ["s"], ["y"])],
    ],
)
def test_what_follows_a_convolution_elementwise_is_transposed_after_it(middle: list[onnx.NodeProto]) -> None:
    nodes = [N("Conv", ["x", "w"], ["c"]), N("Transpose", ["c"], ["t"], perm=LAST), *middle]
    model = make_model(nodes, MAP, ["y"], W)
    after, reports = rewritten(model)
    assert operators(after) == ["Conv", *(node.op_type for node in middle), "Transpose"]
    assert reports["TransposeDelay"].changes == len(middle)
    assert_agrees(model, after, _feeds())


@pytest.mark.parametrize("transposed", [True, False])
def test_what_follows_a_convolution_elementwise_is_reshaped_after_it(transposed: bool) -> None:
    sizes = np.array([0, 1, 3, -1])
    turn = [N("Transpose", ["r"], ["t"], perm=[0, 1, 3, 2])] if transposed else []
    nodes = [N("Conv", ["x", "w"], ["c"]), N("Reshape", ["c", "sizes"], ["r"]), *turn]
    model = make_model([*nodes, N("Sigmoid", ["t" if transposed else "r"], ["y"])], MAP, ["y"], {**W, "sizes": sizes})
    after, reports = rewritten(model)
    assert operators(after) == ["Conv", "Sigmoid", "Reshape", *(node.op_type for node in turn)]
    assert reports["ViewDelay"].changes == 1
    assert_agrees(model, after, _feeds())


@pytest.mark.parametrize("shared", ["c", "r"])
def test_views_that_others_read_stay_before_what_is_elementwise(shared: str) -> None:
    nodes = [N("Conv", ["x", "w"], ["c"]), N("Reshape", ["c", "sizes"], ["r"]), N("Sigmoid", ["r"], ["y"])]
    model = make_model(
        [*nodes, N("ReduceSum", [shared], ["z"])], MAP, ["y", "z"], {**W, "sizes": np.array([0, 1, 3, -1])}
    )
    after, reports = rewritten(model)
    assert reports["ViewDelay"].changes == (0 if shared == "r" else 1)
    assert_agrees(model, after, _feeds())


@pytest.mark.parametrize("kind", ["Add", "Sub"])
@pytest.mark.parametrize("turned", [False, True])
def test_residuals_that_others_read_lose_their_transposes(kind: str, turned: bool) -> None:
    """As exports for channels-last layouts have them: every convolution between two transposes."""
    one, two = ["t", "u"][:: -1 if turned else 1], ["a", "v"][:: -1 if turned else 1]
    nodes = [
        N("Conv", ["x", "w"], ["c"]),
        N("Transpose", ["c"], ["t"], perm=LAST),
        N("Conv", ["c", "w"], ["d"]),
        N("Transpose", ["d"], ["u"], perm=LAST),
        N(kind, one, ["a"]),
        N("Transpose", ["a"], ["e"], perm=[0, 3, 1, 2]),
        N("Conv", ["e", "w"], ["f"]),
        N("Transpose", ["f"], ["v"], perm=LAST),
        N(kind, two, ["b"]),
        N("Transpose", ["b"], ["g"], perm=[0, 3, 1, 2]),
        N("Relu", ["g"], ["y"]),
    ]
    model = make_model(nodes, MAP, ["y"], W)
    after, _ = rewritten(model)
    assert operators(after) == ["Conv", "Conv", kind, "Conv", kind, "Relu"]
    assert_agrees(model, after, _feeds())


def test_transposes_stay_before_what_no_convolution_makes_or_lies_otherwise() -> None:
    plain = make_model([N("Transpose", ["x"], ["t"], perm=LAST), N("Relu", ["t"], ["y"])], MAP, ["y"])
    assert operators(rewritten(plain)[0]) == ["Transpose", "Relu"]
    nodes = [
        N("Conv", ["x", "w"], ["c"]),
        N("Transpose", ["c"], ["t"], perm=LAST),
        N("Transpose", ["z"], ["u"], perm=[1, 2, 3, 0]),
        N("Add", ["t", "u"], ["y"]),
    ]
    model = make_model(nodes, {"x": [3, 3, 3, 3], "z": [3, 3, 3, 3]}, ["y"], W)
    after, reports = rewritten(model)
    assert operators(after) == [node.op_type for node in nodes]
    assert any("transposed differently" in text for text in reports["TransposeDelay"].declined)
    constant = make_model([*nodes[:2], N("Mul", ["t", "k"], ["y"])], MAP, ["y"], {**W, "k": np.ones(3, np.float32)})
    after, reports = rewritten(constant)
    assert operators(after) == ["Conv", "Transpose", "Mul"]
    assert any("not one number" in text for text in reports["TransposeDelay"].declined)
