"""How a session runs its native code: what the caller's options come down to."""

from __future__ import annotations

from dataclasses import field

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.threads.thread_pool_options import ThreadHooks


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of native execution.

    With `spin_stops` idle threads sleep as soon as a run is over, with `flush_denormals` kernels read and write
    denormal numbers as zero.

    Memory: without `keeps_arena` that of a run goes back to the system after it, with `shares_arena` runs take it from
    the arena of the process, where there is one. Without `reuses_memory` every value has bytes of its own, without
    `keeps_plans` a plan is kept for the last shapes alone, without `packs` kernels read weights as they lie in the
    model where they can.

    `threads` work inside one step (0: one per core that this process may use), `branches` is how many independent
    steps may run beside each other (1 keeps the order of the graph). The threads that are added for branches idle as
    `branch_spin`, `branch_spin_us` and `branch_backoff` say, the others as `spin`, `spin_us` and `backoff` do. With
    `blocks`, threads claim shrinking parts of a step (`ThreadPoolOptions.blocks`). `hooks` make the threads.

    `kernels` names an instruction set, or ``numpy`` for no native code; empty for the best of this machine. `precision`
    is ``float32``, or ``bfloat16`` where products of float32 matrices may be computed in bfloat16. `fast_products` lets
    large products of float32 matrices be computed by fewer multiplications, which rounds more coarsely, `winograd`
    convolutions 3x3; `float32_tiles` lets products of float32 be computed in tiles of AMX, as exact as without.
    `bytes_in_floats` lets convolutions of bytes be computed in float32 where that takes less time, to the same sums.
    `batch_items` of a batch go through a segment at a time where they are independent of each other
    (0: all of them; None: as many as caches suggest). `compile_threads` compile kernels beside the thread that makes
    the session (None: one per core that this process may use, if there are several).

    How far plans go beyond one kernel for each node: with `fuses`, pointwise nodes join the kernels that make what they
    read; with `layouts`, convolutions and their like hand their results on in the layout that they compute in; with
    `pairs`, one kernel may do the work of two that follow each other.
    """

    threads: int = 0
    branches: int = 1
    spin: bool = True
    spin_us: int | None = None
    spin_stops: bool = False
    backoff: int = 1
    branch_spin: bool = True
    branch_spin_us: int | None = None
    branch_backoff: int = 1
    blocks: int = 0
    hooks: ThreadHooks | None = field(default=None, repr=False)  # says nothing of what a plan looks like
    affinities: str = ""
    kernels: str = ""
    precision: str = "float32"
    fast_products: bool = True
    winograd: bool = True
    float32_tiles: bool = True
    bytes_in_floats: bool = True
    batch_items: int | None = None
    compile_threads: int | None = None
    keeps_arena: bool = True
    shares_arena: bool = False
    reuses_memory: bool = True
    keeps_plans: bool = True
    packs: bool = True
    flush_denormals: bool = False
    fuses: bool = True
    layouts: bool = True
    pairs: bool = True


DEFAULT = RunSettings()
