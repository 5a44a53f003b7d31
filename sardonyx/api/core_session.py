"""A loaded and compiled model that runs: what onnxruntime calls the InferenceSession of its C level."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx import errors, log
from sardonyx.api.engines import engine_store
from sardonyx.api.loaded_session import LoadedSession
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.run_options import RunOptions
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.running.async_runs import AsyncRuns, Callback
from sardonyx.api.values.core_value import CoreValue
from sardonyx.providers import registry
from sardonyx.runtime.forks import cached_property

if TYPE_CHECKING:
    from sardonyx.api.building.ep_devices import OrtEpAssignedSubgraph, OrtEpDevice
    from sardonyx.api.running.io_binding import SessionIOBinding
    from sardonyx.api.values.memory_info import OrtMemoryInfo
    from sardonyx.api.values.ort_value_vector import OrtValueVector

_ASSIGNMENT = "session.record_ep_graph_assignment_info"


class CoreSession(LoadedSession):
    """A model that runs, with what callers of the C level ask of it."""

    def run_with_iobinding(self, binding: SessionIOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound; RuntimeError ``Error in execution: …``."""
        binding.execute(run_options)

    def run_with_ort_values(
        self, feeds: Mapping[str, CoreValue], output_names: Sequence[str], run_options: RunOptions | None = None
    ) -> OrtValueVector:
        """The outputs as values of the C level, in order."""
        from sardonyx.api.values.ort_value_vector import OrtValueVector

        results = self.execute(output_names, {name: value.raw for name, value in feeds.items()}, run_options)
        kinds = {argument.name: argument.type for argument in self.outputs_meta}
        vector = OrtValueVector()
        for name, raw in zip(output_names, results, strict=True):
            vector.push_back(CoreValue(raw, kinds[name]))
        return vector

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: OrtValueVector,
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Append the outputs called `fetch_names` to `fetches`."""
        given = dict(zip(feed_names, feeds, strict=True))
        for value in self.run_with_ort_values(given, fetch_names, run_options):
            fetches.push_back(value)

    def run_async(
        self,
        output_names: Sequence[str],
        feeds: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on a thread of the session's pool, which then calls `callback(outputs, user_data, error)`."""
        run = functools.partial(self.run, tuple(output_names), dict(feeds), run_options)
        self._async.submit(run, callback, user_data)

    @cached_property
    def _async(self) -> AsyncRuns:
        return AsyncRuns(self._options.intra_op_num_threads, f"session-{self.number}-async", self._logger)

    def without_engine(self) -> CoreSession:
        """This session, or where its plan comes from an engine the same one made from the model."""
        if not self._is_stored:
            return self
        asked, options = self._request, self._options._copy()
        options._config[engine_store.KEY] = "0"
        options.log_severity_level = log.Logger("", options.log_severity_level).without_warnings().threshold
        settings = asked.provider_options, asked.disabled
        return CoreSession(asked.source, options, asked.names, *settings, extra_outputs=asked.extra_outputs)

    # What a session tells

    @property
    def session_options(self) -> SessionOptions:
        return self._options

    @property
    def output_names(self) -> tuple[str, ...]:
        """All outputs, in order."""
        return self._output_names

    @property
    def provider_names(self) -> list[str]:
        return [provider.name for provider in self._providers]

    @property
    def provider_options(self) -> dict[str, dict[str, str]]:
        return {provider.name: provider.provider_options() for provider in self._providers}

    def get_providers(self) -> list[str]:
        """The providers by priority, as `InferenceSession` tells them."""
        return self.provider_names

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider, as texts."""
        return self.provider_options

    @property
    def input_meminfos(self) -> list[OrtMemoryInfo]:
        """Where each input lives."""
        return [self._memory_info() for _ in self.inputs_meta]

    @property
    def output_meminfos(self) -> list[OrtMemoryInfo]:
        """Where each output lives."""
        return [self._memory_info() for _ in self.outputs_meta]

    def _memory_info(self) -> OrtMemoryInfo:
        from sardonyx.api.device_enums import OrtAllocatorType, OrtMemType
        from sardonyx.api.values.memory_info import OrtMemoryInfo

        has_arena = self._options.enable_cpu_mem_arena
        kind = OrtAllocatorType.ORT_ARENA_ALLOCATOR if has_arena else OrtAllocatorType.ORT_DEVICE_ALLOCATOR
        return OrtMemoryInfo(self._providers[-1].allocator().name, kind, 0, OrtMemType.DEFAULT)

    @property
    def input_epdevices(self) -> list[OrtEpDevice]:
        """The device on which each input is expected."""
        from sardonyx.api.building.ep_devices import get_ep_devices

        return [get_ep_devices()[0] for _ in self.inputs_meta]

    def get_tuning_results(self) -> list[Any]:
        """What providers measured while tuning themselves; those here tune nothing at run time."""
        return []

    def set_tuning_results(self, results: Sequence[Any], error_on_invalid: bool = False) -> None:
        """Take such results; RuntimeError for any where `error_on_invalid`."""
        if results and error_on_invalid:
            name = results[0].get("ep")
            if name not in self.provider_names:
                raise RuntimeError(f"Cannot find execution provider {name}")
            raise RuntimeError(f"Invalid TuningResults (index=0). {name} does not support TunableOp.")

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Which provider runs which nodes; `Fail` unless the session was told to keep that."""
        if not is_on(self._options._config, _ASSIGNMENT):
            raise errors.Fail(
                "Session configuration entry 'session.record_ep_graph_assignment_info' must be set to \"1\" to "
                "retrieve EP graph assignment information."
            )
        from sardonyx.api.building.ep_devices import OrtEpAssignedNode, OrtEpAssignedSubgraph

        assigned: list[OrtEpAssignedSubgraph] = []
        for name in self.provider_names:
            own = [
                OrtEpAssignedNode(node.name, node.domain, node.op_type)
                for node in self._compiled().nodes
                if node.provider == name
            ]
            # The CPU provider takes nodes one by one, the others parts of the graph.
            parts = [[node] for node in own] if name == registry.CPU else [own] if own else []
            assigned.extend(OrtEpAssignedSubgraph(name, part) for part in parts)
        return assigned
