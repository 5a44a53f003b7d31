"""The memory plan counts intermediate values, once where views share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.compiler.memory import plan_memory
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.plan import Plan, Slot, Step
from sardonyx.runtime.sizes import Operation, Symbol


def nothing(context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
    return ()


def step(kind: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Step:
    return Step("node", "Op", "CPUExecutionProvider", kind, inputs, outputs, nothing)


BATCH = Symbol("batch")


def test_views_share_and_the_dead_are_reused() -> None:
    row = (BATCH, 256)
    slots = (
        Slot("x", 32, row),
        Slot("a", 32, row),
        Slot("view", 32, (Operation("multiply", (BATCH, 256)),)),
        Slot("b", 32, row),
        Slot("c", 32, row),
        Slot("y", 32, row),
    )
    plan = Plan(
        slots,
        inputs=(0,),
        outputs=(5,),
        constants={},
        steps=(
            step("kernel", (0,), (1,)),
            step("view", (1,), (2,)),
            step("kernel", (2,), (3,)),
            step("kernel", (3,), (4,)),
            step("kernel", (4, 3), (5,)),
        ),
    )
    memory = plan_memory(plan, {"batch": 2})
    nbytes = 2 * 256 * 4
    assert {item.buffer for item in memory.lifetimes} == {1, 3, 4}
    assert memory.without_reuse == 3 * nbytes
    assert memory.layout.nbytes == 2 * nbytes  # c takes the place of a, whose last reader is the view's
    assert memory.layout.offsets[4] == memory.layout.offsets[1]
    assert memory.unknown == ()


def test_sizes_known_only_in_the_run_are_named() -> None:
    plan = Plan(
        (Slot("x", 32, (4,)), Slot("found", 64, (1, None)), Slot("text"), Slot("y", 32, (4,))),
        inputs=(0,),
        outputs=(3,),
        constants={},
        steps=(step("host", (0,), (1,)), step("host", (1,), (2,)), step("host", (2,), (3,))),
    )
    memory = plan_memory(plan, {})
    assert memory.unknown == (1, 2)
    assert memory.layout.nbytes == 0
