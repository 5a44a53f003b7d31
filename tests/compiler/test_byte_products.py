"""Products of bytes against whole numbers of 64 bits, on machines with dot products of bytes and on those without."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sardonyx.compiler.binding import Tensor
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, byte_product
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.products.bounded_constants import bounded_words
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.integer_matmul import IntegerProductKernel
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.kernel.expr import Input
from tests.compiler.machines import described, emulated_variants
from tests.compiler.steps import Array, Memory, new_binder
from tests.compiler.test_gemm import place
from tests.ops import exact_integers

I32 = np.dtype(np.int32)
# All that this machine executes: they differ in how they multiply bytes, also where their vectors are equally wide.
VARIANTS = (*host_targets(), *emulated_variants())
# The last ones are cut into blocks of K, and into several groups of panels.
SIZES = [
    (1, 1, 1),
    (1, 130, 65),
    (2, 9, 3),
    (3, 40, 2),
    (5, 7, 0),
    (7, 17, 4),
    (6, 20, 5),
    (30, 47, 901),
    (140, 33, 3100),
]


def bytes_of(rng: np.random.Generator, kind: str, dtype: type, *shape: int) -> Array:
    """Bytes all over, or the most extreme ones: all of one sign, or of either in turns."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if kind == "random":
        return rng.integers(low, high + 1, shape).astype(dtype)
    if kind == "ends":
        return rng.choice([low, high], shape).astype(dtype)
    return np.full(shape, low if kind == "lowest" else high, dtype)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", ["constant rows", "constant columns", "rows", "columns"])
@pytest.mark.parametrize("signed", [False, True])
def test_sums_are_exact(variant: str, form: str, signed: bool) -> None:
    """Unsigned or signed bytes by signed ones; the signed ones of the left side count 128 more."""
    rng = np.random.default_rng(14)
    for m, n, k in SIZES:
        for kinds in (("random", "random"), ("highest", "highest"), ("highest", "lowest"), ("ends", "ends")):
            if kinds[0] != "random" and m * n * k > 10_000_000:
                continue
            a = bytes_of(rng, kinds[0], np.int8 if signed else np.uint8, m, k)
            b = bytes_of(rng, kinds[1], np.int8, k, n)
            binder, memory = new_binder(variant), Memory()
            product = byte_product(binder.target, is_signed=signed)
            right = np.asfortranarray(b) if form.endswith("columns") else b
            second: Tensor | Packed = place(memory, right)
            if form.startswith("constant"):
                second = Packed(binder.constant(pack_b(binder.library, right, product)), b.shape)
            result = binder.new(I32, (m, n))
            multiply(binder, place(memory, a), second, (Input(I32, 0),), [], [result], product)
            memory.run(binder)
            expected = exact_integers.product(a.astype(np.int64) + 128 * signed, b)
            assert np.array_equal(memory.read(result), expected), (m, n, k, kinds)


def weights_of(rng: np.random.Generator, kind: str, k: int, n: int) -> Array:
    """Weights as models have them, a few large ones among small ones; or those that no machine is quick with."""
    if kind == "normal":
        return np.clip(np.rint(rng.standard_normal((k, n)) * 38), -128, 127).astype(np.int8)
    if kind == "rare":
        return np.where(rng.random((k, n)) < 0.02, rng.choice([-128, 127], (k, n)), 1).astype(np.int8)
    return bytes_of(rng, kind, np.int8, k, n)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["normal", "rare", "random", "lowest", "highest"])
@pytest.mark.parametrize("signed", [False, True])
def test_products_by_constant_weights_are_exact(variant: str, kind: str, signed: bool) -> None:
    """Whatever form a machine gives to constant weights; the left bytes are the largest there are, or all sorts."""
    rng = np.random.default_rng(15)
    for m, n, k in [
        (1, 1, 1),
        (1, 9, 2),
        (2, 8, 3),
        (3, 40, 4),
        (7, 17, 5),
        (12, 8, 63),
        (29, 70, 260),
        (13, 30, 3100),
    ]:
        b = weights_of(rng, kind, k, n)
        for left in ("highest", "random"):
            a = bytes_of(rng, left, np.int8 if signed else np.uint8, m, k)
            binder, memory = new_binder(variant), Memory()
            (y,) = IntegerProductKernel({}).bind(binder, place(memory, a), binder.constant(b))
            memory.run(binder)
            assert y is not None
            assert np.array_equal(memory.read(y), exact_integers.product(a, b)), (m, n, k, left)


@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_of_constant_weights(variant: str) -> None:
    rng = np.random.default_rng(16)
    for shape in [(3, 50, 24), (2, 2, 40, 7)]:
        b = np.stack([weights_of(rng, "normal", *shape[-2:]) for _ in range(math.prod(shape[:-2]))]).reshape(shape)
        a = bytes_of(rng, "ends", np.uint8, *shape[:-2], 5, shape[-2])
        binder, memory = new_binder(variant), Memory()
        (y,) = IntegerProductKernel({}).bind(binder, place(memory, a), binder.constant(b))
        memory.run(binder)
        assert y is not None
        assert np.array_equal(memory.read(y), exact_integers.product(a, b))


def test_bounded_words_hold_the_weights() -> None:
    """Each word's pairs are small enough, and all words together are the weights; too many words are none."""
    if "avx2" not in host_targets():
        pytest.skip("this machine has no vectors of 256 bits")
    rng, kernels = np.random.default_rng(17), library("avx2")
    for kind, runs, run, n in [("normal", 1, 768, 24), ("rare", 9, 64, 17), ("normal", 3, 4, 5), ("rare", 1, 4, 8)]:
        matrix = weights_of(rng, kind, runs * run, n)
        found = bounded_words(kernels, matrix, run)
        assert found is not None
        panels, most, lanes = found.words.shape
        weights = found.words.view(np.int8).reshape(panels, most, lanes, 2, 2).astype(np.int64)
        assert np.maximum(weights, 0).sum(-1).max() <= 128
        assert np.minimum(weights, 0).sum(-1).min() >= -128
        total = np.zeros((panels, runs, run, lanes), np.int64)
        for panel, ends in enumerate(found.ends):
            assert not found.words[panel, ends[-1] :].any()
            for number, (begin, end) in enumerate(itertools.pairwise((0, *ends))):
                for step in range(begin, end):
                    first = found.begins[panel, step]
                    assert 0 <= first <= run - 4
                    total[panel, number, first : first + 4] += weights[panel, step].reshape(lanes, 4).T
        whole = total.reshape(panels, runs * run, lanes).transpose(1, 0, 2).reshape(runs * run, -1)
        assert np.array_equal(whole[:, :n], matrix)
        assert not whole[:, n:].any()
    assert bounded_words(kernels, weights_of(rng, "highest", 64, 8), 64) is None


def test_machines_without_dot_products_multiply_pairs() -> None:
    for name, target in described().items():
        kind = PRODUCTS[byte_product(target, is_signed=True)]
        assert kind.by_pairs == (name in ("avx512", "avx2", "portable"))
        assert kind.in_tiles == (name == "amx")
