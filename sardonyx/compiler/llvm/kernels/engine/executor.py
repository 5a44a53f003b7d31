"""The native executor: runs a plan, alone or as one thread of a team. No Python between its steps.

Three functions, whose addresses `executor_code` gives to the runtime:

    i64 run(team, plan, lane, external, times, terminate)   one run; 1 where it was terminated, else 0
    i64 work(team, index)                                   the life of a worker; returns when the team is stopped
    i64 stop(team)                                          makes every `work` of the team return

How a run is shared. The caller of `run` owns the team for the run and *opens* it; workers that see this join, late or
never. Every participant walks the same phases, claims chunks of their steps with an atomic addition, and adds what it
did to the step's count of finished chunks. A barrier waits for these counts, not for the arrival of threads: nobody
waits for a worker that sleeps, or that the system has taken off its core between two chunks. At the end the caller
closes the team and waits until the participants have left. The chunk of work is the same whoever does it, so results
do not depend on the number of threads.

The chunks of a step are divided into parts, one for each thread (of many threads several share one). A thread claims
in its own part before it takes from others, so it finds in its cache what it wrote in the step before.

Memory order. A participant sees what the run prepared because it joins by an ``acquire`` of the state that the
caller stored after it. It sees the results of a phase because it reads (``acquire``) the count to which their
writers added (``release``, as part of ``seq_cst``); what those writers saw of earlier phases comes with it. Claims
are ``monotonic``: they hand out numbers, no data. Sleeping needs ``seq_cst``: the sleeper announces itself and then
looks at the condition, the other side changes the condition and then looks for sleepers; in one total order at least
one of the two sees the other, so no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm import atomics, system
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.float_mode import denormals
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I8, I32, I64, PTR
from sardonyx.runtime.lanes import LINE_WORDS, MOST_PARTS, LaneField
from sardonyx.runtime.native_plan import (
    FIXUP_WORDS,
    PHASE_WORDS,
    STEP_WORDS,
    PhaseColumn,
    PlanField,
    StepColumn,
    StepFlag,
)
from sardonyx.runtime.team import ACTIVE, GENERATION_SHIFT, OPEN, ExecutorCode, TeamField

_EVERYBODY = 0x7FFFFFFF
_CLOCK_EVERY = 64  # turns of an idle worker between two looks at the clock

Condition = Callable[[str], Value]


def executor_code(library: KernelLibrary) -> ExecutorCode:
    """The executor for the target of a library."""
    run, work, stop = (library.address(emit_executor, (part,)) for part in ("run", "work", "stop"))
    return ExecutorCode(run, work, stop, library)


def emit_executor(target: Target, spec: tuple[str]) -> str:
    """The text of one of the three functions, named by the only element of `spec`."""
    return {"run": _emit_run, "work": _emit_work, "stop": _emit_stop}[spec[0]](target)


class _Team:
    """The words of a team, in registers or in memory."""

    def __init__(self, k: Function, address: Value) -> None:
        self.k = k
        self.words = k.pointer(address, I64)

    def word(self, which: TeamField) -> Pointer:
        return self.words.offset(int(which))

    def futex(self, which: TeamField) -> Pointer:
        return self.word(which).cast(I32)

    def wait(self, met: Condition) -> None:
        """Go on when a condition of this run is met: spin, then give way, then sleep until somebody notifies."""
        k = self.k
        patience, yields = (self.word(field).load() for field in (TeamField.PATIENCE, TeamField.YIELDS))
        turns = k.variable(I64, 0)
        with k.loop_while(lambda: met("acquire").equals(False)):
            atomics.pause(k)
            turns.set(turns.get() + 1)
            with k.when(turns.get() > patience):
                asleep = turns.get() > patience + yields
                with k.when(asleep):
                    event = self.futex(TeamField.EVENT)
                    seen = atomics.load(event, "acquire")
                    atomics.update("add", self.word(TeamField.WAITING), 1, "seq_cst")
                    with k.when(met("seq_cst").equals(False)):
                        system.sleep_while(event, seen)
                    atomics.update("sub", self.word(TeamField.WAITING), 1, "seq_cst")
                with k.otherwise(asleep):
                    system.give_way(k)

    def notify(self) -> None:
        """Wake those who sleep in `wait`; follows a ``seq_cst`` change of what they wait for."""
        k = self.k
        with k.when(atomics.load(self.word(TeamField.WAITING), "seq_cst") > 0):
            event = self.futex(TeamField.EVENT)
            atomics.update("add", event, 1, "seq_cst")
            system.wake(event, k.constant(I32, _EVERYBODY))


class _Run:
    """What a thread needs of one run: the plan's tables and its lane's memory."""

    def __init__(self, k: Function, plan: Value, lane: Value) -> None:
        self.k = k
        self.plan = k.pointer(plan, I64)
        self.lane = k.pointer(lane, I64)
        self.words = self._at(self.lane, LaneField.WORDS)
        self.steps = self._at(self.plan, PlanField.STEPS)
        self.phases = self._at(self.plan, PlanField.PHASES)
        self._done = self._at(self.lane, LaneField.COUNTERS)
        self.step_count = self.plan.load(int(PlanField.STEP_COUNT))
        self.row = (self.step_count + (LINE_WORDS - 1)) & -LINE_WORDS
        self.claims = self._done.offset(self.step_count * LINE_WORDS)
        self.progress = self.lane.offset(int(LaneField.PROGRESS))

    def _at(self, table: Pointer, field: int) -> Pointer:
        return self.k.pointer(table.load(int(field)), I64)

    def flushes_denormals(self) -> Value:
        return self.plan.load(int(PlanField.FLUSH_DENORMALS)).differs(0)

    def step(self, index: Value) -> Pointer:
        return self.steps.offset(index * STEP_WORDS)

    def phase(self, index: Value) -> Pointer:
        return self.phases.offset(index * PHASE_WORDS)

    def done(self, step: Value) -> Pointer:
        """How many chunks of a step are finished."""
        return self._done.offset(step * LINE_WORDS)

    def claimed(self, step: Value, part: Value) -> Pointer:
        """How many claims were made in a part of a step."""
        return self.claims.offset(part * self.row + step)

    def clear_counters(self, parts: Value) -> None:
        with self.k.loop(0, self.step_count) as step:
            self.done(step).store(0)
        with self.k.loop(0, parts * self.row, LINE_WORDS) as word:
            self.claims.store(self.k.constant(I64.vector(LINE_WORDS), 0), word)

    def scratch(self, thread: Value) -> Value:
        """The scratch memory of a participant."""
        base = self.k.pointer(self.lane.load(int(LaneField.SCRATCH)), I8)
        return base.offset(thread * self.lane.load(int(LaneField.SCRATCH_STRIDE))).address

    def call(self, step: Pointer, begin: Value, end: Value, scratch: Value) -> None:
        function = self.k.pointer(step.load(int(StepColumn.FUNCTION)), I64)
        arguments = self.words.offset(step.load(int(StepColumn.ARGUMENTS)))
        self.k.call_pointer(function.address, arguments.address, begin, end, scratch)


class _Participant:
    """A thread in a run: its scratch memory, and the part of every step that it begins with."""

    def __init__(self, k: Function, team: _Team, run: _Run, number: Value) -> None:
        self.scratch = run.scratch(number)
        self.parts = team.word(TeamField.PARTS).load()
        self.part = number % self.parts


def _emit_run(target: Target) -> str:
    k = Function(
        KERNEL,
        target,
        [("team", I64), ("plan", PTR), ("lane", PTR), ("external", PTR), ("times", I64), ("terminate", I64)],
        returns=I64,
    )
    run = _Run(k, k["plan"], k["lane"])
    _bind(k, run)
    status = k.variable(I64, 0)
    shared = k.variable(BOOL, False)
    width = run.plan.load(int(PlanField.WIDTH))
    # A run that is terminated already does not become the workers', who would begin it before the caller looks.
    with k.when((width > 1) & k["team"].differs(0) & ~_terminated(k, run)):
        busy = _Team(k, k["team"]).word(TeamField.BUSY)
        with k.when(atomics.load(busy, "monotonic").equals(0)):
            shared.set(atomics.exchange_if(busy, 0, 1, "acquire"))
    is_shared = shared.get()
    with denormals(k, run.flushes_denormals()):
        with k.when(is_shared):
            team = _Team(k, k["team"])
            _open(k, team, run, width)
            _walk_as_caller(k, team, run, status, _Alarm(k, team, run))
            atomics.update("and", team.word(TeamField.STATE), ~OPEN, "seq_cst")
            team.wait(lambda order: (atomics.load(team.word(TeamField.STATE), order) & ACTIVE).equals(0))
            atomics.store(team.word(TeamField.BUSY), 0, "release")
        with k.otherwise(is_shared):
            _walk_alone(k, run, status)
    _stamp(k, run.step_count)
    k.give(status.get())
    return k.finish()


def _bind(k: Function, run: _Run) -> None:
    """Copy the arguments into the lane, with the addresses of this run; those of the arena stay from run to run."""
    plan, lane = run.plan, run.lane
    bases = k.pointer(lane.load(int(LaneField.BASES)), I64)
    fixups = k.pointer(plan.load(int(PlanField.FIXUPS)), I64)
    in_arena = plan.load(int(PlanField.ARENA_FIXUPS))
    external = k.pointer("external", I64)

    def apply(begin: Value, end: Value) -> None:
        with k.loop(begin, end) as i:
            row = fixups.offset(i * FIXUP_WORDS)
            run.words.store(bases.load(row.load(1)) + row.load(2), row.load(0))

    with k.loop(0, plan.load(int(PlanField.EXTERNALS))) as i:
        bases.store(external.load(i), i + 1)
    serial = plan.load(int(PlanField.SERIAL))
    with k.when(lane.load(int(LaneField.PREPARED)).differs(serial)):
        source = k.pointer(plan.load(int(PlanField.WORDS)), I64)
        k.copy(run.words, source, plan.load(int(PlanField.WORD_COUNT)) * 8)
        apply(k.constant(I64, 0), in_arena)
        lane.store(serial, int(LaneField.PREPARED))
    apply(in_arena, plan.load(int(PlanField.FIXUP_COUNT)))


def _stamp(k: Function, step: Value) -> None:
    """The time into the caller's table, if it gave one."""
    with k.when(k["times"].differs(0)):
        k.pointer(k["times"], I64).store(system.nanoseconds(k), step)


def _terminated(k: Function, run: _Run) -> Value:
    """Whether the caller's word, if it gave one, says that the run shall end."""
    never = k.emit(I64, f"ptrtoint ptr {run.lane.offset(int(LaneField.NEVER)).address.name} to i64")
    word = k.pointer(k.select(k["terminate"].equals(0), never, k["terminate"]), I64)
    return atomics.load(word, "monotonic").differs(0)


def _walk_alone(k: Function, run: _Run, status: Variable) -> None:
    """Every step whole, one after the other; nothing of a team is touched."""
    scratch = run.scratch(k.constant(I64, 0))
    index = k.variable(I64, 0)
    with k.loop_while(lambda: index.get() < run.step_count):
        now = index.get()
        _stamp(k, now)
        ended = _terminated(k, run)
        with k.when(ended):
            status.set(1)
            index.set(run.step_count)
        with k.otherwise(ended):
            step = run.step(now)
            chunks = step.load(int(StepColumn.CHUNKS))
            with k.when(chunks > 0):
                run.call(step, k.constant(I64, 0), chunks, scratch)
            index.set(now + 1)


def _open(k: Function, team: _Team, run: _Run, width: Value) -> None:
    """Offer the run to the workers, of which no more than find work are let in."""
    threads = k.smaller(width, team.word(TeamField.THREADS).load())
    parts = k.smaller(threads, MOST_PARTS)
    run.clear_counters(parts)
    run.progress.store(0)
    team.word(TeamField.PARTS).store(parts)
    for field, value in ((TeamField.PLAN, run.plan.address), (TeamField.LANE, run.lane.address)):
        team.word(field).store(k.emit(I64, f"ptrtoint ptr {value.name} to i64"))
    atomics.store(team.word(TeamField.LIMIT), threads - 1, "monotonic")
    atomics.store(team.word(TeamField.PROCESSORS), system.processor(k), "monotonic")
    state = team.word(TeamField.STATE)
    generation = (atomics.load(state, "monotonic") >> GENERATION_SHIFT) + 1
    atomics.update("xchg", state, (generation << GENERATION_SHIFT) | OPEN, "seq_cst")


class _Alarm:
    """Wakes workers that sleep, as soon as the run has lasted long enough to be worth it.

    Made when the run is open: a worker that goes to sleep after that looks for an open run first.
    """

    def __init__(self, k: Function, team: _Team, run: _Run) -> None:
        self.k, self._team = k, team
        self._due = k.variable(I64, 0)  # when it rings; 0 once it has, or where nobody sleeps
        with k.when(atomics.load(team.word(TeamField.SLEEPERS), "seq_cst") > 0):
            delay = run.plan.load(int(PlanField.WAKE_AFTER))
            with k.when(delay.equals(0)):
                self._ring()
            with k.otherwise(delay.equals(0)):
                self._due.set(system.nanoseconds(k) + delay)

    def look(self) -> None:
        """To be called often, by the caller."""
        k = self.k
        with k.when(self._due.get().differs(0)), k.when(system.nanoseconds(k) >= self._due.get()):
            self._due.set(0)
            self._ring()

    def _ring(self) -> None:
        signal = self._team.futex(TeamField.SIGNAL)
        atomics.update("add", signal, 1, "seq_cst")
        system.wake(signal, atomics.load(self._team.word(TeamField.LIMIT), "monotonic").to(I32))


def _walk_as_caller(k: Function, team: _Team, run: _Run, status: Variable, alarm: _Alarm) -> None:
    """All phases; the caller also keeps the time, tells late workers where to start, and ends a run that shall end."""
    me = _Participant(k, team, run, k.constant(I64, 0))
    with k.loop(0, run.plan.load(int(PlanField.PHASE_COUNT))) as number:
        with k.when(status.get().equals(0)):
            _pass_barrier(k, team, run, number)
            # Its release hands on what the barrier acquired.
            atomics.store(run.progress, number, "release")
        phase = run.phase(number)
        with k.loop(phase.load(int(PhaseColumn.FIRST)), phase.load(int(PhaseColumn.END))) as index:
            _stamp(k, index)
            alarm.look()
            with k.when(status.get().equals(0) & _terminated(k, run)):
                status.set(1)
                _abandon(k, team, run, index)
            with k.when(status.get().equals(0)):
                step = run.step(index)
                own = _is_for_caller(step)
                with k.when(own):
                    chunks = step.load(int(StepColumn.CHUNKS))
                    with k.when(chunks > 0):
                        run.call(step, k.constant(I64, 0), chunks, me.scratch)
                    target = step.load(int(StepColumn.TARGET))
                    atomics.update("xchg", run.done(index), target, "seq_cst")
                    team.notify()
                with k.otherwise(own):
                    _claim(k, team, run, index, me, alarm)
    # The last phase has no barrier behind it.
    with k.when(status.get().equals(0)):
        _pass_barrier(k, team, run, run.plan.load(int(PlanField.PHASE_COUNT)))


def _walk_as_worker(k: Function, team: _Team, run: _Run, me: _Participant) -> None:
    """The phases in which there is work to share, from the one that the caller was last seen in."""
    number = k.variable(I64, atomics.load(run.progress, "acquire"))
    with k.loop_while(lambda: number.get() < run.plan.load(int(PlanField.PHASE_COUNT))):
        phase = run.phase(number.get())
        with k.when(phase.load(int(PhaseColumn.SHARED)).differs(0)):
            _pass_barrier(k, team, run, number.get())
            with k.loop(phase.load(int(PhaseColumn.FIRST)), phase.load(int(PhaseColumn.END))) as index:
                own = _is_for_caller(run.step(index))
                with k.otherwise(own):
                    _claim(k, team, run, index, me)
        number.set(number.get() + 1)


def _is_for_caller(step: Pointer) -> Value:
    return (step.load(int(StepColumn.FLAGS)) & int(StepFlag.CALLER)).differs(0)


def _pass_barrier(k: Function, team: _Team, run: _Run, number: Value) -> None:
    """Wait until all steps of the phase before `number` are done, and with them all earlier ones.

    Nobody begins a step of that phase before the phase in front of it is done, so by induction all are.
    """
    with k.when(number > 0):
        before = run.phase(number - 1)
        with k.loop(before.load(int(PhaseColumn.FIRST)), before.load(int(PhaseColumn.END))) as index:
            target = run.step(index).load(int(StepColumn.TARGET))
            done = run.done(index)
            team.wait(lambda order: atomics.load(done, order) >= target)


def _claim(k: Function, team: _Team, run: _Run, index: Value, me: _Participant, alarm: _Alarm | None = None) -> None:
    """Do chunks of a step until all are claimed: those of one's own part first, then what others have left of theirs.

    The parts are stretches of chunks. Where steps divide the same rows a thread finds what it wrote in its own cache,
    and claims of different parts do not take a cache line from each other.
    """
    step = run.step(index)
    chunks, claims = step.load(int(StepColumn.CHUNKS)), step.load(int(StepColumn.CLAIMS))
    size = step.load(int(StepColumn.CLAIM))
    finished = k.variable(I64, 0)
    with k.loop(0, me.parts) as turn:
        part = me.part + turn
        part = k.select(part >= me.parts, part - me.parts, part)
        first, end = part * claims / me.parts, (part + 1) * claims / me.parts
        counter = run.claimed(index, part)
        # A look first: a part that is given away needs no write, which would take the line from other cores.
        number = k.variable(I64, first + atomics.load(counter, "monotonic"))
        with k.loop_while(lambda: number.get() < end):
            number.set(first + atomics.update("add", counter, 1, "monotonic"))
            with k.when(number.get() < end):
                begin = number.get() * size
                until = k.smaller(begin + size, chunks)
                run.call(step, begin, until, me.scratch)
                finished.set(finished.get() + (until - begin))
                if alarm is not None:
                    alarm.look()
                number.set(first + atomics.load(counter, "monotonic"))
    with k.when(finished.get() > 0):
        before = atomics.update("add", run.done(index), finished.get(), "seq_cst")
        with k.when(before + finished.get() >= step.load(int(StepColumn.TARGET))):
            team.notify()


def _abandon(k: Function, team: _Team, run: _Run, first: Value) -> None:
    """Mark the steps from `first` on as given away, and only then as done: workers run through and begin nothing."""
    with k.loop(first, run.step_count) as index, k.loop(0, MOST_PARTS) as part:
        claims = run.step(index).load(int(StepColumn.CLAIMS))
        atomics.update("xchg", run.claimed(index, part), claims, "seq_cst")
    with k.loop(first, run.step_count) as index:
        target = run.step(index).load(int(StepColumn.TARGET))
        atomics.update("xchg", run.done(index), target, "seq_cst")
    team.notify()


def _emit_work(target: Target) -> str:
    k = Function(KERNEL, target, [("team", PTR), ("index", I64)], returns=I64)
    team = _Team(k, k["team"])
    limit = team.word(TeamField.SPIN)
    seen = k.variable(I64, 0)  # the generation that this worker has dealt with
    idle_since = k.variable(I64, system.nanoseconds(k))
    turns = k.variable(I64, 0)

    def offer(order: str) -> tuple[Value, Value]:
        state = atomics.load(team.word(TeamField.STATE), order)
        unseen = (state >> GENERATION_SHIFT).differs(seen.get())
        return state, unseen & (state & OPEN).differs(0)

    with k.loop_while(lambda: atomics.load(team.word(TeamField.STOP), "acquire").equals(0)):
        state, is_new = offer("acquire")
        with k.when(is_new):
            seen.set(state >> GENERATION_SHIFT)
            # The limit may already be that of a later run; then the state has changed, and the exchange fails.
            with k.when((state & ACTIVE) < atomics.load(team.word(TeamField.LIMIT), "monotonic")):
                joined = atomics.exchange_if(team.word(TeamField.STATE), state, state + 1, "acquire")
                with k.when(joined):
                    _take_part(k, team)
                    idle_since.set(system.nanoseconds(k))
                with k.otherwise(joined):
                    seen.set((state >> GENERATION_SHIFT) - 1)  # look again
        with k.otherwise(is_new):
            atomics.pause(k)
            turns.set(turns.get() + 1)
            with k.when((turns.get() & (_CLOCK_EVERY - 1)).equals(0)):
                _spread(k, team)
                idle = system.nanoseconds(k) - idle_since.get()
                with k.when(idle >= limit.load()):
                    signal = team.futex(TeamField.SIGNAL)
                    value = atomics.load(signal, "acquire")
                    atomics.update("add", team.word(TeamField.SLEEPERS), 1, "seq_cst")
                    _, is_new_now = offer("seq_cst")
                    stopped = atomics.load(team.word(TeamField.STOP), "seq_cst").differs(0)
                    with k.otherwise(is_new_now | stopped):
                        system.sleep_while(signal, value)
                    atomics.update("sub", team.word(TeamField.SLEEPERS), 1, "seq_cst")
                    _spread(k, team)
                    if system.has_futex(k):  # somebody woke us: the next run may be near
                        idle_since.set(system.nanoseconds(k))
    k.give(0)
    return k.finish()


def _spread(k: Function, team: _Team) -> None:
    """Leave a processor on which the caller or a worker with a lower number runs.

    A system that wakes a thread beside the one that woke it takes milliseconds to part them, in which each stops the
    other. Where threads share processors with other programs the caller then at least has its own to itself.
    """
    processors = team.word(TeamField.PROCESSORS)
    with k.when(team.word(TeamField.ROAMS).load().differs(0)):
        here = system.processor(k)
        atomics.store(processors.offset(k["index"]), here, "monotonic")
        shared = k.variable(BOOL, False)
        with k.loop(0, k["index"]) as other:
            shared.set(shared.get() | atomics.load(processors.offset(other), "monotonic").equals(here))
        with k.when(shared.get() & (here >= 0)):
            system.leave_processors(k, processors, team.word(TeamField.THREADS).load())
            atomics.store(processors.offset(k["index"]), system.processor(k), "monotonic")


def _take_part(k: Function, team: _Team) -> None:
    """One run as a worker that has joined it; leaving releases the lane to the caller."""
    plan, lane = (k.pointer(team.word(field).load(), I64).address for field in (TeamField.PLAN, TeamField.LANE))
    run = _Run(k, plan, lane)
    with denormals(k, run.flushes_denormals()):
        _walk_as_worker(k, team, run, _Participant(k, team, run, k["index"]))
    atomics.update("sub", team.word(TeamField.STATE), 1, "seq_cst")
    team.notify()


def _emit_stop(target: Target) -> str:
    k = Function(KERNEL, target, [("team", PTR)], returns=I64)
    team = _Team(k, k["team"])
    atomics.update("xchg", team.word(TeamField.STOP), 1, "seq_cst")
    signal = team.futex(TeamField.SIGNAL)
    atomics.update("add", signal, 1, "seq_cst")
    system.wake(signal, k.constant(I32, _EVERYBODY))
    k.give(0)
    return k.finish()
