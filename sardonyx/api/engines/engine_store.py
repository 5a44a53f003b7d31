"""Where the engine of a model is kept, and when it is the right one.

An engine belongs to the path of a model, the options that its session was made with, this machine, this version of the
package, and the state of every file that the model is made of: size, inode, and the times of its last modification and
change. A program can set the first of these times back but not the second, so that a changed weight is noticed. Files
that changed shortly before their session began have no engine: a second change might show the same times.

It has plans for the sizes that the model was run with lately, at most `MOST_SHAPES`. Where so many sessions in a row
needed another one, sizes come back too seldom for an engine to be worth its while: there is none for a month.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx import _version, log
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.run_settings import run_settings
from sardonyx.compiler.choice.tuned import stored_numbers
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.stored.restored_plan import key_of
from sardonyx.runtime.file_state import file_state, is_settled
from sardonyx.runtime.files.cache_folder import ENGINES, default_folder
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.engine_file import (
    DamagedError,
    Engine,
    Sections,
    only_writer,
    read_content,
    read_engine,
    write_engine,
)
from sardonyx.runtime.files.opening import is_private, open_shared
from sardonyx.runtime.files.own_files import ENGINE, MISS, MISSES, remove_own
from sardonyx.runtime.files.trust_records import TrustRecords
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.mapped_pages import named_path
from sardonyx.runtime.native.native_segment import PlanKey
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.threads.processors import default_threads

KEY = "sardonyx.engine_cache"
# Whether engines get plans for sizes that nobody has run, in the background.
NEW_SIZES = "sardonyx.engine_new_sizes"

# Sessions that are made more quickly have no engine.
LEAST_SECONDS = 0.05
# Sizes of the inputs of a native segment that an engine has plans for, those used last.
MOST_SHAPES = 8
# Sessions in a row that needed sizes which their engine had not, after which there is none for a while.
MOST_MISSES = 8

_MISSED_SECONDS = 30 * 86400.0

# Session config entries that ask for what only the ordinary way does.
_REFUSED = ("session.disable_cpu_ep_fallback", "session.record_ep_graph_assignment_info", "ep.context_enable")
_MEMORY_LIMIT = "sardonyx.memory_limit"
_LARGEST = "session.max_shape_override"

# What makes the description and the sections of an engine with these plans.
Make = Callable[[Sequence[PlanKey]], tuple[Mapping[str, Any], Sections]]


def only_runs(request: SessionRequest) -> bool:
    """Whether a session is asked for no more than to run a model on the CPU alone, unobserved."""
    options = request.options
    config = options._config
    if options._initializers or options._external or options._external_files or options.has_providers():
        return False
    if options.enable_profiling or options.optimized_model_filepath or options._cancelled[0]:
        return False
    if list(request.names) not in ([], ["CPUExecutionProvider"]) or any(map(len, request.provider_options)):
        return False
    if request.logger.is_enabled(log.Severity.VERBOSE) or any(is_on(config, key) for key in _REFUSED):
        return False
    return is_on(config, KEY) and not config.get(_LARGEST)


def wants_sizes(request: SessionRequest) -> bool:
    """Whether a session's engine gets plans for new sizes: not where its memory, or that of the process, is limited."""
    config = request.options._config
    return is_on(config, NEW_SIZES) and not config.get(_MEMORY_LIMIT) and not address_space.is_scarce()


def shapes_of(names: Sequence[str], inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of those inputs of a run that are tensors, by name."""
    return {name: one.shape for name, one in zip(names, inputs, strict=True) if isinstance(one, np.ndarray)}


class _Kept(NamedTuple):
    """An engine: its plans, whether it has others for new sizes, and near to which shapes of inputs."""

    keys: list[PlanKey]
    is_covering: bool
    ran: list[dict[str, tuple[int, ...]]]


class EngineStore:
    """The place of one model's engine for one set of options."""

    def __init__(self, folder: str, key: str, model: str, settings: RunSettings) -> None:
        """`folder` is the user's; `settings` are those of the session's native execution, a part of the key."""
        self._key, self._model, self.settings = key, model, settings
        self._whole = TrustRecords(folder)
        stem = os.path.join(folder, ENGINES, sha256(key.encode()).hexdigest()[:40])
        self._path = stem + ENGINE
        self._misses = stem + MISSES  # as many bytes as there were sessions in a row that missed their sizes
        self._began, self._model_state = time.time(), file_state(model)

    @property
    def key(self) -> str:
        """The model's path and all that sessions of it depend on beside its files."""
        return self._key

    @staticmethod
    def of(request: SessionRequest) -> EngineStore | None:
        """The store for a session; None where it is switched off, or asked for more than runs of a model file."""
        folder, source, options = default_folder(), request.source, request.options
        if folder is None or not isinstance(source, str) or not source or not only_runs(request):
            return None
        settings = run_settings(options)
        if settings.kernels == "numpy":
            return None
        try:
            paths = os.path.realpath(source), named_path(source)
        except (OSError, ValueError):  # no path, or the working directory is gone: whoever loads the model says so
            return None
        parts = (
            *paths,
            repr(settings),
            default_threads(),
            int(options.graph_optimization_level),
            int(options.execution_order),
            sorted(options._config.items()),
            sorted(map(repr, options._free_dimensions.items())),
            sorted(request.disabled),
            list(request.extra_outputs),
            sorted((request.sizes or {}).items()),
            os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY"),  # which models are errors
            host_target(settings.kernels).key,
            stored_numbers(),
            package_state(),
            np.__version__,
        )
        return EngineStore(folder, json.dumps(parts), paths[0], settings)

    def find(self) -> Engine | None:
        """The engine, if it can be trusted and every file of the model is as it was."""
        if self._is_given_up():
            return None
        try:
            return read_engine(self._path, self._is_current, self._whole)
        except DamagedError:  # the next one takes its place
            remove_own(self._path)
            return None

    def _is_current(self, content: Mapping[str, Any]) -> bool:
        """Whether an engine is one of what the model is now."""
        files = content.get("files")
        if content.get("key") != self._key or not isinstance(files, dict):
            return False
        return all(file_state(path) == state for path, state in files.items())

    def keep(
        self, states: Mapping[str, Sequence[int]], keys: Sequence[PlanKey], make: Make, *, covers: bool = False
    ) -> bool:
        """Write an engine of a model that was made of files in these states, with these plans, the latest of a segment
        first, and with those that it had; whether that was possible, and nobody else has or does. What `covers` new
        sizes takes the place of anything, and nothing else takes that place: who does not yet will write again.

        Not where a path leads to another file by now, be it one that has long been so, as behind a renamed folder."""
        if self.settled(list(states)) != states or self._is_given_up():
            return False
        with only_writer(self._path) as alone:
            if not alone:
                return False
            kept = self._kept()
            if kept is not None and not covers and (kept.is_covering or set(keys) <= set(kept.keys)):
                return False
            made, sections = make(_latest([*keys, *(() if kept is None else kept.keys)]))
            return write_engine(self._path, {**made, "key": self._key, "files": states}, sections)

    def ran(self) -> list[dict[str, tuple[int, ...]]]:
        """Shapes of inputs near to which the engine that is there has plans, the latest first."""
        kept = self._kept()
        return [] if kept is None else kept.ran

    def _kept(self) -> _Kept | None:
        """The engine that is there; None where there is none of what the model is now."""
        content = read_content(self._path)
        if content is None or not self._is_current(content):
            return None
        try:
            keys = list(dict.fromkeys(map(key_of, content["plans"])))
            ran = [{str(name): tuple(shape) for name, shape in one.items()} for one in content["ran"]]
            return _Kept(keys, bool(content["coverage"]), ran)
        except (AttributeError, LookupError, TypeError, ValueError):  # it does not stand in the way of a new one
            return None

    def settled(self, files: Sequence[str]) -> dict[str, list[int]] | None:
        """The states of files that have not changed since shortly before this session began; None where one has, or a
        link among them leads elsewhere by now, or the model was not read from its file."""
        states = {path: file_state(path) for path in files}
        if not all(os.path.realpath(path) in states for path in files):
            return None
        if self._model_state is None or states.get(self._model) != self._model_state:
            return None
        if not all(state is not None and is_settled(state, self._began) for state in states.values()):
            return None
        return states  # type: ignore[return-value]

    def note_served(self) -> None:
        """A session began with a size that its engine had."""
        remove_own(self._misses)

    def note_missed(self) -> None:
        """A session needed a size that its engine had not; where that came too often, the engine goes."""
        with contextlib.suppress(OSError):
            with open_shared(self._misses) as file:
                file.write(MISS)
            if self._is_given_up():
                remove_own(self._path)

    def _is_given_up(self) -> bool:
        """Whether sessions of the model, as it is, missed their engine too often, within the last month."""
        with contextlib.suppress(OSError):
            status = os.lstat(self._misses)
            if not is_private(status):
                return False
            recent = time.time() - status.st_mtime < _MISSED_SECONDS
            if recent and os.stat(self._model).st_ctime < status.st_mtime:
                return status.st_size >= MOST_MISSES
            remove_own(self._misses)
        return False


def _latest(keys: Sequence[PlanKey]) -> list[PlanKey]:
    """Of each segment as many as an engine has, the first ones."""
    counts: Counter[int] = Counter()
    found = []
    for key in dict.fromkeys(keys):
        counts[key.segment] += 1
        if counts[key.segment] <= MOST_SHAPES:
            found.append(key)
    return found


@functools.cache
def package_state() -> str:
    """What tells one state of this package from another: its version, and the sizes and times of its files."""
    digest = sha256(_version.__version__.encode())
    waiting = [os.path.dirname(_version.__file__)]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for item in sorted(found, key=lambda item: item.name):
                if item.name.endswith(".py"):
                    status = item.stat()
                    digest.update(f"{item.path} {status.st_size} {status.st_mtime_ns}".encode())
                elif "." not in item.name and item.name != "__pycache__" and item.is_dir():
                    waiting.append(item.path)
    return digest.hexdigest()
