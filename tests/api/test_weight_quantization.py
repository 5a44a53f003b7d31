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


def restored(bits, codes, scales, zeros, block, rows, columns):
    """The weights that codes, scales and zero points (None: the middle) stand for, in float64."""
    blocks = -(-rows // block)

    def unpacked(packed, count):
        bytes_of_column = packed.reshape(columns, -1).astype(np.int64)
        parts = bytes_of_column[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1
        return parts.reshape(columns, -1)[:, :count]

    points = np.full((columns, blocks), 1 << bits - 1) if zeros is None else unpacked(zeros, blocks)
    wide = unpacked(codes, blocks * block).reshape(columns, blocks, block) - points[..., None]
    found = wide * scales.astype(np.float64).reshape(columns, blocks)[..., None]
    return found.reshape(columns, -1)[:, :rows].T


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_follows_the_rows_has_no_say(bits, symmetric, dtype):
    rng = np.random.default_rng(bits)
    for rows, columns, block in ((20, 6, 16), (33, 4, 32), (100, 3, 64), (32, 5, 16)):
        weights = rng.standard_normal((rows, columns)).astype(dtype)
        codes, scales, zeros = quantized(ours, bits, weights, block, symmetric)
        far = np.full((-rows % block + 1, columns), 99, dtype)
        for given in (np.concatenate([weights, 0 * far]), np.concatenate([weights, far])):
            for same in (given, given.ravel(), np.asfortranarray(given)):
                found = codes * 0, scales * 0, zeros * 0
                call = getattr(ours, f"quantize_matmul_{bits}bits")
                call(found[0], same, found[1], found[2], block, columns, rows, symmetric)
                for one, other in zip(found, (codes, scales, zeros), strict=True):
                    np.testing.assert_array_equal(one, other)
        steps = np.repeat(np.abs(scales.astype(np.float64)).reshape(columns, -1), block, 1)[:, :rows].T
        off = np.abs(restored(bits, codes, scales, None if symmetric else zeros, block, rows, columns) - weights)
        assert (off <= 1.01 * steps + 1e-6).all()


@pytest.mark.parametrize("kind", [0, 1])
def test_what_follows_the_elements_has_no_say_for_bitsandbytes(kind):
    weights = np.random.default_rng(kind).standard_normal((5, 7)).astype(np.float32)
    results = []
    for given in (weights, np.concatenate([weights, np.full((3, 7), 99, np.float32)])):
        codes, absmax = np.zeros(18, np.uint8), np.zeros(3, np.float32)
        ours.quantize_matmul_bnb4(codes, given, absmax, 16, kind, 7, 5)
        results.append((codes, absmax))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_wrong_arrays_are_refused():
    weights, scales = np.zeros((16, 1), np.float32), np.zeros(1, np.float32)
    with pytest.raises(TypeError):
        quantized(ours, 4, weights.astype(np.float64), 16, True)
    with pytest.raises(ValueError, match="expected an array of 8 elements"):
        ours.quantize_matmul_4bits(np.zeros(3, np.uint8), weights, np.zeros(1, np.float32), None, 16, 1, 16, True)
    with pytest.raises(ValueError, match=r"expected 17 weights, got an array of shape \(16, 1\)"):
        ours.quantize_matmul_4bits(np.zeros(16, np.uint8), weights, np.zeros(2, np.float32), None, 16, 1, 17, True)
    for block, columns, rows in ((0, 1, 16), (16, -1, -16)):
        with pytest.raises(ValueError, match=f"{rows} rows and {columns} columns in blocks of {block}"):
            ours.quantize_matmul_8bits(np.zeros(16, np.uint8), weights, scales, None, block, columns, rows, True)


def unpacked_codes(packed, bits, count):
    return (packed.reshape(-1, 1).astype(np.int64) >> np.arange(0, 8, bits) & (1 << bits) - 1).reshape(-1)[:count]


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_blocks_in_row_order_are_those_of_columns(bits, symmetric, dtype):
    rng = np.random.default_rng(bits)
    for rows, columns, block in ((32, 8, 16), (33, 5, 16), (20, 1, 32), (40, 7, 16)):
        weights = rng.standard_normal((rows, columns)).astype(dtype)
        blocks, middle = -(-rows // block), 1 << bits - 1
        codes = np.zeros(-(-rows * columns * bits // 8), np.uint8)
        scales = np.zeros((blocks, columns), dtype)
        zeros = np.full(-(-blocks * columns * bits // 8), 255, np.uint8)
        call = getattr(ours, f"quantize_qdq_matmul_{bits}bits")
        given = np.concatenate([weights, np.full((3, columns), 99, dtype)])
        assert call(codes, given, scales, zeros, block, columns, rows, symmetric) is symmetric
        by_column, steps, points = quantized(ours, bits, weights, block, symmetric)
        np.testing.assert_array_equal(scales, steps.reshape(columns, blocks).T)
        expected = np.stack([unpacked_codes(column, bits, rows) for column in by_column.reshape(columns, -1)], 1)
        found = unpacked_codes(codes, bits, rows * columns).reshape(rows, columns)
        if symmetric:
            np.testing.assert_array_equal((found + middle) % (2 * middle), expected)
            assert (zeros == 255).all()
        else:
            np.testing.assert_array_equal(found, expected)
            of_columns = [unpacked_codes(column, bits, blocks) for column in points.reshape(columns, -1)]
            expected = np.stack(of_columns, 1).reshape(-1)
            np.testing.assert_array_equal(unpacked_codes(zeros, bits, blocks * columns), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_in_row_order_are_those_of_onnxruntime(symmetric):
    theirs = pytest.importorskip("onnxruntime.capi._pybind_state")
    weights = np.random.default_rng(0).standard_normal((40, 7)).astype(np.float32)
    results = []
    for module in (ours, theirs):
        codes, scales, zeros = np.zeros(140, np.uint8), np.zeros((3, 7), np.float32), np.zeros(11, np.uint8)
        module.quantize_qdq_matmul_4bits(codes, weights, scales, zeros, 16, 7, 40, symmetric)
        zeros[-1] &= 15  # what completes the last byte stands for nothing
        results.append((codes, scales, zeros))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_columns_are_those_of_parts():
    """Larger matrices are worked on in parts."""
    weights = np.random.default_rng(0).standard_normal((64, 9000)).astype(np.float32)
    codes, scales, zeros = quantized(ours, 4, weights, 32, False)
    for start in (0, 4000, 8990):
        part = slice(start, start + 10)
        one, steps, points = quantized(ours, 4, np.ascontiguousarray(weights[:, part]), 32, False)
        np.testing.assert_array_equal(codes[part], one)
        np.testing.assert_array_equal(scales.reshape(-1, 2)[part].ravel(), steps)
        np.testing.assert_array_equal(zeros[part], points)
