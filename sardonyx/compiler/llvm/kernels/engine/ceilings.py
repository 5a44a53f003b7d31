"""Kernels that do nothing but multiply or read: what a machine can do at most."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, configure, release
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, BRAIN, F32, F64, I8, I32, I64, PTR, VOID, Type
from sardonyx.light_dataclass import dataclass

CHAINS = 12  # more than latency times instructions per cycle on every machine seen (4 x 2), fewer than 16 registers
STREAM_VECTORS = 4  # vectors that each stream takes in one turn of the loop


@dataclass(frozen=True)
class Arithmetic:
    """One kind of inner product: accumulators, factors, and what one instruction does."""

    accumulator: Type
    factor: Type
    products: int  # of one lane of the accumulator
    intrinsic: str = ""  # of 512 bits; empty: the target's fused multiply-add


ARITHMETIC: Mapping[str, Arithmetic] = {
    "f32": Arithmetic(F32, F32, 1),
    "f64": Arithmetic(F64, F64, 1),
    "bf16": Arithmetic(F32, BRAIN, 2, "llvm.x86.avx512bf16.dpbf16ps.512"),
    "int8": Arithmetic(I32, I8, 4, "llvm.x86.avx512.vpdpbusd.512"),
}


# Inner products of whole tiles: the type of their factors, of which a register holds 16 rows of 64 bytes.
TILES: Mapping[str, Type] = {"bf16 tiles": BF16, "int8 tiles": I8}
_RESULTS = 4  # tiles of results, enough to hide the latency


def available(name: str, target: Target) -> bool:
    """Whether the target has the instruction."""
    if name in TILES:
        return target.has_amx
    return {"bf16": target.has_bf16_dot, "int8": target.has_vnni}.get(name, True) and (
        not ARITHMETIC[name].intrinsic or target.vector_bits == 512
    )


def emit_products(target: Target, name: str) -> str:
    """Arguments: accumulators (read and written), one vector of each factor, turns of the loop.

    A turn makes every accumulator ``accumulator * x + y`` (floats), or adds products of x and y to it.
    """
    kind = ARITHMETIC[name]
    lanes = target.lanes(kind.accumulator)
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    home = k.pointer(words.load(0), kind.accumulator)
    x = k.pointer(words.load(1), kind.factor).load(0, lanes * kind.products)
    y = k.pointer(words.load(2), kind.factor).load(0, lanes * kind.products)
    chains = [k.variable(kind.accumulator.vector(lanes), home.load(chain * lanes, lanes)) for chain in range(CHAINS)]
    with k.loop(0, words.load(3)):
        for chain in chains:
            chain.set(_step(k, kind, chain.get(), x, y))
    for index, chain in enumerate(chains):
        home.store(chain.get(), index * lanes)
    return k.finish()


def operations_of_tiles(name: str) -> int:
    """Operations of one turn of `emit_tiles`: each instruction multiplies 16 rows by 16 columns."""
    return _RESULTS * 2 * SIDE * SIDE * (_TILE_ROW // TILES[name].nbytes)


_TILE_ROW = 64


def emit_tiles(target: Target, name: str) -> str:
    """Arguments: turns of the loop, each of which adds products of two tiles of zeros to every tile of results."""
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    instruction = "llvm.x86.tdpbf16ps" if TILES[name].is_float else "llvm.x86.tdpbusd"
    registers = [k.constant(I8, number) for number in range(_RESULTS + 2)]
    *results, a, b = registers
    configure(k)
    for register in registers:
        k.call("llvm.x86.tilezero", VOID, register)
    with k.loop(0, k.pointer("arguments", I64).load(0)):
        for result in results:
            k.call(instruction, VOID, result, a, b)
    release(k)
    return k.finish()


def _step(k: Function, kind: Arithmetic, accumulator: Value, x: Value, y: Value) -> Value:
    if kind.intrinsic:
        return k.call(kind.intrinsic, accumulator.type, accumulator, x, y)
    return k.fma(accumulator, x, y)


def emit_sum(target: Target, spec: tuple[int, int]) -> str:
    """Arguments: int32 elements, their number, turns, where the sum goes (one vector, to be added up).

    `spec`: into how many streams the buffer is cut that are read side by side, and how many bytes ahead of each the
    kernel asks for (0: the machine's own prefetching). The number must be a multiple of `granule`.
    """
    streams, ahead = spec
    lanes = target.lanes(I32)
    step = STREAM_VECTORS * lanes
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    x, length = k.pointer(words.load(0), I32), words.load(1) // streams
    starts = [x.offset(length * stream) for stream in range(streams)]
    sums = [k.variable(I32.vector(lanes), 0) for _ in range(streams * STREAM_VECTORS)]
    with k.loop(0, words.load(2)), k.loop(0, length, step) as i:
        for stream, start in enumerate(starts):
            if ahead:
                for byte in range(0, step * 4, 64):
                    start.prefetch(i + (ahead + byte) // 4)
            for vector in range(STREAM_VECTORS):
                total = sums[stream * STREAM_VECTORS + vector]
                total.set(total.get() + start.load(i + vector * lanes, lanes))
    for total in sums[1:]:
        sums[0].set(sums[0].get() + total.get())
    k.pointer(words.load(3), I32).store(sums[0].get())
    return k.finish()


# Ways to walk a buffer: streams and bytes ahead.
WALKS = ((1, 0), (1, 1024), (1, 4096), (2, 0), (4, 0), (4, 2048))


def granule(target: Target) -> int:
    """Elements that every way to walk a buffer divides it into without a rest."""
    return 4 * STREAM_VECTORS * target.lanes(I32)
