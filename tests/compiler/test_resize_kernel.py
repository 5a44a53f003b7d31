"""Resize and Upsample against their meaning in NumPy, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx.compiler.llvm.lookup import has_lookup
from sardonyx.compiler.llvm.target import host_targets
from tests.compiler.layouts import bound, is_channels_last, kernel_of, operator_of, result_of
from tests.compiler.steps import VARIANTS

Array = np.ndarray[Any, Any]

variants = pytest.mark.parametrize("variant", VARIANTS)


def resized(
    x: Array, scales: list[float], variant: str = "", *, last: bool = False, **attributes: Any
) -> tuple[Array, Array]:
    """What the kernel makes of `x`, and what NumPy does."""
    operator = operator_of("Resize", 19, attributes)
    inputs = [x, None, np.array(scales, np.float32)]
    (expected,) = operator.run(*inputs)
    return result_of(kernel_of(operator, inputs), inputs, variant, last=last), expected


def random(shape: tuple[int, ...], dtype: Any) -> Array:
    return (np.random.default_rng(5).standard_normal(shape) * 40 + 100).astype(dtype)


NEAREST = [
    ((2, 3, 7, 9), [1, 1, 2, 2], False),
    ((2, 3, 7, 70), [1, 1, 3, 4], False),
    ((2, 20, 7, 9), [1, 1, 2, 3], True),
    ((1, 3, 7, 50), [1, 1, 1.6, 1.3], False),
    ((1, 33, 17, 10), [1, 1, 0.6, 0.3], True),
    ((2, 3, 5, 6, 7), [1, 1, 2, 1, 2], False),
    ((2, 5, 9), [1, 1, 3], False),
    ((3, 4), [1.5, 2], False),
    ((6,), [2.5], False),
    ((2, 3, 40, 100), [1, 1, 0.4, 0.6], False),
]


@variants
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("shape", "scales", "last"), NEAREST, ids=str)
def test_nearest(shape: tuple[int, ...], scales: list[float], last: bool, dtype: Any, variant: str) -> None:
    found, expected = resized(random(shape, dtype), scales, variant, last=last, mode="nearest")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"],
)
def test_every_mode_of_coordinates(coordinates: str, mode: str, rounding: str) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "mode": mode}
    for scales in ([1, 1, 2.4, 2], [1, 1, 0.7, 0.35], [1, 1, 1, 3]):
        found, expected = resized(random((1, 2, 10, 23), np.float32), scales, **attributes)
        np.testing.assert_allclose(found, expected, rtol=2e-6)


WEIGHTED = [
    ((2, 3, 7, 9), [1, 1, 2, 2], False),
    ((1, 20, 7, 9), [1, 1, 2, 2], True),
    ((1, 3, 9, 70), [1, 1, 1.6, 1.3], False),
    ((1, 3, 17, 50), [1, 1, 0.6, 0.3], False),
    ((2, 3, 5, 6, 7), [1, 1, 2, 1.5, 2], False),
    ((1, 21, 3, 4, 5), [1, 1, 2, 2, 1.5], True),
    ((2, 3, 9), [1, 1, 3], False),
    ((2, 40, 9), [1, 1, 3], True),
    ((2, 3, 7, 9), [1.5, 1, 2, 2], False),
    ((1, 3, 9, 40), [1, 1, 2, 1], False),
    ((5, 4), [1, 1.75], False),
    ((1, 2, 3, 37), [1, 1, 4, 4], False),
    ((1, 2, 5, 1), [1, 1, 2, 2], False),
    ((1, 2, 9, 300), [1, 1, 1.3, 1.5], False),
    ((1, 2, 9, 90), [1, 1, 2, 2], False),
    ((2, 90, 5, 6), [1, 1, 2, 2], True),
    ((1, 40, 3, 7), [1, 1, 4, 4], True),
    ((1, 33, 1, 1), [1, 1, 2, 2], True),
    ((1, 16, 3, 2), [1, 1, 3, 4], True),
    ((2, 3, 40, 100), [1, 1, 0.4, 0.6], False),
]


@variants
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize(("shape", "scales", "last"), WEIGHTED, ids=str)
def test_weighted_sums(
    shape: tuple[int, ...], scales: list[float], last: bool, antialias: int, mode: str, variant: str
) -> None:
    x = random(shape, np.float32)
    found, expected = resized(x, scales, variant, last=last, mode=mode, antialias=antialias)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * float(np.abs(x).max()))


@variants
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-13), (np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3), (np.uint8, 1 / 200), (np.int8, 1 / 100)],
)
def test_types(dtype: Any, tolerance: float, mode: str, variant: str) -> None:
    for shape, last in [((1, 3, 7, 29), False), ((1, 18, 5, 6), True)]:
        x = np.random.default_rng(7).integers(-100 if dtype == np.int8 else 0, 100, shape).astype(dtype)
        found, expected = resized(x, [1, 1, 1.5, 2], variant, last=last, mode=mode, exclude_outside=1)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * 200)


@variants
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(("shape", "scales", "last"), WEIGHTED, ids=str)
def test_antialiased_integers_are_rounded(
    shape: tuple[int, ...], scales: list[float], last: bool, mode: str, dtype: Any, variant: str
) -> None:
    x = np.random.default_rng(6).integers(-100 if dtype != np.uint8 else 0, 100, shape).astype(dtype)
    exact, _ = resized(x.astype(np.float64), scales, variant, last=last, mode=mode, antialias=1)
    limits = np.iinfo(dtype)
    for found in resized(x, scales, variant, last=last, mode=mode, antialias=1):
        # Float32 falls on either side of a half.
        assert np.abs(found - np.clip(exact, limits.min, limits.max)).max() < 0.5001


def test_channels_last_stays_so() -> None:
    x = random((1, 20, 6, 7), np.float32)
    for mode in ("nearest", "linear", "cubic"):
        operator = operator_of("Resize", 19, {"mode": mode})
        inputs = [x, None, np.array([1, 1, 2, 1.5], np.float32)]
        binder, _, result = bound(kernel_of(operator, inputs), inputs, last=True)
        assert is_channels_last(result)
        assert len(binder.steps) == 1


def test_nothing_to_do_is_a_view() -> None:
    operator = operator_of("Resize", 19, {"mode": "linear"})
    inputs = [random((1, 2, 3, 4), np.float32), None, np.ones(4, np.float32)]
    assert not bound(kernel_of(operator, inputs), inputs)[0].steps


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops_are_filled_outside(mode: str) -> None:
    x = random((1, 2, 5, 6), np.float32)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode, "extrapolation_value": -7.0}
    operator = operator_of("Resize", 19, {**attributes, "axes": (2, 3)})
    for roi in ([-0.5, 0.2, 1.4, 0.8], [1.3, 0.9, -0.2, 0.1]):
        inputs = [x, np.array(roi, np.float32), None, np.array([9, 8])]
        (expected,) = operator.run(*inputs)
        found = result_of(kernel_of(operator, inputs), inputs)
        np.testing.assert_allclose(found, expected, rtol=2e-6)
        assert (found == -7).any()


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_and_policies(policy: str) -> None:
    operator = operator_of("Resize", 19, {"keep_aspect_ratio_policy": policy, "axes": (3, 2), "mode": "linear"})
    inputs = [random((1, 2, 12, 8), np.float32), None, None, np.array([17, 13])]
    (expected,) = operator.run(*inputs)
    np.testing.assert_allclose(result_of(kernel_of(operator, inputs), inputs), expected, rtol=2e-6)


def test_nan_and_infinity_stay_in_their_neighbourhood() -> None:
    x = random((1, 1, 6, 40), np.float32)
    x[0, 0, 2, 5], x[0, 0, 4, 30] = np.nan, np.inf
    found, expected = resized(x, [1, 1, 2, 2], mode="linear")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    assert 0 < np.isnan(found).sum() < 80


def test_empty_tensors() -> None:
    found, expected = resized(random((0, 3, 4, 5), np.float32), [1, 1, 2, 2], mode="linear")
    assert found.shape == expected.shape == (0, 3, 8, 10)
    operator = operator_of("Resize", 19, {})
    inputs = [random((1, 0, 5), np.float32), None, None, np.array([1, 2, 5])]
    with pytest.raises(ValueError, match="it has no elements"):
        bound(kernel_of(operator, inputs), inputs)
    with pytest.raises(ValueError, match="needs either scales or sizes"):
        bound(kernel_of(operator, inputs[:1]), inputs[:1])


def test_old_operators() -> None:
    x = random((1, 2, 5, 6), np.float32)
    scales = np.array([1, 1, 2, 3], np.float32)
    for name, version, inputs, attributes in [
        ("Upsample", 7, [x], {"scales": (1.0, 1.0, 2.0, 3.0), "mode": "linear"}),
        ("Upsample", 9, [x, scales], {"mode": "nearest"}),
        ("Resize", 10, [x, scales], {"mode": "linear"}),
    ]:
        operator = operator_of(name, version, attributes)
        (expected,) = operator.run(*inputs)
        np.testing.assert_allclose(result_of(kernel_of(operator, inputs), inputs), expected, rtol=2e-6)


def model_of(scales_are_known: bool) -> bytes:
    """A resize to twice the size, by scales that are a constant or an input."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "c", "h", "w"])]
    constants = [helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, 2, 2])]
    if not scales_are_known:
        inputs.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]))
        constants = []
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def test_scales_may_come_as_data() -> None:
    x = random((1, 2, 5, 40), np.float32)
    fixed, given = (ort.InferenceSession(model_of(known)) for known in (True, False))
    assert [step.kind for step in fixed._sess._plan.steps] == ["segment"]
    operator = operator_of("Resize", 19, {"mode": "linear"})
    for scales in ([1, 1, 2, 2], [1, 1, 3, 1.5], [1, 1, 2, 2]):
        (expected,) = operator.run(x, None, np.array(scales, np.float32))
        (found,) = given.run(None, {"x": x, "s": np.array(scales, np.float32)})
        np.testing.assert_allclose(found, expected, rtol=2e-6)
        if scales[2] == 2:
            np.testing.assert_allclose(fixed.run(None, {"x": x})[0], expected, rtol=2e-6)


def test_lookups_are_for_machines_that_have_them() -> None:
    targets = host_targets()
    assert not has_lookup(targets["portable"]) if "portable" in targets else True
    assert all(has_lookup(target) for name, target in targets.items() if name.startswith("avx"))


@pytest.mark.parametrize("seed", range(8))
def test_random_scales(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(12):
        rank = int(rng.integers(1, 6))
        shape = tuple(rng.integers(1, 20, rank).tolist())
        mode = str(rng.choice(["nearest", "linear", "cubic"]))
        attributes = {"mode": mode, "exclude_outside": int(rng.integers(2))}
        if mode != "nearest":
            attributes["antialias"] = int(rng.integers(2))
        scales = rng.choice([0.4, 1, 1, 1.25, 2, 3, 4], rank).tolist()
        last = rank > 2 and bool(rng.integers(2))
        found, expected = resized(random(shape, np.float32), scales, last=last, **attributes)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=0 if mode == "nearest" else 3e-3)
