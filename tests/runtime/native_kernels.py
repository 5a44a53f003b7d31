"""Small kernels for tests of the executor and the thread pool, and plans made of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sardonyx.compiler.llvm import atomics, system
from sardonyx.compiler.llvm.builder import Function, Pointer
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.library import KERNEL, library
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, I64, PTR
from sardonyx.runtime.native_plan import NativePlan, StepFlag
from sardonyx.runtime.threads.thread_pool import ExecutorCode

Words = NDArray[np.int64]

BARRIER, CALLER = int(StepFlag.BARRIER), int(StepFlag.CALLER)
MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407
GIVE_UP_NANOSECONDS = 120_000_000_000


@functools.cache
def code() -> ExecutorCode:
    return executor_code(library(purpose="runtime"))


@functools.cache
def kernel(name: str) -> int:
    """The address of one of the kernels below."""
    return library(purpose="runtime").address(emit_kernel, (name,))


def emit_kernel(target: Target, spec: tuple[str]) -> str:
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    arguments = k.pointer("arguments", I64)
    _BODIES[spec[0]](k, arguments)
    return k.finish()


def _mix(k: Function, arguments: Pointer) -> None:
    """(source, target, n, weight): element i from i and its right neighbour, with work that differs by chunk."""
    source, target = (k.pointer(arguments.load(i), I64) for i in range(2))
    count, weight = arguments.load(2), arguments.load(3)
    with k.loop(k["begin"], k["end"]) as i:
        value = k.variable(I64, source.load(i) * 3 + source.load((i + 1) % count))
        with k.loop(0, (i * 37) % 11 * weight):
            value.set(value.get() * MULTIPLIER + INCREMENT)
        target.store(value.get(), i)


def mix(source: Words, weight: int) -> Words:
    """What the kernel `mix` computes."""
    value = source * 3 + np.roll(source, -1)
    turns = np.arange(len(source)) * 37 % 11 * weight
    for turn in range(int(turns.max(initial=0))):
        value = np.where(turn < turns, value * MULTIPLIER + INCREMENT, value)
    return value


def _through_scratch(k: Function, arguments: Pointer) -> None:
    """(target, words): fill the scratch memory with a number of the chunk, read it back, add up."""
    target, words = k.pointer(arguments.load(0), I64), arguments.load(1)
    scratch = k.pointer("scratch", I64)
    with k.loop(k["begin"], k["end"]) as chunk:
        with k.loop(0, words) as i:
            scratch.store(chunk * 1000 + i, i)
        total = k.variable(I64, 0)
        with k.loop(0, words) as i:
            total.set(total.get() + scratch.load(i))
        target.store(total.get(), chunk)


def _who(k: Function, arguments: Pointer) -> None:
    """(target): the thread that does each chunk."""
    target = k.pointer(arguments.load(0), I64)
    me = k.call("pthread_self", I64)
    with k.loop(k["begin"], k["end"]) as chunk:
        target.store(me, chunk)


def _meet(k: Function, arguments: Pointer) -> None:
    """(count, wanted, met): every chunk waits until `wanted` chunks have begun; met[chunk] says whether they did."""
    count, met = k.pointer(arguments.load(0), I64), k.pointer(arguments.load(2), I64)
    wanted = arguments.load(1)
    with k.loop(k["begin"], k["end"]) as chunk:
        atomics.update("add", count, 1, "seq_cst")
        deadline = system.nanoseconds(k) + GIVE_UP_NANOSECONDS
        with k.loop_while(
            lambda: (atomics.load(count, "seq_cst") < wanted) & (system.nanoseconds(k) < deadline),
        ):
            atomics.pause(k)
        met.store(k.select(atomics.load(count, "seq_cst") >= wanted, k.constant(I64, 1), 0), chunk)


def _put(k: Function, arguments: Pointer) -> None:
    """(target, value): store a value."""
    atomics.store(k.pointer(arguments.load(0), I64), arguments.load(1), "seq_cst")


def _halve(k: Function, arguments: Pointer) -> None:
    """(source, target): half of each float32."""
    source, target = (k.pointer(arguments.load(i), F32) for i in range(2))
    with k.loop(k["begin"], k["end"]) as i:
        target.store(source.load(i) * 0.5, i)


_BODIES = {"halve": _halve, "mix": _mix, "scratch": _through_scratch, "who": _who, "meet": _meet, "put": _put}


@dataclass
class PlanMaker:
    """Collects the tables of a plan. An address is (base, byte offset), or a number that stands as it is."""

    bases: int
    words: list[int] = field(default_factory=list)
    fixups: list[tuple[int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self,
        name: str,
        arguments: Sequence[int | tuple[int, int]],
        chunks: int = 1,
        claim: int = 1,
        flags: int = BARRIER,
    ) -> None:
        self.steps.append((kernel(name), len(self.words), chunks, claim, flags, 0, 0, 0))
        for argument in arguments:
            if isinstance(argument, tuple):
                self.fixups.append((len(self.words), *argument))
                self.words.append(0)
            else:
                self.words.append(argument)

    def plan(
        self,
        arena_bytes: int = 0,
        scratch_bytes: int = 0,
        nanoseconds: int | None = None,
        flush_denormals: bool = False,
    ) -> NativePlan:
        return NativePlan(
            np.array(self.words, np.int64),
            np.array(self.fixups, np.int64).reshape(-1, 3),
            np.array(self.steps, np.int64).reshape(-1, 8),
            arena_bytes,
            scratch_bytes,
            self.bases,
            tuple(f"step {i}" for i in range(len(self.steps))),
            nanoseconds=nanoseconds,
            flush_denormals=flush_denormals,
        )


def chain(length: int, size: int, claim: int = 1, weight: int = 1) -> NativePlan:
    """`mix` after `mix`, from base 1 to base 2 through two buffers of the arena; each step reads all of the last."""
    maker = PlanMaker(3)
    for i in range(length):
        source = (1, 0) if i == 0 else (0, (i - 1) % 2 * size * 8)
        target = (2, 0) if i == length - 1 else (0, i % 2 * size * 8)
        maker.add("mix", (source, target, size, weight), size, claim)
    return maker.plan(2 * size * 8)


def chained(source: Words, length: int, weight: int = 1) -> Words:
    """What `chain` computes."""
    for _ in range(length):
        source = mix(source, weight)
    return source


def numbers(count: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(-(1 << 40), 1 << 40, count, np.int64)
