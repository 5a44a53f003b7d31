"""What the threads of a run see of each other and of the run: words in memory, as values of the kernel language.

Their order in memory, and why it is enough, says `executor.py`, which walks the plan with them.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm import atomics, system
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.types import BOOL, I8, I32, I64
from sardonyx.runtime.memory.execution_contexts import LINE_WORDS, ExecutionContextField
from sardonyx.runtime.native_plan import (
    PHASE_WORDS,
    STEP_WORDS,
    PlanField,
    StepColumn,
)
from sardonyx.runtime.threads.thread_pool_words import ROW_WORDS, Does, MemberField, ThreadPoolField

EVERYBODY = 0x7FFFFFFF
# How long a thread that does not run stands still, in turns of waiting; and how often others look before they sleep.
_STANDSTILL, _MOST_LOOKS = 500, 64

Condition = Callable[[str], Value]


class ThreadPool:
    """The words of a thread pool, in registers or in memory."""

    def __init__(self, k: Function, address: Value) -> None:
        self.k = k
        self.words = k.pointer(address, I64)

    def word(self, which: ThreadPoolField) -> Pointer:
        return self.words.offset(int(which))

    def futex(self, which: ThreadPoolField) -> Pointer:
        return self.word(which).cast(I32)

    def member(self, number: Value) -> Member:
        """What the thread pool knows of one of its threads; the caller of the run is number 0."""
        return Member(self.word(ThreadPoolField.ROWS).offset(number * ROW_WORDS))

    def wait(self, met: Condition, me: Participant, least: Does = Does.CHUNK) -> None:
        """Go on when a condition of this run is met: spin, then give way, then sleep until somebody notifies.

        Where threads have cores of their own, those for which this one may be waiting are looked at before it sleeps:
        while they run it goes on spinning, and one that does not run gets this core. These are threads that are about
        `least`, or more.
        """
        k = self.k
        patience, yields = (self.word(field).load() for field in (ThreadPoolField.PATIENCE, ThreadPoolField.YIELDS))
        turns, looks = k.variable(I64, 0), k.variable(I64, 0)
        with k.loop_while(lambda: met("acquire").equals(False)):
            atomics.pause(k)
            turns.set(turns.get() + 1)
            with k.when(turns.get() > patience):
                if system.has_futex(k):
                    looks.set(looks.get() + 1)
                    spins = (yields > 0) & (looks.get() <= _MOST_LOOKS)
                    with k.when(spins):
                        idle = k.variable(BOOL, False)
                        self._help(me, met, least, idle)
                        with k.when(idle.get()):
                            self._sleep(met)
                            looks.set(0)
                            me.leave_others()
                        turns.set(0)
                    with k.otherwise(spins):
                        self._sleep(met)
                else:
                    asleep = turns.get() > patience + yields
                    with k.when(asleep):
                        self._sleep(met)
                    with k.otherwise(asleep):
                        system.give_way(k)

    def _sleep(self, met: Condition) -> None:
        """Sleep until somebody notifies, or the condition is met."""
        event = self.futex(ThreadPoolField.EVENT)
        seen = atomics.load(event, "acquire")
        atomics.update("add", self.word(ThreadPoolField.WAITING), 1, "seq_cst")
        with self.k.when(met("seq_cst").equals(False)):
            system.sleep_while(event, seen)
        atomics.update("sub", self.word(ThreadPoolField.WAITING), 1, "seq_cst")

    def _help(self, me: Participant, met: Condition, least: Does, helped: Variable) -> None:
        """Set `helped` if a thread that others may wait for did not run, and was brought to this processor."""
        k = self.k
        roams = self.word(ThreadPoolField.ROAMS).load().differs(0)
        with k.when(roams), k.loop(0, self.word(ThreadPoolField.THREADS).load()) as number:
            other = self.member(number)
            task = atomics.load(other.word(MemberField.TASK), "monotonic")
            does = atomics.load(other.word(MemberField.DOES), "monotonic")
            is_other = number.differs(me.number) & task.differs(0)
            with k.when(is_other & (does >= int(least)) & ~helped.get()):
                before = system.processor_time(k, task)
                turns = k.variable(I64, 0)
                with k.loop_while(lambda: (turns.get() < _STANDSTILL) & met("acquire").equals(False)):
                    atomics.pause(k)
                    turns.set(turns.get() + 1)
                stands = turns.get().equals(_STANDSTILL)
                with k.when(stands), k.when(system.processor_time(k, task).equals(before)):
                    system.bring_here(k, task)
                    atomics.store(other.word(MemberField.PROCESSOR), system.processor(k), "monotonic")
                    atomics.store(other.word(MemberField.MOVED), 1, "monotonic")
                    other.count(MemberField.MOVES)
                    helped.set(True)

    def notify(self) -> None:
        """Wake those who sleep in `wait`; follows a ``seq_cst`` change of what they wait for."""
        k = self.k
        with k.when(atomics.load(self.word(ThreadPoolField.WAITING), "seq_cst") > 0):
            event = self.futex(ThreadPoolField.EVENT)
            atomics.update("add", event, 1, "seq_cst")
            system.wake(event, k.constant(I32, EVERYBODY))


class Member:
    """The row of a thread of a thread pool."""

    def __init__(self, row: Pointer) -> None:
        self._row = row

    def word(self, which: MemberField) -> Pointer:
        return self._row.offset(int(which))

    def does(self, what: Does) -> None:
        """Say what the thread is about."""
        atomics.store(self.word(MemberField.DOES), int(what), "monotonic")

    def count(self, which: MemberField) -> None:
        """Count something, for those who want to know: where two do it at once, one may be lost."""
        word = self.word(which)
        atomics.store(word, word.load() + 1, "monotonic")


class Run:
    """What a thread needs of one run: the plan's tables and its execution context's memory."""

    def __init__(self, k: Function, plan: Value, execution_context: Value) -> None:
        self.k = k
        self.plan = k.pointer(plan, I64)
        self.execution_context = k.pointer(execution_context, I64)
        self.words = self._at(self.execution_context, ExecutionContextField.WORDS)
        self.steps = self._at(self.plan, PlanField.STEPS)
        self.phases = self._at(self.plan, PlanField.PHASES)
        self._done = self._at(self.execution_context, ExecutionContextField.COUNTERS)
        self.step_count = self.plan.load(int(PlanField.STEP_COUNT))
        self.row = (self.step_count + (LINE_WORDS - 1)) & -LINE_WORDS
        self.claims = self._done.offset(self.step_count * LINE_WORDS)
        self.progress = self.execution_context.offset(int(ExecutionContextField.PROGRESS))

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
        base = self.k.pointer(self.execution_context.load(int(ExecutionContextField.SCRATCH)), I8)
        return base.offset(thread * self.execution_context.load(int(ExecutionContextField.SCRATCH_STRIDE))).address

    def call(self, step: Pointer, begin: Value, end: Value, scratch: Value) -> None:
        function = self.k.pointer(step.load(int(StepColumn.FUNCTION)), I64)
        arguments = self.words.offset(step.load(int(StepColumn.ARGUMENTS)))
        self.k.call_pointer(function.address, arguments.address, begin, end, scratch)


class Participant:
    """A thread in a run: its row, its scratch memory, and the part of every step that it begins with."""

    def __init__(self, k: Function, thread_pool: ThreadPool, run: Run, number: Value) -> None:
        self._k, self._thread_pool = k, thread_pool
        self.number = number
        self.member = thread_pool.member(number)
        self.scratch = run.scratch(number)
        self.parts = thread_pool.word(ThreadPoolField.PARTS).load()
        self.part = number % self.parts
        # How many blocks the rest of a part is divided into: those of all threads that share it. 0 for single claims.
        blocks = thread_pool.word(ThreadPoolField.BLOCKS).load()
        self.blocks = (blocks * thread_pool.word(ThreadPoolField.THREADS).load() + (self.parts - 1)) / self.parts

    def is_moved(self) -> Value:
        """Whether another thread has brought this one to its processor."""
        return atomics.load(self.member.word(MemberField.MOVED), "monotonic").differs(0)

    def leave_others(self) -> None:
        """Leave the processor of the caller, or of a worker with a lower number. The caller stays where it is."""
        with self._k.when(self.number > 0):
            spread(self._k, self._thread_pool, self.number)


class Alarm:
    """Wakes workers that sleep, as soon as the run has lasted long enough to be worth it.

    Made when the run is open: a worker that goes to sleep after that looks for an open run first.
    """

    def __init__(self, k: Function, thread_pool: ThreadPool, run: Run) -> None:
        self.k, self._thread_pool = k, thread_pool
        self._due = k.variable(I64, 0)  # when it rings; 0 once it has, or where nobody sleeps
        with k.when(atomics.load(thread_pool.word(ThreadPoolField.SLEEPERS), "seq_cst") > 0):
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
        signal = self._thread_pool.futex(ThreadPoolField.SIGNAL)
        atomics.update("add", signal, 1, "seq_cst")
        system.wake(signal, atomics.load(self._thread_pool.word(ThreadPoolField.LIMIT), "monotonic").to(I32))


def spread(k: Function, thread_pool: ThreadPool, number: Value) -> None:
    """Leave a processor on which the caller or a worker with a lower number runs; `number` is this worker's.

    A system that wakes a thread beside the one that woke it takes milliseconds to part them, in which each stops the
    other. Where threads share processors with other programs the caller then at least has its own to itself.
    """
    with k.when(thread_pool.word(ThreadPoolField.ROAMS).load().differs(0)):
        here, mine = system.processor(k), thread_pool.member(number).word(MemberField.PROCESSOR)
        atomics.store(mine, here, "monotonic")
        shared = k.variable(BOOL, False)
        with k.loop(0, number) as other:
            there = atomics.load(thread_pool.member(other).word(MemberField.PROCESSOR), "monotonic")
            shared.set(shared.get() | there.equals(here))
        with k.when(shared.get() & (here >= 0)):
            processors = thread_pool.word(ThreadPoolField.ROWS).offset(int(MemberField.PROCESSOR))
            system.leave_processors(k, processors, thread_pool.word(ThreadPoolField.THREADS).load(), ROW_WORDS)
            atomics.store(mine, system.processor(k), "monotonic")
