"""Which sizes lie in the ranges of a profile, for models that take all, some, or only such as belong together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sardonyx.api.building.signature import Declared, Dim, ValueKind
from sardonyx.api.engines.shape_profiles import completed, parse
from sardonyx.api.engines.size_ranges import Shapes, SizeRanges

pytestmark = pytest.mark.machine_neutral

TENSOR = ValueKind("tensor", "tensor(float)", None)


def ranges(profile: str, takes: Callable[[Shapes], bool] = lambda shapes: True, **dims: tuple[Dim, ...]) -> SizeRanges:
    inputs = [Declared(name, TENSOR, found) for name, found in dims.items()]
    return SizeRanges(completed(parse(profile), inputs), inputs, takes)


def sizes(found: SizeRanges, most: int = 10_000) -> set[tuple[int, ...]]:
    chosen = [tuple(size for shape in shapes.values() for size in shape) for shapes in found.chosen(most)]
    assert len(set(chosen)) == len(chosen)
    return set(chosen)


def test_one_name_is_one_size() -> None:
    found = ranges("a:1x2,1x3,1x9", a=(1, "n"), b=("n",))
    assert found.count() == 8
    assert sizes(found) == {(1, n, n) for n in range(2, 10)}
    assert not found.is_one


def test_a_single_shape_has_no_others() -> None:
    found = ranges("a:1x3", a=(1, "n"))
    assert found.is_one
    assert sizes(found) == {(1, 3)}


def test_several_sizes_in_all_combinations() -> None:
    found = ranges("a:1x0,2x2,3x4", a=("batch", "n"))
    assert sizes(found) == {(batch, n) for batch in (1, 2, 3) for n in range(5)}


def test_sizes_that_go_together() -> None:
    """A past, what is new, and a mask over both."""

    def takes(shapes: Shapes) -> bool:
        return shapes["mask"][0] == shapes["past"][0] + shapes["ids"][0]

    found = ranges("past:0,4,8;ids:1,1,3;mask:1,5,11", takes, past=("p",), ids=("s",), mask=("p + s",))
    assert sizes(found) == {(p, s, p + s) for p in range(9) for s in (1, 2, 3)}
    assert found.count() == 27


def test_many_sizes_that_go_together() -> None:
    def takes(shapes: Shapes) -> bool:
        return len(set(shapes.values())) == 1

    found = ranges("a:1,3,5;b:1,3,5;c:1,3,5", takes, a=("a",), b=("b",), c=("c",))
    assert sizes(found) == {(n, n, n) for n in range(1, 6)}


def test_multiples() -> None:
    def takes(shapes: Shapes) -> bool:
        return all(size % 32 == 0 for size in shapes["x"])

    found = ranges("x:32x32,64x96,128x128", takes, x=("h", "w"))
    assert sizes(found) == {(h, w) for h in range(32, 129, 32) for w in range(32, 129, 32)}


def test_what_the_model_never_takes_stays_as_it_is() -> None:
    found = ranges("a:1x1,2x2,3x3", lambda shapes: shapes["a"] == (2, 2), a=("m", "n"))
    assert sizes(found) == {(2, 2)}


def test_round_sizes_come_first() -> None:
    found = ranges("a:1,5,20", a=("n",))
    order = [shapes["a"][0] for shapes in found.chosen(100)]
    assert order[:4] == [16, 8, 4, 12]
    assert sorted(order) == list(range(1, 21))


@pytest.mark.parametrize("most", [1, 7, 60, 300, 1000])
def test_of_too_many_some_are_chosen(most: int) -> None:
    found = ranges("a:1x1,3x65,33x100", a=("batch", "n"))
    assert found.count() == 3300
    chosen = sizes(found, most)
    assert len(chosen) <= most
    if most >= 800:
        assert {(batch, n) for batch in (1, 2, 3, 4, 8, 16, 32, 33) for n in range(1, 101)} == chosen
    elif most >= 60:
        assert (3, 65) in chosen
        assert {batch for batch, _ in chosen} == {1, 2, 3, 4, 8, 16, 32, 33}


def test_the_number_of_very_many_is_known_without_a_look_at_each() -> None:
    found = ranges("a:1x1x1,9x9x9,4096x4096x4096", a=("x", "y", "z"))
    assert found.count() == 4096**3
    assert 0 < len(found.chosen(5000)) <= 5000
