"""What all sessions of a process share: log defaults, thread pools, the list of providers, telemetry."""

from __future__ import annotations

import itertools
import operator
import threading
from typing import Any

from sardonyx import errors, log
from sardonyx._version import API_VERSION, __version__
from sardonyx.api.arguments import as_int, wrong_argument
from sardonyx.api.options.thread_callbacks import ThreadCallbacks
from sardonyx.providers import registry
from sardonyx.runtime import random_state
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.threads.thread_pool_options import CreateThread, JoinThread, ThreadHooks

_lock = free_in_child(threading.Lock())
_global_pools: tuple[int, int] | None = None
_global_callbacks = ThreadCallbacks()
_global_hooks: ThreadHooks | None = None
_session_numbers = itertools.count(1)
_verbosity = 0


def get_available_providers() -> list[str]:
    """Providers that can run models here, by priority."""
    return registry.available()


def get_all_providers() -> list[str]:
    """Every provider name that a session takes without an error, whether it can run here or not."""
    return registry.known()


def get_device() -> str:
    """The kind of device that sessions run on: ``CPU``."""
    return "CPU"


def get_build_info() -> str:
    """A line about this build, in the form that onnxruntime gives."""
    return f"ORT Build Info: sardonyx={__version__}, api={API_VERSION}, build type=Release"


def set_seed(seed: int) -> None:
    """Seed the operators without a seed of their own, in the sessions created from now on."""
    try:
        random_state.set_seed(operator.index(seed))
    except TypeError:
        raise wrong_argument("set_seed", "an int", seed) from None


def set_default_logger_severity(severity: int) -> None:
    """The threshold of all sessions that set none: 0 verbose to 4 fatal; RuntimeError for any other number."""
    log.set_default_severity(as_int("set_default_logger_severity", severity))


def set_default_logger_verbosity(verbosity: int) -> None:
    """Kept for callers of onnxruntime: there is one level of verbose lines here."""
    global _verbosity
    _verbosity = as_int("set_default_logger_verbosity", verbosity)


def enable_telemetry_events() -> None:
    """Nothing is ever sent anywhere; here because callers of onnxruntime call it."""


def disable_telemetry_events() -> None:
    """Nothing is ever sent anywhere; here because callers of onnxruntime call it."""


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Let all later sessions share one pool of these sizes; `Fail` when that has been said before.

    From then on every session must set `use_per_session_threads` to False.
    """
    global _global_pools, _global_hooks
    sizes = (
        as_int("set_global_thread_pool_sizes", intra_op_num_threads),
        as_int("set_global_thread_pool_sizes", inter_op_num_threads),
    )
    with _lock:
        if _global_pools is not None:
            raise errors.Fail("Global thread pools have already been created, cannot replace them")
        _global_hooks = _global_callbacks.hooks(shared=True)
        _global_pools = sizes


def set_global_custom_create_thread_fn(create: CreateThread) -> None:
    """`SessionOptions.set_custom_create_thread_fn` for the pool that all sessions share; before its sizes are set."""
    _before_global_pools("set_global_custom_create_thread_fn")
    _global_callbacks.set_create("set_global_custom_create_thread_fn", create)


def set_global_custom_thread_creation_options(options: Any) -> None:
    """What the function of `set_global_custom_create_thread_fn` is given, as it is."""
    _before_global_pools("set_global_custom_thread_creation_options")
    _global_callbacks.options = options


def set_global_custom_join_thread_fn(join: JoinThread) -> None:
    """`SessionOptions.set_custom_join_thread_fn` for the pool that all sessions share; before its sizes are set."""
    _before_global_pools("set_global_custom_join_thread_fn")
    _global_callbacks.set_join("set_global_custom_join_thread_fn", join)


def _before_global_pools(where: str) -> None:
    if _global_pools is not None:
        raise errors.Fail(
            f"{where}: Global thread pools have already been created: call it before set_global_thread_pool_sizes"
        )


def global_thread_hooks() -> ThreadHooks | None:
    """Who makes the threads of the shared pools; None for Python."""
    return _global_hooks


def global_thread_pool_sizes() -> tuple[int, int] | None:
    """The sizes of the shared pools, or None while every session has its own."""
    return _global_pools


def check_thread_pools(use_per_session_threads: bool) -> None:
    """RuntimeError where a session's choice of pools contradicts the process."""
    if use_per_session_threads and _global_pools is not None:
        raise RuntimeError("use_per_session_threads must be false when using a global thread pool")
    if not use_per_session_threads and _global_pools is None:
        raise RuntimeError(
            "use_per_session_threads is False, but there is no global thread pool: call "
            "set_global_thread_pool_sizes before the first session. When the session is not configured to use per "
            "session threadpools, the env must be created with the global thread pools."
        )


def next_session_number() -> int:
    """How many sessions there have been in this process, this one included."""
    return next(_session_numbers)
