"""What follows a convolution of bytes and is a function of one byte: looked up, with the results of float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.native.quantization.byte_tables import with_tables
from sardonyx.compiler.native.quantization.integer_convolution import QLinearConvKernel
from sardonyx.kernel import expr as k
from sardonyx.kernel.expr import Apply, Expr, Input, walk
from sardonyx.ops.quantization import quantized
from tests.compiler.steps import PRODUCT_VARIANTS, Array, new_binder, outputs_of
from tests.compiler.test_byte_convolution import attributes, random_bytes

_F32 = np.dtype(np.float32)
_MIDDLE, _STEP = 131, 0.043  # of the convolution's result
_SCALE, _ZERO = 0.021, 7  # of what follows

Follow = Callable[[Expr, Sequence[Expr]], Sequence[Expr]]


class _Followed(NativeKernel):
    """A QLinearConv and an epilogue; the last four inputs are the scales and zero points that this one reads."""

    def __init__(self, follow: Follow, group: int, result: type) -> None:
        super().__init__({})
        self.follow, self.result = follow, np.dtype(result)
        self.convolution = QLinearConvKernel({"group": group, "attributes": attributes({"pads": [1, 1, 1, 1]})})
        self.counted = 0

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        taken = tuple(one for one in inputs[8:] if one is not None)
        leaves = [Input(one.dtype, index) for index, one in enumerate(taken, 1)]
        made = Epilogue(tuple(self.follow(Input(self.result, 0), leaves)), taken)
        self.counted = len(with_tables(binder, made)[1])
        return self.convolution.bind(binder, *inputs[:8], epilogue=made)


def _real(byte: Expr, scale: Expr, zero: Expr) -> Expr:
    return (byte.cast(np.int32) - zero.cast(np.int32)).cast(_F32) * scale


def _silu(byte: Expr, leaves: Sequence[Expr]) -> list[Expr]:
    x_scale, x_zero, y_scale, y_zero = leaves[:4]
    real = _real(byte, x_scale, x_zero)
    return [quantized(real * k.sigmoid(real) / y_scale, y_zero.cast(_F32), y_zero.dtype)]


def _silu_twice(byte: Expr, leaves: Sequence[Expr]) -> list[Expr]:
    """As a byte, and as the number that it stands for plus another operand."""
    (quantity,) = _silu(byte, leaves)
    return [quantity, _real(quantity, leaves[2], leaves[3]) + leaves[4]]


def _operands(dtype: type, channels: int, filters: int, group: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    x = random_bytes(rng, dtype, (1, channels, 9, 13))
    w = random_bytes(rng, np.int8, (filters, channels // group, 3, 3))
    middle = _MIDDLE if dtype == np.uint8 else _MIDDLE - 128
    point = np.asarray(middle, dtype)
    factors = np.float32(0.2 / np.sqrt(w[0].size))
    scales = [np.float32(1), point, w, np.asarray(factors * 0.01), np.zeros((), np.int8), np.float32(_STEP), point]
    zero = np.asarray(_ZERO if dtype == np.uint8 else _ZERO - 128, dtype)
    follow = [np.array(_STEP, np.float32), point, np.array(_SCALE, np.float32), zero]
    return [x, *map(np.asarray, scales), *follow]


def _wanted(byte: Array, dtype: type) -> Array:
    point, limits = _MIDDLE if dtype == np.uint8 else _MIDDLE - 128, np.iinfo(dtype)
    real = (byte.astype(np.float64) - point) * np.float64(np.float32(_STEP))
    zero = _ZERO if dtype == np.uint8 else _ZERO - 128
    return np.clip(np.rint(real / (1 + np.exp(-real)) / np.float32(_SCALE)) + zero, limits.min, limits.max)


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("channels", "filters", "group"), [(5, 37, 1), (35, 35, 35)])
def test_silu_of_a_convolution(variant: str, dtype: type, channels: int, filters: int, group: int) -> None:
    given = _operands(dtype, channels, filters, group, 3)
    plain = QLinearConvKernel({"group": group, "attributes": attributes({"pads": [1, 1, 1, 1]})})
    (byte,) = outputs_of(plain, given[:8], variant, known=range(1, 8))
    kernel = _Followed(_silu, group, dtype)
    (found,) = outputs_of(kernel, given, variant, known=range(1, len(given)))
    assert len(np.unique(byte)) > 100
    assert np.abs(found - _wanted(byte, dtype)).max() <= (0 if kernel.counted else 1)
    assert (found == _wanted(byte, dtype)).mean() > 0.99


@pytest.mark.parametrize("variant", [name for name in host_targets() if "avx" in name])
def test_items_of_a_batch_share_a_table(variant: str) -> None:
    """Where minimal filtering multiplies less."""
    given = _operands(np.uint8, 64, 64, 1, 3)
    given[0] = random_bytes(np.random.default_rng(6), np.uint8, (2, 64, 28, 28))
    plain = QLinearConvKernel({"group": 1, "attributes": attributes({"pads": [1, 1, 1, 1]})})
    (byte,) = outputs_of(plain, given[:8], variant, known=range(1, 8))
    kernel = _Followed(_silu, 1, np.uint8)
    (found,) = outputs_of(kernel, given, variant, known=range(1, len(given)))
    assert kernel.counted == 1
    assert np.array_equal(found, _wanted(byte, np.uint8))


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_what_follows_a_table_is_computed(variant: str) -> None:
    given = _operands(np.uint8, 5, 37, 1, 4)
    added = np.random.default_rng(5).standard_normal((1, 37, 9, 13)).astype(np.float32)
    kernel = _Followed(_silu_twice, 1, np.uint8)
    byte, real = outputs_of(kernel, [*given, added], variant, known=range(1, len(given)))
    wanted = (byte.astype(np.float32) - np.float32(_ZERO)) * np.float32(_SCALE) + added
    assert np.allclose(real, wanted, rtol=1e-6, atol=1e-6)


def _tables(follow: Follow, variant: str, *, known: bool) -> tuple[int, Sequence[Expr]]:
    binder = new_binder(variant)
    arrays = [np.array(_STEP, np.float32), np.array(_MIDDLE, np.uint8)]
    arrays += [np.array(_SCALE, np.float32), np.array(_ZERO, np.uint8)]
    tensors = [binder.constant(one) if known else binder.new(one.dtype, ()) for one in arrays]
    leaves = [Input(one.dtype, index) for index, one in enumerate(tensors, 1)]
    epilogue, tables = with_tables(
        binder, Epilogue(tuple(follow(Input(np.dtype(np.uint8), 0), leaves)), tuple(tensors))
    )
    assert epilogue is not None
    return len(tables), epilogue.outputs


@pytest.mark.parametrize("variant", [name for name in host_targets() if "avx" in name or name == "amx"])
def test_only_known_and_costly_functions_become_tables(variant: str) -> None:
    count, (output,) = _tables(_silu, variant, known=True)
    assert count == 1
    assert [one.primitive for one in walk([output]) if isinstance(one, Apply)] == ["tabulated"]
    assert _tables(_silu, variant, known=False)[0] == 0
    assert _tables(lambda byte, leaves: [quantized(byte.cast(_F32) / leaves[2], None, leaves[3].dtype)], variant,
                   known=True)[0] == 0  # fmt: skip
