"""Runs a plan: one step after the other, each value dropped after its last reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx import errors
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.plan import ABSENT, Plan, Step, Value

if TYPE_CHECKING:
    from sardonyx.runtime.trace import Trace

TERMINATED = "Exiting due to terminate flag being set to true."


class RefusedError(errors.Fail):
    """A step stands for others that the sizes of the plan have broken: a plan for all sizes says what they do."""


def execute(plan: Plan, context: RunContext, inputs: Sequence[Value], captures: Sequence[Value] = ()) -> list[Value]:
    """The values of the plan's outputs, for values of its inputs and captures in their order.

    Raises a typed error that names the step: `errors.Fail` or the class that the step raised, with the text that
    onnxruntime gives. The results may share memory with inputs and constants; the caller decides what to copy.
    """
    # One place more than there are slots: it stays None, and ABSENT (-1) addresses it.
    frame: list[Value] = [None] * (len(plan.slots) + 1)
    for slot, value in plan.constants.items():
        frame[slot] = value
    for slot, value in zip(plan.inputs, inputs, strict=True):
        frame[slot] = value
    for slot, value in zip(plan.captures, captures, strict=True):
        frame[slot] = value
    if context.trace is None:
        _run_steps(plan, context, frame)
    else:
        _run_traced(plan, context, context.trace, frame)
    return [frame[slot] for slot in plan.outputs]


def _run_steps(plan: Plan, context: RunContext, frame: list[Value]) -> None:
    terminated = context.terminated
    for step in plan.steps:
        if terminated():
            raise errors.Fail(TERMINATED)
        try:
            outputs = step.call(context, [frame[slot] for slot in step.inputs])
        except Exception as error:
            raise _failure(plan, step, context, frame, error) from error
        for slot, value in zip(step.outputs, outputs, strict=False):
            if slot != ABSENT:
                frame[slot] = value
        for slot in step.release:
            frame[slot] = None


def _run_traced(plan: Plan, context: RunContext, trace: Trace, frame: list[Value]) -> None:
    """`_run_steps` with an event for each step, the one that fails included, and one for the whole plan."""
    began = trace.now()
    try:
        for step in plan.steps:
            if context.terminated():
                raise errors.Fail(TERMINATED)
            inputs = [frame[slot] for slot in step.inputs]
            outputs: Sequence[Value] = ()
            start = trace.now()
            try:
                outputs = step.call(context, inputs)
            except Exception as error:
                raise _failure(plan, step, context, frame, error) from error
            finally:
                if step.kind != "segment":
                    trace.step(step, start, trace.now(), inputs, outputs, plan.constants)
            for slot, value in zip(step.outputs, outputs, strict=False):
                if slot != ABSENT:
                    frame[slot] = value
            for slot in step.release:
                frame[slot] = None
    finally:
        trace.event("Session", "SequentialExecutor::Execute", began)


def _failure(
    plan: Plan, step: Step, context: RunContext, frame: Sequence[Value], error: Exception
) -> errors.OnnxRuntimeError:
    """What a step raised as a typed error that names the step, which is logged too.

    Inputs that have no value are named: they are the likely cause.
    A name that an inner step (of a subgraph) put in front stays: the message then leads from the outer node to the
    inner one. Errors of kernels name their node already. A run that was terminated keeps its plain message.
    """
    typed = _typed(error)
    if typed.message == TERMINATED or isinstance(typed, RefusedError):
        return typed
    if step.kind == "segment" or (step.kind == "native" and typed.names_node):
        context.logger.error(typed.message, "executor")
        return typed
    absent = [plan.slots[slot].name for slot in step.inputs if slot != ABSENT and frame[slot] is None]
    cause = f"Missing Input: {', '.join(absent)}: " if absent else ""
    named = error_of_node(type(typed), step.op_type, f"'{step.name}'", f"{cause}{typed.message}")
    context.logger.error(named.message, "executor")
    return named


def error_of_node(kind: type[errors.OnnxRuntimeError], op_type: str, called: str, text: str) -> errors.OnnxRuntimeError:
    """An error that names the node that it comes from, in onnxruntime's words."""
    error = kind(f"Non-zero status code returned while running {op_type} node. Name:{called} Status Message: {text}")
    error.names_node = True
    return error


def _typed(error: Exception) -> errors.OnnxRuntimeError:
    """The typed form of whatever a step's function raised."""
    if isinstance(error, errors.OnnxRuntimeError):
        return error
    if isinstance(error, MemoryError):
        text = " ".join(str(error).split()) or type(error).__name__
        return errors.Fail(f"Failed to allocate memory for requested buffer: {text}")
    failed = address_space.explained(error, "The node")
    if failed is not None:
        return failed
    text = " ".join(str(error).split()) or type(error).__name__
    return errors.Fail(f"{type(error).__name__}: {text}")
