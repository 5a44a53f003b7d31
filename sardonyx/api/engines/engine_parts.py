"""What an engine of a session has in it: what `stored_session` begins from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.api.building.built import Built
from sardonyx.api.engines.stored_session import segment_of, signature_content
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.runtime_functions import OF_EVERY_SESSION, OF_PROGRAMS
from sardonyx.compiler.stored.stored_plan import NotStorableError as NotStorableError
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
    built: Built, program: StoredProgram, plans: Mapping[PlanKey, ReadyPlan], files: Sequence[str]
) -> tuple[dict[str, Any], Sections]:
    """What is said of every engine, and what lies behind that."""
    (provider,) = built.providers
    assert isinstance(provider, CPUExecutionProvider)
    runtime = library(provider.settings.kernels, "runtime")
    functions = OF_PROGRAMS if segment_of(built.plan) is None else OF_EVERY_SESSION
    stored = stored_plans(plans, provider.library, runtime, files, program.constants, functions)
    content = {
        "signature": signature_content(built.signature),
        "program": program.content,
        "open_ifs": list(built.open_ifs),
        "in_place": list(map(list, built.in_place)),
        **stored.content,
    }
    return content, {
        "tables": stored.tables,
        "image": stored.image,
        "nodes": program.nodes,
        "constants": stored.constants,
    }
