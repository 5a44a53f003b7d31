"""DFT and STFT: every kind of length against float64 on every instruction set, windows, frames, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.kernels.fourier.factors import radices, split
from sardonyx.compiler.kernels.fourier.operators import Dft, Stft
from tests.compiler.steps import VARIANTS, outputs_of

Array = np.ndarray[Any, Any]

# Of the largest element of the result.
_BOUNDS = {"float64": 2e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
# Written out radices, sums, chirps, and rows of matrices.
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 12, 15, 30, 49, 67, 100, 134, 400)


def expected(x: Array, length: int, axis: int, inverse: bool, onesided: bool) -> Array:
    wide = x.astype(np.float64)
    z = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        return np.asarray(np.fft.irfft(z, length, axis)[..., None])
    result = (np.fft.ifft if inverse else np.fft.fft)(z, length, axis)
    if onesided:
        result = np.take(result, range(length // 2 + 1), axis)
    return np.stack([result.real, result.imag], -1)


def check(got: Array, want: Array, dtype: np.dtype[Any]) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    largest = max(1e-30, float(np.abs(want).max()))
    assert float(np.abs(got.astype(np.float64) - want).max()) <= _BOUNDS[dtype.name] * largest


def cases(length: int) -> Sequence[tuple[int, bool, bool, int]]:
    """Parts, inverse, onesided and elements that are there."""
    return [
        (parts, inverse, onesided, max(1, (length // 2 + 1 if inverse and onesided else length) + more))
        for parts in (1, 2)
        for inverse in (False, True)
        for onesided in (False, True)
        for more in (-2, 0, 3)
        if inverse or not onesided or parts == 1
    ]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", _BOUNDS)
def test_transforms(name: str, variant: str) -> None:
    rng = np.random.default_rng(1)
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    few = variant == "neon"
    for length in _LENGTHS[5::4] if few else _LENGTHS:
        for number, (parts, inverse, onesided, size) in enumerate(cases(length)):
            if number % (5 if few else 2):
                continue
            x = rng.standard_normal((int(rng.integers(1, 20)), size, parts)).astype(dtype)
            kernel = Dft({"axis": 1, "inverse": inverse, "onesided": onesided})
            (got,) = outputs_of(kernel, [x, np.array(length)], variant, known=(1,), one_by_one=True)
            check(got, expected(x, length, 1, inverse, onesided), dtype)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [256, 600, 1009, 2048])
def test_single_signals(length: int, variant: str) -> None:
    """Few rows, which leave most of a vector's lanes empty, with and without a matrix instead."""
    rng = np.random.default_rng(length)
    for count in (1, 2):
        for parts, inverse, onesided in ((1, False, True), (2, False, False), (2, True, True)):
            size = length // 2 + 1 if inverse and onesided else length
            x = rng.standard_normal((count, size, parts)).astype(np.float32)
            kernel = Dft({"axis": 1, "inverse": inverse, "onesided": onesided})
            (got,) = outputs_of(kernel, [x, np.array(length)], variant, known=(1,))
            check(got, expected(x, length, 1, inverse, onesided), x.dtype)


@pytest.mark.parametrize("length", [9001, 6 * 8192, 20000])
def test_long_transforms(length: int) -> None:
    """A prime, and lengths whose rows do not fit into a cache."""
    rng = np.random.default_rng(2)
    for parts, inverse, onesided in ((1, False, True), (2, True, False), (2, True, True)):
        size = length // 2 + 1 if inverse and onesided else length - 3
        x = rng.standard_normal((2, size, parts)).astype(np.float32)
        kernel = Dft({"axis": 1, "inverse": inverse, "onesided": onesided})
        (got,) = outputs_of(kernel, [x, np.array(length)], known=(1,))
        check(got, expected(x, length, 1, inverse, onesided), x.dtype)


def test_any_axis() -> None:
    x = np.random.default_rng(3).standard_normal((3, 10, 4, 2)).astype(np.float32)
    for axis in (0, 1, 2, -2, -4):
        kernel = Dft({"axis": -2, "inverse": False, "onesided": False})
        (got,) = outputs_of(kernel, [x, None, np.array(axis)], known=(2,))
        place = axis % 4
        check(got, expected(x, x.shape[place], place, False, False), x.dtype)


def test_rows_do_not_mix() -> None:
    """A NaN or a huge number in a row leaves the others' bits alone."""
    x = np.random.default_rng(4).standard_normal((9, 24, 1)).astype(np.float32)
    other = x.copy()
    other[4, 5], other[7, 3] = np.nan, 3e38
    kernel = Dft({"axis": 1, "inverse": False, "onesided": True})
    (plain,), (spoilt,) = (outputs_of(kernel, [one]) for one in (x, other))
    rest = [0, 1, 2, 3, 5, 6, 8]
    assert np.array_equal(plain[rest], spoilt[rest])
    assert np.isnan(spoilt[4]).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("parts", [1, 2])
def test_frames(parts: int, variant: str) -> None:
    rng = np.random.default_rng(5)
    for length, step in ((16, 5), (25, 10), (67, 30), (7, 40)):
        signal = rng.standard_normal((2, 131, parts)).astype(np.float32)
        for window in (None, rng.random(length).astype(np.float32)):
            onesided = parts == 1 and length != 25
            inputs = [signal, np.array(step), window, np.array(length)]
            (got,) = outputs_of(Stft({"onesided": onesided}), inputs, variant, known=(1, 3))
            places = np.arange(1 + (131 - length) // step)[:, None] * step + np.arange(length)
            frames = signal[:, places].astype(np.float64)
            if window is not None:
                frames = frames * window[:, None]
            check(got, expected(frames, length, 2, False, onesided), signal.dtype)


def test_in_a_session() -> None:
    """Length and axis as data of the run; what makes no sense is a typed error."""
    node = helper.make_node("DFT", ["x", "n", "axis"], ["y"], onesided=1)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", 1, [None, None, 1]), info("n", TensorProto.INT64, []), info("axis", TensorProto.INT64, [])],
        [info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString())
    x = np.random.default_rng(6).standard_normal((3, 20, 1)).astype(np.float32)
    for length, axis in ((20, 1), (13, 1), (4, 0), (20, -2)):
        (got,) = session.run(None, {"x": x, "n": np.array(length), "axis": np.array(axis)})
        check(got, expected(x, length, axis % 3, False, True), x.dtype)
    for length, axis in ((0, 1), (-5, 1), (2**62, 1), (2**35, 1), (8, 2), (8, 3), (8, -4)):
        with pytest.raises(errors.OnnxRuntimeError):
            session.run(None, {"x": x, "n": np.array(length), "axis": np.array(axis)})


@pytest.mark.parametrize(
    ("shape", "step", "window", "length"),
    [
        ((1, 8, 1), 0, None, 4),
        ((1, 8, 1), -1, None, 4),
        ((1, 8, 1), 2, None, 9),
        ((1, 8, 1), 2, None, 0),
        ((1, 8, 1), 2, 3, 4),
        ((1, 8, 3), 2, None, 4),
        ((8,), 2, None, 4),
        ((1, 8, 1, 1), 2, None, 4),
    ],
)
def test_frames_that_do_not_fit(shape: tuple[int, ...], step: int, window: int | None, length: int) -> None:
    signal = np.zeros(shape, np.float32)
    given = None if window is None else np.zeros(window, np.float32)
    with pytest.raises(ValueError, match=r"frame|signal|window"):
        outputs_of(Stft({"onesided": True}), [signal, np.array(step), given, np.array(length)], known=(1, 3))


def test_radices() -> None:
    for length in range(1, 2000):
        found = radices(length)
        assert found is None or int(np.prod(found)) == length
        part = split(length, 64)
        assert part is None or (length % part == 0 and 1 < part <= 64)
    assert radices(67) is None
    assert split(1 << 20, 4096) == 1024
