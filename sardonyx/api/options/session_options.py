"""`SessionOptions`: how a session is made."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

from sardonyx import errors, log
from sardonyx.api.arguments import as_bool, as_int, as_text, wrong_argument
from sardonyx.api.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OrtExecutionProviderDevicePolicy
from sardonyx.api.options import environment
from sardonyx.api.options.thread_callbacks import ThreadCallbacks
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.providers import registry
from sardonyx.runtime.threads.thread_pool_options import CreateThread, JoinThread

if TYPE_CHECKING:
    from sardonyx.api.options.ep_context import OrtEpContextDataBuffer

_MAXIMUM_KEY = 1024
_MAXIMUM_VALUE = 8192
_MAXIMUM_CONTEXT = 2**63 - 1


class _Setting:
    """A property with a default, whose values pass through `convert`."""

    def __init__(self, default: Any, convert: Callable[[str, Any], Any], doc: str) -> None:
        self.default = default
        self._convert = convert
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, options: SessionOptions | None, owner: type) -> Any:
        return self if options is None else options._settings.get(self._name, self.default)

    def __set__(self, options: SessionOptions, value: Any) -> None:
        options._settings[self._name] = self._convert(f"{type(options).__name__}.{self._name}", value)


def _only(kind: type[Any]) -> Callable[[str, Any], Any]:
    def convert(where: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong_argument(where, f"a {kind.__name__}", value)
        return value

    return convert


class SessionOptions:
    """Settings of a session, copied when the session is made. Properties have the defaults of onnxruntime."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_config",
        "_context_reader",
        "_external",
        "_external_files",
        "_free_dimensions",
        "_initializers",
        "_libraries",
        "_policy",
        "_providers",
        "_settings",
        "_threads",
    )

    enable_cpu_mem_arena = _Setting(True, as_bool, "Keep memory in an arena between runs.")
    enable_mem_pattern = _Setting(True, as_bool, "Plan memory ahead for shapes seen before.")
    enable_mem_reuse = _Setting(True, as_bool, "Give memory of dead values to later ones.")
    enable_profiling = _Setting(False, as_bool, "Write a profile; see `InferenceSession.end_profiling`.")
    execution_mode = _Setting(ExecutionMode.ORT_SEQUENTIAL, _only(ExecutionMode), "Whether nodes run side by side.")
    execution_order = _Setting(ExecutionOrder.DEFAULT, _only(ExecutionOrder), "The order of nodes.")
    graph_optimization_level = _Setting(
        GraphOptimizationLevel.ORT_ENABLE_ALL, _only(GraphOptimizationLevel), "How much of the graph is rewritten."
    )
    inter_op_num_threads = _Setting(0, as_int, "Threads for nodes that run side by side; 0 for the default.")
    intra_op_num_threads = _Setting(0, as_int, "Threads inside one node; 0 for one per physical core.")
    log_severity_level = _Setting(-1, as_int, "Lowest severity that is logged, 0 to 4; -1 for the process default.")
    log_verbosity_level = _Setting(0, as_int, "Kept for callers of onnxruntime; there is one level of verbose lines.")
    logid = _Setting("", as_text, "The session's name in log lines.")
    optimized_model_filepath = _Setting("", as_text, "Where the optimised model is written; empty for nowhere.")
    profile_file_prefix = _Setting("onnxruntime_profile_", as_text, "The start of the profile's file name.")
    use_deterministic_compute = _Setting(False, as_bool, "Results do not depend on threads here in any case.")
    use_per_session_threads = _Setting(True, as_bool, "False for the pool that all sessions share.")

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._config: dict[str, str] = {}
        self._free_dimensions: dict[tuple[str, str], int] = {}
        self._initializers: dict[str, OrtValue] = {}
        self._external: dict[str, OrtValue] = {}
        self._external_files: dict[str, memoryview] = {}
        self._providers: dict[str, dict[str, str]] = {}
        self._policy: Any = None
        self._libraries: list[ctypes.CDLL] = []
        self._cancelled = [False]
        self._threads = ThreadCallbacks()
        self._context_reader: tuple[Callable[[str, OrtEpContextDataBuffer], None], int] | None = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__qualname__}' object")

    def _copy(self) -> Self:
        """The same settings in a new object; the load cancellation flag stays one and the same."""
        copy = type(self)()
        for name in ("_settings", "_config", "_free_dimensions", "_initializers", "_external", "_external_files"):
            setattr(copy, name, dict(getattr(self, name)))
        copy._providers = {name: dict(options) for name, options in self._providers.items()}
        copy._policy, copy._context_reader, copy._cancelled = self._policy, self._context_reader, self._cancelled
        copy._libraries = list(self._libraries)
        copy._threads = replace(self._threads)
        return copy

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a config key; what is known of keys is in `sardonyx.api.options.config_keys`."""
        add_config_entry("add_session_config_entry", self._config, key, value)

    def get_session_config_entry(self, key: str) -> str:
        """The value of a config key; RuntimeError for one that was not set."""
        return get_config_entry("SessionOptions", self._config, key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the symbolic dimension `name` of the model's inputs to a number."""
        where = "add_free_dimension_override_by_name"
        self._free_dimensions["name", as_text(where, name)] = as_int(where, value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix every dimension of the model's inputs that carries this denotation to a number."""
        where = "add_free_dimension_override_by_denotation"
        self._free_dimensions["denotation", as_text(where, denotation)] = as_int(where, value)

    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Use this value for the initializer `name`; the memory is shared and must not change."""
        if not isinstance(ort_value, OrtValue):
            raise RuntimeError(f"add_initializer: The provided Python object must be an OrtValue, got {ort_value!r}")
        _add_once(self._initializers, as_text("add_initializer", name), ort_value, "An OrtValue for this name")

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[OrtValue]) -> None:
        """Use these values for initializers that the model keeps in external files."""
        if len(names) != len(ort_values):
            raise RuntimeError("add_external_initializers: Expecting names and ort_values lists to have equal length")
        for name, value in zip(names, ort_values, strict=True):
            if not isinstance(value, OrtValue):
                raise RuntimeError(f"add_external_initializers: the value of {name} must be an OrtValue, got {value!r}")
            _add_once(self._external, as_text("add_external_initializers", name), value, "An initializer of this name")

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Use these buffers for the external files of the model, which it knows by these locations."""
        if not len(names) == len(buffers) == len(lengths):
            raise RuntimeError(
                "add_external_initializers_from_files_in_memory: "
                "expecting 'names', 'buffers' and 'lengths' to have equal length"
            )
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            _add_once(self._external_files, name, memoryview(buffer).cast("B")[:length], "An entry for this name")

    def register_custom_ops_library(self, path: str) -> None:
        """Load a library of operators for onnxruntime. Such libraries are bound to its C API: `Fail` tells so."""
        try:
            library = ctypes.CDLL(as_text("register_custom_ops_library", path))
        except OSError as error:
            raise errors.Fail(f"Failed to load library {path} with error: {error}") from error
        if not hasattr(library, "RegisterCustomOps"):
            raise errors.Fail(f"Failed to get symbol RegisterCustomOps with error: {path} does not define it")
        raise errors.Fail(
            f"Failed to register the operators of {path}: they are compiled against the C API of onnxruntime. "
            "Register operators written in Python with sardonyx.ops.framework.operator instead."
        )

    def add_provider(self, provider_name: str, options: Mapping[str, str]) -> None:
        """Add a provider that the session uses when its constructor names none."""
        name = as_text("add_provider", provider_name)
        if name not in environment.get_all_providers():
            raise RuntimeError(f"Unknown Provider Type: {name}")
        if name not in environment.get_available_providers():
            raise errors.InvalidArgument(
                f"Failed to add provider of type '{name}' to SessionOptions. Provider configuration is not supported. "
                f"It cannot run here: {registry.why_unavailable(name)}."
            )
        self._providers[name] = {str(key): str(value) for key, value in options.items()}

    def add_provider_for_devices(self, ep_devices: Sequence[Any], provider_options: Mapping[str, str]) -> None:
        """Add the provider of these devices (from `get_ep_devices`), which must all have the same one."""
        names = {device.ep_name for device in ep_devices}
        if len(names) != 1:
            raise errors.InvalidArgument(
                f"add_provider_for_devices needs devices of one provider, got devices of {sorted(names) or 'none'}"
            )
        self.add_provider(names.pop(), provider_options)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Prefer a kind of device where the constructor names no provider; the CPU serves every preference here."""
        self._policy = _only(OrtExecutionProviderDevicePolicy)("set_provider_selection_policy", policy)

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Sequence[Any]]) -> None:
        """Let `delegate(ep_devices, model_metadata, runtime_metadata, max_selections)` choose the devices."""
        if not callable(delegate):
            raise wrong_argument("set_provider_selection_policy_delegate", "a function", delegate)
        self._policy = delegate

    def set_custom_create_thread_fn(self, create: CreateThread) -> None:
        """Let `create(options, work)` make each thread of the session's pools, and give a handle for it.

        `options` are those of `set_custom_thread_creation_options`. The new thread calls `work()`, which returns when
        the session is done with it; it needs no interpreter's lock meanwhile. Sessions with one thread never call.
        """
        self._threads.set_create("set_custom_create_thread_fn", create)

    def set_custom_thread_creation_options(self, options: Any) -> None:
        """What the function of `set_custom_create_thread_fn` is given, as it is."""
        self._threads.options = options

    def set_custom_join_thread_fn(self, join: JoinThread) -> None:
        """Let `join(handle)` wait for the end of a thread that was made by a callback, when the session goes."""
        self._threads.set_join("set_custom_join_thread_fn", join)

    def has_providers(self) -> bool:
        """Whether a provider, or a policy for choosing one, was set on these options."""
        return bool(self._providers) or self._policy is not None

    def set_load_cancellation_flag(self, is_cancel: bool) -> None:
        """Stop sessions that are being made with these options: they raise `ModelLoadCanceled`."""
        self._cancelled[0] = as_bool("set_load_cancellation_flag", is_cancel)

    def set_ep_context_data_read_func(
        self, read_func: Callable[[str, OrtEpContextDataBuffer], None], max_data_size: int = _MAXIMUM_CONTEXT
    ) -> None:
        """Where the engines of compiled models come from, in place of files beside them.

        `read_func(name, buffer)` allocates the buffer, with no more than `max_data_size` bytes, and fills it.
        """
        if not callable(read_func):
            raise wrong_argument("set_ep_context_data_read_func", "a function", read_func)
        size = operator.index(max_data_size)
        if size < 0:
            raise wrong_argument("set_ep_context_data_read_func", "a max_data_size of 0 or more", max_data_size)
        self._context_reader = read_func, size

    def _read_context(self, name: str) -> bytes:
        """What the caller's function gives for a name; `Fail` where it gives nothing or raises."""
        from sardonyx.api.options.ep_context import OrtEpContextDataBuffer

        assert self._context_reader is not None
        read, size = self._context_reader
        buffer = OrtEpContextDataBuffer(size)
        try:
            read(name, buffer)
        except Exception as error:  # whatever a caller's function raises
            raise errors.Fail(
                f"the function of set_ep_context_data_read_func raised {type(error).__name__} for {name!r}: {error}"
            ) from error
        if not buffer.is_allocated:
            raise errors.Fail(f"the function of set_ep_context_data_read_func has allocated nothing for {name!r}")
        return buffer.content()

    def clear_ep_context_data_read_func(self) -> None:
        """Undo `set_ep_context_data_read_func`."""
        self._context_reader = None


def _add_once(known: dict[str, Any], name: str, value: Any, what: str) -> None:
    """RuntimeError for a second value of one name."""
    if name in known:
        raise RuntimeError(f"{what} has already been added: {name}")
    known[name] = value


def add_config_entry(where: str, entries: dict[str, str], key: Any, value: Any) -> None:
    """Set a config entry, within the limits of onnxruntime: RuntimeError outside them."""
    key, value = as_text(where, key), as_text(where, value)
    if not 1 <= len(key) <= _MAXIMUM_KEY:
        raise RuntimeError(f"Config key is empty or longer than maximum length {_MAXIMUM_KEY}")
    if len(value) > _MAXIMUM_VALUE:
        raise RuntimeError(f"Config value is longer than maximum length: {_MAXIMUM_VALUE}")
    if key in entries:
        log.DEFAULT.warning(
            f"Config with key [{key}] already exists with value [{entries[key]}]. It will be overwritten", "config"
        )
    entries[key] = value


def get_config_entry(owner: str, entries: Mapping[str, str], key: str) -> str:
    """A config entry; RuntimeError for one that was not set."""
    key = as_text(f"{owner}: the key of a config entry", key)
    if key not in entries:
        raise RuntimeError(f"{owner} does not have configuration with key: {key}")
    return entries[key]
