"""How many items of a batch to do at a time, by the bytes that layers move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sardonyx.compiler.batches.batch_choice import MOST_STEPS, Load, Part, choose
from sardonyx.compiler.choice import tuned
from sardonyx.compiler.llvm.target import Caches
from sardonyx.compiler.native.convolution.algorithm import Rates
from tests.compiler.machines import described

pytestmark = pytest.mark.names_targets

MB = 1 << 20
TARGET = described(Caches(32 << 10, MB, 32 * MB))["avx512"]
FLOPS = 1e8  # of an item in a layer


@pytest.fixture(autouse=True)
def _rates() -> Iterator[None]:
    """Those that were measured of this machine count for nothing."""
    with tuned.using("convolution", Rates()):
        yield


def maps(nbytes: int, constants: float = 1e4) -> Load:
    """A layer that reads and writes so many bytes for an item."""
    return Load([nbytes], constants, FLOPS)


def test_large_maps_go_one_by_one_and_large_constants_all_at_once() -> None:
    large, small = maps(6 * MB), maps(MB // 16, constants=20 * MB)
    assert choose([large] * 8, {}, 8, TARGET) == [Part(0, 8, 1)]
    assert choose([small] * 8, {}, 8, TARGET) == [Part(0, 8, 8)]
    both = [large] * 8 + [small] * 8
    assert choose(both, {8: MB // 32}, 8, TARGET) == [Part(0, 8, 1), Part(8, 16, 8)]


def test_nothing_is_cut_where_values_would_have_to_lie_apart() -> None:
    both = [maps(6 * MB)] * 8 + [maps(MB // 16, constants=2 * MB)] * 8
    (part,) = choose(both, {3: MB}, 8, TARGET)
    assert (part.start, part.end) == (0, 16)


def test_a_value_between_two_parts_is_weighed() -> None:
    both = [Load([3 * MB], 0.0, 1e6), Load([MB // 16], 6.0 * MB, 1e6)]
    assert choose(both, {1: 1024}, 8, TARGET) == [Part(0, 1, 2), Part(1, 2, 8)]
    assert len(choose(both, {1: 4 * MB}, 8, TARGET)) == 1


@pytest.mark.parametrize("batch", [2, 3, 7, 8, 13, 64, 101])
def test_parts_follow_each_other_to_the_end(batch: int) -> None:
    loads = [maps((64 >> index % 7) * MB // 8, constants=(1 << index) * 1e4) for index in range(12)]
    parts = choose(loads, dict.fromkeys(range(1, 12), 1 << 14), batch, TARGET)
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == 12
    assert all(1 <= part.few <= batch for part in parts)
    assert parts[0].few < batch


def test_batches_of_prime_sizes_are_divided_with_a_rest() -> None:
    # Two items fit into the near cache, one alone has its constants read too often.
    loads = [Load([MB * 5 // 12], 0.9e5, 1e5)] * 30
    (part,) = choose(loads, {}, 7, TARGET)
    assert part.few == 2


def test_what_saves_too_little_is_left_whole() -> None:
    assert choose([Load([4 * MB], 0.0, 1e11)] * 4, {}, 8, TARGET) == [Part(0, 4, 8)]
    assert choose([], {}, 8, TARGET) == [Part(0, 0, 8)]


def test_huge_batches_are_not_cut_into_endless_rounds() -> None:
    (part,) = choose([maps(6 * MB)] * 4, {}, 1 << 40, TARGET)
    assert (1 << 40) // part.few * 4 <= MOST_STEPS
