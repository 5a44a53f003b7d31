"""The native executor: runs a plan, alone or as one thread of a thread pool. No Python between its steps.

Three functions, whose addresses `executor_code` gives to the runtime:

    i64 run(thread pool, plan, execution context, external, times, terminate)   one run; 1 if it was terminated, else 0
    i64 work(thread pool, index)    the life of a worker; returns when the thread pool is stopped
    i64 stop(thread pool)           makes every `work` of the thread pool return

How a run is shared. The caller of `run` owns the thread pool for the run and *opens* it; workers that see this join,
late or never. Every participant walks the same phases, claims chunks of their steps with an atomic addition, and adds
what it did to the step's count of finished chunks. A barrier waits for these counts, not for the arrival of threads:
nobody waits for a worker that sleeps, or that the system has taken off its core between two chunks. At the end the
caller closes the thread pool and waits until the participants have left. The chunk of work is the same whoever does it,
so results do not depend on the number of threads.

The chunks of a step are divided into parts, one for each thread (of many threads several share one). A thread claims
in its own part before it takes from others, so it finds in its cache what it wrote in the step before. It claims as
much as the kernel suggests, or blocks that shrink with what is left (``session.dynamic_block_base``).

A run can be ended (`interrupts.StopField`). The caller looks before every step and every claim. One that works alone
would not look before a long step is done: where somebody may end a long run, it does each step in pieces of about a
millisecond.

Who waits for chunks of a thread that the system has taken off its core, for another program, gives that thread its own
core and sleeps until the chunks are done. A worker that was brought to the core of others leaves it after that.

Memory order. A participant sees what the run prepared because it joins by an ``acquire`` of the state that the
caller stored after it. It sees the results of a phase because it reads (``acquire``) the count to which their
writers added (``release``, as part of ``seq_cst``); what those writers saw of earlier phases comes with it. Claims
are ``monotonic``: they hand out numbers, no data. Sleeping needs ``seq_cst``: the sleeper announces itself and then
looks at the condition, the other side changes the condition and then looks for sleepers; in one total order at least
one of the two sees the other, so no wake-up is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from sardonyx.compiler.llvm import atomics, system
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.float_mode import denormals
from sardonyx.compiler.llvm.kernels.engine.interrupts import emit_interrupts, shall_end
from sardonyx.compiler.llvm.kernels.engine.participants import (
    EVERYBODY,
    Alarm,
    Member,
    Participant,
    Run,
    ThreadPool,
    spread,
)
from sardonyx.compiler.llvm.library import KERNEL, KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, PTR
from sardonyx.runtime.memory.execution_contexts import MOST_PARTS, ExecutionContextField
from sardonyx.runtime.native_plan import (
    FIXUP_WORDS,
    PhaseColumn,
    PlanField,
    StepColumn,
    StepFlag,
)
from sardonyx.runtime.threads.thread_pool_options import ExecutorCode
from sardonyx.runtime.threads.thread_pool_words import (
    ACTIVE,
    GENERATION_SHIFT,
    OPEN,
    Does,
    MemberField,
    ThreadPoolField,
)

_CLOCK_EVERY = 64  # pauses of an idle worker between two looks at the clock
# Of a step that is done in pieces, the first is this share; they are halved and doubled towards so many nanoseconds.
_FIRST_PIECES = 32
_SHORT_PIECE, _LONG_PIECE = 500_000, 2_000_000


def executor_code(library: KernelLibrary) -> ExecutorCode:
    """The executor for the target of a library."""
    run, work, stop = (library.address(emit_executor, (part,)) for part in ("run", "work", "stop"))
    return ExecutorCode(run, work, stop, library, lambda: library.address(emit_interrupts, ()))


def emit_executor(target: Target, spec: tuple[str]) -> str:
    """The text of one of the three functions, named by the only element of `spec`."""
    return {"run": _emit_run, "work": _emit_work, "stop": _emit_stop}[spec[0]](target)


def _emit_run(target: Target) -> str:
    k = Function(
        KERNEL,
        target,
        [
            ("thread_pool", I64),
            ("plan", PTR),
            ("execution_context", PTR),
            ("external", PTR),
            ("times", I64),
            ("terminate", I64),
        ],
        returns=I64,
    )
    run = Run(k, k["plan"], k["execution_context"])
    _bind(k, run)
    status = k.variable(I64, 0)
    shared = k.variable(BOOL, False)
    width = run.plan.load(int(PlanField.WIDTH))
    # A run that is ended already does not become the workers', who would begin it before the caller looks.
    with k.when((width > 1) & k["thread_pool"].differs(0)):
        ended = _is_ended(k, run)
        with k.when(ended):
            status.set(1)
        busy = ThreadPool(k, k["thread_pool"]).word(ThreadPoolField.BUSY)
        with k.otherwise(ended), k.when(atomics.load(busy, "monotonic").equals(0)):
            shared.set(atomics.exchange_if(busy, 0, 1, "acquire"))
    is_shared, may_end = shared.get(), k["terminate"].differs(0)
    with denormals(k, run.flushes_denormals()):
        # What small runs do without is apart from what they do.
        with k.when(is_shared), k.apart():
            _share(k, ThreadPool(k, k["thread_pool"]), run, width, status)
        with k.when(~is_shared & may_end), k.apart():
            _walk_watched(k, run, status)
        with k.otherwise(is_shared | may_end):
            _walk_alone(k, run)
    _stamp(k, run.step_count)
    k.give(status.get())
    return k.finish()


def _share(k: Function, thread_pool: ThreadPool, run: Run, width: Value, status: Variable) -> None:
    """The run as the caller of a thread pool that it owns; nobody is in it afterwards."""
    _open(k, thread_pool, run, width)
    me = Participant(k, thread_pool, run, k.constant(I64, 0))
    _walk_as_caller(k, thread_pool, run, me, status, Alarm(k, thread_pool, run))
    state = thread_pool.word(ThreadPoolField.STATE)
    atomics.update("and", state, ~OPEN, "seq_cst")
    thread_pool.wait(lambda order: (atomics.load(state, order) & ACTIVE).equals(0), me, Does.WALK)
    me.member.does(Does.NOTHING)
    atomics.store(thread_pool.word(ThreadPoolField.BUSY), 0, "release")


def _bind(k: Function, run: Run) -> None:
    """Copy the arguments into the execution context, with the addresses of this run; those of the arena stay from run
    to run."""
    plan, execution_context = run.plan, run.execution_context
    bases = k.pointer(execution_context.load(int(ExecutionContextField.BASES)), I64)
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
    with k.when(execution_context.load(int(ExecutionContextField.PREPARED)).differs(serial)):
        source = k.pointer(plan.load(int(PlanField.WORDS)), I64)
        k.copy(run.words, source, plan.load(int(PlanField.WORD_COUNT)) * 8)
        apply(k.constant(I64, 0), in_arena)
        execution_context.store(serial, int(ExecutionContextField.PREPARED))
    apply(in_arena, plan.load(int(PlanField.FIXUP_COUNT)))


def _stamp(k: Function, step: Value) -> None:
    """The time into the caller's table, if it gave one."""
    with k.when(k["times"].differs(0)):
        k.pointer(k["times"], I64).store(system.nanoseconds(k), step)


def _is_ended(k: Function, run: Run) -> Value:
    """Whether the words of `StopField` that the caller gave, if any, say that the run shall end."""
    never = k.emit(
        I64, f"ptrtoint ptr {run.execution_context.offset(int(ExecutionContextField.NEVER)).address.name} to i64"
    )
    return shall_end(k, k.pointer(k.select(k["terminate"].equals(0), never, k["terminate"]), I64))


def _walk_alone(k: Function, run: Run) -> None:
    """Every step whole, one after the other; nothing of a thread pool is touched, and nobody ends the run."""
    scratch = run.scratch(k.constant(I64, 0))
    with k.loop(0, run.step_count) as index:
        _stamp(k, index)
        step = run.step(index)
        chunks = step.load(int(StepColumn.CHUNKS))
        with k.when(chunks > 0):
            run.call(step, k.constant(I64, 0), chunks, scratch)


def _walk_watched(k: Function, run: Run, status: Variable) -> None:
    """Every step, one after the other, those of long runs in pieces, until the run shall end."""
    scratch = run.scratch(k.constant(I64, 0))
    in_pieces = run.plan.load(int(PlanField.LONG)).differs(0)
    index = k.variable(I64, k.select(status.get().equals(0), k.constant(I64, 0), run.step_count))
    with k.loop_while(lambda: index.get() < run.step_count):
        now = index.get()
        _stamp(k, now)
        ended = _is_ended(k, run)
        with k.when(ended):
            status.set(1)
        with k.otherwise(ended):
            step = run.step(now)
            chunks = step.load(int(StepColumn.CHUNKS))
            with k.when(in_pieces):
                _do_pieces(k, run, step, scratch, status)
            with k.otherwise(in_pieces), k.when(chunks > 0):
                run.call(step, k.constant(I64, 0), chunks, scratch)
        index.set(k.select(status.get().equals(0), now + 1, run.step_count))


def _do_pieces(k: Function, run: Run, step: Pointer, scratch: Value, status: Variable) -> None:
    """A step in pieces, between which the run may end; whole claims, as many as take about a millisecond."""
    chunks, claim = step.load(int(StepColumn.CHUNKS)), step.load(int(StepColumn.CLAIM))
    piece = k.variable(I64, k.larger(step.load(int(StepColumn.CLAIMS)) / _FIRST_PIECES, 1) * claim)
    begin = k.variable(I64, 0)
    since = k.variable(I64, system.nanoseconds(k))
    with k.loop_while(lambda: (begin.get() < chunks) & status.get().equals(0)):
        until = k.smaller(begin.get() + piece.get(), chunks)
        run.call(step, begin.get(), until, scratch)
        begin.set(until)
        with k.when(until < chunks):
            now = system.nanoseconds(k)
            took = now - since.get()
            since.set(now)
            with k.when(took < _SHORT_PIECE):
                piece.set(piece.get() * 2)
            with k.when((took > _LONG_PIECE) & (piece.get() > claim)):
                piece.set(k.larger(piece.get() / (claim * 2), 1) * claim)
            with k.when(_is_ended(k, run)):
                status.set(1)


def _open(k: Function, thread_pool: ThreadPool, run: Run, width: Value) -> None:
    """Offer the run to the workers, of which no more than find work are let in."""
    threads = k.smaller(width, thread_pool.word(ThreadPoolField.THREADS).load())
    parts = k.smaller(threads, MOST_PARTS)
    run.clear_counters(parts)
    run.progress.store(0)
    thread_pool.word(ThreadPoolField.PARTS).store(parts)
    for field, value in (
        (ThreadPoolField.PLAN, run.plan.address),
        (ThreadPoolField.EXECUTION_CONTEXT, run.execution_context.address),
    ):
        thread_pool.word(field).store(k.emit(I64, f"ptrtoint ptr {value.name} to i64"))
    atomics.store(thread_pool.word(ThreadPoolField.LIMIT), threads - 1, "monotonic")
    _sign_on(k, thread_pool)
    state = thread_pool.word(ThreadPoolField.STATE)
    generation = (atomics.load(state, "monotonic") >> GENERATION_SHIFT) + 1
    atomics.update("xchg", state, (generation << GENERATION_SHIFT) | OPEN, "seq_cst")


def _sign_on(k: Function, thread_pool: ThreadPool) -> None:
    """Say which thread the caller is, and where."""
    me = thread_pool.member(k.constant(I64, 0))
    thread = k.call("pthread_self", I64) if system.has_futex(k) else k.constant(I64, 0)
    with k.when(me.word(MemberField.THREAD).load().differs(thread)):
        me.word(MemberField.THREAD).store(thread)
        atomics.store(me.word(MemberField.TASK), system.task_number(k), "monotonic")
    atomics.store(me.word(MemberField.PROCESSOR), system.processor(k), "monotonic")
    me.word(MemberField.MOVED).store(0)
    me.does(Does.WALK)


def _walk_as_caller(
    k: Function, thread_pool: ThreadPool, run: Run, me: Participant, status: Variable, alarm: Alarm
) -> None:
    """All phases; the caller also keeps the time, tells late workers where to start, and ends a run that shall end."""

    def look(index: Value) -> None:
        alarm.look()
        with k.when(status.get().equals(0)), k.when(_is_ended(k, run)):
            status.set(1)
            _abandon(k, thread_pool, run, index)

    with k.loop(0, run.plan.load(int(PlanField.PHASE_COUNT))) as number:
        with k.when(status.get().equals(0)):
            _pass_barrier(k, thread_pool, run, number, me)
            # Its release hands on what the barrier acquired.
            atomics.store(run.progress, number, "release")
        phase = run.phase(number)
        with k.loop(phase.load(int(PhaseColumn.FIRST)), phase.load(int(PhaseColumn.END))) as index:
            _stamp(k, index)
            look(index)
            with k.when(status.get().equals(0)):
                step = run.step(index)
                own = _is_for_caller(step)
                with k.when(own):
                    _do_own(k, thread_pool, run, index, me)
                with k.otherwise(own):
                    _claim(k, thread_pool, run, index, me, functools.partial(look, index))
    # The last phase has no barrier behind it.
    with k.when(status.get().equals(0)):
        _pass_barrier(k, thread_pool, run, run.plan.load(int(PlanField.PHASE_COUNT)), me)


def _do_own(k: Function, thread_pool: ThreadPool, run: Run, index: Value, me: Participant) -> None:
    """A step that the caller does alone."""
    step = run.step(index)
    chunks = step.load(int(StepColumn.CHUNKS))
    with k.when(chunks > 0):
        me.member.does(Does.CHUNK)
        run.call(step, k.constant(I64, 0), chunks, me.scratch)
        me.member.does(Does.WALK)
    atomics.update("xchg", run.done(index), step.load(int(StepColumn.TARGET)), "seq_cst")
    thread_pool.notify()


def _walk_as_worker(k: Function, thread_pool: ThreadPool, run: Run, me: Participant) -> None:
    """The phases in which there is work to share, from the one that the caller was last seen in.

    A worker that was brought to another's processor ends its walk when its chunk is done.
    """
    number = k.variable(I64, atomics.load(run.progress, "acquire"))
    with k.loop_while(lambda: number.get() < run.plan.load(int(PlanField.PHASE_COUNT))):
        phase = run.phase(number.get())
        with k.when(phase.load(int(PhaseColumn.SHARED)).differs(0)):
            _pass_barrier(k, thread_pool, run, number.get(), me)
            with k.loop(phase.load(int(PhaseColumn.FIRST)), phase.load(int(PhaseColumn.END))) as index:
                own = _is_for_caller(run.step(index))
                with k.otherwise(own | me.is_moved()):
                    _claim(k, thread_pool, run, index, me)
        number.set(k.select(me.is_moved(), run.plan.load(int(PlanField.PHASE_COUNT)), number.get() + 1))


def _is_for_caller(step: Pointer) -> Value:
    return (step.load(int(StepColumn.FLAGS)) & int(StepFlag.CALLER)).differs(0)


def _pass_barrier(k: Function, thread_pool: ThreadPool, run: Run, number: Value, me: Participant) -> None:
    """Wait until all steps of the phase before `number` are done, and with them all earlier ones.

    Nobody begins a step of that phase before the phase in front of it is done, so by induction all are.
    """
    with k.when(number > 0):
        before = run.phase(number - 1)
        with k.loop(before.load(int(PhaseColumn.FIRST)), before.load(int(PhaseColumn.END))) as index:
            target = run.step(index).load(int(StepColumn.TARGET))
            done = run.done(index)
            thread_pool.wait(lambda order: atomics.load(done, order) >= target, me)


def _claim(
    k: Function,
    thread_pool: ThreadPool,
    run: Run,
    index: Value,
    me: Participant,
    look: Callable[[], None] | None = None,
) -> None:
    """Do chunks of a step until all are claimed: those of one's own part first, then what others have left of theirs.

    The parts are stretches of chunks. Where steps divide the same rows a thread finds what it wrote in its own cache,
    and claims of different parts do not take a cache line from each other. The caller gives a `look`, which may end the
    run, after everything that it did; a worker that was moved claims nothing more.
    """
    step = run.step(index)
    chunks, claims = step.load(int(StepColumn.CHUNKS)), step.load(int(StepColumn.CLAIMS))
    size = step.load(int(StepColumn.CLAIM))
    finished = k.variable(I64, 0)
    taken = k.variable(I64, 1)  # how many claims at once
    with k.loop(0, me.parts) as turn:
        part = me.part + turn
        part = k.select(part >= me.parts, part - me.parts, part)
        first, end = part * claims / me.parts, (part + 1) * claims / me.parts
        counter = run.claimed(index, part)
        # A look first: a part that is given away needs no write, which would take the line from other cores.
        number = k.variable(I64, first + atomics.load(counter, "monotonic"))
        with k.loop_while(lambda: number.get() < end):
            me.member.does(Does.CHUNK)
            with k.when(me.blocks > 0):
                taken.set(k.larger((end - number.get()) / me.blocks, 1))
            number.set(first + atomics.update("add", counter, taken.get(), "monotonic"))
            with k.when(number.get() < end):
                me.member.count(MemberField.CLAIMS)
                begin = number.get() * size
                until = k.smaller(k.smaller(number.get() + taken.get(), end) * size, chunks)
                run.call(step, begin, until, me.scratch)
                finished.set(finished.get() + (until - begin))
                if look is not None:
                    look()
                number.set(first + atomics.load(counter, "monotonic"))
                if look is None:
                    number.set(k.select(me.is_moved(), end, number.get()))
    with k.when(finished.get() > 0):
        before = atomics.update("add", run.done(index), finished.get(), "seq_cst")
        with k.when(before + finished.get() >= step.load(int(StepColumn.TARGET))):
            thread_pool.notify()
    me.member.does(Does.WALK)


def _abandon(k: Function, thread_pool: ThreadPool, run: Run, first: Value) -> None:
    """Mark the steps from `first` on as given away, and only then as done: workers run through and begin nothing."""
    with k.loop(first, run.step_count) as index, k.loop(0, MOST_PARTS) as part:
        claims = run.step(index).load(int(StepColumn.CLAIMS))
        atomics.update("xchg", run.claimed(index, part), claims, "seq_cst")
    with k.loop(first, run.step_count) as index:
        target = run.step(index).load(int(StepColumn.TARGET))
        atomics.update("xchg", run.done(index), target, "seq_cst")
    thread_pool.notify()


def _emit_work(target: Target) -> str:
    k = Function(KERNEL, target, [("thread_pool", PTR), ("index", I64)], returns=I64)
    thread_pool = ThreadPool(k, k["thread_pool"])
    me = thread_pool.member(k["index"])
    me.word(MemberField.TASK).store(system.task_number(k))
    seen = k.variable(I64, 0)  # the generation that this worker has dealt with
    idle_since = k.variable(I64, system.nanoseconds(k))
    pauses = k.variable(I64, 1)  # before the next look
    turns = k.variable(I64, 0)  # pauses since the last look at the clock

    def offer(order: str) -> tuple[Value, Value]:
        state = atomics.load(thread_pool.word(ThreadPoolField.STATE), order)
        unseen = (state >> GENERATION_SHIFT).differs(seen.get())
        return state, unseen & (state & OPEN).differs(0)

    with k.loop_while(lambda: atomics.load(thread_pool.word(ThreadPoolField.STOP), "acquire").equals(0)):
        state, is_new = offer("acquire")
        me.count(MemberField.LOOKS)
        with k.when(is_new):
            seen.set(state >> GENERATION_SHIFT)
            # The limit may already be that of a later run; then the state has changed, and the exchange fails.
            with k.when((state & ACTIVE) < atomics.load(thread_pool.word(ThreadPoolField.LIMIT), "monotonic")):
                joined = atomics.exchange_if(thread_pool.word(ThreadPoolField.STATE), state, state + 1, "acquire")
                with k.when(joined):
                    _take_part(k, thread_pool, me)
                    idle_since.set(system.nanoseconds(k))
                    pauses.set(1)
                    with k.when(atomics.load(me.word(MemberField.MOVED), "monotonic").differs(0)):
                        me.word(MemberField.MOVED).store(0)
                        spread(k, thread_pool, k["index"])
                        seen.set((state >> GENERATION_SHIFT) - 1)  # it may go on once it has a processor
                with k.otherwise(joined):
                    seen.set((state >> GENERATION_SHIFT) - 1)  # look again
        with k.otherwise(is_new):
            with k.loop(0, pauses.get()):
                atomics.pause(k)
            turns.set(turns.get() + pauses.get())
            pauses.set(k.smaller(pauses.get() * 2, me.word(MemberField.BACKOFF).load()))
            with k.when(turns.get() >= _CLOCK_EVERY):
                turns.set(0)
                spread(k, thread_pool, k["index"])
                idle = system.nanoseconds(k) - idle_since.get()
                with k.when(idle >= me.word(MemberField.SPIN).load()):
                    signal = thread_pool.futex(ThreadPoolField.SIGNAL)
                    value = atomics.load(signal, "acquire")
                    atomics.update("add", thread_pool.word(ThreadPoolField.SLEEPERS), 1, "seq_cst")
                    _, is_new_now = offer("seq_cst")
                    stopped = atomics.load(thread_pool.word(ThreadPoolField.STOP), "seq_cst").differs(0)
                    with k.otherwise(is_new_now | stopped):
                        system.sleep_while(signal, value)
                    atomics.update("sub", thread_pool.word(ThreadPoolField.SLEEPERS), 1, "seq_cst")
                    spread(k, thread_pool, k["index"])
                    if system.has_futex(k):  # somebody woke us: the next run may be near
                        idle_since.set(system.nanoseconds(k))
                        pauses.set(1)
    k.give(0)
    return k.finish()


def _take_part(k: Function, thread_pool: ThreadPool, me: Member) -> None:
    """One run as a worker that has joined it; leaving releases the execution context to the caller."""
    me.does(Does.WALK)
    plan, execution_context = (
        k.pointer(thread_pool.word(field).load(), I64).address
        for field in (ThreadPoolField.PLAN, ThreadPoolField.EXECUTION_CONTEXT)
    )
    run = Run(k, plan, execution_context)
    with denormals(k, run.flushes_denormals()):
        _walk_as_worker(k, thread_pool, run, Participant(k, thread_pool, run, k["index"]))
    atomics.update("sub", thread_pool.word(ThreadPoolField.STATE), 1, "seq_cst")
    me.does(Does.NOTHING)
    thread_pool.notify()


def _emit_stop(target: Target) -> str:
    k = Function(KERNEL, target, [("thread_pool", PTR)], returns=I64)
    thread_pool = ThreadPool(k, k["thread_pool"])
    atomics.update("xchg", thread_pool.word(ThreadPoolField.STOP), 1, "seq_cst")
    signal = thread_pool.futex(ThreadPoolField.SIGNAL)
    atomics.update("add", signal, 1, "seq_cst")
    system.wake(signal, k.constant(I32, EVERYBODY))
    k.give(0)
    return k.finish()
