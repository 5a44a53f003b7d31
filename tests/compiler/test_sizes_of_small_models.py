"""Every small model of open sizes: symbolic plans are those of binding each operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.compiler.binding import Bound
from sardonyx.compiler.segment import Segment
from tests.compiler.plans import assert_alike, bound_one_by_one
from tests.compiler.small_models import SMALL_MODELS, Array

OPEN = [name for name, small in SMALL_MODELS.items() if small.sizes != ({},)]
# What each size is multiplied by, and what is added to that where it is the only one: others may depend on each other.
CHANGES = ((1, 1), (1, 2), (2, 0), (1, 5), (3, 1), (2, 3), (1, 0), (4, 1))


# What tables and caches have room for.
MOST = {"added embeddings": 11, "cache": 4}


def other_sizes(name: str) -> list[Mapping[str, int]]:
    """The sizes that a model is given, and others."""
    given, most = SMALL_MODELS[name].sizes, MOST.get(name, 1 << 20)
    last = given[-1]
    changed = [{dim: size * by + more * (len(last) == 1) for dim, size in last.items()} for by, more in CHANGES]
    return [*given, *({dim: (size - 1) % most + 1 for dim, size in one.items()} for one in changed)]


@pytest.mark.parametrize("name", OPEN)
def test_other_sizes_are_bound_as_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SMALL_MODELS[name]
    bind = Segment.bind

    def comparing(self: Segment, *asked: Any, **others: Any) -> tuple[Bound, dict[int, Array]]:
        found = bind(self, *asked, **others)
        is_symbolic = self._symbolic is not None and not others
        if is_symbolic and found[0].writers is not None:  # not in rounds
            assert_alike(found[0], bound_one_by_one(self, *asked)[0])
        return found

    def one_by_one(self: Segment, *asked: Any, **others: Any) -> tuple[Bound, dict[int, Array]]:
        return bind(self, *asked, **others) if self._symbolic is None else bound_one_by_one(self, *asked)

    results = []
    for way in (comparing, one_by_one):
        monkeypatch.setattr(Segment, "bind", way)
        session = ort.InferenceSession(small.model.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append([session.run(None, small.inputs(sizes)) for sizes in other_sizes(name)])
    for found, wanted in zip(*results, strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
