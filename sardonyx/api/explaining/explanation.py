"""What runs, kernel by kernel, for given shapes: from which nodes, by which rewrites, at what cost, and why.

    explanation = explain(session, feeds, runs=20)
    for row in explanation.rows:
        print(row.kernel, row.nodes, row.predicted_us, row.measured_us)

The command `sardonyx explain` prints one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.api.building.compiled_model import name_of_if
from sardonyx.api.core_session import CoreSession
from sardonyx.api.explaining.explained_plan import Subject, explained
from sardonyx.api.explaining.explanation_records import (
    Coverage,
    Declined,
    Diagnosis,
    Explanation,
    Knob,
    NewSizes,
    OpenIfs,
    Overridable,
    Row,
    Turned,
    Why,
    abbreviated,
)
from sardonyx.api.explaining.knobs import knobs, overridable
from sardonyx.api.explaining.stages import STAGES, Stage, of_steps, rewritten
from sardonyx.api.explaining.troubles import troubles
from sardonyx.runtime.executor import RefusedError

if TYPE_CHECKING:
    from sardonyx.api.session import InferenceSession

__all__ = [
    "Coverage",
    "Declined",
    "Diagnosis",
    "Explanation",
    "Knob",
    "NewSizes",
    "OpenIfs",
    "Overridable",
    "Row",
    "Turned",
    "Why",
    "abbreviated",
    "explain",
    "stage_lines",
]


def explain(
    session: InferenceSession,
    feeds: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runs: int = 0,
    why: bool = False,
    binds: bool = True,
) -> Explanation:
    """What a session runs for these inputs, or, where shapes decide everything, for these shapes.

    With `runs`, the model runs so often on `feeds`, and every step is timed. Without, it runs once where shapes inside
    depend on what the inputs hold; InvalidArgument where that takes feeds and there are none. The machine's ceilings
    come from the user's cache, or are measured now, which takes some seconds.

    Where Ifs of the model ask for sizes, it is the plan for these sizes alone, which runs from the second time on that
    they come; without feeds and shapes the one that the session made last.

    With `why`, also what each knob of the session did and what turning it would do, for which the model is compiled
    once for each value and, with `runs`, run as often; and the troubles of the session.

    Unless it `binds`, nothing is asked of sizes: the steps of the plan for all sizes, native ones not bound.
    """
    outer = session._session()
    core = outer.without_engine()
    if not binds:
        return _unbound(Subject.of_session(core), outer)
    if feeds is None and runs:
        raise errors.InvalidArgument("explain: to run the model takes feeds")
    given = dict(outer.latest_sizes) if feeds is None and shapes is None else {}
    given |= {name: tuple(np.shape(value)) for name, value in (feeds or {}).items()}
    given |= {name: tuple(shape) for name, shape in (shapes or {}).items()}
    general = Subject.of_session(core)
    subject, open_ifs = _of_sizes(general, outer, feeds, given)
    try:
        found = explained(subject, feeds, given, runs)
    except RefusedError as error:  # a run goes on with the plan for all sizes then
        subject, open_ifs = general, OpenIfs(general.compiled.open_ifs, note=f"these inputs come to {error.message}")
        found = explained(subject, feeds, given, runs)
    found.open_ifs, found.new_sizes = open_ifs, _new_sizes(outer)
    found.overridable = overridable(subject, found)
    if why:
        found.why = Why(knobs(subject, found, feeds), troubles(outer, subject, found, feeds))
    return found


def stage_lines(
    session: InferenceSession,
    stage: Stage,
    feeds: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    step: int | None = None,
) -> Iterator[str]:
    """What one stage of compilation makes of the model for these inputs or shapes, as lines of text.

    ``rewritten`` is the model after its rewrites; ``kernels`` and ``plan`` tell of every step, or of the one whose
    number in the rows of `explain` is `step`; ``llvm`` and ``asm`` are the text and the assembly of that step's kernel.

    InvalidArgument for another stage, and for a step that is not there or has no such text.
    """
    if stage not in STAGES:
        raise errors.InvalidArgument(f"there is no stage {stage!r}: expected {', '.join(STAGES)}")
    outer = session._session()
    subject = Subject.of_session(outer.without_engine())
    given: dict[str, tuple[int, ...]] = {name: tuple(np.shape(value)) for name, value in (feeds or {}).items()}
    given |= {name: tuple(shape) for name, shape in (shapes or {}).items()}
    subject, _ = _of_sizes(subject, outer, feeds, given)
    return rewritten(subject) if stage == "rewritten" else of_steps(subject, stage, feeds, given, step)


def _unbound(general: Subject, session: CoreSession) -> Explanation:
    found = explained(general, None, {}, binds=False)
    found.new_sizes = _new_sizes(session)
    names = general.compiled.open_ifs
    found.open_ifs = OpenIfs(names, note="no sizes are given") if names else None
    return found


def _new_sizes(session: CoreSession) -> NewSizes:
    waits = session.waits
    return NewSizes(
        engine=session._is_stored,
        coverage=tuple([Coverage(one["sizes"], one["covered"], one["reason"]) for one in session.coverage]),
        waits=sum(one.count for one in waits),
        waited_ms=1e3 * sum(one.seconds for one in waits),
        kernels=sum(one.kernels for one in waits),
        latest=tuple([str(wait) for one in waits for wait in one.latest]),
    )


def _of_sizes(
    general: Subject, session: CoreSession, feeds: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Subject, OpenIfs | None]:
    """The plan that `session` comes to run for inputs of these shapes, and what becomes of Ifs that ask for sizes.

    `general` is its plan for all sizes, or that of the same session made from the model.
    """
    names = general.compiled.open_ifs
    if not names:
        return general, None
    sizes = None if feeds is not None and session.contradicts(feeds) else session.own_sizes(shapes)
    if sizes is None:
        return general, OpenIfs(names, note="the session makes no plan of their own for such inputs")
    try:
        subject = general.of_sizes(sizes)
    except errors.OnnxRuntimeError as error:
        return general, OpenIfs(names, note=f"there is none for these sizes: {error.message}")
    left = {name_of_if(node) for node in subject.compiled.model.graph.all_nodes() if node.op_type == "If"}
    return subject, OpenIfs(names, tuple(name for name in names if name not in left), is_shown=True)
