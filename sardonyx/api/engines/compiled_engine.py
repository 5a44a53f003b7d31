"""Sessions of engines that were compiled ahead: a file has the optimised model, packed weights, code and plans.

Code is run, and plans and packed weights are used, only where that is safe and right: the engine was made by this user
on this machine, or the caller answers for it; it is for this machine and this state of the package; and the session's
options compute the same. Otherwise an engine is the model in it, which is compiled as any other, and a warning says
why. An engine with a byte that is not what was written is an error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import BufferedReader
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors, log
from sardonyx._version import __version__
from sardonyx.api.building import late_build
from sardonyx.api.building.built import Built
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.engines.engine_source import EngineSource, damaged
from sardonyx.api.engines.engine_store import only_runs, package_state
from sardonyx.api.engines.stored_session import Origin, opened
from sardonyx.api.enums import ExecutionMode
from sardonyx.api.options import config_keys
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.run_settings import run_settings
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.cache_folder import default_folder
from sardonyx.runtime.files.engine_file import Bytes, DamagedError
from sardonyx.runtime.files.opening import open_file
from sardonyx.runtime.files.trust_records import TrustRecords
from sardonyx.runtime.memory.mapped_pages import FileMap, root_of
from sardonyx.runtime.settings import RunSettings

if TYPE_CHECKING:
    from sardonyx.compiler.stored.constant_names import Homes
    from sardonyx.graph.load import LoadedModel

TRUST = "sardonyx.engine_trusted"
WEIGHTS = "weights"  # the file of the model's external data, and the section that has it
_NO_COMPILE = "session.disable_model_compile"
_NO_OTHER = "session.fail_on_suboptimal_compiled_model"

# Of a session's settings, those that plans follow; the instruction set is a matter of the machine.
_OF_PLANS = (
    "branches",
    "precision",
    "fast_products",
    "winograd",
    "float32_tiles",
    "batch_items",
    "flush_denormals",
    "fuses",
    "layouts",
    "pairs",
)


def open_engine(given: EngineSource, request: SessionRequest) -> Built:
    """The session of an engine. `Fail` where it is damaged; where it needs compiling and that is not allowed, `Fail` or
    ModelRequiresCompilation."""
    logger = request.logger
    options, may_run = _checked(given, request.options)
    config_keys.check(options._config, logger)
    request = request._replace(options=options)
    if not only_runs(request) or options._free_dimensions:
        logger.info(f"the session asks for more than {given.name} has: its model is compiled", "engine")
        return _build(given, request)
    settings = run_settings(options)
    problem = _problem(given, settings, may_run)
    if not problem:
        engine = given.sealed.engine
        build = functools.partial(_build, given, request._replace(trace=None))
        # What keys of constants mean is a matter of the package's state.
        offers = engine.content["package"] == package_state()
        homes = weights_home(engine.sections[WEIGHTS])
        found = opened(Origin(engine, settings, engine.sections.__getitem__, build, offers=offers, homes=homes))
        if found is not None:
            _warn_of_changes(given, logger)
            logger.info(f"the session is that of {given.name}", "engine")
            open_ifs = () if is_on(options._config, _NO_COMPILE) else found[0].open_ifs
            return replace(found[0], open_ifs=open_ifs, again=functools.partial(build_again, given))
        problem = "the code of its kernels cannot be loaded"
    if is_on(options._config, _NO_COMPILE):
        raise errors.ModelRequiresCompilation(
            f"{given.name} cannot be used as it is, and '{_NO_COMPILE}' forbids to compile the model in it: {problem}"
        )
    if is_on(options._config, _NO_OTHER):
        raise errors.Fail(f"{given.name} cannot be used as it is, and '{_NO_OTHER}' makes that an error: {problem}")
    logger.warning(_compiled_instead(given, problem), "engine")
    return _build(given, request)


def weights_home(section: Bytes) -> Homes:
    """The file in which the weights of an engine lie, as of `constant_name`: nothing where they lie in memory."""
    root = root_of(section)
    if not isinstance(root, FileMap) or root.state is None:
        return {}
    begin, first = (int(one.__array_interface__["data"][0]) for one in (np.frombuffer(root, np.uint8), section))
    return {tuple(root.state): (WEIGHTS, first - begin)}


def why_compiled(given: EngineSource, options: SessionOptions) -> str:
    """What a session with these options warns of where it compiles the model in an engine, as that cannot be used as it
    is; empty where it can. `Fail` where it is damaged."""
    options, may_run = _checked(given, options)
    problem = _problem(given, run_settings(options), may_run)
    return _compiled_instead(given, problem) if problem else ""


def _checked(given: EngineSource, options: SessionOptions) -> tuple[SessionOptions, bool]:
    """The options of a session of an engine, and whether its code may be run; `Fail` where it is damaged."""
    try:
        may_run = _trust_records().may_run(given.sealed, is_on(options._config, TRUST))
        _check_form(given)
    except DamagedError as error:
        raise damaged(given.name, error) from error
    # What strangers would set may be paths to write to.
    return (_with_defaults(options, given) if may_run else options), may_run


def _compiled_instead(given: EngineSource, problem: str) -> str:
    return f"{given.name} cannot be used as it is, and the model in it is compiled: {problem}"


def build_again(given: EngineSource, request: SessionRequest) -> Built:
    """What the model in an engine is made into for a session of it that asks for something else."""
    if _trust_records().may_run(given.sealed, is_on(request.options._config, TRUST)):
        request = request._replace(options=_with_defaults(request.options, given))
    return _build(given, request)


def _of_model_in(given: EngineSource, request: SessionRequest) -> SessionRequest:
    """The same request of the model in an engine."""
    sections = given.sealed.engine.sections
    options = request.options._copy()
    options._external_files = {**options._external_files, WEIGHTS: sections[WEIGHTS].data}
    return request._replace(source=sections["model"].tobytes(), options=options)


def model_in(given: EngineSource) -> LoadedModel:
    """The model in an engine, whose weights stay in its file."""
    from sardonyx.graph.load import load_model  # which sessions of engines do without

    sections = given.sealed.engine.sections
    return load_model(sections["model"].tobytes(), external_buffers={WEIGHTS: sections[WEIGHTS].data})


def plan_settings(settings: RunSettings) -> dict[str, Any]:
    """What of a session's settings must be alike for two sessions to have the same plans."""
    return {name: value for name, value in asdict(settings).items() if name in _OF_PLANS}


def session_content(options: SessionOptions) -> dict[str, Any]:
    """What options say that sessions of an engine begin with, unless they are told otherwise."""
    kept = {name: int(value) for name, value in options._settings.items() if name in _KEPT_SETTINGS}
    return {"settings": kept, "config": session_entries(options)}


def session_entries(options: SessionOptions) -> dict[str, str]:
    """The config entries of options, but for those about writing compiled or optimised models."""
    return {key: value for key, value in options._config.items() if not key.startswith(_NOT_KEPT)}


_KEPT_SETTINGS = {"intra_op_num_threads": int, "inter_op_num_threads": int, "execution_mode": ExecutionMode}
# Entries that begin so are about the compilation, not about sessions of what comes out.
_NOT_KEPT = (
    "ep.",
    "sardonyx.engine",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    _NO_COMPILE,
    _NO_OTHER,
)


def note_made(digest: str) -> None:
    """This user made the engine of this digest."""
    _trust_records().note_made(digest)


def _check_form(given: EngineSource) -> None:
    """DamagedError unless the description says what those of engines do, and the sections are there.

    What it says beyond that is believed only where the engine may be run, or is checked with the model in it.
    """
    engine = given.sealed.engine
    content = engine.content
    missing = [name for name in (*_SECTIONS, WEIGHTS) if name not in engine.sections]
    missing += [name for name, kind in _FORM.items() if not isinstance(content.get(name), kind)]
    options = content.get("options")
    if isinstance(options, dict):
        missing += [name for name in ("config", "settings") if not isinstance(options.get(name), dict)]
    if missing:
        raise DamagedError(f"its description lacks {', '.join(missing)}")


_SECTIONS = ("tables", "image", "constants", "nodes", "model")
_FORM: dict[str, type] = {
    "signature": dict,
    "program": dict,
    "kernels": list,
    "plans": list,
    "arrays": list,
    "pieces": list,
    "version": str,
    "package": str,
    "generator": str,
    "machine": str,
    "settings": dict,
    "options": dict,
    "source": dict,
}


def source_content(files: Sequence[str]) -> dict[str, Any]:
    """What an engine says of the files of the model that it is made of: by path the size, the time of the last change
    and a digest."""
    found: dict[str, Any] = {}
    for path in files:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            found[path] = [status.st_size, status.st_mtime_ns, _digest(file)]
    return found


def _digest(file: BufferedReader) -> str:
    import hashlib  # OpenSSL's, for all of a file

    return hashlib.file_digest(file, "sha256").hexdigest()


def _warn_of_changes(given: EngineSource, logger: log.Logger) -> None:
    """Say so where a file of the model that an engine was made of, if it still has its name, has other contents now."""
    for path, (size, modified, digest) in given.sealed.engine.content["source"].items():
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or [status.st_size, status.st_mtime_ns] == [size, modified]:
                continue
            if status.st_size == size:
                with open_file(path) as file:
                    if _digest(file) == digest:
                        continue
            logger.warning(f"{path} has changed since {given.name} was made of it: compile it again", "engine")


def _trust_records() -> TrustRecords:
    return TrustRecords(default_folder())


def _with_defaults(options: SessionOptions, given: EngineSource) -> SessionOptions:
    """The options with those of the engine where the caller left them at their defaults."""
    kept = given.sealed.engine.content["options"]
    options = options._copy()
    for key, value in kept["config"].items():
        options._config.setdefault(str(key), str(value))
    for name, kind in _KEPT_SETTINGS.items():
        if name in kept["settings"] and name not in options._settings:
            setattr(options, name, kind(kept["settings"][name]))
    return options


def _problem(given: EngineSource, settings: RunSettings, may_run: bool) -> str:
    """Why plans and code of an engine cannot be used by a session of these settings; empty where they can."""
    content = given.sealed.engine.content
    if not may_run:
        return (
            "it was not made by this user on this machine, or others can write to it, and code of others is not run "
            f"unless the session config entry '{TRUST}' = 1 answers for it"
        )
    if content["package"] != package_state() and content["generator"] != generator_version():
        return f"it was made by another state of this package (version {content['version']}, this is {__version__})"
    if settings.kernels == "numpy":
        return "the session runs without kernels"
    machine = host_target(settings.kernels).key
    if content["machine"] != machine:
        return f"it was made for another machine ({content['machine']}, this is {machine})"
    wanted = plan_settings(settings)
    others = [name for name, value in wanted.items() if content["settings"].get(name) != value]
    if others:
        return f"it was made with other values of {', '.join(others)}"
    return ""


def _build(given: EngineSource, request: SessionRequest) -> Built:
    return late_build.build(_of_model_in(given, request))
