"""Compiles a model ahead, to an engine in one file.

The model is optimised and written out first; what is compiled is that. So the weights that kernels read as they are
lie in the engine once, and sizes that it has no plan for come from the same model.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import errors, log
from sardonyx._version import __version__
from sardonyx.api.building.built import Built
from sardonyx.api.building.model_loading import Source
from sardonyx.api.building.session_build import build
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.compiled_engine import (
    WEIGHTS,
    note_made,
    plan_settings,
    session_content,
    session_entries,
    source_content,
    weights_home,
)
from sardonyx.api.engines.engine_parts import engine_parts, program_of
from sardonyx.api.engines.engine_sizes import Coverage, SizePlanner, Tell
from sardonyx.api.engines.engine_store import package_state
from sardonyx.api.engines.shape_profiles import LARGEST, LEAST, USUAL, Profile
from sardonyx.api.options import config_keys
from sardonyx.api.options.run_settings import run_settings
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.compiler.bound_plan import native_plans
from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.stored.constant_places import NotStorableError
from sardonyx.compiler.stored.stored_program import StoredProgram
from sardonyx.light_dataclass import dataclass
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.files.engine_file import Sections, write_sealed
from sardonyx.runtime.files.opening import is_own, open_file, scratch_folder
from sardonyx.runtime.memory.mapped_pages import map_open_file, settle
from sardonyx.runtime.native.native_segment import PlanKey, ReadyPlan

# Of how many sizes in the ranges of its profiles an engine has plans at most, and the seconds that they may take.
MOST_SIZES = "sardonyx.engine_sizes"
SECONDS = "sardonyx.engine_sizes_seconds"

_MODEL = "model.onnx"
_SAVED_FILE = "session.optimized_model_external_initializers_file_name"


class NotCompilableError(errors.NotImplemented):
    """The model has parts that an engine cannot hold."""


@dataclass(frozen=True)
class Summary:
    """What an engine holds: the bytes of its sections, its profiles, of how many of their sizes it has plans, how many
    kernels; `content` describes it."""

    path: Path
    nbytes: int
    sections: Mapping[str, int]
    profiles: Sequence[Profile]
    coverage: Sequence[Coverage]
    kernels: int
    content: Mapping[str, Any]


def compile_engine(
    source: Source,
    path: str | os.PathLike[str],
    options: SessionOptions | None = None,
    profiles: Sequence[Profile] | None = None,
    sizes: Mapping[str, int] | None = None,
    tell: Tell | None = None,
) -> Summary:
    """Write the engine of a model to a file, with plans for the sizes of each profile that the model takes.

    Without `profiles` those of the options' ``sardonyx.engine_profiles`` count, or else one shape, in which symbolic
    dimensions are those of `sizes`, or 1. The least, usual and largest shapes of a profile are tried first, so that the
    model is known to take them; the usual ones always have a plan, others as far as ``sardonyx.engine_sizes`` and
    ``sardonyx.engine_sizes_seconds`` allow. `tell` hears how many are made of how many.

    NotCompilableError where a step of the model cannot be made again in another process; InvalidArgument for a profile
    that does not fit; `Fail` where the file cannot be written.
    """
    target = Path(path)
    options = SessionOptions() if options is None else options
    logger = log.Logger(options.logid, options.log_severity_level)
    config_keys.check({key: options._config[key] for key in (MOST_SIZES, SECONDS) if key in options._config}, logger)
    if options.has_providers() and set(options._providers) - {CPUExecutionProvider.name}:
        raise errors.NotImplemented(f"engines are made for the CPU, not for {', '.join(options._providers)}")
    try:
        with scratch_folder(target.parent) as folder:  # on the disk that the engine is for
            scratch = Path(folder)
            files = _optimise(source, options, scratch, logger)
            built, sections = _compiled(options, scratch, logger)
            asked = _profiles(built, options, profiles, sizes)
            return _write(target, built, sections, files, options, asked, scratch, tell)
    except OSError as error:
        raise errors.Fail(f"the engine {target} cannot be written: {error.strerror or error}") from error


def _optimise(source: Source, options: SessionOptions, scratch: Path, logger: log.Logger) -> list[str]:
    """Write the optimised model and its weights to a folder; the files that it comes from."""
    options = options._copy()
    options.optimized_model_filepath = str(scratch / _MODEL)
    options.enable_profiling = False
    options._config = session_entries(options)
    options._config[_SAVED_FILE] = WEIGHTS
    built = build(SessionRequest(source, options, [CPUExecutionProvider.name], [{}], (), logger))
    return list(built.files) if isinstance(source, str) else []


def _compiled(options: SessionOptions, scratch: Path, logger: log.Logger) -> tuple[Built, Sections]:
    """The session of the optimised model, whose weights are mapped, and the sections that hold that model."""
    with _own(scratch / _MODEL) as file:
        model = file.read()
    view = memoryview(b"")
    with contextlib.suppress(FileNotFoundError), _own(scratch / WEIGHTS) as file:
        view = map_open_file(file.fileno(), scratch / WEIGHTS)
        settle(view)
    options = options._copy()
    options.enable_profiling = False
    options.optimized_model_filepath = ""
    options._config = session_entries(options)
    options._free_dimensions, options._initializers, options._external = {}, {}, {}
    options._external_files = {WEIGHTS: view}
    built = build(SessionRequest(model, options, [CPUExecutionProvider.name], [{}], (), logger))
    return built, {"model": [np.frombuffer(model, np.uint8)], WEIGHTS: [np.frombuffer(view, np.uint8)]}


def _own(path: Path) -> BufferedReader:
    """A file that was written to the scratch folder; OSError, also where somebody put another folder in its place."""
    file = open_file(path, follow=False)
    if not is_own(os.fstat(file.fileno())):
        file.close()
        raise PermissionError(errno.EACCES, "it belongs to another user", str(path))
    return file


def _profiles(
    built: Built, options: SessionOptions, profiles: Sequence[Profile] | None, sizes: Mapping[str, int] | None
) -> list[Profile]:
    """The profiles to prepare, complete."""
    inputs = built.signature.inputs
    if profiles is None:
        texts = options._config.get(shape_profiles.KEY, "")
        profiles = [shape_profiles.parse(text) for text in filter(None, texts.split(";;"))]
    if not profiles:
        return [shape_profiles.of_sizes(inputs, sizes or {})]
    return [shape_profiles.completed(profile, inputs) for profile in profiles]


def _write(
    target: Path,
    built: Built,
    sections: Sections,
    files: Sequence[str],
    options: SessionOptions,
    profiles: Sequence[Profile],
    scratch: Path,
    tell: Tell | None,
) -> Summary:
    weights = str(scratch / WEIGHTS)
    try:
        program = program_of(built)
        plans = _plans(built, program, profiles)
        config = options._config
        most, seconds = config_keys.number(config, MOST_SIZES), config_keys.number(config, SECONDS)
        planner = SizePlanner(built, program, most, seconds, tell)
        coverage = [planner.cover(profile) for profile in profiles]
        homes = weights_home(sections[WEIGHTS][0])
        content, parts = engine_parts(built, program, plans, [weights], planner.plans, homes)
    except NotStorableError as error:
        raise NotCompilableError(f"the model cannot be kept as an engine: {error}") from error
    settings = run_settings(options)
    content["pieces"] = [[start, size, None if file is None else WEIGHTS] for start, size, file in content["pieces"]]
    content |= {
        "version": __version__,
        "package": package_state(),
        "generator": generator_version(),
        "machine": host_target(settings.kernels).key,
        "settings": plan_settings(settings),
        "options": session_content(options),
        "source": source_content(files),
        "profiles": [profile.content() for profile in profiles],
        "coverage": [one.content() for one in coverage],
    }
    all_sections = {**parts, **sections}
    note_made(write_sealed(target, content, all_sections))
    sizes = {name: sum(part.nbytes for part in parts) for name, parts in all_sections.items()}
    kernels = len(content["kernels"])
    return Summary(target, target.stat().st_size, sizes, profiles, coverage, kernels, content)


def _plans(built: Built, program: StoredProgram, profiles: Sequence[Profile]) -> dict[PlanKey, ReadyPlan]:
    """Plans for the usual shapes, after the others were tried: those that follow from the shapes of the inputs."""
    plans: dict[PlanKey, ReadyPlan] = {}
    for profile in profiles:
        for which in (LEAST, LARGEST, USUAL):
            shapes = {name: three[which] for name, three in profile.shapes.items()}
            try:
                made = native_plans(built.plan, shapes)
            except errors.OnnxRuntimeError as error:
                asked = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                raise errors.InvalidArgument(
                    f"the model does not take the shapes of a profile ({asked}): {error.message}"
                ) from error
        plans |= {PlanKey(program.segments.index(one), found): ready for (one, found), ready in made.items()}
    return plans
