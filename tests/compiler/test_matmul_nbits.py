"""MatMulNBits: its integer kernels against exact sums on every variant, and whole sessions against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.quantization.matmul_nbits import MatMulNBitsKernel
from sardonyx.kernel.expr import Input, maximum
from sardonyx.ops.microsoft.packed_weights import unpack
from tests.compiler.steps import PRODUCT_VARIANTS, Array, Memory, new_binder
from tests.compiler.test_byte_products import VARIANTS

F32 = np.dtype(np.float32)


class Weights:
    """Random packed weights (columns, K), scales and perhaps packed zero points."""

    def __init__(self, rng: np.random.Generator, n: int, k: int, bits: int, block: int, *, zeros: bool = False) -> None:
        self.n, self.k, self.bits, self.block = n, k, bits, block
        self.blocks = -(-k // block)
        self.packed = rng.integers(0, 256, (n, self.blocks, block * bits // 8), dtype=np.uint8)
        self.scales = rng.uniform(0.01, 0.05, (n, self.blocks)).astype(np.float32)
        width = -(-self.blocks * bits // 8)
        self.zeros: Array | None = rng.integers(0, 256, (n, width), dtype=np.uint8) if zeros else None

    def parameters(self, level: int) -> dict[str, int]:
        return {"K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block, "accuracy_level": level}

    @property
    def numbers(self) -> Array:
        """The packed numbers less their zero points, (columns, blocks, block), in float64."""
        codes = unpack(self.packed.reshape(self.n, -1), self.bits).astype(np.float64)
        origin: Any = 1 << (self.bits - 1)
        if self.zeros is not None:
            points = unpack(self.zeros, self.bits)[:, : self.blocks] if self.zeros.dtype == np.uint8 else self.zeros
            origin = points[..., None].astype(np.float64)
        return np.asarray(codes.reshape(self.n, self.blocks, self.block) - origin)

    def real_product(self, a: Array) -> Array:
        """The product of the rows themselves, in float64."""
        real = (self.numbers * self.scales.astype(np.float64)[..., None]).reshape(self.n, -1)[:, : self.k]
        return a.astype(np.float64) @ real.T

    def product(self, a: Array) -> Array:
        """The product of rows that were rounded to bytes block by block, in float64."""
        padded = np.zeros((len(a), self.blocks * self.block), np.float32)
        padded[:, : self.k] = a
        parts = padded.reshape(len(a), self.blocks, self.block)
        most = np.abs(parts).max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            inverse = np.where(most == 0, 0, np.float32(127) / most).astype(np.float32)
        steps = (most.astype(np.float32) * np.float32(1 / 127)).astype(np.float64)
        rows = np.rint(parts * inverse).astype(np.float64)
        sums = np.einsum("mbk,nbk->mnb", rows, self.numbers)
        return np.einsum("mnb,nb,mb->mn", sums, self.scales.astype(np.float64), steps[..., 0])


def computed(
    weights: Weights,
    a: Array,
    variant: str = "",
    bias: Array | None = None,
    epilogue: Any = None,
    rows: Any = None,
    level: int = 4,
) -> Array:
    binder, memory = new_binder(variant), Memory()
    left = binder.external(0, a.dtype, a.shape)
    memory.put(left, a)
    inputs = [left, binder.constant(weights.packed), binder.constant(weights.scales)]
    inputs += [None if weights.zeros is None else binder.constant(weights.zeros), None]
    inputs += [None if bias is None else binder.constant(bias)]
    after = None
    if epilogue is not None:
        operand = binder.external(1, rows.dtype, rows.shape)
        memory.put(operand, rows)
        after = Epilogue((epilogue,), (operand,))
    (y,) = MatMulNBitsKernel(weights.parameters(level)).bind(binder, *inputs, epilogue=after)
    assert y is not None
    memory.run(binder, one_by_one=True)
    return memory.read(y).copy()


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_variants(variant: str) -> None:
    rng = np.random.default_rng(0)
    for rows, n, k, bits, block, zeros in [
        (1, 70, 96, 4, 32, False),
        (5, 33, 100, 4, 16, True),
        (3, 40, 130, 8, 64, True),
        (2, 17, 256, 2, 256, False),
    ]:
        weights = Weights(rng, n, k, bits, block, zeros=zeros)
        a = rng.standard_normal((rows, k)).astype(np.float32)
        for level, wanted in ((4, weights.product(a)), (0, weights.real_product(a))):
            found = computed(weights, a, variant, level=level)
            assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize("zeros", ["none", "whole", "real"])
def test_rows_that_stay_real(variant: str, zeros: str) -> None:
    """A few rows meet the weights in registers, more of them panels in scratch memory, many a real matrix."""
    rng = np.random.default_rng(4)
    for rows, n, k, bits, block in [
        *((rows, 70, 96, 4, 32) for rows in (1, 2, 3, 4, 5, 8, 96, 131)),
        *((rows, 33, 64, 8, 16) for rows in (2, 4, 6, 100)),
        *((rows, 40, 256, 2, 128) for rows in (3, 99)),
        *((rows, 40, 100, 4, 32) for rows in (1, 3, 97)),
    ]:
        weights = Weights(rng, n, k, bits, block, zeros=zeros == "whole")
        if zeros == "real":
            weights.zeros = rng.uniform(0, (1 << bits) - 1, (n, weights.blocks)).astype(np.float32)
        a = rng.standard_normal((rows, k)).astype(np.float32)
        wanted, operand = weights.real_product(a), rng.standard_normal(n).astype(np.float32)
        found = computed(weights, a, variant, level=0, epilogue=Input(F32, 0) + Input(F32, 1), rows=operand)
        assert np.abs(found - (wanted + operand)).max() <= 4e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("rows", "expected"), [(4, ["unpacked_product"]), (95, ["unpacked_product"]), (96, ["real_panels"])]
)
def test_many_rows_multiply_by_a_real_matrix(rows: int, expected: list[str]) -> None:
    weights, binder = Weights(np.random.default_rng(5), 64, 64, 4, 32), new_binder()
    constants = [binder.constant(weights.packed), binder.constant(weights.scales)]
    MatMulNBitsKernel(weights.parameters(0)).bind(binder, binder.external(0, F32, (rows, 64)), *constants)
    assert [step.kernel for step in binder.steps][:1] == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_largest_sums_of_a_block(variant: str, bits: int) -> None:
    """The largest numbers of so many bits, by the largest bytes of either sign: no partial sum may saturate."""
    rng = np.random.default_rng(3)
    for block in (32, 128):
        weights = Weights(rng, 35, 2 * block, bits, block, zeros=True)
        assert weights.zeros is not None
        weights.packed[...], weights.zeros[...] = 255, 0
        a = np.repeat(np.array([[1.0], [-1.0]], np.float32), 2 * block, axis=1)
        wanted = weights.product(a)
        assert np.abs(computed(weights, a, variant) - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(("bits", "block"), [(2, 16), (2, 128), (4, 64), (4, 256), (8, 16), (8, 32)])
def test_blocks(bits: int, block: int) -> None:
    rng = np.random.default_rng(bits * block)
    for rows, k in [(1, 2 * block), (7, 3 * block - 5)]:
        weights = Weights(rng, 50, k, bits, block, zeros=True)
        a = rng.standard_normal((rows, k)).astype(np.float32)
        for level, wanted in ((4, weights.product(a)), (1, weights.real_product(a))):
            found = computed(weights, a, level=level)
            assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_more_rows_than_a_chunk_and_special_rows() -> None:
    rng = np.random.default_rng(1)
    weights = Weights(rng, 45, 64, 4, 32)
    a = rng.standard_normal((131, 64)).astype(np.float32)
    a[3], a[5, 2], a[7] = 0, np.nan, 1e-42
    found = computed(weights, a)
    assert np.isnan(found[5]).all()
    usual = np.setdiff1d(np.arange(131), [5, 7])
    wanted = weights.product(a[usual])
    assert np.abs(found[usual] - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert (found[3] == 0).all()
    assert np.abs(found[7]).max() < 1e-38


def test_epilogue_and_bias() -> None:
    rng = np.random.default_rng(2)
    weights = Weights(rng, 50, 64, 4, 32)
    a, bias = rng.standard_normal((6, 64)).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    rows = rng.standard_normal((6, 50)).astype(np.float32)
    total = maximum(Input(F32, 0) + Input(F32, 1), 0.0)
    found = computed(weights, a, bias=bias, epilogue=total, rows=rows)
    wanted = np.maximum(weights.product(a) + bias + rows, 0)
    assert np.abs(found - wanted).max() <= 4e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    weights = Weights(rng, 40, 64, 4, 32)
    weights.scales = weights.scales.astype(dtype).astype(np.float32)
    a = rng.standard_normal((3, 64)).astype(dtype)
    wanted = weights.product(a.astype(np.float32))
    found = computed(weights, a)
    assert found.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert np.abs(found.astype(np.float64) - wanted).max() <= eps * np.abs(wanted).max()
    real = weights.real_product(a.astype(np.float32))
    for rows in (1, 3):
        found = computed(weights, a[:rows], level=0)
        assert found.dtype == dtype
        assert np.abs(found.astype(np.float64) - real[:rows]).max() <= eps * np.abs(real).max()


def session_model(weights: Weights, level: int, groups: Array | None = None) -> bytes:
    names = ["A", "B", "scales", "" if weights.zeros is None else "zeros", "" if groups is None else "groups"]
    constants = {"B": weights.packed, "scales": weights.scales.reshape(-1), "zeros": weights.zeros, "groups": groups}
    node = helper.make_node("MatMulNBits", names, ["Y"], domain="com.microsoft", **weights.parameters(level))
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("A", onnx.TensorProto.FLOAT, ["m", weights.k])],
        [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["m", weights.n])],
        [numpy_helper.from_array(array.reshape(-1) if name == "zeros" else array, name)
         for name, array in constants.items() if array is not None],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def test_whole_sessions() -> None:
    rng = np.random.default_rng(4)
    for bits, block, zeros in [(4, 32, False), (4, 128, True), (8, 32, True)]:
        weights = Weights(rng, 96, 256, bits, block, zeros=zeros)
        for level, exact in ((4, weights.product), (0, weights.real_product)):
            ours = sardonyx.InferenceSession(session_model(weights, level))
            for rows in (1, 9):
                a = rng.standard_normal((rows, 256)).astype(np.float32)
                (found,), wanted = ours.run(None, {"A": a}), exact(a)
                assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_like_onnxruntime() -> None:
    """Weights of 4 bits: with those of 8 its sums of bytes may saturate."""
    ort = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(4)
    for block, zeros in [(32, False), (128, True)]:
        weights = Weights(rng, 96, 256, 4, block, zeros=zeros)
        # Which of two neighbours a number is rounded to may differ between processors.
        for level, tolerance in ((4, 5e-3), (0, 2e-6)):
            model = session_model(weights, level)
            ours = sardonyx.InferenceSession(model)
            theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
            for rows in (1, 9):
                a = rng.standard_normal((rows, 256)).astype(np.float32)
                (found,), (wanted,) = ours.run(None, {"A": a}), theirs.run(None, {"A": a})
                assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("in_order", [True, False])
def test_columns_whose_blocks_lie_in_an_order_of_their_own(in_order: bool) -> None:
    rng = np.random.default_rng(6)
    weights = Weights(rng, 30, 64, 4, 32, zeros=True)
    groups = (np.arange(64) // 32).astype(np.int32)
    if not in_order:
        rng.shuffle(groups)
    assert weights.zeros is not None
    origins = unpack(weights.zeros, 4)[:, :2].astype(np.float64)
    codes = unpack(weights.packed.reshape(30, -1), 4).astype(np.float64)
    real = (codes - origins[:, groups]) * weights.scales.astype(np.float64)[:, groups]
    ours = sardonyx.InferenceSession(session_model(weights, 0, groups))
    for rows in (1, 5):
        a = rng.standard_normal((rows, 64)).astype(np.float32)
        (found,) = ours.run(None, {"A": a})
        wanted = a @ real.T
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_wrong_sizes() -> None:
    weights = Weights(np.random.default_rng(5), 20, 64, 4, 32)
    with pytest.raises(ValueError, match="last dimension of input 'A' must be 64"):
        computed(weights, np.zeros((2, 60), np.float32))
    weights.scales = weights.scales[:, :1]
    with pytest.raises(ValueError, match="'scales' must have 20 x 2 elements"):
        computed(weights, np.zeros((2, 64), np.float32))
