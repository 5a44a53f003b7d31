"""Tests of the names of constants that processes have in common."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from typing import NamedTuple

import numpy as np
import pytest

from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.stored.constant_names import constant_name
from sardonyx.compiler.stored.offered_constants import OfferedConstants, section_of
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.files.content_identity import InFile, OfDigest

F32_LOOK = (np.dtype(np.float32), (3, 4), (16, 4))
STATE, OTHER_STATE = (100, 1, 2, 3, 4), (100, 1, 5, 3, 4)


class Kind(Enum):
    ONE, TWO = 1, 2


class Pair(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True)
class Spec:
    size: int
    scale: float | None


KEYS = [
    (InFile(STATE, 8, F32_LOOK), "target", ("panels", (False, 1), "f32")),
    (InFile(OTHER_STATE, 8, F32_LOOK), "target", ("panels", (False, 1), "f32")),
    (InFile(STATE, 16, F32_LOOK), "target", ("panels", (False, 1), "f32")),
    (InFile(STATE, 8, (np.dtype(np.int32), *F32_LOOK[1:])), "target", ("panels", (False, 1), "f32")),
    (InFile(STATE, 8, (F32_LOOK[0], (4, 3), F32_LOOK[2])), "target", ("panels", (False, 1), "f32")),
    (InFile(STATE, 8, F32_LOOK), "other", ("panels", (False, 1), "f32")),
    (InFile(STATE, 8, F32_LOOK), "target", ("panels", (0, 1), "f32")),
    (InFile(STATE, 8, F32_LOOK), "target", ("panels", (False,), 1, "f32")),
    (InFile(STATE, 8, F32_LOOK), "target", ("panels", (False, 1), None)),
    (OfDigest(b"12345678", F32_LOOK), "target", "panels"),
    (OfDigest(b"12345679", F32_LOOK), "target", "panels"),
    ("joined", (OfDigest(b"12345678", F32_LOOK), OfDigest(b"1", F32_LOOK))),
    ("a str 'b'", "c"),
    ("a", "b str 'c'"),
    (Pair(1, 2),),
    ((1, 2),),
    (Kind.ONE,),
    (Kind.TWO,),
    (Spec(1, 2.0),),
    (Spec(1, None),),
    (np.int64(1),),
    (np.int32(1),),
    (1,),
    (1.0,),
    (True,),
    (F32,),
]


def test_names_tell_keys_apart() -> None:
    names = [constant_name(key) for key in KEYS]
    assert None not in names
    assert len(set(names)) == len(KEYS)


def test_names_are_those_of_other_processes() -> None:
    program = "from tests.compiler.test_constant_names import *; print([constant_name(key) for key in KEYS])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip().splitlines()[-1] == str([constant_name(key) for key in KEYS])


@pytest.mark.parametrize("part", [object(), frozenset([1]), len, np.dtype([("a", np.int8)])])
def test_keys_that_mean_nothing_elsewhere_have_no_name(part: object) -> None:
    assert constant_name(("key", (1, part))) is None


def test_contents_outside_of_an_engine_have_no_name_in_it() -> None:
    homes = {STATE: ("weights", 8)}
    inside = constant_name((InFile(STATE, 24, F32_LOOK), "panels"), homes)
    assert inside is not None
    assert inside == constant_name((InFile(OTHER_STATE, 116, F32_LOOK), "panels"), {OTHER_STATE: ("weights", 100)})
    assert constant_name((InFile(OTHER_STATE, 24, F32_LOOK), "panels"), homes) is None
    assert constant_name(("joined", (InFile(STATE, 24, F32_LOOK), OfDigest(b"1", F32_LOOK))), homes) is None


def test_offered_constants_are_those_of_their_names() -> None:
    key = ("contents", "target", "panels")
    piece = np.arange(64, dtype=np.uint8)
    name = constant_name(key)
    assert name is not None
    (said,) = section_of({name: (1, 8, "float32", (2, 3), (12, 4))})
    assert said.nbytes % 8 == 0
    offered = OfferedConstants(said, [piece[:0], piece])
    found = offered(key)
    assert found is not None
    np.testing.assert_array_equal(found, piece[8:32].view(np.float32).reshape(2, 3))
    assert np.may_share_memory(found, piece)
    assert not found.flags.writeable
    assert offered(("contents", "target", "other panels")) is None
