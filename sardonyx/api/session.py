"""`InferenceSession`: what programs written for onnxruntime make and run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from sardonyx import errors
from sardonyx.api.arguments import wrong_argument
from sardonyx.api.building import provider_choice
from sardonyx.api.core_session import CoreSession
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.values.ort_value import OrtValue
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.native import collector

if TYPE_CHECKING:
    from onnx import ModelProto

    from sardonyx.api.building.ep_devices import OrtEpAssignedSubgraph, OrtEpDevice
    from sardonyx.api.building.model_metadata import ModelMetadata
    from sardonyx.api.building.node_arg import NodeArg
    from sardonyx.api.options.run_options import RunOptions
    from sardonyx.api.running.io_binding import IOBinding
    from sardonyx.api.running.memory_report import MemoryReport
    from sardonyx.api.running.streamed_run import StreamedRun
    from sardonyx.api.values.memory_info import OrtMemoryInfo
    from sardonyx.api.values.ort_value_vector import OrtValueVector

# Errors of what a caller gave.
_OF_THE_CALLER = (errors.NoSuchFile, errors.InvalidProtobuf, errors.InvalidArgument, errors.InvalidGraph)
_MAKING = "Making the session"
_READ_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"


class InferenceSession:
    """A model ready to run."""

    _sess: CoreSession | None

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Load a model from a path, its bytes or a ModelProto.

        `providers` are names, or (name, options) tuples, by priority; options may come in `provider_options`
        instead. Where the providers fail, the session falls back to the CPU and says so, unless the keyword
        `enable_fallback` is 0. Other keywords: `disabled_optimizers` (names of rewrites to leave out),
        `read_config_from_model` (1: take options from the model's own ``ort_config``), and `extra_outputs`, which
        onnxruntime does not know: names of values inside of the model that become outputs behind its own. Rewrites keep
        them, so that the steps around them are not those of the session without.

        Raises TypeError for what is no model, and the typed errors of `sardonyx.errors` for a bad one.
        """
        with address_space.telling(_MAKING):
            self._model_path, self._model_bytes, self._model_proto = _source(path_or_bytes)
        self._sess = None
        self._providers: list[str] | None = None
        self._sess_options: SessionOptions | None = sess_options or None
        self._sess_options_initial = self._sess_options
        if self._sess_options is not None and not isinstance(self._sess_options, SessionOptions):
            raise wrong_argument("__init__(): incompatible constructor arguments", "SessionOptions", sess_options)
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        self._read_config_from_model = _reads_config(kwargs.get("read_config_from_model"))
        self._disabled_optimizers = set(kwargs.get("disabled_optimizers") or ())
        self._extra_outputs = _names("extra_outputs", kwargs.get("extra_outputs") or ())
        # Blocks and no decorator: warnings and traces lead from here to the caller's line.
        with address_space.telling(_MAKING), collector.paused(for_session=True):
            available = provider_choice.available_for(providers)
            self._fallback_providers = provider_choice.fallback_providers(providers, available)
            try:
                self._create(providers, provider_options)
            except _OF_THE_CALLER as error:  # the message says all: where in here it was found helps nobody
                raise error.with_traceback(None) from None
            except (ValueError, RuntimeError) as error:
                if not self._enable_fallback:
                    raise
                provider_choice.announce_fallback(error, providers, self._fallback_providers)
                try:
                    self._create(self._fallback_providers, None)
                except Exception as second:
                    raise second from error
                self.disable_fallback()

    def _create(self, providers: Any, provider_options: Any) -> None:
        """Make the inner session with these providers; any error of it comes through."""
        options = self._sess_options_initial
        names, given = provider_choice.normalize(providers, provider_options, provider_choice.available_for(providers))
        if names and options is not None and options.has_providers():
            warnings.warn(
                "Specified 'providers'/'provider_options' when creating InferenceSession but SessionOptions has "
                "already been configured with providers. InferenceSession will only use the providers passed to "
                "InferenceSession().",
                UserWarning,
                stacklevel=3,
            )
        source: Any = self._model_path if self._model_path is not None else self._model_bytes
        self._sess = CoreSession(
            source if source is not None else self._model_proto,
            SessionOptions() if options is None else options._copy(),
            names,
            given,
            self._disabled_optimizers,
            self._read_config_from_model,
            self._extra_outputs,
        )
        self._sess_options = self._sess.session_options
        self._inputs_meta: list[NodeArg] | None = self._sess.inputs_meta
        self._outputs_meta: list[NodeArg] | None = self._sess.outputs_meta
        self._overridable_initializers: list[NodeArg] | None = self._sess.overridable_initializers
        self._model_meta: ModelMetadata | None = self._sess.model_meta
        self._providers = self._sess.provider_names
        self._provider_options: dict[str, dict[str, str]] | None = self._sess.provider_options
        self._profiling_start_time_ns: int | None = self._sess.get_profiling_start_time_ns
        self._output_names = tuple(argument.name for argument in self._sess.outputs_meta)
        self._output_list = list(self._output_names)
        self._fast = self._sess.fast_run
        self._required = tuple(
            argument.name for argument in self._sess.inputs_meta if not argument.type.startswith("optional(")
        )

    def _reset(self) -> None:
        """Let go of the inner session, so that nothing of the old one is left if making a new one fails."""
        self._sess = None
        self._fast = None
        self._sess_options = None
        self._inputs_meta = self._outputs_meta = self._overridable_initializers = None
        self._model_meta = None
        self._providers = None
        self._provider_options = None
        self._profiling_start_time_ns = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Only a subclass that says itself how it is pickled can be."""
        own = type(self)
        if own.__getstate__ is not object.__getstate__ or own.__reduce__ is not object.__reduce__:
            return super().__reduce_ex__(protocol)
        return _refuse_pickling(own)

    def __copy__(self) -> InferenceSession:
        """Another name for the same inner session."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    # Running

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs called `output_names` (all of them for None or nothing) for values by input name.

        Arrays, lists (converted to the input's type) and OrtValues are taken. The results are new arrays, lists or
        dicts. ValueError for a missing input; InvalidArgument for an unknown name or a value that does not fit;
        `Fail` or another typed error, with the node's name, where a node fails.
        """
        if (
            self._fast is not None
            and run_options is None
            and (output_names is None or output_names == self._output_list)
        ):
            try:
                results = self._fast(None, input_feed)
            except MemoryError:  # the long way says what it was for
                results = None
            if results is not None:
                return results
        session = self._session()
        names = self._wanted(output_names)
        self._check_required(input_feed)
        try:
            results = session.run(names, input_feed, run_options)
            self._fast = session.fast_run
            return results
        except errors.EPFail as error:
            if not self._enable_fallback:
                raise
            print(f"EP Error: {error} using {self._providers}")
            print(f"Falling back to {self._fallback_providers} and retrying.")
            self.set_providers(self._fallback_providers)
            self.disable_fallback()
            return self._session().run(names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on another thread, which then calls `callback(outputs, user_data, error)`; the error is '' if none."""
        names = self._wanted(output_names)
        self._check_required(input_feed)
        self._session().run_async(names, input_feed, callback, user_data, run_options)

    def run_streamed(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> StreamedRun:
        """`run` as an iterator over (name, value), which gives each output as soon as it is computed.

        The run begins at once and goes on in a thread of its own, which reads the arrays of `input_feed`. Arguments are
        checked here; what fails later is raised in the place of the outputs that it prevents. Closing the iterator, or
        letting go of it, ends the run. Not known to onnxruntime.
        """
        names = self._wanted(output_names)
        self._check_required(input_feed)
        return self._session().run_streamed(names, input_feed, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` on values of the class OrtValue, which its results are too."""
        names = self._wanted(output_names)
        self._check_required(input_dict_ort_values)
        feeds = {name: value._get_c_value() for name, value in input_dict_ort_values.items()}
        return [OrtValue(value) for value in self._session().run_with_ort_values(feeds, names, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: OrtValueVector,
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """`run` on vectors of values of the C level; the results are appended to `fetches`."""
        self._session().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)

    def io_binding(self) -> IOBinding:
        """A binding for `run_with_iobinding`."""
        from sardonyx.api.running.io_binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound; ValueError for the binding of another session."""
        binding, session = iobinding._iobinding, self._session()
        if binding.session is not session:
            raise ValueError("IOBinding must be used with the session that created it.")
        session.run_with_iobinding(binding, run_options)

    def _wanted(self, output_names: Any) -> tuple[str, ...]:
        return _names("run()", output_names) if output_names else self._output_names

    def _check_required(self, feed: Any) -> None:
        keys = feed.keys()
        for name in self._required:
            if name not in keys:
                missing = [required for required in self._required if required not in keys]
                raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(keys)}).")

    def _session(self) -> CoreSession:
        if self._sess is None:
            raise errors.NoModel("The session has no model: set_providers failed before")
        return self._sess

    # What a session tells

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that a caller must give, in order; initializers that are inputs too are not among them."""
        return self._inputs_meta  # type: ignore[return-value]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order."""
        return self._outputs_meta  # type: ignore[return-value]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that are graph inputs too: they may be fed, and have a default."""
        return self._overridable_initializers  # type: ignore[return-value]

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, version, descriptions and custom properties of the model."""
        return self._model_meta  # type: ignore[return-value]

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with: a copy of the caller's."""
        return self._sess_options  # type: ignore[return-value]

    def get_providers(self) -> list[str]:
        """The providers of the session, by priority; the CPU provider is the last."""
        return self._providers  # type: ignore[return-value]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider, as texts."""
        return self._provider_options  # type: ignore[return-value]

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which provider runs which nodes; needs the config ``session.record_ep_graph_assignment_info`` = 1."""
        return self._session().get_provider_graph_assignment_info()

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each input lives."""
        return self._session().input_meminfos

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each output lives."""
        return self._session().output_meminfos

    def memory_report(self) -> MemoryReport:
        """Where the bytes of the session are: weights, arenas, plans, kernels; `print` shows it as a table."""
        return self._session().memory_report()

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The device on which each input is expected."""
        return self._session().input_epdevices

    # Changing providers

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Make the session anew with other providers. There is no fallback: on an error the session is empty."""
        self._reset()
        self._create(providers, provider_options)

    def disable_fallback(self) -> None:
        """Let errors of providers come through."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Fall back to the CPU where providers fail."""
        self._enable_fallback = True

    # Profiling

    def end_profiling(self) -> str:
        """Write the profile and return its file name; '' where profiling is off or has ended."""
        return self._session().end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, on the clock of `time.monotonic_ns`; 0 without profiling."""
        return self._session().get_profiling_start_time_ns

    # For programs that tune other providers

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Options that providers may change between runs; those here have none and ignore them."""
        if not isinstance(options, Mapping) or not all(
            isinstance(text, str) for pair in options.items() for text in pair
        ):
            raise wrong_argument("set_ep_dynamic_options", "a dict of texts", options)

    def get_tuning_results(self) -> list[Any]:
        """What providers measured while tuning themselves; those here tune nothing at run time."""
        return self._session().get_tuning_results()

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Results of `get_tuning_results` of an equal session; RuntimeError for any where `error_on_invalid`."""
        self._session().set_tuning_results(results, error_on_invalid)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Forget a captured device graph; there are none on the CPU."""

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor of zeros in memory that the session's runs can use."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)


def _names(where: str, given: Any) -> tuple[str, ...]:
    """Names of outputs as a tuple; TypeError for what is no sequence of texts."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise wrong_argument(where, "a sequence of output names", given)
    names = tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise wrong_argument(where, "a sequence of output names", given)
    return names


def _source(given: Any) -> tuple[str | None, bytes | None, Any]:
    """The path, the bytes or the ModelProto that a caller gives as a model; TypeError for anything else."""
    if isinstance(given, (str, os.PathLike)):
        return os.fsdecode(given), None, None
    if isinstance(given, bytes):
        return None, given, None
    if type(given).__name__ == "ModelProto":
        return None, None, given
    raise TypeError(f"Unable to load from type '{type(given)}'")


def _reads_config(keyword: Any) -> bool:
    """Whether options come from the model too: a keyword says so, or else the environment, where it must be 0 or 1."""
    if keyword is not None:
        return int(keyword) == 1
    text = os.environ.get(_READ_CONFIG, "")
    if text not in ("", "0", "1"):
        raise RuntimeError(
            f"The only supported values for the environment variable {_READ_CONFIG} are '0' and '1'. "
            f"The environment variable contained the value: {text}"
        )
    return text == "1"


def _refuse_pickling(kind: type[Any]) -> NoReturn:
    raise TypeError(f"cannot pickle '{kind.__module__}.{kind.__qualname__}' object")
