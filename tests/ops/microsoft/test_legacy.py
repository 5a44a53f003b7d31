"""Old copies of ONNX's operators against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(1)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -2, 0, 1, 9])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_trilu(upper: int, k: int | None, shape: tuple[int, ...], dtype: type) -> None:
    x = (normal(*shape) * 10).astype(dtype)
    peer.compare("Trilu", [x, None if k is None else np.array(k, np.int64)], 1, {"upper": upper})


@pytest.mark.parametrize("x", [[2, 1, 1, 3, 4, 3], [], [5, 5, 5]])
def test_unique(x: list[float]) -> None:
    peer.compare("Unique", [np.array(x, np.float32)], [1, 7, 7])


@pytest.mark.parametrize(("start", "limit", "delta"), [(1, 9, 2), (9, 1, -3), (1, 9, None), (5, 5, 1), (5, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_range(start: int, limit: int, delta: int | None, dtype: type, shape: tuple[int, ...]) -> None:
    given = [None if value is None else np.full(shape, value, dtype) for value in (start, limit, delta)]
    peer.compare("Range", given, 1)
    peer.compare("Range", given, 1, constants=[0, 1, 2])


def test_a_range_without_steps_is_an_error() -> None:
    with pytest.raises(Exception, match="'delta' must not be 0"):
        peer.run("Range", [np.array(value, np.float32) for value in (1, 2, 0)], 1)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[0, 1, 2, 0, 2, 1], [1, 0, 0, 1, 0, 0]])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("value", [None, 2.5])
@pytest.mark.parametrize("constants", [[], [1]])
def test_pad(mode: str, pads: list[int], flat: bool, value: float | None, constants: list[int]) -> None:
    around = np.array(pads, np.int64) if flat else np.array([pads], np.int64)
    fill = None if value is None else np.array([value], np.float32)
    peer.compare("Pad", [normal(3, 4, 5), around, fill], 1, {"mode": mode}, constants=constants)


def test_negative_pads_crop() -> None:
    peer.compare("Pad", [normal(3, 4, 5), np.array([0, -1, 1, 0, -2, -3], np.int64)], 1)


@pytest.mark.parametrize(("data", "indices"), [((2, 3, 4), (5, 2)), ((2, 3, 4), (2, 5, 3)), ((4,), (3, 1))])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_nd(data: tuple[int, ...], indices: tuple[int, ...], dtype: type) -> None:
    limits = np.array(data[: indices[-1]])
    places = RNG.integers(-limits, limits, indices).astype(dtype)
    peer.compare("GatherND", [normal(*data), places], 1)


def test_gather_nd_names_an_index_out_of_range() -> None:
    with pytest.raises(Exception, match="leaves axis 0 of 'data'"):
        peer.run("GatherND", [normal(3), np.array([[3]])], 1)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("constants", [[], [1]])
def test_expand_dims(axis: int, constants: list[int]) -> None:
    peer.compare("ExpandDims", [normal(3, 4), np.array(axis, np.int32)], 1, constants=constants)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3)])
def test_inverse(dtype: type, shape: tuple[int, ...]) -> None:
    x = (normal(*shape) / 2 + 3 * np.eye(shape[-1])).astype(dtype)
    peer.compare(
        "Inverse", [x], 1, rtol=2e-2 if dtype == np.float16 else 1e-4, atol=2e-3 if dtype == np.float16 else 1e-5
    )


@pytest.mark.parametrize(
    ("values", "attributes", "expected"),
    [
        ([1, 2], {}, True),
        ([np.nan, 2], {}, False),
        ([np.inf, 2], {}, False),
        ([np.nan, 2], {"isinf_only": 1}, True),
        ([-np.inf, 2], {"isinf_only": 1}, False),
        ([np.inf, 2], {"isnan_only": 1}, True),
    ],
)
def test_is_all_finite(values: list[float], attributes: dict[str, Any], expected: bool) -> None:
    given = [np.ones(3, np.float32), np.array(values, np.float32)]
    (found,) = peer.run("IsAllFinite", given, [9], attributes)
    assert found.shape == ()
    assert bool(found) is expected


def test_sample_op() -> None:
    peer.compare("SampleOp", [normal(2, 3)])
