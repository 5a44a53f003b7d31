"""The executor and parts of plans, without any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sardonyx import errors, log
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import error_of_node, execute
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.plan import ABSENT, Plan, Slot, Step
from sardonyx.runtime.plan_parts import needed_for

QUIET = RunContext(logger=log.Logger("test", 4))


def step(name: str, inputs: Sequence[int], outputs: Sequence[int], call: Any, release: Sequence[int] = ()) -> Step:
    return Step(
        name,
        "Op",
        "CPU",
        "host",
        tuple(inputs),
        tuple(outputs),
        lambda _, values: call(*values),
        release=tuple(release),
    )


def plan(steps: Sequence[Step], outputs: Sequence[int], constants: Any = None, count: int = 5) -> Plan:
    return Plan(tuple(Slot(f"v{index}") for index in range(count)), (0,), tuple(outputs), constants or {}, tuple(steps))


def test_values_pass_from_step_to_step() -> None:
    steps = [
        step("sum", [0, 1], [2], lambda a, b: [a + b]),
        step("optional", [2, ABSENT], [3, ABSENT], lambda a, b: [(a, b), "nobody wants this"], [2]),
    ]
    assert execute(plan(steps, [3, 0], {1: 10}), QUIET, [5]) == [(15, None), 5]


def test_captures_are_filled() -> None:
    part = Plan((Slot("a"), Slot("b")), (0,), (0, 1), {}, (), captures=(1,))
    assert execute(part, QUIET, ["in"], ["outer"]) == ["in", "outer"]


def test_an_absent_output_leaves_absent_inputs_alone() -> None:
    steps = [
        step("first", [0], [ABSENT, 1], lambda a: ["lost", a]),
        step("second", [1, ABSENT], [2], lambda a, b: [(a, b)]),
    ]
    assert execute(plan(steps, [2]), QUIET, [1]) == [(1, None)]


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (errors.InvalidArgument("bad"), errors.InvalidArgument, "Status Message: bad"),
        (ValueError("two\n lines"), errors.Fail, "Status Message: ValueError: two lines"),
        (KeyError(), errors.Fail, "Status Message: KeyError"),
        (MemoryError("of size 9"), errors.Fail, "Failed to allocate memory for requested buffer: of size 9"),
    ],
)
def test_errors_become_typed_and_name_the_step(raised: Exception, kind: type[Exception], text: str) -> None:
    def fail(_: Any) -> Any:
        raise raised

    with pytest.raises(kind, match=r"running Op node\. Name:'broken'") as caught:
        execute(plan([step("broken", [0], [1], fail)], [1]), QUIET, [1])
    assert text in str(caught.value)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize(("kind", "times"), [("native", 1), ("host", 2)])
def test_a_native_step_that_names_itself_is_named_once(kind: Any, times: int) -> None:
    def fail(_: Any) -> Any:
        raise error_of_node(errors.Fail, "Op", "'broken'", "bad")

    broken = replace(step("broken", [0], [1], fail), kind=kind)
    with pytest.raises(errors.Fail) as caught:
        execute(plan([broken], [1]), QUIET, [1])
    assert str(caught.value).count("Name:'broken'") == times
    assert caught.value.names_node


def test_a_native_step_that_does_not_is_named() -> None:
    def fail(_: Any) -> Any:
        raise errors.Fail("Non-zero status code returned while running something else")

    broken = replace(step("broken", [0], [1], fail), kind="native")
    with pytest.raises(errors.Fail, match=r"running Op node\. Name:'broken' Status Message: Non-zero"):
        execute(plan([broken], [1]), QUIET, [1])


def test_missing_inputs_are_named() -> None:
    steps = [step("len", [0], [1], lambda value: [len(value)])]
    with pytest.raises(errors.Fail, match="Missing Input: v0: TypeError"):
        execute(plan(steps, [1]), QUIET, [None])


def test_interrupts_pass() -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan([step("long", [0], [1], interrupted)], [1]), QUIET, [1])


def test_termination_is_asked_before_each_step() -> None:
    answers = iter([False, True])
    done: list[int] = []
    steps = [step("one", [0], [1], lambda a: [done.append(1)]), step("two", [0], [2], lambda a: [done.append(2)])]
    with pytest.raises(errors.Fail, match="Exiting due to terminate flag being set to true"):
        execute(plan(steps, [2]), RunContext(lambda: next(answers)), [1])
    assert done == [1]


def test_a_part_of_a_plan_has_only_the_steps_it_needs() -> None:
    steps = [
        step("a", [0], [1], lambda v: [v + 1]),
        step("b", [1], [2], lambda v: [v * 10], [1]),
        step("c", [0], [3], lambda v: [v - 1], [0]),
    ]
    whole = plan(steps, [2, 3])
    part = needed_for(whole, (2, 2))
    assert [item.name for item in part.steps] == ["a", "b"]
    assert execute(part, QUIET, [1]) == [20, 20]
    assert part.steps[1].release == (1,)
    other = needed_for(whole, (3, 1))
    assert [item.name for item in other.steps] == ["a", "c"]
    assert execute(other, QUIET, [1]) == [0, 2]
    assert needed_for(whole, (0,)).steps == ()


def test_an_error_that_is_its_own_context_is_told_in_time() -> None:
    """As one that is kept and raised again, in whose handling another one arose."""
    inner = ValueError("the sizes do not fit")
    outer = RuntimeError("while binding")
    outer.__context__, inner.__context__ = inner, outer
    assert address_space.explained(inner, "The node") is None
    inner.__context__ = MemoryError()
    assert address_space.explained(outer, "The node") is not None
