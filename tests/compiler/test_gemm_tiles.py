"""Matrix products by AMX, on any x86-64 machine with AVX-512: the tile instructions are calls of an emulation here."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.codegen import compile_assembly, compile_object
from sardonyx.compiler.llvm.kernels.products.gemm import emit_gemm
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec, Layout
from sardonyx.compiler.llvm.library import Emit, Kernel, KernelLibrary, library
from sardonyx.compiler.llvm.loading import Loader
from sardonyx.compiler.llvm.target import Caches, host_target, host_targets, x86_64_targets
from sardonyx.compiler.native.products import gemm_step
from sardonyx.compiler.native.products.gemm_step import multiply
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.kernel.expr import Input
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.settings import RunSettings
from tests.compiler.steps import Array, Memory

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_INTRINSIC = re.compile(r"call void @llvm\.x86\.(ldtilecfg|tile\w+|tdp\w+)\(")
FEATURES = frozenset({"amx-tile", "amx-bf16", "amx-int8", "avx512vnni", "avx512bf16"})

needs_avx512 = pytest.mark.skipif("avx512" not in host_targets(), reason="what surrounds the tiles is AVX-512 code")


class Tiles:
    """The tile registers: eight of 16 rows of 64 bytes, as Intel's manual describes the instructions."""

    def __init__(self) -> None:
        self.registers = np.zeros((8, 16, 64), np.uint8)
        self.configured = False
        i8, word, place = ctypes.c_int8, ctypes.c_int64, ctypes.c_void_p
        kinds: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
            "ldtilecfg": (self.configure, (place,)),
            "tilerelease": (self.release, ()),
            "tilezero": (self.zero, (i8,)),
            "tileloadd64": (self.load, (i8, place, word)),
            "tilestored64": (self.store, (i8, place, word)),
            "tdpbf16ps": (self.dot_bf16, (i8, i8, i8)),
            "tdpbusd": (self.dot_bytes, (i8, i8, i8)),
        }
        self.calls = {name: ctypes.CFUNCTYPE(None, *types)(call) for name, (call, types) in kinds.items()}

    def address(self, name: str) -> int:
        found = ctypes.cast(self.calls[name], ctypes.c_void_p).value
        assert found is not None
        return found

    def configure(self, place: int) -> None:
        raw = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_uint8)), (64,))
        assert raw[0] == 1
        assert (raw[16:32].view(np.uint16) == 64).all()
        assert (raw[48:56] == 16).all()
        assert not raw[1:16].any()
        assert not raw[32:48].any()
        assert not raw[56:].any()
        self.configured = True

    def release(self) -> None:
        self.configured = False

    def _rows(self, place: int, stride: int) -> Array:
        assert self.configured
        return np.stack(
            [np.frombuffer((ctypes.c_uint8 * 64).from_address(place + row * stride), np.uint8) for row in range(16)]
        )

    def zero(self, number: int) -> None:
        self.registers[number] = 0

    def load(self, number: int, place: int, stride: int) -> None:
        self.registers[number] = self._rows(place, stride)

    def store(self, number: int, place: int, stride: int) -> None:
        for row in range(16):
            ctypes.memmove(place + row * stride, self.registers[number, row].ctypes.data, 64)

    def dot_bf16(self, c: int, a: int, b: int) -> None:
        left = self.registers[a].view(ml_dtypes.bfloat16).astype(np.float32)
        right = self.registers[b].view(ml_dtypes.bfloat16).astype(np.float32).reshape(16, 16, 2)
        with np.errstate(all="ignore"):  # what lies behind the operands may be anything
            self.registers[c].view(np.float32)[...] += left @ right.transpose(0, 2, 1).reshape(32, 16)

    def dot_bytes(self, c: int, a: int, b: int) -> None:
        left = self.registers[a].astype(np.int32)
        right = self.registers[b].view(np.int8).astype(np.int32).reshape(16, 16, 4)
        self.registers[c].view(np.int32)[...] += left @ right.transpose(0, 2, 1).reshape(64, 16)


class EmulatedLibrary(KernelLibrary):
    """The library of this machine as if it had AMX beside the instructions of a variant."""

    def __init__(self, l3: int = 0, variant: str = "avx512") -> None:
        host = library(variant).target
        caches = replace(host.caches, l3=l3 or host.caches.l3)
        super().__init__(replace(host, has_amx=True, caches=caches), KernelCache(None))
        self.tiles = Tiles()
        self._host = host
        self._own = Loader(host)

    def kernel(self, emit: Emit, spec: Any) -> Kernel:
        key = f"{emit.__name__}{spec!r}"
        if key not in self._addresses:
            text = emit(self.target, spec)
            text = re.sub(r"declare void @llvm\.x86\.(?:ldtilecfg|tile|tdp).*\n", "", text)
            text = _INTRINSIC.sub(lambda one: f"call void inttoptr (i64 {self.tiles.address(one[1])} to ptr)(", text)
            self._addresses[key] = self._own.load("kernel", compile_object(text, self._host))
        return Kernel(self._addresses[key])


def run(binder: Binder, memory: Memory) -> None:
    """The steps, with memory for their buffers between guard zones."""
    for step in binder.steps:
        words = []
        for argument in step.arguments:
            if isinstance(argument, int):
                words.append(argument)
                continue
            held = argument.buffer.array if argument.buffer.array is not None else memory.place(argument.buffer)
            words.append(int(held.__array_interface__["data"][0]) + argument.offset)
        numbers = np.array(words, np.int64)
        scratch = np.full(binder.scratch_bytes + 64, 0xFF, np.uint8)  # not a number, where it is read unwritten
        _KERNEL(step.function)(numbers.ctypes.data, 0, step.chunks, -(-scratch.ctypes.data // 64) * 64)


SIZES: Sequence[tuple[int, int, int]] = [
    (1, 1, 1), (16, 32, 32), (33, 40, 65), (5, 70, 31), (70, 33, 800), (3, 5, 0), (140, 20, 3000),
    (35, 170, 330)
]  # fmt: skip


@pytest.fixture(scope="module")
def emulated() -> EmulatedLibrary:
    return EmulatedLibrary()


@needs_avx512
@pytest.mark.parametrize("form", ["constant", "rows", "columns", "rounded"])
def test_bfloat16_tiles(emulated: EmulatedLibrary, form: str) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in SIZES:
        a = rng.standard_normal((5, m, k)).astype(ml_dtypes.bfloat16 if form == "rounded" else np.float32)
        b = rng.standard_normal((k, n)).astype(np.float32)
        binder, memory = Binder(emulated, settings=RunSettings(precision="bfloat16")), Memory()
        left = binder.external(0, a.dtype, a.shape)
        memory.put(left, a)
        if form in ("constant", "rounded"):
            right = binder.constant(b)
        else:
            stored = b if form == "rows" else np.ascontiguousarray(b.T)
            right = binder.external(1, b.dtype, stored.shape)
            memory.put(right, stored)
            if form == "columns":
                right = right.reshaped((k, n), (1, max(k, 1)))
        (y,) = MatMulKernel({}).bind(binder, left, right)
        assert y is not None
        run(binder, memory)
        exact = [one.astype(ml_dtypes.bfloat16).astype(np.float64) for one in (a, b)]
        scale = np.matmul(np.abs(exact[0]), np.abs(exact[1])) + 1e-30
        assert (np.abs(memory.read(y) - np.matmul(*exact)) / scale).max(initial=0.0) < 1e-5
        assert not emulated.tiles.configured


@pytest.mark.skipif(not host_target().has_bf16_dot, reason="this machine has no dot products of bfloat16")
def test_few_rows_are_multiplied_by_vectors() -> None:
    """By the same panels, where rows end with words that come together."""
    emulated, rng = EmulatedLibrary(variant="avx512vnni"), np.random.default_rng(2)
    for m, n, k, product in [
        (1, 1, 32, "bf16"), (1, 830, 64, "bf16"), (2, 70, 320, "bf16"), (3, 129, 2080, "bf16"),
        (4, 70, 64, "bf16 tiles"), (2, 70, 40, "bf16 tiles"),
    ]:  # fmt: skip
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        binder, memory = Binder(emulated, settings=RunSettings(precision="bfloat16")), Memory()
        left = binder.external(0, a.dtype, a.shape)
        memory.put(left, a)
        (y,) = MatMulKernel({}).bind(binder, left, binder.constant(b))
        assert y is not None
        run(binder, memory)
        detail = binder.steps[-1].detail
        assert callable(detail)
        assert f" {product}," in detail()
        exact = [one.astype(ml_dtypes.bfloat16).astype(np.float64) for one in (a, b)]
        scale = np.matmul(np.abs(exact[0]), np.abs(exact[1])) + 1e-30
        assert (np.abs(memory.read(y) - np.matmul(*exact)) / scale).max() < 1e-5


@pytest.fixture(scope="module", params=[32 << 20, 128 << 20], ids=["near", "far"])
def of_parts(request: pytest.FixtureRequest) -> EmulatedLibrary:
    """With a last cache of either size: panels have two vectors, or three."""
    return EmulatedLibrary(request.param)


def multiply_parts(library_: EmulatedLibrary, a: Array, b: Array) -> tuple[Array, str]:
    """A x B in tiles of three parts, and A's layout."""
    binder, memory = Binder(library_), Memory()
    left = binder.external(0, a.dtype, a.shape)
    memory.put(left, a)
    right = Packed(binder.constant(pack_b(library_, b, "f32")), b.shape)
    result: Tensor = binder.new(np.dtype(np.float32), (*a.shape[:-1], b.shape[-1]))
    multiply(binder, left, right, (Input(np.dtype(np.float32), 0),), [], [result], "f32 tiles")
    run(binder, memory)
    detail = binder.steps[-1].detail
    assert callable(detail)
    return memory.read(result), detail().rpartition("A ")[2]


@needs_avx512
@pytest.mark.parametrize("large", [False, True])
def test_float32_in_parts(of_parts: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """As exact as sums of float32 are, whether A's words are written before or while it is multiplied."""
    monkeypatch.setattr(gemm_step, "copies_large_rows", lambda target, problem: large)
    rng = np.random.default_rng(2)
    for m, n, k in SIZES:
        a = (rng.standard_normal((m, k)) * np.exp(rng.uniform(-20, 20, (m, 1)))).astype(np.float32)
        b = (rng.standard_normal((k, n)) * np.exp(rng.uniform(-20, 20, (1, n)))).astype(np.float32)
        found, layout = multiply_parts(of_parts, a, b)
        assert layout == ("rows copied" if large and 1 not in (m, n, k) else "tiles") + ", B panels copied"
        left, right = a.astype(np.float64), b.astype(np.float64)
        scale = np.abs(left) @ np.abs(right) + 1e-30
        assert (np.abs(found - left @ right) / scale).max(initial=0.0) < 3e-7


@needs_avx512
@pytest.mark.parametrize("large", [False, True])
def test_parts_keep_infinities(of_parts: EmulatedLibrary, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    monkeypatch.setattr(gemm_step, "copies_large_rows", lambda target, problem: large)
    rng = np.random.default_rng(3)
    a = rng.standard_normal((37, 75)).astype(np.float32)
    b = rng.standard_normal((75, 45)).astype(np.float32)
    a[0, 3], a[2, 74], a[4, 5], a[5, 0], b[0, :3], b[7, 44] = np.inf, -np.inf, np.nan, 3.4e38, 0.0, np.inf
    a[33, 1], b[1, 2] = np.inf, 0.5  # of which the second and third part are zero
    with np.errstate(all="ignore"):
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    found, _ = multiply_parts(of_parts, a, b)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    ends = np.isinf(wanted)
    assert ends.sum() > 40
    assert np.array_equal(found[ends], wanted[ends])
    assert np.allclose(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)], rtol=1e-4, atol=1e-4)


@needs_avx512
def test_parts_of_matrices_that_lie_apart(of_parts: EmulatedLibrary) -> None:
    """Rows of several matrices are those of one if they follow one another, and of several products if they do not."""
    rng = np.random.default_rng(4)
    b = rng.standard_normal((40, 33)).astype(np.float32)
    for shape in ((3, 5, 40), (2, 2, 17, 40)):
        a = rng.standard_normal(shape).astype(np.float32)
        found, _ = multiply_parts(of_parts, a, b)
        assert np.allclose(found, a.astype(np.float64) @ b, atol=1e-5)


@needs_avx512
def test_byte_tiles(emulated: EmulatedLibrary) -> None:
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        a, b = rng.integers(0, 256, (m, k), dtype=np.uint8), rng.integers(-128, 128, (k, n), dtype=np.int8)
        binder, memory = Binder(emulated), Memory()
        left = binder.external(0, a.dtype, a.shape)
        memory.put(left, a)
        right = Packed(binder.constant(pack_b(emulated, b, "u8s8 tiles")), b.shape)
        result: Tensor = binder.new(np.dtype(np.int32), (m, n))
        multiply(binder, left, right, (Input(np.dtype(np.int32), 0),), [], [result], "u8s8 tiles")
        run(binder, memory)
        assert np.array_equal(memory.read(result), a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("product", ["bf16 tiles", "f32 tiles", "u8s8 tiles"])
def test_the_instructions_are_those_of_amx(product: str) -> None:
    every = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
    plain = (
        "sse sse2 cx8 fxsr mmx x87 sse3 ssse3 sse4.1 sse4.2 popcnt cx16 avx avx2 fma f16c bmi bmi2 lzcnt movbe xsave"
    )
    b: Layout = "panels" if product == "f32 tiles" else "packed"
    target = x86_64_targets(FEATURES | every | frozenset(plain.split()), Caches())["amx"]
    text = compile_assembly(emit_gemm(target, GemmSpec(product, "words", b, 16, 2)), target)
    dot = "tdpbusd" if product == "u8s8 tiles" else "tdpbf16ps"
    for instruction in ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", dot):
        assert instruction in text
    assert text.count(dot) == (12 if product == "f32 tiles" else 2)
