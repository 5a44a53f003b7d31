"""Runs native plans: one for each signature of input shapes, kept for the next time."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sardonyx import errors, log
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import TERMINATED
from sardonyx.runtime.forks import cached_property, free_in_child, whole
from sardonyx.runtime.memory import address_space, memory
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.memory.execution_contexts import ExecutionContextPool
from sardonyx.runtime.memory.result_pool import ResultPool
from sardonyx.runtime.native.array_address import address_of
from sardonyx.runtime.native.collector import paused
from sardonyx.runtime.native.fast_call import RELEASE_NS, CallCode, FastCall
from sardonyx.runtime.native.stages import Stage, in_stages, last_uses
from sardonyx.runtime.native.waits import Waits, described
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.threads.thread_pool import TERMINATED as STOPPED
from sardonyx.runtime.threads.thread_pool import ThreadPool

if TYPE_CHECKING:
    from sardonyx.runtime.trace import Work

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]


class PlanKey(NamedTuple):
    """Which plan of a session: that of a segment, by its number, for inputs of these shapes, and where contents steer
    it, these bytes."""

    segment: int
    shapes: Shapes
    contents: tuple[bytes, ...] = ()


# What a plan is made for: the shapes of the inputs, and the bytes of those whose contents it follows.
Signature = Shapes | tuple[Shapes, tuple[bytes, ...]]

# Plans kept per segment; the one that was not used for the longest time goes first.
MOST_PLANS = 256
# The same where contents decide, which may be large results too.
MOST_STEERED_PLANS = 16
# Elements of an input whose contents decide, at most: all of it is part of the signature of every run.
MOST_STEERING_ELEMENTS = 256

# Told while a segment runs: the place of an output that is final, the list that has it there, and whether the segment
# goes on reading it. Where it does not, the listener may take the output out of the list.
Listener = Callable[[int, list[Any], bool], None]


def _nothing() -> Iterable[HeldConstant]:
    """What is kept where nobody says it."""
    return ()


class BindingError(Exception):
    """A node does not take the shapes that it is given: `cause` is the error for the caller, `work` names the node."""

    def __init__(self, cause: errors.OnnxRuntimeError, work: Work) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.work = work


def no_room(error: BaseException, sizes: str) -> errors.Fail | None:
    """`Fail` for an error that says that memory or address space ran out while plans for these sizes were compiled.

    None for others, and where nothing limits memory but the sizes themselves, which the error of the node tells."""
    if address_space.limit() is None and not isinstance(address_space.shortage_in(error), (ImportError, OSError)):
        return None
    return address_space.explained(error, f"Compiling for new sizes ({sizes})", NEW_SIZES_REMEDY)


# What helps where there is no room to compile for new sizes.
NEW_SIZES_REMEDY = (
    ", compile an engine whose profile has these sizes ('sardonyx compile --profile', sardonyx.engine_profiles), or "
    "let the session load what compiles when it is made (sardonyx.engine_compiler)"
)


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A native plan with what surrounds it: `outputs` in the segment's order, by dtype and shape.

    An output that was known before the run is an array in `known`, by its place. `works` tells of each step what a
    profile says. Where there are `faults`, things that kernels may find wrong, the plan's last base is an int64 array
    with a flag and a number for each; the function at its place makes the error of the number. `writers` gives for each
    output that a run makes the last step that writes it (-1: none does), or None where nobody knows.
    """

    plan: NativePlan
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    known: dict[int, Array]
    works: Callable[[], Sequence[Work]]
    faults: Sequence[Callable[[int], errors.OnnxRuntimeError]]
    nanoseconds: float  # a rough estimate of a run
    source: Any = None  # what the compiler made the plan from, for those who explain it
    writers: Callable[[], Sequence[int] | None] = lambda: None
    _stages: dict[tuple[int, ...], tuple[Stage, ...]] = field(default_factory=dict)

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of the outputs that a run makes."""
        made = [output for place, output in enumerate(self.outputs) if place not in self.known]
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in made)

    @property
    def releases_lock(self) -> bool:
        """Whether a run takes long enough to let other Python threads go on meanwhile."""
        return self.nanoseconds > RELEASE_NS

    def check(self, notes: Array) -> None:
        """Raise the error of the first fault that a run has noted."""
        for index, describe in enumerate(self.faults):
            if notes[2 * index]:
                raise describe(int(notes[2 * index + 1]))

    def stages(self, places: Sequence[int]) -> tuple[Stage, ...]:
        """The plan in stages, which end where the outputs at these places are final: those that a run makes."""
        key = tuple(places)
        found = self._stages.get(key)
        if found is None:
            made = [place for place in range(len(self.outputs)) if place not in self.known]
            first = self.plan.base_count - len(made) - bool(self.faults)
            uses = last_uses(self.plan, {place: first + index for index, place in enumerate(made)})
            writers = self.writers()
            finals = uses if writers is None else dict(zip(made, writers, strict=True))
            wanted = {place: finals[place] for place in made if place in key}
            found = self._stages[key] = in_stages(self.plan, wanted, uses)
        return found


class NativeSegment:
    """A step of a plan that is native: callable as every step is."""

    def __init__(
        self,
        make_plan: Callable[[Shapes, Sequence[Array]], ReadyPlan],
        dtypes: Sequence[np.dtype[Any]],
        names: Sequence[str],
        steering_places: Sequence[int],
        thread_pool: ThreadPool,
        execution_contexts: ExecutionContextPool,
        call_code: Callable[[], CallCode],
        results: ResultPool | None,
        restricted: Callable[[Sequence[int]], tuple[NativeSegment, Sequence[int]]],
        held: Callable[[], Iterable[HeldConstant]] | None = None,
        keeps_plans: bool = True,
        waits: Waits | None = None,
    ) -> None:
        """`make_plan` binds the segment to shapes, and to the contents of the inputs at `steering_places`; `dtypes` and
        `names` are those of its inputs.

        `results` gives memory for the outputs (None: NumPy does). `restricted` gives the segment that makes only the
        outputs at some places, and the places of its inputs among those of this one. `held` gives what it keeps of the
        model, and of what was made of that, beside its plans. Unless it `keeps_plans`, it has none but the last one.
        `waits` hears of runs that waited for a plan to be compiled.
        """
        self.restricted = restricted
        self.held = held or _nothing
        self._make_plan = make_plan
        self.dtypes = tuple(dtypes)
        self._call_code = call_code
        self._results = results
        self.names = tuple(names)
        self.steering_places = tuple(steering_places)
        most = MOST_STEERED_PLANS if self.steering_places else MOST_PLANS
        self._most_plans = most if keeps_plans else 1
        self._thread_pool = thread_pool
        self._execution_contexts = execution_contexts
        self._waits = waits or Waits(lambda: 0)
        self._plans: OrderedDict[Signature, ReadyPlan] = OrderedDict()
        self._plans_made = 0
        self._lock = free_in_child(threading.Lock())

    def plan_for(self, shapes: Shapes, contents: Sequence[Array] = ()) -> ReadyPlan:
        """The plan for these shapes of the inputs, made when it is asked for the first time.

        `contents` are those of the inputs at `steering_places`.
        """
        signature = self._signature(shapes, contents)
        ready = self._plans.get(signature)
        if ready is None:
            with paused(), whole():
                ready = self._make_plan(shapes, [array.copy() for array in contents])
            with self._lock:
                self._plans_made += 1
                self._plans[signature] = ready
                while len(self._plans) > self._most_plans:
                    self._plans.popitem(last=False)
        return ready

    def plan_apart(self, shapes: Shapes) -> ReadyPlan:
        """`plan_for` somebody who has a use for it of their own: it takes no place among those that are kept."""
        ready = self._plans.get(shapes)
        if ready is None:
            with paused(), whole():
                ready = self._make_plan(shapes, [])
        return ready

    def plan_of(self, key: PlanKey) -> ReadyPlan:
        """`plan_for` what a key says."""
        given = zip(self.steering_places, key.contents, strict=True)
        contents = [np.frombuffer(one, self.dtypes[place]).reshape(key.shapes[place]) for place, one in given]
        return self.plan_for(key.shapes, contents)

    def forget_plans(self) -> None:
        """Make all plans anew when they are asked for again."""
        with self._lock:
            self._plans.clear()

    def made_plan(self, shapes: Shapes, contents: Sequence[Array] = ()) -> ReadyPlan | None:
        """What `plan_for` has made before; None where it has not."""
        return self._plans.get(self._signature(shapes, contents))

    def _signature(self, shapes: Shapes, contents: Sequence[Array]) -> Signature:
        return (shapes, tuple([array.tobytes() for array in contents])) if self.steering_places else shapes

    def _plan_traced(self, shapes: Shapes, arrays: Sequence[Array], context: RunContext) -> ReadyPlan:
        """The plan for these inputs; where a node does not take them, the trace shows that node.

        A line of the log says how long the run waited for one to be compiled. `Fail` where that finds no room in
        memory.
        """
        trace = context.trace
        start = 0 if trace is None else trace.now()
        try:
            return self.plan_in_run(shapes, [arrays[place] for place in self.steering_places], context.logger)
        except BindingError as error:
            if trace is not None:
                trace.node(error.work, start, trace.now())
            failed = no_room(error, described(self.names, shapes))
            raise failed or error.cause from error

    def plan_in_run(self, shapes: Shapes, contents: Sequence[Array], logger: log.Logger) -> ReadyPlan:
        """`plan_for` a run, whose wait is noted and logged where something was compiled for it."""
        begun = self._waits.begin()
        ready = self.plan_for(shapes, contents)
        wait = begun.end(described(self.names, shapes))
        if wait is not None and logger.is_enabled(log.Severity.INFO):
            logger.info(f"the run had to compile for new sizes, {wait}", "segment")
        return ready

    @property
    def threads(self) -> int:
        """How many threads work on a step at most."""
        return self._thread_pool.threads

    @property
    def knows_constants(self) -> bool:
        """Whether `held` tells all of the model's constants, and what was packed of them."""
        return self.held is not _nothing

    @property
    def results(self) -> ResultPool | None:
        """What gives memory for large outputs."""
        return self._results

    @property
    def resources(self) -> tuple[ThreadPool, ExecutionContextPool]:
        """The thread pool and the execution contexts of its runs, for those who run its plans in another way."""
        return self._thread_pool, self._execution_contexts

    @property
    def made_plans(self) -> list[tuple[Shapes, ReadyPlan]]:
        """The plans that it keeps, by the shapes of its inputs."""
        made = list(self._plans.items())
        return [(key[0], ready) if self.steering_places else (key, ready) for key, ready in made]  # type: ignore[misc]

    def made_keys(self, number: int) -> list[PlanKey]:
        """Which plans it keeps, the latest first, if it is the segment of this number."""
        keys = reversed(list(self._plans))
        return [PlanKey(number, *key) if self.steering_places else PlanKey(number, key) for key in keys]  # type: ignore[arg-type]

    @property
    def plans_made(self) -> int:
        """How many plans were made so far."""
        return self._plans_made

    def has_made(self, plan: ReadyPlan) -> bool:
        """Whether a plan is one of this segment's."""
        return any(one is plan for one in list(self._plans.values()))

    def chain_address(self) -> int:
        """The code that runs the program of a `Chain`."""
        return self._call_code().chain()

    def fast_call(self) -> FastCall:
        """A way into this segment's plans that needs no Python."""
        return FastCall(self._call_code(), self._thread_pool, self._execution_contexts, self._results)

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> list[Array]:
        """New arrays for the outputs; typed errors for inputs that are missing or of another type than was planned."""
        arrays = self._checked(inputs)
        ready = self._ready(context, arrays)
        outputs, notes = self._allocated(ready), np.zeros(2 * len(ready.faults), np.int64)
        self._run(ready, self._addresses(ready, arrays, outputs, notes), context)
        ready.check(notes)
        return outputs

    def staged(
        self, context: RunContext, inputs: Sequence[Any], places: Sequence[int], tell: Listener
    ) -> list[Array | None]:
        """What a call gives, but `tell` is told of the outputs at these places as soon as they are final."""
        arrays = self._checked(inputs)
        ready = self._ready(context, arrays)
        outputs: list[Array | None] = [*self._allocated(ready)]
        notes = np.zeros(2 * len(ready.faults), np.int64)
        addresses = ready.plan.pack(*self._addresses(ready, arrays, outputs, notes))
        for place in places:
            if place in ready.known:
                tell(place, outputs, False)
        plan, trace, stages = ready.plan, context.trace, ready.stages(places)
        times = None if trace is None else np.zeros(len(plan.labels) + 1, np.int64)
        execution_context = self._execution_contexts.take()
        try:
            execution_context.reserve([stage.plan for stage in stages], self._thread_pool.threads)
            for stage in stages:
                stamps = 0 if times is None else address_of(times) + times.itemsize * stage.first
                status = self._thread_pool.run_packed(
                    stage.plan, execution_context, addresses, stamps, context.terminate_word
                )
                if status == STOPPED:
                    raise errors.Fail(TERMINATED)
                ready.check(notes)
                for place in stage.final:
                    tell(place, outputs, place in stage.read_on)
            if trace is not None and times is not None:
                trace.segment(ready, ready.works, times)
        finally:
            self._execution_contexts.give(execution_context)
        return outputs

    def _ready(self, context: RunContext, arrays: Sequence[Array]) -> ReadyPlan:
        """The plan for these inputs, which has memory for its outputs."""
        shapes = tuple([array.shape for array in arrays])
        ready = self._plans.get(shapes) or self._plan_traced(shapes, arrays, context)
        memory.require(ready.result_bytes, "the outputs of native steps")
        return ready

    def _addresses(self, ready: ReadyPlan, arrays: Sequence[Array], outputs: Sequence[Any], notes: Array) -> list[int]:
        """The external addresses of a run."""
        found = [address_of(array) for array in arrays]
        found += [address_of(array) for index, array in enumerate(outputs) if index not in ready.known]
        if ready.faults:
            found.append(address_of(notes))
        return found

    def _run(self, ready: ReadyPlan, addresses: list[int], context: RunContext) -> None:
        plan, trace = ready.plan, context.trace
        execution_context = self._execution_contexts.take()
        try:
            if trace is None:
                status = self._thread_pool.run(plan, execution_context, addresses, 0, context.terminate_word)
            else:
                times = np.zeros(len(plan.labels) + 1, np.int64)
                status = self._thread_pool.run(
                    plan, execution_context, addresses, address_of(times), context.terminate_word
                )
                trace.segment(ready, ready.works, times)
        finally:
            self._execution_contexts.give(execution_context)
        if status == STOPPED:
            raise errors.Fail(TERMINATED)

    def _allocated(self, ready: ReadyPlan) -> list[Array]:
        """Arrays for the outputs; those that were known before the run as they are."""
        empty = np.empty if self._results is None else self._results.empty
        return [
            ready.known[index] if index in ready.known else empty(shape, dtype)
            for index, (dtype, shape) in enumerate(ready.outputs)
        ]

    def _checked(self, inputs: Sequence[Any]) -> list[Array]:
        """The inputs as contiguous, aligned arrays."""
        arrays = []
        for index, (value, dtype) in enumerate(zip(inputs, self.dtypes, strict=True)):
            if value is None:
                raise errors.Fail(f"Missing Input: {self.names[index]}")
            array = np.asarray(value)
            if array.dtype != dtype:
                raise errors.Fail(f"{self.names[index]} has the type {array.dtype}, but {dtype} was inferred")
            if not (array.flags.c_contiguous and array.flags.aligned):
                memory.require(array.nbytes, "a copy of an input")
                array = np.array(array, order="C")
            arrays.append(array)
        return arrays
