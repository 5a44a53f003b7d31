"""Functions of one byte in loops over elements: looked up where their numbers are known, as float64 has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sardonyx.compiler.binding import Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.rows.rows import permuted
from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.quantization import quantized
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder

_F32, _U8 = np.dtype(np.float32), np.dtype(np.uint8)
_STEP, _MIDDLE, _SCALE, _ZERO = 0.043, 131, 0.021, 7
_NUMBERS = (np.float32(_STEP), np.uint8(_MIDDLE), np.float32(_SCALE), np.uint8(_ZERO))
_TABLED = [name for name in host_targets() if "avx" in name or name == "amx"]
_WORDS = [name for name in host_targets() if "avx512" in name or name == "amx"]


def _real(byte: Expr, scale: Expr, zero: Expr) -> Expr:
    return (byte.cast(np.int32) - zero.cast(np.int32)).cast(_F32) * scale


def _silu(byte: Expr, numbers: Sequence[Expr]) -> Expr:
    real = _real(byte, numbers[0], numbers[1])
    return quantized(real * k.sigmoid(real) / numbers[2], numbers[3].cast(_F32), _U8)


def _wanted(byte: Array) -> Array:
    real = (byte.astype(np.float64) - _MIDDLE) * np.float64(np.float32(_STEP))
    return np.clip(np.rint(real / (1 + np.exp(-real)) / np.float32(_SCALE)) + _ZERO, 0, 255)


def _run(
    roots: Sequence[Expr], inputs: Sequence[Array], variant: str, *, order: Sequence[int] = (), known: bool = True
) -> tuple[list[Array], str]:
    """What a kernel computes of inputs, the first in this order in memory, and of the numbers; and how, in words."""
    binder, memory = new_binder(variant), Memory()
    tensors: list[Tensor] = []
    for index, array in enumerate([*inputs, *map(np.asarray, _NUMBERS)]):
        if known and index >= len(inputs):
            tensors.append(binder.constant(array))
            continue
        lying = [*order] if order and index == 0 else [*range(array.ndim)]
        tensor = binder.external(index, array.dtype, [array.shape[axis] for axis in lying])
        memory.put(tensor, array.transpose(lying))
        tensors.append(permuted(tensor, [lying.index(axis) for axis in range(array.ndim)]))
    results = PointwiseKernel(roots, [tensor.dtype for tensor in tensors]).bind(binder, tensors)
    memory.run(binder, one_by_one=True)
    (step,) = binder.steps
    detail = step.form.detail
    return [memory.read(one).copy() for one in results], detail if isinstance(detail, str) else detail()


def _numbers(first: int) -> list[Expr]:
    return [Input(number.dtype, first + place) for place, number in enumerate(_NUMBERS)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1,), (31,), (64,), (131,), (3, 5, 7), (2, 300, 33), (1, 70000)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_function_of_a_byte(variant: str, shape: tuple[int, ...], dtype: type) -> None:
    x = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    byte = Input(np.dtype(dtype), 0)
    shifted = (byte.cast(np.int32) + 128).cast(_U8) if dtype is np.int8 else byte
    given = (x.astype(np.int32) - 128).astype(np.int8) if dtype is np.int8 else x
    (found,), how = _run([_silu(shifted, _numbers(1))], [given], variant)
    assert np.abs(found - _wanted(x)).max() <= (0 if "tables" in how else 1)
    assert (found == _wanted(x)).mean() > 0.99 or x.size < 100


@pytest.mark.parametrize("variant", _TABLED)
def test_it_is_looked_up_in_any_order(variant: str) -> None:
    x = np.random.default_rng(3).integers(0, 256, (2, 5, 9, 70)).astype(np.uint8)
    (found,), how = _run([_silu(Input(_U8, 0), _numbers(1))], [x], variant, order=(0, 2, 3, 1))
    assert "by tables" in how
    assert np.array_equal(found, _wanted(x))


@pytest.mark.parametrize("variant", VARIANTS)
def test_beside_other_bytes(variant: str) -> None:
    rng = np.random.default_rng(4)
    x, y, condition = rng.integers(0, 256, (5, 77)), rng.integers(0, 256, 77), rng.integers(0, 2, (5, 1))
    arrays = [x.astype(np.uint8), y.astype(np.uint8), condition.astype(np.bool_)]
    first, second, which = (Input(array.dtype, place) for place, array in enumerate(arrays))
    numbers = _numbers(3)
    root = k.where(which, _silu(first, numbers), _silu(second, numbers))
    (found,), how = _run([root], arrays, variant)
    assert ("tables" in how) == (variant in _TABLED)
    wanted = np.where(arrays[2], _wanted(x), _wanted(y))
    assert np.abs(found - wanted).max() <= (0 if "tables" in how else 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_beside_floats(variant: str) -> None:
    rng = np.random.default_rng(5)
    x, added = rng.integers(0, 256, (3, 77)).astype(np.uint8), rng.standard_normal((3, 77)).astype(np.float32)
    numbers = _numbers(2)
    byte = _silu(Input(_U8, 0), numbers)
    (quantity, total), how = _run([byte, _real(byte, numbers[2], numbers[3]) + Input(_F32, 1)], [x, added], variant)
    assert ("tables" in how) == (variant in _WORDS)
    assert np.abs(quantity - _wanted(x)).max() <= (0 if "tables" in how else 1)
    wanted = (quantity.astype(np.float32) - np.float32(_ZERO)) * np.float32(_SCALE) + added
    assert np.allclose(total, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("variant", _TABLED)
def test_not_of_numbers_of_the_run_nor_of_wide_ones(variant: str) -> None:
    x = np.random.default_rng(6).integers(0, 256, (3, 77)).astype(np.uint8)
    assert "tables" not in _run([_silu(Input(_U8, 0), _numbers(1))], [x], variant, known=False)[1]
    byte = _silu(Input(_U8, 0), _numbers(2))
    wide = x.astype(np.float64)
    (found,), how = _run([byte.cast(np.float64) + Input(wide.dtype, 1)], [x, wide], variant)
    assert "tables" not in how
    assert np.abs(found - wide - _wanted(x)).max() <= 1
