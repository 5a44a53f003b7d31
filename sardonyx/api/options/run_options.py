"""`RunOptions`: settings of one call of `run`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from sardonyx import errors
from sardonyx.api.arguments import as_bool, as_int, as_text
from sardonyx.api.options.session_options import add_config_entry, get_config_entry
from sardonyx.runtime.threads.interrupts import STOP_WORDS, StopField

if TYPE_CHECKING:
    from sardonyx.api.options.lora import LoraAdapter

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_GRAPH_ID = "gpu_graph_id"


class RunOptions:
    """Settings of one run. `terminate` may be set from another thread while the run is under way."""

    __slots__ = (
        "__weakref__",
        "_adapters",
        "_config",
        "_execute_path",
        "_logid",
        "_severity",
        "_terminate",
        "_verbosity",
    )

    def __init__(self) -> None:
        self._severity = -1
        self._verbosity = 0
        self._logid = ""
        self._terminate = (ctypes.c_int64 * STOP_WORDS)()  # native code looks at it between pieces of its work
        self._execute_path = False
        self._config: dict[str, str] = {}
        self._adapters: list[LoraAdapter] = []

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__qualname__}' object")

    @property
    def log_severity_level(self) -> int:
        """Lowest severity that is logged during the run; -1 for the session's."""
        return self._severity

    @log_severity_level.setter
    def log_severity_level(self, value: int) -> None:
        self._severity = as_int("RunOptions.log_severity_level", value)

    @property
    def log_verbosity_level(self) -> int:
        """Kept for callers of onnxruntime; there is one level of verbose lines."""
        return self._verbosity

    @log_verbosity_level.setter
    def log_verbosity_level(self, value: int) -> None:
        self._verbosity = as_int("RunOptions.log_verbosity_level", value)

    @property
    def logid(self) -> str:
        """A tag for the run, which an info line shows at its start."""
        return self._logid

    @logid.setter
    def logid(self, value: str) -> None:
        self._logid = as_text("RunOptions.logid", value)

    @property
    def terminate(self) -> bool:
        """Whether runs with these options stop as soon as may be, in the midst of a node too, with the error `Fail`."""
        return self._terminate[StopField.FLAG] != 0

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate[StopField.FLAG] = as_bool("RunOptions.terminate", value)

    @property
    def only_execute_path_to_fetches(self) -> bool:
        """Kept for callers of onnxruntime; here a run always leaves out what its outputs do not need."""
        return self._execute_path

    @only_execute_path_to_fetches.setter
    def only_execute_path_to_fetches(self, value: bool) -> None:
        self._execute_path = as_bool("RunOptions.only_execute_path_to_fetches", value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a config key of the run; unknown ones are kept and ignored."""
        add_config_entry("add_run_config_entry", self._config, key, value)

    def get_run_config_entry(self, key: str) -> str:
        """The value of a config key; RuntimeError for one that was not set."""
        return get_config_entry("RunOptions", self._config, key)

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Let the tensors of an adapter stand in for the overridable initializers of the same names."""
        from sardonyx.api.options.lora import LoraAdapter

        if not isinstance(adapter, LoraAdapter):
            raise TypeError(
                f"add_active_adapter: incompatible function arguments: expected a LoraAdapter, got {adapter!r}"
            )
        self._adapters.append(adapter)


def shrinks_memory(entries: Mapping[str, str]) -> bool:
    """Whether a run config asks for the memory that is kept for later runs to be given back after the run."""
    return bool(entries.get(_SHRINKAGE))


def check_run_config(entries: Mapping[str, str], arena: bool) -> None:
    """InvalidArgument for a run config that onnxruntime refuses; `arena` says whether the session keeps one."""
    if _SHRINKAGE in entries:
        _check_shrinkage(entries[_SHRINKAGE], arena)
    graph_id: Any = entries.get(_GRAPH_ID, "-1")
    try:
        int(graph_id)
    except ValueError:
        raise errors.InvalidArgument(f"Failed to parse the cuda graph annotation id: {graph_id}") from None


def _check_shrinkage(text: str, arena: bool) -> None:
    """Check a list such as ``cpu:0;gpu:0``.

    Only the host has an arena; after it, as in that list, devices that are not there are passed over.
    """
    found = False
    for item in filter(None, text.split(";")):
        device, _, number = item.partition(":")
        if device not in ("cpu", "gpu"):
            raise errors.InvalidArgument(f"Unsupported device specified in the memory arena shrink list: {device}")
        if number and not number.isdecimal():
            raise errors.InvalidArgument(f"Unsupported device id in the memory arena shrink list: {number}")
        found = found or (device == "cpu" and arena and number in ("", "0"))
        if not found or (device == "cpu" and number not in ("", "0")):
            raise errors.InvalidArgument(
                "Did not find an arena based allocator registered for device-id combination in the memory arena "
                f"shrink list: {item}"
            )
