"""A loaded and compiled model: which plan makes what is asked for, and its runs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sardonyx import errors, log
from sardonyx.api import session_opening
from sardonyx.api.arguments import wrong_argument
from sardonyx.api.building.built import Built
from sardonyx.api.building.model_metadata import ModelMetadata
from sardonyx.api.building.node_arg import NodeArg
from sardonyx.api.building.session_request import EXTERNAL_FOLDER, SessionRequest
from sardonyx.api.building.shared_symbols import Contradiction
from sardonyx.api.options import environment
from sardonyx.api.options.run_options import RunOptions, check_run_config, shrinks_memory
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.running.declared_shapes import warn_of_other_shapes
from sardonyx.api.running.fast_run import ShortWay
from sardonyx.api.running.given_inputs import GivenInputs
from sardonyx.api.running.memory_limit import memory_limit
from sardonyx.api.running.output_plans import OutputPlans
from sardonyx.api.running.results import detach, to_python
from sardonyx.api.running.session_profile import SessionProfile
from sardonyx.compiler.llvm.library import kernels_made
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import RefusedError, execute
from sardonyx.runtime.file_state import file_state
from sardonyx.runtime.forks import free_in_child, whole
from sardonyx.runtime.memory import address_space
from sardonyx.runtime.memory.constant_memory import WEIGHTS
from sardonyx.runtime.memory.mapped_pages import check_unwritten
from sardonyx.runtime.memory.memory import Charge, MemoryLimitError
from sardonyx.runtime.native.waits import Waits, described, note_model
from sardonyx.runtime.plan import Plan
from sardonyx.runtime.random_state import Streams

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import ModelProto

    from sardonyx.api.building.compiled_model import CompiledModel
    from sardonyx.api.running.memory_report import MemoryReport
    from sardonyx.api.running.relay import PreparedCall, Way
    from sardonyx.api.running.settled_plans import SettledPlans
    from sardonyx.api.running.streamed_run import StreamedRun
    from sardonyx.passes.base import PassReport
    from sardonyx.providers.base import ExecutionProvider
    from sardonyx.runtime.trace import Trace

_NO_ADAPTERS: Mapping[str, Any] = {}


class LoadedSession:
    """Made once, run from any number of threads."""

    @address_space.typed("Making the session")
    def __init__(
        self,
        source: str | bytes | ModelProto,
        options: SessionOptions,
        providers: Sequence[str],
        provider_options: Sequence[Mapping[str, str]],
        disabled_optimizers: Iterable[str] = (),
        read_config: bool = False,
        extra_outputs: Sequence[str] = (),
    ) -> None:
        """Load and compile a model; the typed errors of the project, and RuntimeError or ValueError for providers."""
        environment.check_thread_pools(options.use_per_session_threads)
        self.number = environment.next_session_number()
        self._options = session_opening.effective_options(source, options) if read_config else options
        self._logger = log.Logger(self._options.logid, self._options.log_severity_level)
        self._profile = SessionProfile(self, self.number, source, self._options)
        trace = self._profile.trace
        self._context = RunContext(trace=self._profile.node_memory or trace, logger=self._logger)
        self._disabled = frozenset(disabled_optimizers)
        self._request = SessionRequest(
            source,
            self._options,
            providers,
            provider_options,
            self._disabled,
            self._logger,
            extra_outputs=tuple(extra_outputs),
            streams=Streams(),
        )
        self.memory_limit = memory_limit(self._options._config)
        with whole(), self.within_limit():
            built = session_opening.open_session(self._request._replace(trace=trace))
        self._request = self._request.wherever()
        self._providers = built.providers
        self._maps = built.maps
        self._memory_owners = [*built.providers]
        self._waits = Waits(kernels_made)
        weakref.finalize(self, _end_session, self._memory_owners).atexit = False
        self._compiled = built.compiled
        self._build = built.again
        self._is_stored, self._keep = built.is_stored, built.keep
        self.coverage = built.coverage
        self.model_meta: ModelMetadata = built.signature.metadata
        self._set_signature(built)
        self._plan = built.plan
        self._plans = OutputPlans(self._plan, self._output_names, built.compiled)
        self._files = {path: file_state(path) for path in built.files}
        self._settled = self._plans_of_sizes(built.states) if built.open_ifs else None
        self._distinct: OutputPlans | None = None
        self._distinct_lock = free_in_child(threading.Lock())
        self.short_way = (
            ShortWay.of(self._plan, self._given.names)
            if self._context.trace is None and self._options.enable_cpu_mem_arena
            else None
        )
        self._own_fast = self._own_way()
        self._fast = self._own_fast  # or that of plans for the sizes of the last run
        self._last_look: Hashable = None
        self._live, self._borrows = built.live, built.borrows
        self._charge = self._charged() if built.is_stored or built.borrows else None

    def _own_way(self) -> tuple[Way, PreparedCall] | None:
        """The short way of the plan for all outputs, with a call for it; None where it has none."""
        if self.short_way is not None:
            return self.short_way, self.short_way.fast_call()
        if self.memory_limit is not None or not self._options.enable_cpu_mem_arena:
            return None
        # Where sizes choose branches, plans for them take this one's place.
        if self._settled is not None:
            return None
        from sardonyx.api.running.relay import Relay

        relay = Relay.of(self._plan, self._given.names, self._context)
        return None if relay is None else (relay, relay.call())

    def _set_signature(self, built: Built) -> None:
        seen = built.signature
        self.inputs_meta: list[NodeArg] = [item.node_arg() for item in seen.inputs]
        self.outputs_meta: list[NodeArg] = [item.node_arg() for item in seen.outputs]
        self.overridable_initializers: list[NodeArg] = [item.node_arg() for item in seen.overridable]
        self._output_names = tuple(argument.name for argument in self.outputs_meta)
        self._given = GivenInputs(seen, built.defaults, self._logger)
        self.in_place = frozenset((given, made) for given, made, _ in built.in_place)
        self.length_limits = built.length_limits or {}
        # Caches that need room for more than no position, and for how many.
        self.fewest_positions = {given: fewest for given, _, fewest in built.in_place if fewest}
        # Outputs whose declared shape says something that a result can break.
        self._declared = {
            value.name: value.sizes
            for value in seen.declared_outputs
            if any(size is not None for size in value.sizes or ())
        }

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__module__}.{type(self).__qualname__}' object")

    # Running

    @address_space.typed("The run")
    def run(
        self, output_names: Sequence[str], feeds: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs called `output_names` as Python objects: arrays, lists, dicts, None."""
        self._close_fast()  # its memory serves this run
        results = [to_python(value) for value in self.execute(output_names, feeds, run_options)]
        if run_options is None and tuple(output_names) == self._output_names:
            fast = self._own_fast if self._settled is None else self._fast_for(feeds, self._settled)
            if fast is not None:
                self._prepare_fast(fast, feeds)
            self._fast = fast
        return results

    @property
    def fast_run(self) -> Callable[[None, Any], list[Any] | None] | None:
        """`run` of all outputs without options, in native code; gives None for whatever it does not take."""
        fast = self._fast
        if fast is None or not self._maps:
            return None if fast is None else fast[1].arrays
        return functools.partial(self._run_fast, fast[1].arrays)

    def _run_fast(self, call: Callable[[None, Any], list[Any] | None], names: None, feeds: Any) -> list[Any] | None:
        return call(names, feeds) if self.files_are_whole() else None  # the long way says why not

    def files_are_whole(self) -> bool:
        """Whether nobody has written to the files that weights are read from; asked before every run."""
        return not self._maps or not any(one.was_written() for one in self._maps)

    def _close_fast(self) -> None:
        fast = self._fast
        if fast is not None:
            fast[1].close()

    def _plans_of_sizes(self, states: Mapping[str, Sequence[int]] | None) -> SettledPlans:
        """What compiles the model for sizes that come again, and keeps that for later processes."""
        from sardonyx.api.running.settled_plans import SettledPlans

        request = self._request._replace(logger=self._silent)

        def find(sizes: Mapping[str, tuple[int, ...]]) -> Built | None:
            if states is None or self.memory_limit is not None:  # an engine's constants are no part of what is counted
                return None
            built = session_opening.find_for_sizes(request._replace(sizes=sizes), states)
            if built is not None:
                self._memory_owners.extend(built.providers)
            return built

        def build(sizes: Mapping[str, tuple[int, ...]]) -> Built:
            shown = described(list(sizes), list(sizes.values()))
            begun = self._waits.begin()
            built = self._same_built_again(sizes=sizes, logger=self._silent)
            note_model()
            self._logger.info(f"the model is compiled again, as its Ifs ask for sizes, {begun.end(shown)}", "session")
            if states is None:
                return built
            return session_opening.kept_for_sizes(built, request._replace(sizes=sizes), states)

        return SettledPlans(find, build, self._given.names, self._output_names)

    def _fast_for(self, feeds: Mapping[str, Any], settled: SettledPlans) -> tuple[Way, PreparedCall] | None:
        """The short way for these inputs: that of the plan for their sizes, where there is one."""
        made = settled.made([feeds.get(name) for name in self._given.names])
        if made is None:
            return self._own_fast
        return made.fast if self._context.trace is None and self._options.enable_cpu_mem_arena else None

    def _prepare_fast(self, fast: tuple[Way, PreparedCall], feeds: Mapping[str, Any]) -> None:
        """Let the next run take the short way if its inputs look like these; not for looks that come once."""
        way, call = fast
        arrays = [feeds.get(name) for name in way.inputs]
        if not all(type(array) is np.ndarray for array in arrays) or len(feeds) != len(arrays):
            return
        if self.contradicts(feeds):
            return
        look = way.look([array for array in arrays if array is not None])
        if self._last_look is None or look == self._last_look:
            with contextlib.suppress(MemoryLimitError), self.within_limit():  # the long way needs less
                way.prepare(call, feeds)
        self._last_look = look

    @address_space.typed("The run")
    def execute(
        self, output_names: Sequence[str], feeds: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs called `output_names` as runtime values that belong to the caller.

        Everything is checked before anything runs: InvalidArgument for an unknown name, a wrong type or shape.
        """
        if self.memory_limit is None:
            return self._execute(output_names, feeds, run_options)
        with self.memory_limit.applied():
            return self._execute(output_names, feeds, run_options)

    def _execute(
        self, output_names: Sequence[str], feeds: Mapping[str, Any], run_options: RunOptions | None
    ) -> list[Any]:
        check_unwritten(self._maps)
        context, adapted = self._context_of(run_options)
        trace = context.trace
        start = 0 if trace is None else trace.now()
        inputs = self._given.checked(feeds, adapted)
        names = output_names if type(output_names) is tuple else tuple(output_names)
        plan = self._plan_of(names, inputs)
        try:
            values = execute(plan, context, inputs)
        except RefusedError:
            plan = self._plans.of(names)
            values = execute(plan, context, inputs)
        finally:
            if trace is not None:
                trace.event("Session", "model_run", start)
        self._note(plan, inputs)
        del inputs  # the references to them would make results look shared
        if run_options is not None and shrinks_memory(run_options._config):
            self._release_memory()
        results = detach(values)
        if self._declared:
            warn_of_other_shapes(self._declared, names, results, self._logger)
        return results

    @address_space.typed("The run")
    def run_streamed(
        self, output_names: Sequence[str], feeds: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> StreamedRun:
        """Begin a run that gives the outputs called `output_names` as Python objects, each as soon as it is computed.

        What `execute` checks before it runs is checked here.
        """
        from sardonyx.api.running.streamed_run import StreamedRun

        self._close_fast()  # its memory serves this run
        check_unwritten(self._maps)
        names = tuple(output_names)
        context, adapted = self._context_of(run_options)
        with self.within_limit():
            inputs = self._given.checked(feeds, adapted)
            plan = self._plan_of(names, inputs, settles=False)
        work = functools.partial(self._stream, names, plan, inputs, run_options)
        return StreamedRun(work, context, f"session-{self.number}-streamed")

    def _stream(
        self,
        names: Sequence[str],
        plan: Plan,
        inputs: Sequence[Any],
        run_options: RunOptions | None,
        context: RunContext,
        put: Callable[[str, Any], None],
    ) -> None:
        from sardonyx.runtime.native.streaming import execute_streamed
        from sardonyx.runtime.trace import span

        def take(place: int, held: list[Any]) -> None:
            results = detach(held)
            warn_of_other_shapes(self._declared, names[place : place + 1], results, self._logger)
            put(names[place], to_python(results[0]))

        with self.within_limit():
            with span(context.trace, "Session", "model_run"):
                execute_streamed(plan, context, inputs, take)
            self._note(plan, inputs)
        if run_options is not None and shrinks_memory(run_options._config):
            self._release_memory()

    def _plan_of(self, names: tuple[str, ...], inputs: Sequence[Any], settles: bool = True) -> Plan:
        """The plan that makes these outputs of such inputs; one for their sizes alone if it `settles`."""
        contradiction = self._given.contradiction(inputs)
        if settles and self._settled is not None and contradiction is None:
            settled = self._settled.of(inputs)
            if settled is not None:
                return settled.plans.of(names)
        plans = self._plans if contradiction is None else self._plans_of_distinct_symbols(contradiction)
        return plans.of(names)

    def _note(self, plan: Plan, inputs: Sequence[Any]) -> None:
        """Keep what is kept of a run: how much memory its nodes took, and an engine with its plans."""
        self._profile.write_node_memory()
        if self._keep is not None and plan is self._plan and not self._keep(inputs):
            self._keep = None
        if self._settled is not None and plan is not self._plan:
            self._settled.note(plan, inputs)

    def observe(self, feeds: Mapping[str, Any], trace: Trace, plan: Plan | None = None) -> None:
        """Run for all outputs, with `trace` told of every step; the plan of a `variant` in place of its own."""
        execute(plan or self._plan, replace(self._context, trace=trace), self._given.checked(feeds, _NO_ADAPTERS))

    def variant(self, options: SessionOptions, disabled: Iterable[str] | None = None, **changes: Any) -> Built:
        """What a session of the same model would be with other options, with other optimizers `disabled`, and with
        `changes` of what was asked for (`SessionRequest`)."""
        left_out = frozenset(self._disabled if disabled is None else disabled)
        return self._built_again(options, disabled=left_out, logger=self._silent, **changes)

    def _built_again(self, options: SessionOptions, **changes: Any) -> Built:
        """What a session of the same model would be with these options and changes of the request; none is saved."""
        options = options._copy()
        options.optimized_model_filepath = ""
        folder = self._request.options._config.get(EXTERNAL_FOLDER)
        if folder:
            options._config[EXTERNAL_FOLDER] = folder
        build = self._build or session_opening.build
        with whole():
            return build(self._request._replace(options=options, **changes))

    def _same_built_again(self, **changes: Any) -> Built:
        """The same for this session's own runs; InvalidArgument where the model is another one by now."""
        built = self._built_again(self._options, **changes)
        is_same = list(built.signature.order) == self._given.names
        if not is_same or {path: file_state(path) for path in self._files} != self._files:
            raise errors.InvalidArgument("the model is not the one that was loaded before")
        self._memory_owners.extend(built.providers)
        return built

    @property
    def _silent(self) -> log.Logger:
        return log.Logger(self._options.logid, log.Severity.FATAL)

    def within_limit(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what is taken has to fit under the session's memory limit, if it has one."""
        return contextlib.nullcontext() if self.memory_limit is None else self.memory_limit.applied()

    def _charged(self) -> Charge | None:
        """What counts the constants of an engine, or of another session, which this one has not made."""
        if self.memory_limit is None:
            return None
        return self.memory_limit.charge(self.memory_report().weights.packed, WEIGHTS)

    def memory_report(self) -> MemoryReport:
        """Where the bytes of the session are."""
        from sardonyx.api.running.memory_report import memory_report

        return memory_report(self)

    @property
    def held_plans(self) -> list[Plan]:
        """All plans that were made so far."""
        distinct = [] if self._distinct is None else self._distinct.plans
        settled = [] if self._settled is None else self._settled.plans
        return [*self._plans.plans, *distinct, *settled]

    @property
    def latest_sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of inputs that a plan was made for last because they came again; none where there is no plan."""
        return {} if self._settled is None else self._settled.latest

    def own_sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]] | None:
        """The shapes of all inputs, where inputs of these have a plan of their own, or get one when they come again."""
        whole = self._given.all_shapes(shapes)
        return whole if self._settled is not None and self._settled.serves(whole) else None

    @property
    def waits(self) -> list[Waits]:
        """The waits of its runs for what compiles."""
        return [self._waits, *(owner.waits for owner in self._memory_owners if owner.waits is not None)]

    def code_bytes(self, addresses: Collection[int]) -> int:
        """Bytes of machine code of functions of its plans."""
        return sum(provider.code_bytes(addresses) for provider in self._memory_owners)

    @property
    def model(self) -> ir.Model:
        """The model after its rewrites."""
        return self._compiled().model

    @property
    def passes(self) -> tuple[PassReport, ...]:
        """What each rewrite did."""
        return self._compiled().passes

    @property
    def compiled(self) -> CompiledModel:
        """The model after its rewrites, and what became of it."""
        return self._compiled()

    @property
    def plan(self) -> Plan:
        """What runs for all outputs."""
        return self._plan

    @property
    def disabled_optimizers(self) -> frozenset[str]:
        """The optimizers that the constructor left out."""
        return self._disabled

    def checked(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The values of all inputs in the plan's order; what `execute` raises for inputs that do not fit."""
        return self._given.checked(feeds, _NO_ADAPTERS)

    def note_bound_run(self, inputs: Sequence[Any]) -> None:
        """A run on bound memory had these inputs, which the ordinary way has not seen."""
        with self.within_limit():
            self._note(self._plan, inputs)

    def contradicts(self, feeds: Mapping[str, Any]) -> bool:
        """Whether dimensions of arrays that the model calls by one name have different sizes."""
        return self._given.contradicts(feeds)

    def _plans_of_distinct_symbols(self, contradiction: Contradiction) -> OutputPlans:
        """Plans that take no two dimensions for equal because of their names; compiled when first needed.

        InvalidArgument, which tells the contradiction, where the model cannot be loaded again.
        """
        with self._distinct_lock:
            if self._distinct is None:
                self._logger.warning(f"{contradiction}: the model is compiled again without names", "session")
                try:
                    built = self._same_built_again(distinct_symbols=True)
                except errors.OnnxRuntimeError as error:
                    raise errors.InvalidArgument(
                        f"Got invalid dimensions: {contradiction}, and the model cannot be compiled without the name: "
                        f"{error.message}"
                    ) from error
                self._distinct = OutputPlans(built.plan, self._output_names, built.compiled)
            return self._distinct

    def _context_of(self, options: RunOptions | None) -> tuple[RunContext, Mapping[str, Any]]:
        """The context of a run, and the tensors of its adapters."""
        if options is None:
            return self._context, _NO_ADAPTERS
        if not isinstance(options, RunOptions):
            raise wrong_argument("run()", "RunOptions", options)
        check_run_config(options._config, self._options.enable_cpu_mem_arena)
        logger = self._logger
        if options.log_severity_level >= 0:
            logger = log.Logger(logger.identity, options.log_severity_level)
        logger.info(f"Running with tag: {options.logid}", "session")
        adapted = {name: value for adapter in options._adapters for name, value in adapter.parameters.items()}
        context = replace(
            self._context,
            terminated=functools.partial(getattr, options, "terminate"),
            terminate_word=ctypes.addressof(options._terminate),
            logger=logger,
        )
        return context, adapted

    def _release_memory(self) -> None:
        """Give memory that is kept for later runs back to the system."""
        self._close_fast()
        for provider in self._memory_owners:
            provider.release_memory()

    # Profiling

    def end_profiling(self) -> str:
        """Write the profile and return its name; an empty text where there is none to write. `Fail` where it cannot be
        written."""
        write = self._profile.end()
        self._context = replace(self._context, trace=self._profile.node_memory)
        return write()

    @property
    def get_profiling_start_time_ns(self) -> int:
        """When the trace began, on the clock of `time.monotonic_ns`; 0 without profiling."""
        return self._profile.start_ns


def _end_session(memory_owners: Iterable[ExecutionProvider]) -> None:
    for provider in memory_owners:
        provider.end_session()
