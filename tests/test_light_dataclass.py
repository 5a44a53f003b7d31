"""The `dataclass` with shared methods beside the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Light:
    """A point."""

    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Usual:
    """A point."""

    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Slotted:
    """A pair."""

    first: Any
    second: Any = None


@dataclass
class Open:
    """What changes."""

    value: int = 0


@dataclass(frozen=True, eq=False)
class Own:
    """Equal to itself alone."""

    value: int


@dataclass(frozen=True)
class Nothing:
    """No fields."""


def test_it_is_as_the_usual_one() -> None:
    for arguments in [(1,), (1, 0.25), (1, 0.5, ["a"]), (2, 0.5, [], "key")]:
        light, usual = Light(*arguments), Usual(*arguments)
        assert dataclasses.asdict(light) == dataclasses.asdict(usual)
        assert repr(light) == repr(usual).replace("Usual", "Light")
        assert hash(light) == hash(usual)
        for others in [(1,), (2, 0.5, ["b"], "key")]:
            assert (light == Light(*others)) == (usual == Usual(*others))
    assert Light(1) != Usual(1)
    assert Light(1).__eq__(Usual(1)) is NotImplemented
    assert dataclasses.replace(Light(1), y=2.0) == Light(1, 2.0)
    assert Light.__match_args__ == Usual.__match_args__
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Light()  # type: ignore[call-arg]


def test_slots() -> None:
    one = Slotted(1, (2, 3))
    assert not hasattr(one, "__dict__")
    assert {one: "found"}[Slotted(1, (2, 3))] == "found"
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    with pytest.raises(TypeError, match="unhashable"):
        hash(Slotted([]))


def test_classes_that_change_have_no_hash() -> None:
    assert Open(1) == Open(1) != Open(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Open())


def test_equality_may_be_identity() -> None:
    one = Own(1)
    assert one == one
    assert one != Own(1)
    assert len({one, Own(1)}) == 2


def test_classes_without_fields() -> None:
    assert Nothing() == Nothing()
    assert len({Nothing(), Nothing()}) == 1
    assert repr(Nothing()) == "Nothing()"
