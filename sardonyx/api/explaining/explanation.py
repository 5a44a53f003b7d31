"""What runs, kernel by kernel, for given shapes: from which nodes, by which rewrites, at what cost, and why.

    explanation = explain(session, feeds, runs=20)
    for row in explanation.rows:
        print(row.kernel, row.nodes, row.predicted_us, row.measured_us)

The command `sardonyx explain` prints one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.api.explaining.explained_plan import Subject, explained
from sardonyx.api.explaining.explanation_records import (
    Declined,
    Diagnosis,
    Explanation,
    Knob,
    Overridable,
    Row,
    Turned,
    Why,
    abbreviated,
)
from sardonyx.api.explaining.knobs import knobs, overridable
from sardonyx.api.explaining.troubles import troubles

if TYPE_CHECKING:
    from sardonyx.api.session import InferenceSession

__all__ = [
    "Declined",
    "Diagnosis",
    "Explanation",
    "Knob",
    "Overridable",
    "Row",
    "Turned",
    "Why",
    "abbreviated",
    "explain",
]


def explain(
    session: InferenceSession,
    feeds: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runs: int = 0,
    why: bool = False,
) -> Explanation:
    """What a session runs for these inputs, or, where shapes decide everything, for these shapes.

    With `runs`, the model runs so often on `feeds`, and every step is timed. Without, it runs once where shapes inside
    depend on what the inputs hold; InvalidArgument where that takes feeds and there are none. The machine's ceilings
    come from the user's cache, or are measured now, which takes some seconds.

    With `why`, also what each knob of the session did and what turning it would do, for which the model is compiled
    once for each value and, with `runs`, run as often; and the troubles of the session.
    """
    outer = session._session()
    core = outer.without_engine()
    if feeds is None and runs:
        raise errors.InvalidArgument("explain: to run the model takes feeds")
    given = {name: tuple(np.shape(value)) for name, value in (feeds or {}).items()}
    given |= {name: tuple(shape) for name, shape in (shapes or {}).items()}
    found = explained(Subject.of_session(core), feeds, given, runs)
    found.overridable = overridable(core, found, feeds)
    if why:
        found.why = Why(knobs(core, found, feeds), troubles(outer, core, found, feeds))
    return found
