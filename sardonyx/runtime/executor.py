"""Runs a plan: one step after the other, each value dropped after its last reader."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import errors
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.plan import ABSENT, Plan, Step, Value


def execute(plan: Plan, context: RunContext, inputs: Sequence[Value], captures: Sequence[Value] = ()) -> list[Value]:
    """The values of the plan's outputs, for values of its inputs and captures in their order.

    Raises a typed error that names the step: `errors.Fail` or the class that the step raised, with the text that
    onnxruntime gives. The results may share memory with inputs and constants; the caller decides what to copy.
    """
    frame: list[Value] = [None] * len(plan.slots)
    for slot, value in plan.constants.items():
        frame[slot] = value
    for slot, value in zip(plan.inputs, inputs, strict=True):
        frame[slot] = value
    for slot, value in zip(plan.captures, captures, strict=True):
        frame[slot] = value
    for step in plan.steps:
        if context.terminated():
            raise errors.Fail("Exiting due to terminate flag being set to true.")
        run_step(step, context, frame)
        for slot in step.release:
            frame[slot] = None
    return [frame[slot] for slot in plan.outputs]


def run_step(step: Step, context: RunContext, frame: list[Value]) -> None:
    """Run one step on a frame, recording it when the run is traced."""
    inputs = [None if slot == ABSENT else frame[slot] for slot in step.inputs]
    start = context.trace.now() if context.trace else 0
    outputs: Sequence[Value] = ()
    try:
        outputs = step.call(context, inputs)
    except errors.OnnxRuntimeError as error:
        raise _failure(step, context, error) from error
    except MemoryError as error:
        raise _failure(step, context, errors.Fail(f"Failed to allocate memory for requested buffer: {error}")) from error
    except Exception as error:  # whatever a host function raises becomes the typed error of the step
        text = " ".join(str(error).split()) or type(error).__name__
        raise _failure(step, context, errors.Fail(f"{type(error).__name__}: {text}")) from error
    finally:
        if context.trace:
            context.trace.step(step, start, inputs, outputs)
    for slot, value in zip(step.outputs, outputs, strict=False):
        if slot != ABSENT:
            frame[slot] = value


def _failure(step: Step, context: RunContext, error: errors.OnnxRuntimeError) -> errors.OnnxRuntimeError:
    """`error` again, with the step's name in front unless an inner step already put its own there."""
    if "Exiting due to terminate flag" in error.message:
        return error
    text = (
        f"Non-zero status code returned while running {step.op_type} node. Name:'{step.name}' "
        f"Status Message: {error.message}"
    )
    context.logger.error(text, "executor")
    return type(error)(text)
