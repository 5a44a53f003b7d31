"""Pieces of code abreast: the same results as one after the other, in another order of instructions."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.mathematics.exponentials import sigmoid
from sardonyx.compiler.llvm.mathematics.hyperbolic import tanh
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.llvm.types import F32
from tests.compiler.vector_calls import VARIANTS, run_vectors


@pytest.mark.parametrize("variant", VARIANTS)
def test_strands_give_what_they_give_one_after_the_other(variant):
    x = np.linspace(-9, 9, 999, dtype=np.float32)

    def pieces(k, args):
        (a,) = args
        return [lambda: sigmoid(k, a), lambda: a * 2.0, lambda: tanh(k, a + 1.0)]

    together = run_vectors(variant, lambda k, args: k.abreast(pieces(k, args)), [x], [x.dtype] * 3)
    apart = run_vectors(variant, lambda k, args: [piece() for piece in pieces(k, args)], [x], [x.dtype] * 3)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("variant", VARIANTS)
def test_strands_with_blocks_follow_one_another(variant):
    x = np.linspace(-9, 9, 999, dtype=np.float32)

    def emit(k, args):
        (a,) = args

        def repeated(times):
            total = k.variable(a.type, 0.0)
            with k.loop(0, times):
                total.set(total.get() + a)
            return total.get()

        return k.abreast([lambda: repeated(3), lambda: a - 1.0, lambda: repeated(5)])

    three, less, five = run_vectors(variant, emit, [x], [x.dtype] * 3)
    np.testing.assert_array_equal(three, x + x + x)
    np.testing.assert_array_equal(less, x - 1)
    np.testing.assert_array_equal(five, x + x + x + x + x)


def test_instructions_of_strands_alternate():
    k = Function("kernel", host_target(), [("a", F32), ("b", F32)])
    k.abreast([lambda: (k["a"] + 1.0) * 3.0 - 5.0, lambda: k["b"] * 2.0])
    operations = [line.split(" = ")[1].split()[0] for line in k.finish().splitlines() if " = f" in line]
    assert operations == ["fadd", "fmul", "fmul", "fsub"]
