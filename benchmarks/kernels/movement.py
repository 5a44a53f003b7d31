"""Data movement kernels against memcpy of the same number of bytes, on one thread.

    python -m benchmarks.kernels.movement [--only WORD] [--variant avx2]

Each case is bound once and its steps are called directly; times are the best of many runs, so they hold for data that
lies in the caches where it fits there. GB/s counts bytes read and written; `share` is memcpy's time over ours.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Buffer, Tensor
from sardonyx.compiler.kernels.rows.cumulative import Cumulative
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.native.movement.concat import Concat
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.native.movement.gather import Gather, GatherElements
from sardonyx.compiler.native.movement.pad import Pad
from sardonyx.compiler.native.movement.rearrange import DepthToSpace, Tile
from sardonyx.compiler.native.movement.scatter import ScatterND
from sardonyx.compiler.native.movement.slices import part_of, transposed

F32 = np.dtype(np.float32)
SECONDS = 0.1  # for each case

Array = np.ndarray[Any, Any]
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class Case:
    """`make` binds a kernel to new inputs and gives its result."""

    name: str
    make: Callable[[Binder], Tensor]


def _input(binder: Binder, *shape: int, dtype: np.dtype[Any] = F32) -> Tensor:
    return binder.external(len(binder.steps), dtype, shape)


def _indices(binder: Binder, bound: int, *shape: int) -> Tensor:
    """Random indices whose contents the kernel does not know."""
    known = binder.constant(np.random.default_rng(1).integers(0, bound, shape))
    return Tensor(known.dtype, known.shape, known.strides, known.buffer)


def _turned(order: tuple[int, ...], *shape: int, dtype: np.dtype[Any] = F32) -> Callable[[Binder], Tensor]:
    return lambda binder: copy(binder, transposed(_input(binder, *shape, dtype=dtype), order))


def cases() -> Iterator[Case]:
    """The cases, from plain copies to lookups."""
    yield Case("copy 393 KB", lambda b: copy(b, _input(b, 128, 768)))
    yield Case("copy 38 MB", lambda b: copy(b, _input(b, 12800, 768)))
    yield Case("rows of 256 B: heads (1,128,12,64)", _turned((0, 2, 1, 3), 1, 128, 12, 64))
    yield Case("rows of 256 B: heads (8,512,12,64)", _turned((0, 2, 1, 3), 8, 512, 12, 64))
    yield Case("transpose 768x768", _turned((1, 0), 768, 768))
    yield Case("transpose 1024x1024", _turned((1, 0), 1024, 1024))
    yield Case("transpose 4096x4096", _turned((1, 0), 4096, 4096))
    yield Case("transpose 4096x4100 float64", _turned((1, 0), 4096, 4100, dtype=np.dtype(np.float64)))
    yield Case("transpose 2048x2048 float16", _turned((1, 0), 2048, 2048, dtype=np.dtype(np.float16)))
    yield Case("transpose 2048x2048 uint8", _turned((1, 0), 2048, 2048, dtype=np.dtype(np.uint8)))
    yield Case("keys (1,12,128,64) to (1,12,64,128)", _turned((0, 1, 3, 2), 1, 12, 128, 64))
    yield Case("image NHWC to NCHW 224x224x3", _turned((0, 3, 1, 2), 1, 224, 224, 3))
    yield Case("image NCHW to NHWC 3x224x224", _turned((0, 2, 3, 1), 1, 3, 224, 224))
    yield Case("features NCHW to NHWC 64x56x56", _turned((0, 2, 3, 1), 1, 64, 56, 56))
    yield Case("every second element", lambda b: copy(b, part_of(_input(b, 256, 2048), 1, 0, 1024, 2)))
    yield Case("reversed rows", lambda b: copy(b, part_of(_input(b, 256, 1024), 1, 1023, 1024, -1)))
    yield Case("slice of rows 1000 of 1024", lambda b: copy(b, part_of(_input(b, 512, 1024), 1, 5, 1000)))
    yield Case("one element everywhere 1 MB", lambda b: copy(b, _input(b, 1).reshaped((512, 512), (0, 0))))
    yield Case("column everywhere 1 MB", lambda b: copy(b, _input(b, 512).reshaped((512, 512), (1, 0))))
    yield Case("row everywhere 1 MB", lambda b: copy(b, _input(b, 512).reshaped((512, 512), (0, 1))))
    yield Case("tile 64x64 by 8x8", _tile)
    yield Case("concat of a cache (1,12,1023,64) + 1", _concat(2, (1, 12, 1023, 64), (1, 12, 1, 64)))
    yield Case("concat on the last axis", _concat(1, (512, 256), (512, 256)))
    yield Case("pad 64x56x56 by 1", _pad)
    yield Case("depth to space 256x56x56", _depth_to_space)
    yield Case("embedding 512 rows of 768", _gather(30522, 768, 512))
    yield Case("embedding 8192 rows of 64", _gather(30522, 64, 8192))
    yield Case("gather 1M elements", _gather(1 << 18, 1, 1 << 20))
    yield Case("gather elements 512x1024", _gather_elements)
    yield Case("scatter 512 rows of 768", _scatter)
    yield Case("running sums down 512x1024", _sums(0))
    yield Case("running sums along 512x1024", _sums(1))


def _one(results: Any) -> Tensor:
    (result,) = results
    assert isinstance(result, Tensor)
    return result


def _tile(binder: Binder) -> Tensor:
    return _one(Tile({}).bind(binder, _input(binder, 64, 64), binder.constant(np.array([8, 8]))))


def _concat(axis: int, *shapes: tuple[int, ...]) -> Callable[[Binder], Tensor]:
    return lambda b: _one(Concat({"axis": axis}).bind(b, *[_input(b, *shape) for shape in shapes]))


def _pad(binder: Binder) -> Tensor:
    pads = binder.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    return _one(Pad({"mode": "constant"}).bind(binder, _input(binder, 1, 64, 56, 56), pads))


def _depth_to_space(binder: Binder) -> Tensor:
    return _one(DepthToSpace({"blocksize": 2, "mode": "DCR"}).bind(binder, _input(binder, 1, 256, 56, 56)))


def _gather(rows: int, width: int, count: int) -> Callable[[Binder], Tensor]:
    return lambda b: _one(Gather({"axis": 0}).bind(b, _input(b, rows, width), _indices(b, rows, count)))


def _gather_elements(binder: Binder) -> Tensor:
    inputs = [_input(binder, 512, 1024), _indices(binder, 1024, 512, 1024)]
    return _one(GatherElements({"axis": 1}).bind(binder, *inputs))


def _scatter(binder: Binder) -> Tensor:
    inputs = [_input(binder, 512, 768), _indices(binder, 512, 512, 1), _input(binder, 512, 768)]
    return _one(ScatterND({"reduction": "none"}).bind(binder, *inputs))


def _sums(axis: int) -> Callable[[Binder], Tensor]:
    kernel = Cumulative({"exclusive": 0, "reverse": 0, "product": False})
    return lambda b: _one(kernel.bind(b, _input(b, 512, 1024), b.constant(np.array(axis))))


class Runner:
    """The steps of a binder with memory for their buffers."""

    def __init__(self, binder: Binder) -> None:
        self._rooms: dict[int, Array] = {}
        self._calls = [
            (_SIGNATURE(step.function), np.array([self._word(one) for one in step.arguments], np.int64), step.chunks)
            for step in binder.steps
        ]
        self._scratch = np.zeros(binder.scratch_bytes + 64, np.uint8)
        self._aligned = -(-self._scratch.ctypes.data // 64) * 64

    def _word(self, argument: Argument) -> int:
        if isinstance(argument, int):
            return argument
        buffer, start = argument.buffer.settled()
        return self._room(buffer).ctypes.data + start + argument.offset

    def _room(self, buffer: Buffer) -> Array:
        if buffer.array is not None:
            return buffer.array
        if id(buffer) not in self._rooms:
            whole = np.ones(buffer.nbytes // 4 + 17, np.float32).view(np.uint8)  # no number may be denormal
            start = -whole.ctypes.data % 64
            self._rooms[id(buffer)] = whole[start : start + buffer.nbytes]
        return self._rooms[id(buffer)]

    def __call__(self) -> None:
        for function, words, chunks in self._calls:
            function(words.ctypes.data, 0, chunks, self._aligned)

    def idle(self) -> None:
        """The same calls with nothing to do."""
        for function, words, _ in self._calls:
            function(words.ctypes.data, 0, 0, self._aligned)


def best(run: Callable[[], None]) -> float:
    """The shortest time of a run, in seconds."""
    shortest, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def _memcpy(nbytes: int) -> Callable[[], None]:
    one, other = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def run() -> None:
        ctypes.memmove(one.ctypes.data, other.ctypes.data, nbytes)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name holds this word")
    parser.add_argument("--variant", default="", help="the instruction set; the machine's best one by default")
    options = parser.parse_args()
    print(f"{'case':38} {'us':>9} {'GB/s':>7} {'memcpy us':>10} {'share':>6}")
    for case in cases():
        if options.only not in case.name:
            continue
        binder = Binder(library(options.variant))
        result = case.make(binder)
        ours = best(Runner(binder))
        memcpy = best(_memcpy(result.nbytes))
        moved = sum(step.bytes for step in binder.steps)
        print(f"{case.name:38} {ours * 1e6:9.1f} {moved / ours / 1e9:7.1f} {memcpy * 1e6:10.1f} {memcpy / ours:6.0%}")


if __name__ == "__main__":
    main()
