"""Native plans from an earlier process: see `stored_plan`, which needs what compiles; this does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.runtime.engine_file import Bytes
from sardonyx.runtime.native_plan import FIXUP_WORDS, STEP_WORDS, NativePlan, StepColumn
from sardonyx.runtime.native_segment import ReadyPlan


def restored_plan(
    content: Mapping[str, Any],
    tables: Bytes,
    constants: Bytes,
    library: KernelLibrary,
    mapped: Callable[[str], Bytes],
    plan_again: Callable[[], ReadyPlan],
) -> ReadyPlan | None:
    """The plan of `stored_plan`, in this process; None where a kernel is not there any more.

    `mapped` gives a file of the model; `plan_again` a plan made anew, which tells what is not kept: the errors of
    kernels and what a profile says.
    """
    addresses = [library.kept(key) for key in content["kernels"]]
    if None in addresses:
        return None
    ends = np.cumsum(content["tables"]).tolist()
    words, fixups, steps, places = np.split(tables.view(np.int64), ends[:-1])
    owners: list[Any] = [library, constants]
    bases: list[int] = []
    for start, nbytes, file in content["pieces"]:
        home = constants if file is None else mapped(file)
        if not 0 <= start <= start + nbytes <= home.size:
            return None
        owners.append(home)
        bases.append(int(home.__array_interface__["data"][0]) + start)
    places = places.reshape(-1, 3)
    words = words.copy()
    words[places[:, 0]] = np.array(bases, np.int64)[places[:, 1]] + places[:, 2]
    steps = steps.reshape(-1, STEP_WORDS).copy()
    steps[:, StepColumn.FUNCTION] = np.array(addresses, np.int64)[steps[:, StepColumn.FUNCTION]]
    plan = NativePlan(
        words=words,
        fixups=fixups.reshape(-1, FIXUP_WORDS),
        steps=steps,
        arena_bytes=content["arena_bytes"],
        scratch_bytes=content["scratch_bytes"],
        base_count=content["base_count"],
        labels=tuple(content["labels"]),
        owners=tuple(owners),
        nanoseconds=content["nanoseconds"],
        flush_denormals=content["flush_denormals"],
    )
    faults = tuple([_later(plan_again, number) for number in range(content["faults"])])
    outputs = tuple((np.dtype(name), tuple(shape)) for name, shape in content["outputs"])
    return ReadyPlan(plan, outputs, {}, lambda: plan_again().works(), faults, plan.nanoseconds or 0)


def _later(plan_again: Callable[[], ReadyPlan], place: int) -> Callable[[int], Any]:
    """The error of a fault, by the plan made anew."""
    return lambda number: plan_again().faults[place](number)
