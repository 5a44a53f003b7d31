"""Histograms that widen, against counts in float64, and the ranges of each method, against slow definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx.quantization.calibration.collector import HistogramCollector
from sardonyx.quantization.calibration.distribution import mean_and_deviation
from sardonyx.quantization.calibration.entropy import divergence, entropy_range, without_zeros
from sardonyx.quantization.calibration.histograms import Histogram
from sardonyx.quantization.calibration.percentile import percentile_range


def counted(*arrays, most=256):
    histogram = Histogram(most)
    for array in arrays:
        histogram.add(array, float(array.min()), float(array.max()))
    return histogram


def check(histogram, values):
    """Every value is in the bin that exact arithmetic says, and the bins are the narrowest that fit."""
    wide = np.concatenate([one.ravel() for one in values]).astype(np.float64)
    width = histogram.width
    places = np.floor(wide / width).astype(np.int64)
    exact = np.bincount(places - places.min())
    assert histogram.first == places.min()
    np.testing.assert_array_equal(histogram.counts, exact)
    assert (histogram.low, histogram.high) == (wide.min(), wide.max())
    assert histogram.counts.size <= histogram.most
    narrower = np.floor(wide.max() * 2 / width) - np.floor(wide.min() * 2 / width) + 1
    finest = math.frexp(np.abs(wide).max())[1] - 24
    assert narrower > histogram.most or histogram.exponent == max(finest, -126)
    np.testing.assert_allclose(histogram.edges, np.arange(places.min(), places.max() + 2) * width, rtol=0)


RNG = np.random.default_rng(5)
CASES = {
    "normal": [RNG.standard_normal((3, 70)).astype(np.float32) for _ in range(4)],
    "widening": [(RNG.standard_normal(50) * 10.0**power).astype(np.float32) for power in range(-6, 7)],
    "narrowing": [(RNG.standard_normal(50) * 10.0**power).astype(np.float32) for power in range(6, -7, -1)],
    "positive": [RNG.uniform(100, 101, 500).astype(np.float32), RNG.uniform(99.5, 100, 10).astype(np.float32)],
    "negative": [-RNG.uniform(1e-3, 2e-3, 500).astype(np.float32)],
    "one value": [np.full(7, 3.7, np.float32)],
    "zeros": [np.zeros(5, np.float32), np.zeros(3, np.float32)],
    "zeros and more": [np.zeros(5, np.float32), np.array([-1e-30, 1], np.float32)],
    "float16": [RNG.standard_normal(300).astype(np.float16)],
    "largest": [np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1], np.float32)],
    "smallest": [np.array([1e-45, -3e-40, 2e-38], np.float32)],
    "long": [RNG.standard_normal(200_000).astype(np.float32)],
}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_exact_and_independent_of_the_order(name):
    arrays = CASES[name]
    histogram = counted(*arrays)
    check(histogram, arrays)
    other = counted(*reversed(arrays))
    assert (other.exponent, other.first) == (histogram.exponent, histogram.first)
    np.testing.assert_array_equal(other.counts, histogram.counts)
    restored = Histogram.of_arrays(histogram.arrays())
    restored.add(arrays[0], float(arrays[0].min()), float(arrays[0].max()))
    check(restored, [*arrays, arrays[0]])


@pytest.mark.parametrize("bins", [2, 7, 64, 200])
def test_fewer_bins(bins):
    arrays = CASES["normal"]
    coarse = counted(*arrays, most=4096).at_most(bins)
    fine = counted(*arrays, most=bins)
    assert (coarse.exponent, coarse.first) == (fine.exponent, fine.first)
    np.testing.assert_array_equal(coarse.counts, fine.counts)


def test_clipped_values_are_counted_as_if_they_had_been_clipped_before():
    values = RNG.standard_normal(5000).astype(np.float32)
    for low, high in ((0, np.inf), (-0.5, 0.25), (-np.inf, 1.3), (-9, 9), (-np.inf, np.inf)):
        clipped = counted(values).clipped(low, high)
        low, high = np.float32(low), np.float32(high)
        exact = np.floor(np.clip(values, low, high).astype(np.float64) / clipped.width).astype(np.int64)
        assert clipped.first == exact.min()
        np.testing.assert_array_equal(clipped.counts, np.bincount(exact - exact.min()))
        assert (clipped.low, clipped.high) == (np.clip(values.min(), low, high), np.clip(values.max(), low, high))


@pytest.mark.parametrize("percentile", [0, 50, 90, 99, 99.9, 100])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", ["normal", "positive", "negative", "one value", "zeros", "long"])
def test_percentiles_keep_their_share_and_no_bin_more(name, percentile, symmetric):
    values = np.concatenate([one.ravel() for one in CASES[name]]).astype(np.float64)
    histogram = counted(*CASES[name])
    low, high = percentile_range(histogram, percentile, symmetric)
    assert values.min() <= low <= high <= values.max()
    if percentile == 100:
        assert (low, high) == (values.min(), values.max())
    width = histogram.width
    if symmetric:
        wanted = math.ceil(percentile / 100 * values.size - 1e-6)
        assert ((values >= low) & (values <= high)).sum() >= wanted
        bound = max(-low, high)
        if bound < np.abs(values).max():
            assert (np.abs(values) < bound - width).sum() < max(wanted, 1)
    else:
        cut = (100 - percentile) / 200 * values.size + 1e-6
        assert (values < low).sum() <= cut
        assert (values > high).sum() <= cut
        assert (values < low + width).sum() > cut or low == values.min() or percentile == 0
        assert (values >= high - width).sum() >= cut or high == values.max() or percentile == 0


def test_a_far_value_takes_little_memory():
    histogram = counted(np.full(3, 1234.567, np.float32))
    assert histogram.counts.size == 1
    assert histogram.magnitudes()[0].tolist() == [3]
    assert percentile_range(histogram, 99, True) == (np.float32(1234.567), np.float32(1234.567))


def slow_divergence(counts, start, end, levels):
    """The definition, one level and one bin at a time."""
    inside = counts[start:end]
    real = inside.copy()
    real[0] += counts[:start].sum()
    real[-1] += counts[end:].sum()
    levels = min(levels, len(inside))
    rounded = np.zeros(len(inside))
    for level in range(levels):
        bins = [place for place in range(len(inside)) if place * levels // len(inside) == level]
        used = [place for place in bins if real[place] > 0]
        for place in used:
            rounded[place] = sum(inside[one] for one in bins) / len(used)
    used = real > 0
    p = real[used] / real.sum()
    q = 0.9999 * rounded[used] / rounded[used].sum() + 0.0001 / used.sum()
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))


@pytest.mark.parametrize(("start", "end", "levels"), [(0, 200, 16), (30, 170, 16), (50, 143, 7), (95, 111, 16)])
def test_divergence(start, end, levels):
    counts = np.bincount(np.clip(RNG.normal(100, 20, 5000), 0, 199).astype(int), minlength=200).astype(float)
    counts[RNG.integers(0, 200, 40)] = 0
    np.testing.assert_allclose(divergence(counts, start, end, levels), slow_divergence(counts, start, end, levels))


@pytest.mark.parametrize("kind", ["normal", "laplace", "relu", "outlier", "outliers"])
def test_entropy_takes_the_candidate_with_the_least_divergence_of_those_without_more_noise(kind):
    values = RNG.laplace(size=20_000) if kind == "laplace" else RNG.standard_normal(65_536)
    if kind == "relu":
        values = np.maximum(values, 0)
    if kind == "outlier":
        values[7] = 100
    if kind == "outliers":  # more than strays: to clip them is worse than the wide steps that they ask for
        values[7:10] = 100
    histogram = counted(values.astype(np.float32), most=512)
    low, high = entropy_range(histogram, 32)
    middles = (histogram.edges[:-1] + histogram.edges[1:]) / 2

    def noise(limit):
        least, largest = max(histogram.low, -limit), min(histogram.high, limit)
        clipped = sum(
            int(count) * (middle - min(max(middle, min(least, 0.0)), largest)) ** 2
            for count, middle in zip(histogram.counts, middles, strict=True)
        )
        return clipped / values.size + ((largest - min(least, 0.0)) / 63) ** 2 / 12

    widest = noise(np.inf)
    counts, first = without_zeros(histogram), histogram.first
    farthest = max(-first, first + counts.size)
    losses = {}
    for place in range(1, 129):
        bound = -(-farthest * place // 128)
        start, end = max(0, -bound - first), min(counts.size, bound - first)
        strays = counts.sum() - counts[start:end].sum() <= 2e-5 * histogram.total
        if end - start >= 32 and (strays or noise(bound * histogram.width) <= widest + 1e-12):
            losses[bound] = slow_divergence(counts, start, end, 32)
    best = max(bound for bound, loss in losses.items() if loss <= min(losses.values()) + 1e-12)
    limit = best * histogram.width
    assert (low, high) == (max(histogram.low, -limit), min(histogram.high, limit))


def test_entropy_clips_an_outlier_and_does_not_let_the_zeros_of_relu_decide():
    values = RNG.standard_normal(65_536).astype(np.float32)
    values[99] = 100
    (found,) = _results(values, num_bins=128, num_quantized_bins=128)
    assert found.lowest == values.min()
    assert 3.5 < found.highest < 8
    (of_relu,) = _results(np.maximum(values, 0), num_bins=128, num_quantized_bins=128)
    assert of_relu.lowest == 0
    assert 3.5 < of_relu.highest < 8
    for evenly in (RNG.uniform(-1, 1, 100_000), np.linspace(0, 3, 50_000)):
        (found,) = _results(evenly.astype(np.float32), num_bins=128, num_quantized_bins=128)
        assert found.range_value == (evenly.astype(np.float32).min(), evenly.astype(np.float32).max())


def _results(*arrays, **options):
    collector = HistogramCollector("entropy", False, percentile=99.0, scenario="same", **options)
    for index, array in enumerate(arrays):
        collector.collect({f"t{index}": array})
    return list(collector.compute_collection_result().values())


@pytest.mark.parametrize("scenario", ["same", "p3"])
def test_mean_and_deviation(scenario):
    values = RNG.normal(0.3, 2, 100_000).astype(np.float32)
    histogram = counted(values, most=4096)
    mean, deviation = mean_and_deviation(histogram.counts, histogram.edges, scenario)
    exact = values.astype(np.float64) if scenario == "same" else np.cbrt(values.astype(np.float64))
    np.testing.assert_allclose([mean, deviation], [exact.mean(), exact.std()], rtol=2e-3, atol=2e-3)


def test_the_collector_takes_arrays_and_lists_of_them():
    first, second = (RNG.standard_normal(100).astype(np.float32) for _ in range(2))
    collector = HistogramCollector("percentile", True, 64, 64, 100.0, "same")
    collector.collect({"a": first, "b": [first, second]})
    counts, edges, low, high, bound = collector.get_histogram_dict()["b"]
    assert counts.sum() == 200
    assert edges.size == counts.size + 1
    both = np.concatenate([first, second])
    assert (low, high, bound) == (both.min(), both.max(), np.abs(both).max())
    found = collector.compute_collection_result()
    assert found["a"].range_value == (first.min(), first.max())
    assert found["b"].hist.sum() == 200
    assert 64 <= found["b"].hist.size <= 128
    assert found["b"].bins.size == found["b"].hist.size + 1
