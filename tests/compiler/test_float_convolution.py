"""Convolutions of bytes that are computed in float32: where that is chosen, and that their sums are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.binding import Tensor, row_major
from sardonyx.compiler.bound_step import Buffer
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.quantization import float_convolution
from sardonyx.compiler.native.quantization.byte_convolution import PRODUCT
from sardonyx.compiler.native.quantization.integer_convolution import ConvIntegerKernel, QLinearConvKernel
from tests.compiler.machines import described
from tests.compiler.steps import PRODUCT_VARIANTS, bind, outputs_of
from tests.compiler.test_byte_convolution import attributes, exact, random_bytes
from tests.passes.test_quantization import Model

# The image's shape, the weights' shape, groups, attributes of the windows.
CASES: list[tuple[Sequence[int], Sequence[int], int, dict[str, Any]]] = [
    ((1, 64, 20, 20), (64, 2, 3, 3), 32, {"pads": [1, 1, 1, 1]}),
    ((2, 16, 12, 13), (32, 1, 3, 3), 16, {"pads": [1, 1, 1, 1]}),
    ((1, 4, 12, 13), (4, 1, 3, 3), 4, {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
    ((1, 6, 50), (12, 1, 3), 6, {"pads": [1, 1]}),
]


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_sums_are_those_of_bytes(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_convolution, "_MARGIN", 1e9)
    rng = np.random.default_rng(31)
    for number, (x_shape, w_shape, group, given) in enumerate(CASES):
        x_type, w_type = [(np.uint8, np.int8), (np.int8, np.uint8)][number % 2]
        x, w = random_bytes(rng, x_type, x_shape), random_bytes(rng, w_type, w_shape)
        x_zero, w_zero = random_bytes(rng, x_type, ()), random_bytes(rng, w_type, w_shape[:1])
        native = ConvIntegerKernel({"group": group, "attributes": attributes(given)})
        arrays, known = [x, w, x_zero, w_zero], [(1, 2, 3), (1, 3)][number % 2]
        binder, _, _ = bind(native, arrays, variant, known=known)
        assert any(float_convolution.BYTES_IN_FLOATS in str(_detail(step)) for step in binder.steps)
        (found,) = outputs_of(native, arrays, variant, known=known, one_by_one=True)
        wanted = exact(x, w, int(x_zero), w_zero, group, given)
        assert np.array_equal(found, wanted)
        bias = rng.integers(-1000, 1000, w_shape[0]).astype(np.int32)
        scales = [np.array(0.5, np.float32), np.full(w_shape[0], 0.25, np.float32), np.array(64, np.float32)]
        y_zero = np.array(3, np.uint8)
        quantised = QLinearConvKernel({"group": group, "attributes": attributes(given)})
        inputs = [x, scales[0], x_zero, w, scales[1], w_zero, scales[2], y_zero, bias]
        (found,) = outputs_of(quantised, inputs, variant, known=range(1, 9))
        total = wanted + bias.reshape(-1, *(1,) * (x.ndim - 2))
        assert np.array_equal(found, np.clip(np.rint(total / 512) + 3, 0, 255))


def _detail(step: Any) -> str:
    return step.detail if isinstance(step.detail, str) else step.detail()


def call(shape: Sequence[int], weights: Sequence[int], group: int) -> ConvolutionCall:
    def value(dtype: Any, of: Sequence[int]) -> Tensor:
        return Tensor(np.dtype(dtype), tuple(of), row_major(of), Buffer(int(np.prod(of))))

    windows = attributes({"pads": [1, 1, 1, 1]})(weights[2:]).windows(shape[2:])
    return ConvolutionCall(value(np.uint8, shape), value(np.int8, weights), None, windows, group, None, PRODUCT)


@pytest.mark.parametrize(
    ("shape", "weights", "group", "wanted"),
    [
        ((1, 128, 56, 56), (128, 4, 3, 3), 32, True),
        ((1, 64, 56, 56), (128, 1, 3, 3), 64, True),
        ((1, 256, 28, 28), (256, 8, 3, 3), 32, False),
        ((1, 512, 14, 14), (512, 16, 3, 3), 32, False),
        ((1, 64, 56, 56), (64, 64, 3, 3), 1, False),
        ((1, 96, 56, 56), (96, 1, 3, 3), 96, False),
        ((1, 4, 112, 112), (4, 1, 3, 3), 4, True),
    ],
)
def test_choice(shape: Sequence[int], weights: Sequence[int], group: int, wanted: bool) -> None:
    """As measured where units are 256 bits wide and there are dot products of bytes."""
    target: Target = described(takes_turns=True)["avx512vnni"]
    given = np.full(weights, 3, np.float32)
    assert float_convolution.takes(target, call(shape, weights, group), given) is wanted
    if wanted:  # sums that float32 does not hold
        assert not float_convolution.takes(target, call(shape, weights, group), given * 10_000)


def test_the_session_says_so_and_can_be_told_not_to() -> None:
    rng = np.random.default_rng(32)
    model = Model(1, 64, 30, 30)
    w = model.weight("w", random_bytes(rng, np.int8, (64, 2, 3, 3)), np.full(64, 0.01), axis=0)
    model.add("Conv", ["x_d", w], "c", pads=[1, 1, 1, 1], group=32)
    text = model.finished(model.pair("c", 0.1, 100)).SerializeToString()
    x = rng.standard_normal((1, 64, 30, 30)).astype(np.float32)
    results, told = [], []
    for value in ("1", "0"):
        options = sardonyx.SessionOptions()
        options.add_session_config_entry("sardonyx.cpu.bytes_in_floats", value)
        options.add_session_config_entry("sardonyx.cpu.kernels", "portable")
        session = sardonyx.InferenceSession(text, options)
        results.append(session.run(None, {"x": x})[0])
        told.append(any("groups of 2 filters fill no vector" in row.detail for row in explain(session, {"x": x}).rows))
    assert told == [True, False]
    assert np.array_equal(*results)
