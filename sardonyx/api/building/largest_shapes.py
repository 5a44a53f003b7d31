"""`session.max_shape_override`: memory for the largest inputs, made ready before the first run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sardonyx import errors, log
from sardonyx.api.building.signature import Declared
from sardonyx.compiler.bound_plan import native_plan, symbols_of
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan

KEY = "session.max_shape_override"

_ENTRY = r"\s*([^:;]+?)\s*:\s*\[([\d,\s]*)\]\s*"


def parse(text: str) -> dict[str, tuple[int, ...]]:
    """``name:[8,3];other:[1]`` as shapes by name; `Fail` for a text of another form."""
    shapes = {}
    for entry in text.split(";") if text.strip() else ():
        found = re.fullmatch(_ENTRY, entry)
        dims = [part.strip() for part in found[2].split(",")] if found and found[2].strip() else []
        if found is None or not all(part.isdigit() and int(part) > 0 for part in dims):
            raise errors.Fail(
                f"Invalid value for session option '{KEY}': '{text}'. "
                f"Expected entries like 'name:[8,3]' with positive numbers, ';' between them, got '{entry}'."
            )
        shapes[found[1]] = tuple(map(int, dims))
    return shapes


def check(shapes: Mapping[str, Sequence[int]], inputs: Sequence[Declared]) -> None:
    """`Fail` for a shape of what is no input of the model, and for one that an input cannot have."""
    known = {item.name: item.sizes for item in inputs}
    for name, shape in shapes.items():
        if name not in known:
            raise errors.Fail(f"{KEY}: '{name}' is not a graph input; the inputs are {', '.join(known)}")
        sizes = known[name]
        if sizes is None:
            continue
        if len(sizes) != len(shape):
            raise errors.Fail(
                f"{KEY}: the input '{name}' has {len(sizes)} dimensions, the shape given for it {len(shape)}"
            )
        for axis, (fixed, given) in enumerate(zip(sizes, shape, strict=True)):
            if fixed is not None and fixed != given:
                raise errors.Fail(f"{KEY}: dimension {axis} of the input '{name}' is always {fixed}, not {given}")


def reserve(plan: Plan, shapes: Mapping[str, Sequence[int]], logger: log.Logger) -> None:
    """Make the native plans for inputs of these shapes, and one arena with room for the largest of them.

    Runs of smaller inputs then find their memory there; runs of larger ones are served as ever. What depends on
    inputs that have no shape here stays as it is.
    """
    symbols = symbols_of(plan, shapes)
    for step in plan.steps:
        if not isinstance(step.call, NativeSegment):
            continue
        ready = native_plan(plan, step, symbols)
        if ready is None:
            logger.info(f"{KEY} leaves sizes open on which {step.name} and what follows depend", "session")
            continue
        thread_pool, execution_contexts = step.call.resources
        with execution_contexts.execution_context() as execution_context:
            execution_context.prepare(ready.plan, thread_pool.threads)
