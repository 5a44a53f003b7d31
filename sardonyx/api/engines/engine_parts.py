"""What an engine of a session has in it: what `stored_session` begins from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.api.building.built import Built
from sardonyx.api.engines.stored_session import segment_of, signature_content
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.runtime_functions import OF_EVERY_SESSION, OF_PROGRAMS
from sardonyx.compiler.stored.constant_names import Homes, constant_name
from sardonyx.compiler.stored.constant_places import NotStorableError as NotStorableError
from sardonyx.compiler.stored.sized_plans import SizedPlans
from sardonyx.compiler.stored.stored_plan import stored_plans
from sardonyx.compiler.stored.stored_program import StoredProgram, stored_program
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.files.engine_file import Sections
from sardonyx.runtime.native.native_segment import PlanKey, ReadyPlan


def program_of(built: Built) -> StoredProgram:
    """What of a session can be kept for another process; NotStorableError where that is not all of it."""
    program = stored_program(built.plan)
    program.content["defaults"] = {name: len(program.constants) + place for place, name in enumerate(built.defaults)}
    program.constants += built.defaults.values()
    return program


def engine_parts(
    built: Built,
    program: StoredProgram,
    plans: Mapping[PlanKey, ReadyPlan],
    files: Sequence[str],
    sized: SizedPlans | None = None,
    homes: Homes | None = None,
) -> tuple[dict[str, Any], Sections]:
    """What is said of every engine, and what lies behind that; `homes` as of `constant_name`."""
    (provider,) = built.providers
    assert isinstance(provider, CPUExecutionProvider)
    runtime = library(provider.settings.kernels, "runtime")
    # Outputs that are known before a run are copied in a chain.
    is_chained = segment_of(built.plan) is None or any(plan.known for plan in plans.values())
    functions = OF_PROGRAMS if is_chained else OF_EVERY_SESSION
    held = {one.key: one.array for segment in program.segments for one in segment.held() if one.key is not None}
    made = {name: array for key, array in held.items() if (name := constant_name(key, homes)) is not None}
    stored = stored_plans(plans, provider.library, runtime, files, program.constants, functions, sized, made)
    content = {
        "signature": signature_content(built.signature),
        "program": program.content,
        "open_ifs": list(built.open_ifs),
        "in_place": list(map(list, built.in_place)),
        "length_limits": dict(built.length_limits or {}),
        **stored.content,
    }
    return content, {
        "tables": stored.tables,
        "image": stored.image,
        "nodes": program.nodes,
        "constants": stored.constants,
        "made": stored.made,
    }
