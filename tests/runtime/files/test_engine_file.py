"""Heads of engines that contradict themselves although their digests are right."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.runtime.files.engine_file import DamagedError, read_engine, sealed_engine, write_engine, write_sealed
from tests.robustness.guided.engines import engine_bytes, parts_of
from tests.robustness.guided.target import write_private

NUMBERS = np.arange(24, dtype=np.uint8)
SECTIONS = {"one": [NUMBERS], "two": [NUMBERS]}

# How the list of sections is changed, each of them a name, a size, and what it is checked by.
WRONG: dict[str, Any] = {
    "two of one name": lambda sections: sections[1].__setitem__(0, "one"),
    "a size that is no whole number": lambda sections: sections[1].__setitem__(1, 24.0),
    "a size below 0": lambda sections: sections[0].__setitem__(1, -1),
    "a size beyond the file": lambda sections: sections[1].__setitem__(1, 1 << 40),
    "a size beyond all files": lambda sections: sections[1].__setitem__(1, 1 << 70),
    "a name that is none": lambda sections: sections[1].__setitem__(0, 1),
    "checks that are none": lambda sections: sections[1].__setitem__(2, [5]),
    "no checks": lambda sections: sections[1].__setitem__(2, None),
    "no size": lambda sections: sections[1].pop(),
}


def changed(data: bytes, how: str) -> bytes:
    head, rest = parts_of(data)
    WRONG[how](head["sections"])
    return engine_bytes(head, rest)


@pytest.mark.parametrize("how", WRONG)
def test_engines_that_are_passed_on(how: str, tmp_path: Path) -> None:
    write_sealed(tmp_path / "engine", {"a": 1}, SECTIONS)
    whole = (tmp_path / "engine").read_bytes()
    assert sealed_engine(memoryview(whole), None).engine.content == {"a": 1}
    with pytest.raises(DamagedError):
        sealed_engine(memoryview(changed(whole, how)), None).verify()


@pytest.mark.parametrize("content", [[], [["a", 1]], "", None, 1])
def test_descriptions_that_are_none(content: Any, tmp_path: Path) -> None:
    write_sealed(tmp_path / "engine", {"a": 1}, SECTIONS)
    head, rest = parts_of((tmp_path / "engine").read_bytes())
    with pytest.raises(DamagedError, match="contradicts itself"):
        sealed_engine(memoryview(engine_bytes({**head, "content": content}, rest)), None)


@pytest.mark.parametrize("how", WRONG)
def test_engines_that_are_kept(how: str, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "engines" / "engine"
    assert write_engine(path, {"a": 1}, SECTIONS)
    found = read_engine(path)
    assert found is not None
    assert found.sections["two"].tolist() == NUMBERS.tolist()
    write_private(path, changed(path.read_bytes(), how))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedError):
        read_engine(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
