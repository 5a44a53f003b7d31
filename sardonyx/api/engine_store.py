"""Where the engine of a model is kept, and when it is the right one.

An engine belongs to the path of a model, the options that its session was made with, this machine, this version of the
package, and the state of every file that the model is made of: size, inode, and the times of its last modification and
change. A program can set the first of these times back but not the second, so that a changed weight is noticed. Files
that changed less than `SETTLED_SECONDS` before their session began have no engine: a second change might show the same
times.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import log
from sardonyx._version import __version__
from sardonyx.api.config_keys import is_on
from sardonyx.api.run_settings import run_settings
from sardonyx.api.session_options import SessionOptions
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.tuned import stored_numbers
from sardonyx.runtime.engine_file import SUFFIX, Bytes, Engine, only_writer, read_content, read_engine, write_engine
from sardonyx.runtime.kernel_cache import default_folder
from sardonyx.runtime.processors import default_threads
from sardonyx.runtime.settings import RunSettings

KEY = "sardonyx.engine_cache"

SETTLED_SECONDS = 2.0
# Sessions that are made more quickly have no engine.
LEAST_SECONDS = 0.05

_VARIED = ".varied"
_VARIED_SECONDS = 30 * 86400.0

# Session config entries that ask for what only the ordinary way does.
_REFUSED = ("session.disable_cpu_ep_fallback", "session.record_ep_graph_assignment_info", "ep.context_enable")


class EngineStore:
    """The place of one model's engine for one set of options."""

    def __init__(self, folder: Path, key: str, model: str, settings: RunSettings) -> None:
        """`settings` are those of the session's native execution, which are a part of the key."""
        self._key, self._model, self.settings = key, model, settings
        self._path = folder / (hashlib.sha256(key.encode()).hexdigest()[:40] + SUFFIX)
        self._began = time.time()

    @staticmethod
    def of(
        source: Any,
        options: SessionOptions,
        names: Sequence[str],
        provider_options: Sequence[Mapping[str, str]],
        disabled: set[str],
        logger: log.Logger,
    ) -> EngineStore | None:
        """The store for a session like this; None where it is switched off, or the session asks for more than a run.

        Sessions have engines that run a model file on the CPU alone, with weights of its own, unobserved.
        """
        folder = default_folder()
        config = options._config
        given = options._initializers or options._external or options._external_files or options.has_providers()
        if folder is None or not isinstance(source, str) or not source or given or not is_on(config, KEY):
            return None
        if options.enable_profiling or options.optimized_model_filepath or options._cancelled[0]:
            return None
        if list(names) not in ([], ["CPUExecutionProvider"]) or any(map(len, provider_options)):
            return None
        if logger.is_enabled(log.Severity.VERBOSE) or any(is_on(config, key) for key in _REFUSED):
            return None
        settings = run_settings(options)
        if settings.kernels == "numpy":
            return None
        target = host_target(settings.kernels).key
        parts = (
            os.path.realpath(source),
            repr(settings),
            default_threads(),
            int(options.graph_optimization_level),
            sorted(config.items()),
            sorted(map(repr, options._free_dimensions.items())),
            sorted(disabled),
            target,
            stored_numbers(),
            package_state(),
            np.__version__,
        )
        return EngineStore(folder / "engines", json.dumps(parts), parts[0], settings)

    def find(self) -> Engine | None:
        """The engine, if it can be trusted and every file of the model is as it was."""
        if not self._is_current() or self._is_varied():
            return None
        engine = read_engine(self._path)
        if engine is None:  # damaged: the next one takes its place
            with contextlib.suppress(OSError):
                self._path.unlink()
        return engine

    def _is_current(self) -> bool:
        """Whether there is an engine of what the model is now."""
        content = read_content(self._path)
        if content is None or content.get("key") != self._key:
            return False
        return all(file_state(path) == state for path, state in content["files"].items())

    def keep(self, files: Sequence[str], content: Mapping[str, Any], sections: Sequence[Sequence[Bytes]]) -> bool:
        """Write an engine of a model made of these files; whether that was possible, and nobody else has or does."""
        states = self.settled(files)
        if states is None or self._is_varied():
            return False
        with only_writer(self._path) as alone:
            if not alone or self._is_current():
                return False
            return write_engine(self._path, {**content, "key": self._key, "files": states}, sections)

    def settled(self, files: Sequence[str]) -> dict[str, list[int]] | None:
        """The states of files that have not changed since shortly before this session began; None where one has."""
        states = {path: file_state(path) for path in files}
        latest = (self._began - SETTLED_SECONDS) * 1e9
        if any(state is None or max(state[1:3]) > latest for state in states.values()):
            return None
        return states  # type: ignore[return-value]

    def forget(self) -> None:
        """The model is run with sizes that the engine has no plan for: it has none for a month, unless it changes."""
        with contextlib.suppress(OSError):
            self._path.with_suffix(_VARIED).touch()
            self._path.unlink(missing_ok=True)

    def _is_varied(self) -> bool:
        """Whether the model, as it is, had changing sizes within the last month."""
        marker = self._path.with_suffix(_VARIED)
        with contextlib.suppress(OSError):
            noted = marker.stat().st_mtime
            if time.time() - noted < _VARIED_SECONDS and os.stat(self._model).st_ctime < noted:
                return True
            marker.unlink()
        return False


def file_state(path: str) -> list[int] | None:
    """Size, times of modification and of change in nanoseconds, inode and device of a file; None where it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


@functools.cache
def package_state() -> str:
    """What tells one state of this package from another: its version, and the sizes and times of its files."""
    digest = hashlib.sha256(__version__.encode())
    root = Path(__file__).parents[1]
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()
