import numpy as np
import pytest

from sardonyx.api.building.weight_quantization import _BORDERS
from sardonyx.capi import _pybind_state as ours


def quantized(module, bits, weights, block, symmetric):
    rows, columns = weights.shape
    blocks = -(-rows // block)
    codes = np.zeros((columns, blocks, block * bits // 8), np.uint8)
    scales = np.zeros(columns * blocks, weights.dtype)
    zeros = np.zeros(columns * -(-blocks * bits // 8), np.uint8)
    getattr(module, f"quantize_matmul_{bits}bits")(codes, weights, scales, zeros, block, columns, rows, symmetric)
    return codes, scales, zeros


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_blocks_are_those_of_onnxruntime(bits, block, symmetric, dtype):
    theirs = pytest.importorskip("onnxruntime.capi._pybind_state")
    rng = np.random.default_rng(bits * block)
    for rows, columns in ((16, 1), (40, 3), (64, 8), (72, 5)):
        weights = rng.standard_normal((rows, columns)).astype(dtype)
        weights[:, 0] = 0
        for mine, other in zip(
            quantized(ours, bits, weights, block, symmetric),
            quantized(theirs, bits, weights, block, symmetric),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bitsandbytes_blocks_are_those_of_onnxruntime(kind, dtype):
    theirs = pytest.importorskip("onnxruntime.capi._pybind_state")
    rng = np.random.default_rng(kind)
    for rows, columns in ((16, 4), (33, 3)):
        weights = rng.standard_normal((rows, columns)).astype(dtype)
        results = []
        for module in (ours, theirs):
            codes = np.zeros((weights.size + 1) // 2, np.uint8)
            absmax = np.zeros(-(-weights.size // 16), dtype)
            module.quantize_matmul_bnb4(codes, weights, absmax, 16, kind, columns, rows)
            results.append((codes, absmax))
        np.testing.assert_array_equal(results[0][0], results[1][0])
        np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("kind", [0, 1])
def test_bitsandbytes_codes_change_where_those_of_onnxruntime_do(kind):
    theirs = pytest.importorskip("onnxruntime.capi._pybind_state")
    borders = _BORDERS[kind]
    places = np.concatenate([borders, np.nextafter(borders, -2), np.nextafter(borders, 2), -borders, [1]])
    weights = places.astype(np.float32)[:, None]
    results = []
    for module in (ours, theirs):
        codes, absmax = np.zeros(-(-places.size // 2), np.uint8), np.zeros(1, np.float32)
        module.quantize_matmul_bnb4(codes, weights, absmax, 64, kind, 1, places.size)
        results.append(codes)
    np.testing.assert_array_equal(*results)


def test_wrong_arrays_are_refused():
    weights = np.zeros((16, 1), np.float32)
    with pytest.raises(TypeError):
        quantized(ours, 4, weights.astype(np.float64), 16, True)
    with pytest.raises(ValueError, match="expected an array of 8 elements"):
        ours.quantize_matmul_4bits(np.zeros(3, np.uint8), weights, np.zeros(1, np.float32), None, 16, 1, 16, True)
