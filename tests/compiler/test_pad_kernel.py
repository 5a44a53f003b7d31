"""Pad and CenterCropPad against NumPy, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.native.movement.pad import CenterCropPad, Pad
from tests.compiler.layouts import bound, is_channels_last
from tests.compiler.steps import VARIANTS, bind, outputs_of

Array = np.ndarray[Any, Any]


def padded(data: Array, pads: list[int], mode: str, value: Any = 0) -> Array:
    """NumPy's pad, after cutting what negative pads cut."""
    rank = data.ndim
    both = list(zip(pads[:rank], pads[rank:], strict=True))
    cut = data[tuple(slice(max(-b, 0), size - max(-a, 0)) for size, (b, a) in zip(data.shape, both, strict=True))]
    widths = [(max(b, 0), max(a, 0)) for b, a in both]
    return np.pad(cut, widths, mode, constant_values=value) if mode == "constant" else np.pad(cut, widths, mode)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((5,), [2, 3]),
        ((5,), [0, 0]),
        ((7, 9), [1, 0, 0, 4]),
        ((7, 9), [-2, 1, 3, -3]),
        ((2, 3, 8, 40), [0, 0, 1, 1, 0, 0, 1, 1]),
        ((2, 3, 8, 40), [1, 2, 3, 7, 0, 1, 2, 5]),
    ],
)
def test_pad(shape: tuple[int, ...], pads: list[int], mode: str, dtype: Any, variant: str) -> None:
    data = np.random.default_rng(2).integers(0, 100, shape).astype(dtype)
    if mode == "reflect" and any(pad > size - 1 for pad, size in zip(pads, shape + shape, strict=True)):
        with pytest.raises(ValueError, match="mode reflect cannot pad"):
            bind(Pad({"mode": mode}), [data, np.array(pads)], known=[1])
        return
    value = np.array(7, dtype) if mode == "constant" else None
    inputs = [data, np.array(pads), value]
    (found,) = outputs_of(Pad({"mode": mode}), inputs, variant, known=[1], one_by_one=True)
    np.testing.assert_array_equal(found, padded(data, pads, mode, 7))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_channels_last_stays_so(mode: str) -> None:
    data = np.arange(2 * 20 * 6 * 8, dtype=np.float32).reshape(2, 20, 6, 8)
    pads = np.array([0, 0, 2, 1, 0, 0, 1, 3])
    binder, memory, result = bound(Pad({"mode": mode}), [data, pads], last=True)
    assert is_channels_last(result)
    memory.run(binder)
    np.testing.assert_array_equal(memory.read(result), padded(data, pads.tolist(), mode))


@pytest.mark.parametrize("pads", [[12, 13], [5, 10], [1, 0]])
def test_wrap_goes_around_more_than_once(pads: list[int]) -> None:
    data = np.arange(5, dtype=np.float32)
    (found,) = outputs_of(Pad({"mode": "wrap"}), [data, np.array(pads)], known=[1])
    np.testing.assert_array_equal(found, np.take(data, np.arange(-pads[0], 5 + pads[1]) % 5))


def test_axes_and_old_attributes() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    inputs = [data, np.array([1, 2]), None, np.array([-1])]
    (found,) = outputs_of(Pad({"mode": "constant"}), inputs, known=[1, 3])
    np.testing.assert_array_equal(found, np.pad(data, [(0, 0), (1, 2)]))
    old = Pad({"mode": "constant", "pads": (0, 1, 2, 0), "value": 2.5})
    (found,) = outputs_of(old, [data])
    np.testing.assert_array_equal(found, np.pad(data, [(0, 2), (1, 0)], constant_values=2.5))


def test_cutting_alone_is_a_view() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    binder, memory, (result,) = bind(Pad({"mode": "edge"}), [data, np.array([0, -1, -1, 0])], known=[1])
    assert not binder.steps
    assert result is not None
    np.testing.assert_array_equal(memory.read(result), data[:2, 1:])


def test_nothing_inside_a_frame() -> None:
    data = np.zeros((0, 2), np.float32)
    value = np.array([3], np.float32)
    (found,) = outputs_of(Pad({"mode": "constant"}), [data, np.array([1, 1, 1, 0]), value], known=[1])
    np.testing.assert_array_equal(found, np.full((2, 3), 3, np.float32))
    with pytest.raises(ValueError, match="cannot pad axis 0 of size 0"):
        bind(Pad({"mode": "edge"}), [data, np.array([1, 1, 1, 0])], known=[1])
    with pytest.raises(ValueError, match="leave nothing of axis 1"):
        bind(Pad({"mode": "edge"}), [data, np.array([0, -1, 0, -2])], known=[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [(3, 9), (8, 4), (5, 6), (0, 3)])
def test_center_crop_pad(sizes: tuple[int, int], variant: str) -> None:
    data = np.arange(1, 61, dtype=np.float32).reshape(5, 6, 2)
    (found,) = outputs_of(CenterCropPad({"axes": (0, 1)}), [data, np.array(sizes)], variant, known=[1])
    expected = np.zeros((*sizes, 2), np.float32)
    source, target = [], []
    for have, want in zip((5, 6), sizes, strict=True):
        kept = min(have, want)
        source.append(slice((have - kept) // 2, (have - kept) // 2 + kept))
        target.append(slice((want - kept) // 2, (want - kept) // 2 + kept))
    expected[tuple(target)] = data[tuple(source)]
    np.testing.assert_array_equal(found, expected)
