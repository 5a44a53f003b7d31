"""Each target of guided fuzzing with its seeds, with what once ended badly, and with some changes, without atheris."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.robustness.guided.target import with_other_bytes
from tests.robustness.guided.targets import TARGETS

CHANGES = 150

EACH = pytest.mark.parametrize("name", TARGETS)


@EACH
def test_seeds_are_taken(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    assert [target.check(seed, tmp_path) for seed in target.seeds()] == [True] * len(target.seeds())


@EACH
def test_what_once_ended_badly_is_refused_or_taken(name: str, tmp_path: Path) -> None:
    for data in TARGETS[name].found():
        TARGETS[name].check(data, tmp_path)


@EACH
def test_changes_get_past_checksums_and_are_refused_or_taken(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    choice = random.Random(8)
    seeds = list(target.seeds())
    taken = [target.check(target.changed(choice.choice(seeds), choice), tmp_path) for _ in range(CHANGES)]
    assert True in taken


@EACH
def test_damage_is_refused_or_taken(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    choice = random.Random(9)
    seeds = list(target.seeds())
    taken = [target.check(with_other_bytes(choice.choice(seeds), choice), tmp_path) for _ in range(CHANGES)]
    assert False in taken
