"""Memory of large results, kept for later ones: what the system hands out anew costs a page fault for every 4 KiB.

`take` finds a block in the pool's table or allocates one, `give` puts it back; `release` is `give` as the destructor
of a capsule that an array has as its base. All of them run under the interpreter's lock.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, PTR, VOID
from sardonyx.runtime.memory.result_pool import (
    ALIGNMENT,
    BLOCKS,
    FREE_BYTES,
    HEADER_WORDS,
    LARGE_PAGES_FROM,
    LARGEST_KEPT,
    MADV_HUGEPAGE,
    PAGE,
    POOL_BYTES,
    BlockColumn,
    BlockState,
)


def emit_result_pool(target: Target, spec: tuple[str]) -> str:
    """The text of the function that `spec` names.

    ``i64 take(i64 *pool, i64 nbytes)`` gives the address of a row of the table, 0 where there is no memory or no row;
    ``void give(i64 *pool, i64 *row)``; ``void release(PyObject *capsule)``, whose pointer is the row and whose context
    the pool.
    """
    return {"take": _emit_take, "give": _emit_give, "release": _emit_release}[spec[0]](target)


def _rows(pool: Pointer) -> Pointer:
    return pool.offset(HEADER_WORDS)


def _emit_take(target: Target) -> str:
    k = Function(KERNEL, target, [("pool", PTR), ("nbytes", I64)], returns=I64)
    pool = k.pointer("pool", I64)
    rows = _rows(pool)
    nbytes = k["nbytes"]
    found = k.variable(I64, -1)
    spare = k.variable(I64, -1)  # a row without a block, or else one whose block is free and has another size
    with k.loop(0, BLOCKS) as index:
        row = rows.offset(index * int(BlockColumn.COUNT))
        state, capacity = row.load(int(BlockColumn.STATE)), row.load(int(BlockColumn.CAPACITY))
        is_free = state.equals(int(BlockState.FREE))
        fits = is_free & (capacity >= nbytes) & (capacity <= nbytes + nbytes / 4 + PAGE)
        with k.when(fits & (found.get() < 0)):
            found.set(index)
        with k.when(state.equals(int(BlockState.NONE)) | (is_free & (spare.get() < 0))):
            spare.set(index)
    result = k.variable(I64, 0)
    hit = found.get() >= 0
    with k.when(hit):
        row = rows.offset(found.get() * int(BlockColumn.COUNT))
        row.store(int(BlockState.USED), int(BlockColumn.STATE))
        pool.store(pool.load(FREE_BYTES) - row.load(int(BlockColumn.CAPACITY)), FREE_BYTES)
        result.set(_number(k, row))
    with k.otherwise(hit), k.when(spare.get() >= 0):
        row = rows.offset(spare.get() * int(BlockColumn.COUNT))
        with k.when(row.load(int(BlockColumn.STATE)).equals(int(BlockState.FREE))):
            pool.store(pool.load(FREE_BYTES) - row.load(int(BlockColumn.CAPACITY)), FREE_BYTES)
            _free(k, row)
        capacity = (nbytes + (PAGE - 1)) & -PAGE
        place = k.stack(I64, 1)
        place.store(0)
        sizes = (k.constant(I64, ALIGNMENT), capacity)
        problem = k.call("posix_memalign", I32, place.address, *sizes)
        with k.when(problem.equals(0)):
            if "linux" in target.triple:
                _ask_for_large_pages(k, place.load(), capacity)
            row.store(capacity, int(BlockColumn.CAPACITY))
            row.store(place.load(), int(BlockColumn.ADDRESS))
            row.store(int(BlockState.USED), int(BlockColumn.STATE))
            result.set(_number(k, row))
    k.give(result.get())
    return k.finish()


def _ask_for_large_pages(k: Function, address: Value, capacity: Value) -> None:
    """Let the system map a large block by the megabyte: fewer page faults, and fewer misses when it is written."""
    with k.when(capacity >= LARGE_PAGES_FROM):
        first = (address + (PAGE - 1)) & -PAGE
        size = (address + capacity - first) & -PAGE
        k.call("madvise", I32, k.pointer(first, I64).address, size, k.constant(I32, MADV_HUGEPAGE))


def _emit_give(target: Target) -> str:
    k = Function(KERNEL, target, [("pool", PTR), ("row", PTR)])
    _give(k, k.pointer("pool", I64), k.pointer("row", I64))
    return k.finish()


def _emit_release(target: Target) -> str:
    k = Function(KERNEL, target, [("capsule", PTR)])
    null = Value(k, "null", PTR)
    row = k.call("PyCapsule_GetPointer", PTR, k["capsule"], null)
    pool = k.call("PyCapsule_GetContext", PTR, k["capsule"])
    _give(k, k.pointer(pool, I64), k.pointer(row, I64))
    return k.finish()


def _give(k: Function, pool: Pointer, row: Pointer) -> None:
    """Keep the block of a row for later, unless it is large or there is enough."""
    capacity = row.load(int(BlockColumn.CAPACITY))
    kept = pool.load(FREE_BYTES) + capacity
    keeps = (capacity <= LARGEST_KEPT) & (kept <= POOL_BYTES)
    with k.when(keeps):
        row.store(int(BlockState.FREE), int(BlockColumn.STATE))
        pool.store(kept, FREE_BYTES)
    with k.otherwise(keeps):
        _free(k, row)


def _free(k: Function, row: Pointer) -> None:
    k.call("free", VOID, k.pointer(row.load(int(BlockColumn.ADDRESS)), I64).address)
    row.store(int(BlockState.NONE), int(BlockColumn.STATE))


def _number(k: Function, pointer: Pointer) -> Value:
    return k.emit(I64, f"ptrtoint ptr {pointer.address.name} to i64")
