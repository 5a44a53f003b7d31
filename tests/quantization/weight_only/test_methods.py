"""The methods by themselves: what their codes stand for, and how near that is."""

import numpy as np
import pytest

from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.blocks import Form, quantized
from sardonyx.quantization.weight_only.gptq import Gptq
from sardonyx.quantization.weight_only.half_quadratic import half_quadratic
from sardonyx.quantization.weight_only.k_quant import importance, search
from sardonyx.quantization.weight_only.rounding import RangeRounding, round_to_nearest

F32 = np.dtype(np.float32)
METHODS = {
    "nearest": round_to_nearest,
    "range": RangeRounding(),
    "k_quant": search,
    "half quadratic": half_quadratic,
}


def restored(weight):
    """What a quantised weight stands for, [rows, length] in float64."""
    zeros = np.full(weight.scales.shape, weight.form.middle) if weight.zeros is None else weight.zeros
    spread = [
        np.repeat(each.astype(np.float64), weight.block, 1)[:, : weight.length] for each in (zeros, weight.scales)
    ]
    return (weight.unpacked() - spread[0]) * spread[1]


def kinds_of_rows(rng, small):
    normal = rng.standard_normal((12, 50))
    return {
        "normal": normal,
        "one sign": np.abs(normal) + 1,
        "negative": -np.abs(normal) - 1,
        "zeros": normal * 0,
        "equal": normal * 0 + 0.7,
        "outliers": rng.standard_t(2, (12, 50)),
        "small": normal * small,
    }


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("method", METHODS)
def test_no_weight_is_off_by_more_than_a_step(bits, symmetric, dtype, method):
    """50 elements in blocks of 16: the last block of a row is not full."""
    form = Form(bits, symmetric, np.dtype(dtype))
    for kind, rows in kinds_of_rows(np.random.default_rng(bits), 1e-6 if dtype == np.float32 else 0.05).items():
        weight = rows.astype(dtype)
        found = quantized(weight, 16, METHODS[method], form, "w")
        steps = np.repeat(np.abs(found.scales.astype(np.float64)), 16, 1)[:, :50]
        off = np.abs(restored(found) - weight)
        if method in ("nearest", "range"):
            assert (off <= 1.02 * steps + 1e-9).all(), kind
        if method == "range":
            continue  # symmetric, both ends are at half the codes, whatever the sign of the weights
        # No method is much worse than rounding to the nearest.
        nearest = restored(quantized(weight, 16, round_to_nearest, form, "w"))
        limit = 1.6 * np.abs(nearest - weight).mean() + 1e-3 * np.abs(weight).mean()
        assert off.mean() <= limit, (kind, off.mean(), limit)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_search_is_never_worse_in_what_it_counts(symmetric):
    form = Form(4, symmetric, F32)
    groups = np.random.default_rng(0).standard_t(3, (40, 3, 32)).astype(np.float32)
    counts = importance(groups, None)

    def error(method):
        return (counts * np.square(method(groups, None, form).real() - groups)).sum(axis=2)

    searched, nearest = error(search), error(round_to_nearest)
    assert (searched <= nearest).all()
    assert searched.sum() < 0.97 * nearest.sum()


def test_half_quadratic_leaves_a_smaller_mean_error():
    weight = np.random.default_rng(0).standard_t(3, (64, 128)).astype(np.float32)
    real, whole = Form(4, False, F32, real_zeros=True), Form(4, False, F32)
    nearest = np.abs(restored(quantized(weight, 64, round_to_nearest, whole, "w")) - weight).mean()
    with_real = np.abs(restored(quantized(weight, 64, half_quadratic, real, "w")) - weight).mean()
    with_whole = np.abs(restored(quantized(weight, 64, half_quadratic, whole, "w")) - weight).mean()
    assert with_real < 0.95 * nearest
    assert with_whole < 0.99 * nearest


def correlated(rng, size, count):
    """Inputs that depend on each other: few causes, and some noise."""
    causes = rng.standard_normal((count, size // 8)) * np.linspace(3, 0.2, size // 8)
    return causes @ rng.standard_normal((size // 8, size)) + 0.3 * rng.standard_normal((count, size))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"by_activity": True},
        {"searched": True},
        {"lazy": 32},
        {"lazy": 48},
        {"damping": 0.1},
        {"by_activity": True, "searched": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("bits", "block", "symmetric"), [(4, 32, False), (4, 48, True), (2, 32, False), (4, 128, False)]
)
def test_gptq_leaves_less_of_an_error_in_the_products(options, bits, block, symmetric):
    rng = np.random.default_rng(0)
    x = correlated(rng, 128, 1000)
    weight = rng.standard_normal((40, 128)).astype(np.float32)
    form = Form(bits, symmetric, F32)

    def error(method):
        return np.square(x @ (restored(quantized(weight, block, method, form, "w", 1 << 20)) - weight).T).mean()

    assert error(Gptq(x.T @ x / len(x), **options)) < 0.2 * error(round_to_nearest)


def test_gptq_of_inputs_that_do_not_depend_on_each_other_rounds_to_the_nearest():
    weight = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    form = Form(4, False, F32)
    found = quantized(weight, 16, Gptq(np.eye(64)), form, "w", 1 << 20)
    nearest = quantized(weight, 16, round_to_nearest, form, "w")
    np.testing.assert_array_equal(found.codes, nearest.codes)
    np.testing.assert_array_equal(found.scales, nearest.scales)
    np.testing.assert_array_equal(found.zeros, nearest.zeros)


def test_gptq_of_silent_inputs_and_of_fewer_samples_than_inputs():
    rng = np.random.default_rng(0)
    x = correlated(rng, 64, 20)
    x[:, [3, 17]] = 0
    weight = rng.standard_normal((16, 64)).astype(np.float32)
    form = Form(4, False, F32)
    found = quantized(weight, 16, Gptq(x.T @ x / len(x), damping=0), form, "w", 1 << 20)
    nearest = quantized(weight, 16, round_to_nearest, form, "w")
    assert np.abs(restored(found) - weight)[:, [3, 17]].max() < 0.4  # they are rounded, not thrown away
    assert (
        np.square(x @ (restored(found) - weight).T).mean() < 0.5 * np.square(x @ (restored(nearest) - weight).T).mean()
    )


def test_gptq_refuses_moments_that_no_damping_helps():
    moment = np.full((16, 16), np.nan)
    with pytest.raises(InvalidQuantization, match="no second moment that can be inverted"):
        Gptq(moment)(np.ones((2, 1, 16), np.float32), None, Form(4, False, F32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(bad):
    weight = np.ones((4, 32), np.float32)
    weight[2, 5] = bad
    with pytest.raises(InvalidQuantization, match="Weight 'w' holds NaN or infinite"):
        quantized(weight, 16, round_to_nearest, Form(4, False, F32), "Weight 'w'")


def test_parts_of_a_weight_are_those_of_the_whole():
    weight = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    form = Form(4, False, F32)
    whole, parts = (quantized(weight, 32, search, form, "w", at_once) for at_once in (1 << 20, 64 * 7))
    np.testing.assert_array_equal(whole.codes, parts.codes)
    np.testing.assert_array_equal(whole.scales, parts.scales)
    np.testing.assert_array_equal(whole.zeros, parts.zeros)
