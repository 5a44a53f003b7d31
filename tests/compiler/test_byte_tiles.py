"""Convolutions of bytes by AMX, on any x86-64 machine with AVX-512: see `test_gemm_tiles`."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.quantization import byte_tiles
from sardonyx.compiler.native.quantization.integer_convolution import ConvIntegerKernel
from tests.compiler.steps import Array, Memory, outputs_of
from tests.compiler.test_byte_convolution import CASES, Geometry, attributes, exact, quantized, random_bytes
from tests.compiler.test_gemm_tiles import EmulatedLibrary, needs_avx512, run

needs_amx = pytest.mark.skipif("amx" not in host_targets(), reason="this machine has no AMX")

# The image's shape, the weights' shape, groups, attributes of the windows.
TILED: list[Geometry] = [
    ((1, 64, 7, 7), (70, 64, 1, 1), 1, {}),
    ((1, 64, 7, 7), (33, 64, 3, 3), 1, {"pads": [1, 1, 1, 1]}),
    ((1, 32, 11, 9), (16, 32, 3, 3), 1, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((3, 64, 5, 5), (40, 64, 1, 1), 1, {"strides": [2, 2]}),
    ((20, 16, 3), (5, 16, 3), 1, {}),
    ((2, 128, 40), (64, 64, 2), 2, {"dilations": [3]}),
]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles wherever they are possible."""
    monkeypatch.setattr(
        byte_tiles, "is_faster", lambda target, call, _: target.has_amx and call.batch * call.places >= 16
    )


def check(x: Array, w: Array, given: Geometry, found: Array, zero: int, w_zero: Array) -> None:
    wanted = exact(x, w, zero, w_zero, given[2], given[3])
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)


@needs_avx512
def test_emulated() -> None:
    rng = np.random.default_rng(0)
    library, used = EmulatedLibrary(), 0
    kinds = [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8), (np.int8, np.int8)]
    for number, geometry in enumerate((*TILED, *CASES)):
        x_shape, w_shape, group, given = geometry
        x_type, w_type = kinds[number % len(kinds)]
        x, w = random_bytes(rng, x_type, x_shape), random_bytes(rng, w_type, w_shape)
        zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, w_shape[:1])
        binder, memory = Binder(library), Memory()
        image = binder.external(0, x.dtype, x.shape)
        memory.put(image, x)
        kernel = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        (y,) = kernel.bind(binder, image, *map(binder.constant, (w, zero, w_zero)))
        assert y is not None
        run(binder, memory)
        check(x, w, geometry, memory.read(y), int(zero), w_zero)
        used += any(step.kernel == "byte_tiles" for step in binder.steps)
    assert used >= len(TILED)
    assert not library.tiles.configured


@needs_amx
def test_on_amx() -> None:
    rng = np.random.default_rng(1)
    for geometry in (*TILED, *CASES):
        x_shape, w_shape, group, given = geometry
        x, w = random_bytes(rng, np.uint8, x_shape), random_bytes(rng, np.int8, w_shape)
        kernel = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        zeros = [random_bytes(rng, np.uint8, ()), random_bytes(rng, np.int8, ())]
        (found,) = outputs_of(kernel, [x, w, *zeros], "amx", known=(1, 2, 3), one_by_one=True)
        check(x, w, geometry, found, int(zeros[0]), zeros[1])


@needs_amx
@pytest.mark.parametrize("shape", [(1, 64, 9, 10), (2, 64, 30, 31)])
def test_quantized_as_by_vectors(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x, w = random_bytes(rng, np.uint8, shape), random_bytes(rng, np.int8, (150, 64, 3, 3))
    found, wanted = quantized(x, w, {"pads": [1, 1, 1, 1]}, "amx")
    np.testing.assert_array_equal(found, wanted)
    monkeypatch.setattr(byte_tiles, "is_faster", lambda *_: False)
    np.testing.assert_array_equal(quantized(x, w, {"pads": [1, 1, 1, 1]}, "amx")[0], found)
