"""The emulated machine itself: what it must notice, and the functions of C's library that it brings."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.codegen import compile_assembly, compile_object
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.types import F64, I8, I32, I64, PTR
from tests.compiler.aarch64.machine import emulated, missing, neon
from tests.compiler.machines import load, visit_of

pytestmark = [
    pytest.mark.names_targets,
    pytest.mark.skipif(bool(missing()), reason=f"AArch64 is not emulated: {missing()}"),
]


def new_kernel() -> Function:
    return Function(KERNEL, neon(), [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])


def test_a_crash_is_noticed_and_the_next_kernel_runs() -> None:
    k = new_kernel()
    k.pointer(k.constant(I64, 64), I64).store(1)
    visit = visit_of(emulated())
    words = np.zeros(1, np.int64)
    with pytest.raises(AssertionError, match="SIGSEGV"):
        visit.call(load(emulated(), k.finish()), words, 0, 1, words)
    k = new_kernel()
    k.pointer("arguments", I64).store(7)
    again = visit_of(emulated())
    again.call(load(emulated(), k.finish()), words, 0, 1, words)
    again.fetch(words)
    assert words[0] == 7


def test_code_is_that_of_aarch64() -> None:
    k = new_kernel()
    numbers = k.pointer("arguments", F64)
    numbers.store(k.fma(numbers.load(0, 2), numbers.load(2, 2), numbers.load(4, 2)))
    assert re.search(r"fmla\s+v\d+\.2d", compile_assembly(k.finish(), neon()))


def test_an_instruction_that_old_processors_lack_is_noticed() -> None:
    """An atomic addition of ARMv8.1, which the emulated processor does not have."""
    k = new_kernel()
    place = k.pointer("arguments", I64).address.name
    k.line(f"%old = atomicrmw add ptr {place}, i64 1 monotonic, align 8")
    text = k.finish().replace("+fp-armv8", "+fp-armv8,+lse")
    assert "ldadd" in compile_assembly(text, neon()) or "stadd" in compile_assembly(text, neon())
    function = emulated().machine.load(KERNEL, compile_object(text, neon()))
    words = np.zeros(1, np.int64)
    with pytest.raises(AssertionError, match="SIGILL"):
        visit_of(emulated()).call(function, words, 0, 1, words)


@pytest.mark.parametrize(("to", "source"), [(0, 40), (40, 0), (3, 8), (8, 3)])
def test_bytes_are_moved(to: int, source: int) -> None:
    k = new_kernel()
    room = k.pointer(k.pointer("arguments", I64).load(), I8)
    arguments = (room.offset(to).address, room.offset(source).address, k["end"])
    k.call("memmove", PTR, *arguments)
    room = np.arange(100, dtype=np.uint8)
    expected = room.copy()
    expected[to : to + 30] = room[source : source + 30]
    visit = visit_of(emulated())
    words = np.array([visit.address(room)], np.int64)
    visit.call(load(emulated(), k.finish()), words, 0, 30, words)
    visit.fetch(room)
    np.testing.assert_array_equal(room, expected)


def test_bytes_are_copied_and_filled() -> None:
    k = new_kernel()
    places = k.pointer("arguments", I64)
    first, second = (k.pointer(places.load(index), I8) for index in (0, 1))
    k.copy(first, second, k["end"])
    k.call("memset", PTR, second.address, k.constant(I32, 0x5A), k["end"])
    one, other = np.zeros(50, np.uint8), np.arange(50, dtype=np.uint8)
    visit = visit_of(emulated())
    words = np.array([visit.address(one), visit.address(other)], np.int64)
    visit.call(load(emulated(), k.finish()), words, 0, 20, words)
    visit.fetch(one)
    visit.fetch(other)
    np.testing.assert_array_equal(one[:21], [*range(20), 0])
    np.testing.assert_array_equal(other[:21], [0x5A] * 20 + [20])
