"""Conv of integers, with scales found in each run."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.quantization.quant_utils import QuantType
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.quantizing import (
    constants,
    dynamic_quantized,
    model,
    node,
    operators,
    quantized,
    run,
    run_peer,
)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _sums(numbers: np.ndarray, weight: np.ndarray, groups: int) -> np.ndarray:
    """A convolution of 3 x 3 with pads of 1, in integers of 64 bits; the padding is 0."""
    padded = np.pad(numbers, ((0, 0), (0, 0), (1, 1), (1, 1)))
    batch, channels, height, width = numbers.shape
    out = weight.shape[0]
    sums = np.zeros((batch, out, height, width), np.int64)
    size = channels // groups
    for index in range(out):
        first = (index // (out // groups)) * size
        for row in range(3):
            for column in range(3):
                part = padded[:, first : first + size, row : row + height, column : column + width]
                sums[:, index] += (part * weight[index, :, row, column][None, :, None, None]).sum(1)
    return sums


@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_conv_is_exact(weight_type: QuantType, per_channel: bool, groups: int, has_bias: bool) -> None:
    weight = _floats(6, 4 // groups, 3, 3) * np.linspace(0.02, 2, 6, dtype=np.float32)[:, None, None, None]
    image, bias = _floats(2, 4, 7, 5), _floats(6)
    given = {"w": weight, "b": bias} if has_bias else {"w": weight}
    proto = model(
        [node("Conv", ["x", *given], ["y"], pads=[1, 1, 1, 1], group=groups)], {"x": [2, 4, 7, 5]}, ["y"], given
    )
    made = quantized(proto, weight_type=weight_type, per_channel=per_channel)
    assert "ConvInteger" in operators(made)
    kept = constants(made)
    if per_channel:
        scale = kept["w_scale_of_channels"]
        zero_point = int(kept["w_zero_point_of_all"])
        assert scale.shape == (6, 1, 1)
        assert zero_point == (0 if weight_type is QuantType.QInt8 else 128)
    else:
        scale, zero_point = kept["w_scale"], int(kept["w_zero_point"])
    numbers, image_scale, image_zero = dynamic_quantized(image)
    sums = _sums(numbers - image_zero, kept["w_quantized"].astype(np.int64) - zero_point, groups)
    expected = sums.astype(np.float32) * (image_scale * scale)
    if has_bias:
        expected = expected + bias[:, None, None]
    # The product and the bias may be rounded once or twice.
    np.testing.assert_allclose(run(made, {"x": image})[0], expected, rtol=0, atol=2e-6 * has_bias)
    np.testing.assert_allclose(run_peer(made, {"x": image})[0], expected, rtol=1e-5, atol=1e-5)


def test_per_channel_is_finer_where_channels_differ() -> None:
    weight = _floats(4, 3, 3, 3) * np.array([1, 0.1, 0.01, 0.001], np.float32)[:, None, None, None]
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, ["y"], {"w": weight})
    image = _floats(1, 3, 8, 8)
    (exact,) = run(proto, {"x": image})
    errors = [
        np.abs(run(quantized(proto, per_channel=per_channel), {"x": image})[0] - exact)[0, 3].max()
        for per_channel in (False, True)
    ]
    assert errors[1] < errors[0] / 20


def test_channel_of_zeros_is_zero() -> None:
    weight = _floats(3, 2, 1, 1)
    weight[1] = 0
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 2, 4, 4]}, ["y"], {"w": weight})
    for weight_type in (QuantType.QInt8, QuantType.QUInt8):
        made = quantized(proto, per_channel=True, weight_type=weight_type)
        (result,) = run(made, {"x": _floats(1, 2, 4, 4)})
        assert not result[0, 1].any()
        assert result[0, 0].any()


def test_weight_that_is_no_constant_stays() -> None:
    proto = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 2, 4, 4], "w": [3, 2, 1, 1]}, ["y"], {})
    with pytest.raises(InvalidQuantization, match="its weight is no constant"):
        quantized(proto)
