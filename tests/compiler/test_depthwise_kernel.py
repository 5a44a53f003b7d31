"""Convolutions in groups of few channels, in both layouts and on every instruction set, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.convolution import depthwise
from sardonyx.compiler.native.convolution.convolution import convolve
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.convolution.depthwise import DEPTHWISE
from sardonyx.compiler.native.windows import window_tiles
from sardonyx.kernel import expr as e
from sardonyx.kernel.expr import Input
from sardonyx.ops.convolution import correlate
from sardonyx.ops.windows import WindowAttributes
from tests.compiler.steps import VARIANTS, Memory, new_binder
from tests.compiler.test_window_kernels import attributes_of, placed

Array = np.ndarray[Any, Any]


def outputs_of(
    x: Array,
    w: Array,
    bias: Array | None,
    attributes: WindowAttributes,
    group: int,
    variant: str,
    *,
    by_channels: bool,
    constant: bool = True,
    copied: bool = False,
    epilogue: Any = None,
) -> list[Array] | None:
    """What the algorithm gives; None where it cannot do it."""
    binder, memory = new_binder(variant), Memory()
    tensor = placed(binder, memory, x, by_channels=by_channels)
    weights = binder.constant(w) if constant else binder.external(1, w.dtype, w.shape)
    if not constant:
        memory.put(weights, w)
    bias_ = None if bias is None else binder.constant(bias)
    product = {2: "f16", 4: "f32", 8: "f64"}[x.itemsize]
    call = ConvolutionCall(
        tensor,
        weights,
        bias_,
        attributes.windows(x.shape[2:]),
        group,
        None if epilogue is None else epilogue(binder),
        product,
    )
    with pytest.MonkeyPatch.context() as patch:
        if not copied:
            patch.setattr(depthwise, "_COPIED", 1e-9)  # an input that lies in rows is taken as it lies
        if DEPTHWISE.predict(binder, call) is None:
            return None
        results = DEPTHWISE.bind(binder, call)
    assert not memory.run(binder, one_by_one=True)
    assert all(result.shape == call.result_shape for result in results)
    return [memory.read(result).copy() for result in results]


def windows_of(found: dict[str, Any]) -> WindowAttributes:
    return WindowAttributes.of(found["kernel_shape"], found["strides"], found["dilations"], found["pads"], "NOTSET")


def reference(x: Array, w: Array, bias: Array | None, attributes: WindowAttributes, group: int) -> Array:
    y = correlate(x.astype(np.float64), w.astype(np.float64), attributes.windows(x.shape[2:]), group)
    return y if bias is None else y + bias.reshape(-1, *(1,) * (x.ndim - 2))


@pytest.mark.parametrize("by_channels", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_correlation(variant: str, by_channels: bool) -> None:
    rng = np.random.default_rng(12)
    done = 0
    for turn in range(24):
        found, sizes = attributes_of(rng, 1 + turn % 3)
        channels, filters = ((1, 1), (1, 1), (1, 2), (2, 1), (4, 4), (3, 5), (2, 4), (1, 3))[turn % 8]
        group = int(rng.integers(1, 40))
        x = rng.standard_normal((2, group * channels, *sizes)).astype(np.float32)
        w = rng.standard_normal((group * filters, channels, *found["kernel_shape"])).astype(np.float32)
        bias = rng.standard_normal(len(w)).astype(np.float32) if turn % 2 else None
        attributes = windows_of(found)
        given = outputs_of(x, w, bias, attributes, group, variant, by_channels=by_channels, constant=turn % 5 != 0)
        if given is not None:
            done += 1
            np.testing.assert_allclose(given[0], reference(x, w, bias, attributes, group), rtol=1e-5, atol=1e-5)
    assert done >= 15


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_floats_are_rounded_once(variant: str, dtype: Any) -> None:
    rng = np.random.default_rng(13)
    x, w = rng.standard_normal((1, 37, 9, 10)).astype(dtype), rng.standard_normal((37, 1, 3, 3)).astype(dtype)
    attributes = WindowAttributes.of((3, 3), None, None, (1, 1, 1, 1), "NOTSET")
    bits = {np.float16: 11, ml_dtypes.bfloat16: 8, np.float64: 44}[dtype]
    expected = reference(x, w, None, attributes, 37)
    for by_channels in (False, True):
        for constant in (False, True):
            given = outputs_of(x, w, None, attributes, 37, variant, by_channels=by_channels, constant=constant)
            assert given is not None
            np.testing.assert_allclose(given[0].astype(np.float64), expected, rtol=2.0**-bits, atol=2.0**-bits / 8)


@pytest.mark.parametrize("by_channels", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_epilogue_is_part_of_the_kernel(variant: str, by_channels: bool) -> None:
    rng = np.random.default_rng(14)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 24, 9, 21), (24, 1, 5, 5)))
    bias, scale, residual = (rng.standard_normal(shape).astype(np.float32) for shape in (24, (2, 24, 1, 1), (9, 21)))
    attributes = WindowAttributes.of((5, 5), None, None, (2, 2, 2, 2), "NOTSET")
    single = np.dtype(np.float32)
    y, a, b = (Input(single, index) for index in range(3))

    def epilogue(binder: Binder) -> Epilogue:
        silu = y / (1 + e.exp(-y))
        return Epilogue((silu * a, e.maximum(y + b, 0)), (binder.constant(scale), binder.constant(residual)))

    given = outputs_of(x, w, bias, attributes, 24, variant, by_channels=by_channels, epilogue=epilogue)
    assert given is not None
    plain = reference(x, w, bias, attributes, 24)
    np.testing.assert_allclose(given[0], plain / (1 + np.exp(-plain)) * scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given[1], np.maximum(plain + residual, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_single_groups_of_few_filters(variant: str) -> None:
    rng = np.random.default_rng(16)
    attributes = WindowAttributes.of((2, 3), None, None, (0, 1, 1, 1), "NOTSET")
    for group, channels, filters in ((1, 2, 1), (1, 1, 2), (3, 2, 1), (3, 1, 2), (1, 4, 4), (5, 2, 2)):
        x = rng.standard_normal((2, group * channels, 5, 6)).astype(np.float32)
        w = rng.standard_normal((group * filters, channels, 2, 3)).astype(np.float32)
        given = outputs_of(x, w, None, attributes, group, variant, by_channels=True)
        assert given is not None
        np.testing.assert_allclose(given[0], reference(x, w, None, attributes, group), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_in_tiles(variant: str, dtype: Any) -> None:
    """Groups that share a vector, fill one, or several; vectors of two groups; odd lines, strides, dilations, pads."""
    rng = np.random.default_rng(20)
    bits = {np.float16: 10, np.float32: 17, np.float64: 44}[dtype]
    for group, channels, filters, size, stride, dilation, pads in (
        (9, 4, 4, (9, 11), (1, 1), (1, 1), (1, 1, 1, 1)),
        (5, 8, 8, (12, 9), (2, 2), (1, 1), (1, 1, 1, 1)),
        (3, 16, 16, (7, 7), (1, 1), (1, 2), (2, 2, 1, 0)),
        (5, 24, 24, (10, 12), (1, 2), (1, 1), (0, 2, 2, 1)),
        (2, 5, 12, (11, 10), (1, 1), (2, 1), (1, 1, 1, 1)),
        (2, 12, 40, (5, 3), (2, 1), (1, 1), (2, 2, 2, 2)),
        (7, 2, 1, (9, 9), (1, 1), (1, 1), (1, 1, 1, 1)),
    ):
        x = rng.standard_normal((2, group * channels, *size)).astype(dtype)
        w = rng.standard_normal((group * filters, channels, 3, 3)).astype(dtype)
        bias = rng.standard_normal(len(w)).astype(dtype)
        attributes = WindowAttributes.of((3, 3), stride, dilation, pads, "NOTSET")
        given = outputs_of(x, w, bias, attributes, group, variant, by_channels=True)
        assert given is not None
        expected = reference(x, w, bias, attributes, group)
        np.testing.assert_allclose(
            given[0].astype(np.float64), expected, rtol=2.0**-bits, atol=2.0**-bits * np.abs(expected).max()
        )


def test_places_that_share_a_set_of_the_cache_are_copied_apart() -> None:
    rng = np.random.default_rng(21)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1024, 5, 14), (1024, 16, 3, 3)))
    attributes = WindowAttributes.of((3, 3), (2, 2), None, (1, 1, 1, 1), "NOTSET")
    given = outputs_of(x, w, None, attributes, 64, "", by_channels=True)
    assert given is not None
    np.testing.assert_allclose(given[0], reference(x, w, None, attributes, 64), rtol=1e-5, atol=5e-5)


def test_long_kernels_go_in_turns() -> None:
    rng = np.random.default_rng(15)
    for width in (17, 31, 128):
        x, w = (
            rng.standard_normal((1, 40, 90)).astype(np.float32),
            rng.standard_normal((40, 1, width)).astype(np.float32),
        )
        half = width // 2
        attributes = WindowAttributes.of((width,), None, None, (half, half), "NOTSET")
        for by_channels in (False, True):
            given = outputs_of(x, w, None, attributes, 40, "", by_channels=by_channels)
            assert given is not None
            np.testing.assert_allclose(given[0], reference(x, w, None, attributes, 40), rtol=1e-5, atol=2e-5)


def test_padding_is_zero_times_the_weight() -> None:
    x, w = np.ones((1, 16, 4, 4), np.float32), np.ones((16, 1, 3, 3), np.float32)
    x[0, :, 2, 2] = np.inf
    attributes = WindowAttributes.of((3, 3), None, None, (1, 1, 1, 1), "NOTSET")
    for by_channels in (False, True):
        given = outputs_of(x, w, None, attributes, 16, "", by_channels=by_channels)
        assert given is not None
        np.testing.assert_array_equal(given[0], reference(x, w, None, attributes, 16))


def test_small_maps_are_copied_channels_last() -> None:
    rng = np.random.default_rng(17)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 64, 7, 7), (64, 1, 7, 7)))
    attributes = WindowAttributes.of((7, 7), None, None, (3, 3, 3, 3), "NOTSET")
    given = outputs_of(x, w, None, attributes, 64, "", by_channels=False, copied=True)
    assert given is not None
    np.testing.assert_allclose(given[0], reference(x, w, None, attributes, 64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [200, 512, 531])
def test_many_channels_are_done_in_blocks(channels: int) -> None:
    """512 channels lie a power of two apart, so that the input is copied with room between its places."""
    rng = np.random.default_rng(channels)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, channels, 9, 30), (channels, 1, 5, 5)))
    attributes = WindowAttributes.of((5, 5), None, None, (2, 2, 2, 2), "NOTSET")
    given = outputs_of(x, w, None, attributes, channels, "", by_channels=True)
    assert given is not None
    np.testing.assert_allclose(given[0], reference(x, w, None, attributes, channels), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_of_several_lines_and_strips_of_wide_maps(variant: str) -> None:
    """Maps of one tile and of many, odd numbers of lines, bands, columns in the padding, the last channels."""
    rng = np.random.default_rng(18)
    for channels, size, kernel, stride, dilation, pads in (
        (1, (7, 7), (3, 3), 1, 1, (1, 1, 1, 1)),
        (21, (7, 6), (5, 5), 1, 1, (2, 2, 2, 2)),
        (21, (15, 15), (3, 3), 2, 1, (1, 1, 1, 1)),
        (21, (14, 16), (5, 5), 2, 1, (1, 1, 2, 2)),
        (21, (33, 37), (3, 3), 1, 1, (1, 1, 1, 1)),
        (21, (41, 59), (3, 3), 2, 1, (0, 1, 1, 0)),
        (21, (12, 40), (3, 3), 1, 3, (3, 3, 3, 3)),
        (21, (9, 19), (2, 4), 3, 1, (1, 0, 0, 3)),
        (21, (5, 3), (3, 3), 1, 1, (2, 2, 2, 2)),
    ):
        x = rng.standard_normal((2, channels, *size)).astype(np.float32)
        w = rng.standard_normal((channels, 1, *kernel)).astype(np.float32)
        bias = rng.standard_normal(channels).astype(np.float32)
        attributes = WindowAttributes.of(kernel, (stride, stride), (dilation, dilation), pads, "NOTSET")
        given = outputs_of(x, w, bias, attributes, channels, variant, by_channels=True)
        assert given is not None
        np.testing.assert_allclose(given[0], reference(x, w, bias, attributes, channels), rtol=1e-5, atol=1e-5)


def test_small_kernels_go_in_tiles() -> None:
    x, w = np.ones((1, 64, 14, 14), np.float32), np.ones((64, 1, 3, 3), np.float32)
    binder, memory = new_binder("avx512" if "avx512" in VARIANTS else ""), Memory()
    tensor = placed(binder, memory, x, by_channels=True)
    attributes = WindowAttributes.of((3, 3), None, None, (1, 1, 1, 1), "NOTSET")
    call = ConvolutionCall(tensor, binder.constant(w), None, attributes.windows((14, 14)), 64, None, "f32")
    DEPTHWISE.bind(binder, call)
    (step,) = binder.steps
    assert "tiles of" in step.detail


def test_groups_of_few_channels_go_in_tiles() -> None:
    """Rather than as products, which read every window anew."""
    binder, memory = new_binder("avx512" if "avx512" in VARIANTS else ""), Memory()
    attributes = WindowAttributes.of((3, 3), None, None, (1, 1, 1, 1), "NOTSET")
    for each in (4, 24):
        x, w = np.ones((1, 16 * each, 14, 14), np.float32), np.ones((16 * each, each, 3, 3), np.float32)
        tensor = placed(binder, memory, x, by_channels=True)
        call = ConvolutionCall(tensor, binder.constant(w), None, attributes.windows((14, 14)), 16, None, "f32")
        convolve(binder, call)
        assert "groups in tiles" in binder.steps[-1].detail


def test_large_results_are_asked_for_where_memory_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same contents."""
    monkeypatch.setattr(window_tiles, "asks_for_results", lambda target, nbytes, in_strips: True)
    rng = np.random.default_rng(19)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 16, 70, 70), (16, 1, 3, 3)))
    attributes = WindowAttributes.of((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET")
    found = outputs_of(x, w, None, attributes, 16, "", by_channels=True)
    assert found is not None
    np.testing.assert_allclose(found[0], reference(x, w, None, attributes, 16), rtol=1e-5, atol=1e-5)
