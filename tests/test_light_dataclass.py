"""The `dataclass` with shared methods beside the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, ClassVar, get_type_hints

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


@dataclass
class Counted:
    """What its classes have in common is no field."""

    kind: ClassVar[str] = "counted"
    value: int
    names: list[str] = field(default_factory=list)


def test_annotations_stay() -> None:
    found = {one.name: one.type for one in dataclasses.fields(Light)}  # type: ignore[arg-type]
    assert found == {one.name: one.type for one in dataclasses.fields(Usual)}  # type: ignore[arg-type]
    assert found["tags"] == "list[str]"
    assert get_type_hints(Light) == get_type_hints(Usual)
    assert get_type_hints(Slotted) == {"first": Any, "second": Any}
    assert [one.name for one in dataclasses.fields(Counted)] == ["value", "names"]  # type: ignore[arg-type]
    assert (Counted(3).kind, vars(Counted(3))) == ("counted", {"value": 3, "names": []})


def test_slots() -> None:
    one = Slotted(1, (2, 3))
    assert not hasattr(one, "__dict__")
    assert {one: "found"}[Slotted(1, (2, 3))] == "found"
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    with pytest.raises(TypeError, match="unhashable"):
        hash(Slotted([]))


def test_objects_begin_as_usual() -> None:
    def classes(decorator: Any) -> list[Any]:
        class Counted:
            """Counts what it is given."""

            items: list[int] = field(default_factory=list)
            more: dict[str, int] = field(default_factory=dict)
            count: int = field(init=False)

            def __post_init__(self) -> None:
                self.count = len(self.items) + len(self.more)

        class Own:
            """Has an `__init__` of its own."""

            value: int

            def __init__(self) -> None:
                self.value = 7

        usual = decorator(Counted)

        class Longer(usual):
            """Has one more field."""

            last: int = 3

        return [usual, decorator(Own), decorator(Longer)]

    for light, usual in zip(classes(dataclass), classes(dataclasses.dataclass), strict=True):
        assert light().__dict__ == usual().__dict__
        assert list(inspect.signature(light).parameters) == list(inspect.signature(usual).parameters)
    counted, _, longer = classes(dataclass)
    assert counted([1], {"a": 2}).count == 2
    assert counted().items is not counted().items
    assert vars(longer([1, 2], last=4)) == {"items": [1, 2], "more": {}, "last": 4, "count": 2}
    with pytest.raises(TypeError, match=r"Counted.__init__\(\) got an unexpected keyword argument 'others'"):
        counted(others=[])


def test_fields_given_by_keyword_alone() -> None:
    def classes(decorator: Any) -> list[Any]:
        class Base:
            """One of its fields is given by keyword alone, with a default."""

            first: int
            marked: tuple[int, ...] = field(default=(), kw_only=True)

        usual = decorator(Base)

        class Longer(usual):
            """A field that is given by place comes before those that are not."""

            second: list[int] = field(default_factory=list)

        class Whole:
            """All of its fields are given by keyword alone, in any order of defaults."""

            first: int = 3
            second: int

        return [usual, decorator(Longer), decorator(Whole, kw_only=True)]

    for light, usual in zip(classes(dataclass), classes(dataclasses.dataclass), strict=True):
        assert inspect.signature(light).parameters.keys() == inspect.signature(usual).parameters.keys()
        kinds = [[one.kind for one in inspect.signature(kind).parameters.values()] for kind in (light, usual)]
        assert kinds[0] == kinds[1]
        assert light.__match_args__ == usual.__match_args__
    base, longer, whole = classes(dataclass)
    assert (base(1).marked, base(1, marked=(2,)).marked) == ((), (2,))
    assert vars(longer(1, [2], marked=(3,))) == {"first": 1, "second": [2], "marked": (3,)}
    assert vars(whole(second=1)) == {"first": 3, "second": 1}
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        base(1, (2,))
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'second'"):
        whole()


def test_whoever_asks_first_finds_the_same() -> None:
    @dataclass
    class First:
        """A class of which no object is made."""

        value: int = 1

    @dataclass
    class Second(First):
        """One that begins as its base does."""

        other: int = 2

        def __init__(self, value: int) -> None:
            super().__init__(value)
            self.other = value + 1

    assert vars(Second(3)) == {"value": 3, "other": 4}
    assert First.__init__ is First.__init__
    assert First.__init__.__qualname__ == f"{First.__qualname__}.__init__"
    again = First(5)
    again.__init__(7)  # type: ignore[misc]
    assert again.value == 7


def test_threads_that_make_the_first_objects() -> None:
    for _ in range(20):

        @dataclass
        class One:
            """Made by several threads at once."""

            value: int
            items: list[int] = field(default_factory=list)

        start = threading.Barrier(4)

        def made(value: int, kind: Any = One, start: threading.Barrier = start) -> Any:
            start.wait()
            return kind(value)

        with ThreadPoolExecutor(4) as threads:
            assert [vars(one) for one in threads.map(made, range(4))] == [
                {"value": value, "items": []} for value in range(4)
            ]


def test_defaults_come_last() -> None:
    class Wrong:
        """No default after one."""

        first: int = 0
        second: int

    with pytest.raises(TypeError, match="a field without a default"):
        dataclass(Wrong)


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


def _own_methods(decorator: Any, **arguments: Any) -> list[Any]:
    """Classes with an `__eq__` or `__hash__` of their own, or both, or no hash."""

    class Whole:
        value: float
        other: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Whole) and int(self.value) == int(other.value)

    class Hashed(Whole):
        def __hash__(self) -> int:
            return 7

    class Both:
        value: float
        other: int = 0
        __eq__ = Whole.__eq__
        __hash__ = Hashed.__hash__

    class Unhashable:
        value: float
        other: int = 0
        __hash__ = None  # type: ignore[assignment]

    Hashed.__annotations__ = Both.__annotations__ = Whole.__annotations__
    return [decorator(one, **arguments) for one in (Whole, Hashed, Both, Unhashable)]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_methods_of_a_class_stay(frozen: bool, slots: bool) -> None:
    def seen(one: Any) -> list[Any]:
        pair = one(1.25), one(1.5)
        found = [pair[0] == pair[1], pair[0] == one(1.25), one.__hash__ is None]
        return [*found, None if one.__hash__ is None else hash(pair[0])]

    arguments = {"frozen": frozen, "slots": slots}
    light, usual = _own_methods(dataclass, **arguments), _own_methods(dataclasses.dataclass, **arguments)
    assert list(map(seen, light)) == list(map(seen, usual))
