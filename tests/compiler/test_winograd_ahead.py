"""What Winograd's kernel asks for ahead of time: which pixels, when, and that results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.convolution.winograd import WinogradSpec, argument_names
from sardonyx.compiler.llvm.kernels.convolution.winograd_ahead import Requests, Squares
from sardonyx.compiler.llvm.kernels.convolution.winograd_transforms import SCHEMES
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.types import F32, I64, PTR
from sardonyx.compiler.native.convolution import winograd
from sardonyx.compiler.native.convolution.winograd_choice import cut_of
from tests.compiler.machines import HostVisit, load
from tests.compiler.steps import Memory, new_binder
from tests.compiler.test_winograd import bound, call_of, channels_last, correlated, tensors


def test_rows_of_squares_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks what is asked for: rows of tiles, in order, and nothing behind the last tile."""
    library = new_binder().library
    height, width, channels = 7, 12, 16  # a pixel is a line of a cache

    def mark(pointer: Pointer, index: Any = 0, *, level: int = 3) -> None:
        place = pointer.offset(index)
        place.store(place.load() + 1.0)

    monkeypatch.setattr(Pointer, "prefetch", mark)
    k = Function(KERNEL, library.target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    image = k.pointer(words.load(0), F32)

    def corner(tile: Value) -> Pointer:
        return image.offset(tile // 3 * (3 * width * channels)).offset(tile % 3 * (4 * channels))

    row, pixel = k.constant(I64, width * channels), k.constant(I64, channels)
    squares = Squares(corner, F32, 2, 3, row, pixel, k.constant(I64, 4 * channels))
    requests = Requests(k, squares, k.constant(I64, 1), k.constant(I64, 5))
    with k.loop(0, words.load(1)):
        requests.ask(words.load(2))
    function = load(library, k.finish())

    every = np.zeros((height, width))
    places = [(tile // 3 * 3 + line, tile % 3 * 4) for tile in range(1, 5) for line in range(2)]
    for turns, rows in [(0, 3), (4, 0), (1, 3), (2, 3), (3, 3), (9, 1)]:
        found = np.zeros((height, width, channels), np.float32)
        given = np.array([found.ctypes.data, turns, rows], np.int64)
        HostVisit().call(function, given, 0, 1, np.zeros(64, np.uint8))
        expected = every.copy()
        for y, x in places[: turns * rows]:
            expected[y, x : x + 3] += 1
        np.testing.assert_array_equal(found.sum(axis=-1), expected)


@pytest.mark.parametrize("scheme", [SCHEMES[1, 4], SCHEMES[2, 4]], ids=["stride 1", "stride 2"])
def test_images_beyond_the_second_cache_are_asked_for(scheme: Any) -> None:
    """Two images with a residual, in blocks that do not divide the lines of tiles."""
    channels, filters = 16, 40

    def bind(side: int) -> tuple[Binder, Memory, Any, dict[str, Any]]:
        binder, memory = new_binder(), Memory()
        x, w = tensors((2, channels, side, side), filters)
        call = call_of(channels_last(memory, binder, x), binder.constant(w), None, (1, 1, 1, 1), scheme.stride)
        cut = cut_of(binder.target, winograd.sizes_of(call), scheme, 13)
        (y,) = winograd.bind_cut(binder, call, scheme, cut)
        step = binder.steps[-1]
        spec = WinogradSpec(scheme.stride, scheme.outputs)
        given = dict(zip(argument_names(spec), step.arguments, strict=False))
        return binder, memory, (x, w, y), given

    near = bind(8)[-1]
    assert near["x_ahead"] == near["y_ahead"] == 0
    l2 = new_binder().target.caches.l2
    side = int((1.1 * l2 * scheme.stride**2 / (4 * channels * 2)) ** 0.5)
    binder, memory, (x, w, y), far = bind(side)
    turns = scheme.points * far["group"]
    assert (far["x_ahead"] - 1) * turns < scheme.size * far["tile_block"] <= far["x_ahead"] * turns
    assert far["y_ahead"] * scheme.points >= scheme.outputs * far["tile_block"]
    memory.run(binder)
    expected = correlated(x, w, (1, 1, 1, 1), scheme.stride)
    assert np.abs(memory.read(y) - expected).max() <= bound(scheme) * np.abs(expected).max()
