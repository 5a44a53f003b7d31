"""Kernels joined into one image: it does what they do, wherever it lies, and nothing else becomes one."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.linker import NotLinkableError, link
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.runtime.native.native_image import ImageError, NativeImage

pytestmark = pytest.mark.skipif(host_target().architecture != "x86_64", reason="images are made for x86-64")

HEAD = f'target triple = "{host_target().triple}"\n'

SQUARES = """
define i64 @kernel(i64 %x) { %y = mul i64 %x, %x  ret i64 %y }
"""
# A table that the code reads, a function beside it, a jump by number, and functions of the C library.
TABLE = """
@table = private unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 7, i64 11], align 64
declare i64 @labs(i64)
declare ptr @memcpy(ptr, ptr, i64)
define internal i64 @look(i64 %n) noinline {
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %value = load i64, ptr %place
  ret i64 %value
}
define i64 @kernel(i64 %x) {
  %copy = alloca i64
  %given = alloca i64
  store i64 %x, ptr %given
  %ignored = call ptr @memcpy(ptr %copy, ptr %given, i64 8)
  %same = load i64, ptr %copy
  %n = call i64 @labs(i64 %same)
  switch i64 %n, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a: ret i64 100
b: %one = call i64 @look(i64 1)
  ret i64 %one
c: ret i64 102
d: %three = call i64 @look(i64 3)
  ret i64 %three
e: ret i64 104
other: ret i64 -1
}
"""


def code(text: str) -> bytes:
    return compile_object(HEAD + text, host_target())


def call(address: int, value: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(value)


def test_functions_find_what_they_refer_to() -> None:
    image = link({"table": code(TABLE), "squares": code(SQUARES), "again": code(TABLE)}, "kernel")
    assert [name for _, name in image.slots] == sorted({name for _, name in image.slots})
    assert "labs" in {name for _, name in image.slots}
    assert image.code.nbytes % 4096 == 0
    for _ in range(3):  # each elsewhere
        loaded = NativeImage(image.code, image.slots)
        assert call(loaded.address + image.entries["squares"], -12) == 144
        for name in ("table", "again"):
            at = loaded.address + image.entries[name]
            assert [call(at, value) for value in (0, -1, 2, 3, -4, 9)] == [100, 5, 102, 11, 104, -1]


def test_an_image_can_be_run_and_not_be_written() -> None:
    image = link({"squares": code(SQUARES)}, "kernel")
    loaded = NativeImage(image.code, image.slots)
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    rights = []
    for places, right, *_ in lines:  # the system joins what lies side by side with the same rights
        begin, end = (int(place, 16) for place in places.split("-"))
        if begin <= loaded.address < end:
            rights.append(right)
    assert rights == ["r-xp"]


def test_what_is_no_kernel_is_refused() -> None:
    good = code(SQUARES)
    data = code("@state = global i64 0\ndefine i64 @kernel() { %x = load i64, ptr @state  ret i64 %x }")
    cases = {
        "neither code nor constants": data,
        "not in ELF": b"MZ" + good[2:],
        "not for machine": good[:18] + b"\xb7\0" + good[20:],
        "has no function": code("define i64 @another() { ret i64 0 }"),
        "contradicts itself": good[: len(good) // 2],
    }
    for words, found in cases.items():
        with pytest.raises(NotLinkableError, match=words):
            link({"it": found}, "kernel")


def test_absent_functions_and_torn_images_are_refused() -> None:
    image = link(
        {
            "it": code(
                "declare i64 @no_such_function()\n"
                "define i64 @kernel() { %x = call i64 @no_such_function()  ret i64 %x }"
            )
        },
        "kernel",
    )
    with pytest.raises(ImageError, match="no function no_such_function"):
        NativeImage(image.code, image.slots)
    with pytest.raises(ImageError, match="whole pages"):
        NativeImage(np.zeros(100, np.uint8), [])
    with pytest.raises(ImageError, match="whole pages"):
        NativeImage(np.zeros(4096, np.uint8), [(4092, "memcpy")])


def test_other_instruction_sets_are_linked_too() -> None:
    for target in host_targets().values():
        image = link({"it": compile_object(HEAD + TABLE, target)}, "kernel")
        loaded = NativeImage(image.code, image.slots)
        assert call(loaded.address + image.entries["it"], 3) == 11
