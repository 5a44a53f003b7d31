"""Threads that go through many short turns together, inside one step of a plan.

Each turn has the same number of blocks, and no block of a turn begins before all of the turn before are done. The
step has a chunk for each *seat*. A thread that takes a seat stays for all turns; who comes late joins in the current
one; the seats that nobody took are found to have nothing left. Nobody waits for a thread that is not there: what is
waited for are blocks that some thread has begun.

In every turn a thread first does the blocks from its seat up to the next taken one, so that it finds in its own cache
what these blocks read: in every second turn from the last to the first, because what was read last is what a cache that
does not hold everything still has. Then it waits, and after a while it looks for blocks that others have not begun.
Which thread does a block, and when, does not change what the block computes.

Where blocks of different strands do not depend on each other and there are enough strands for all threads, a chunk is
a *strand* instead (`take_strands`).

Memory order. The number of finished blocks is added to (``release``) by those who did them and read (``acquire``) by
those who wait for them. Claims of blocks are ``monotonic``: each is a number that counts turns, so that whoever
exchanges turn t for t + 1 has the block, and nobody can take it again.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm import atomics
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.types import BOOL, I32, I64
from sardonyx.light_dataclass import dataclass

# Words of the shared memory: the finished blocks, the taken seats, then the claims of every block. Each has a cache
# line of its own. All are 0 before the step.
LINE_WORDS = 8
MOST_SEATS = 32

# Turns of a waiting thread before it looks for blocks of others, and then before it gives way.
_PATIENCE = 1000

Body = Callable[[Value, Value], None]


def shared_words(blocks: int) -> int:
    """The words (i64) that the threads of a step share."""
    return LINE_WORDS * (2 + blocks)


@dataclass(frozen=True)
class Turns:
    """How many `seats`, up to `MOST_SEATS`, go through how many turns of how many blocks, in so many rounds one after
    the other.

    The blocks of all rounds are those of the first strand, then of the next one, `strand` each. Blocks of different
    strands do not depend on each other in any turn.
    """

    seats: Value
    blocks: Value
    turns: Value
    rounds: Value
    strand: Value


def take_turns(k: Function, shared: Pointer, given: Turns, body: Body) -> None:
    """Emit the way of a thread through the turns of a kernel whose chunks are seats.

    `body(turn, block)` emits one block. A thread that is called for all seats at once shares nothing; it goes through
    the turns of one strand after the other, whose data then may stay in its cache.
    """
    done, taken, claims = (shared.offset(LINE_WORDS * line) for line in range(3))
    seat, blocks = k["begin"], given.blocks
    alone = (k["end"] - seat).equals(given.seats)
    strands = given.rounds * blocks / _at_least_one(k, given.strand)
    end = given.turns * k.select(alone, strands, given.rounds)
    turn = k.variable(I64, atomics.load(done, "acquire") / _at_least_one(k, blocks))
    with k.when(turn.get() < end):
        atomics.update("or", taken, k.constant(I64, 1) << seat, "monotonic")
    with k.loop_while(lambda: turn.get() < end):
        above = turn.get() / given.turns
        now = turn.get() - above * given.turns
        first = above * k.select(alone, given.strand, blocks)
        start = k.select(alone, 0, _first_block(seat, given.seats, blocks))
        own = k.select(alone, given.strand, _own_blocks(k, taken, seat, given.seats, blocks))
        position, finished, limit = k.variable(I64, 0), k.variable(I64, 0), k.variable(I64, own)
        goal, over = (turn.get() + 1) * blocks, k.variable(BOOL, False)
        with k.loop_while(lambda: ~over.get()):
            with k.loop(position.get(), limit.get()) as index:
                turns_back = (now & 1).differs(0) & (index < own)
                block = start + k.select(turns_back, own - 1 - index, index)
                block = k.select(block >= blocks, block - blocks, block)
                mine = k.variable(BOOL, alone)
                with k.otherwise(alone):
                    mine.set(_claim(claims.offset(block * LINE_WORDS), turn.get()))
                with k.when(mine.get()):
                    body(now, first + block)
                    finished.set(finished.get() + 1)
            over.set(alone)
            with k.otherwise(alone):
                with k.when(finished.get() > 0):
                    atomics.update("add", done, finished.get(), "release")
                finished.set(0)
                position.set(limit.get())
                over.set(_await(k, done, goal))
                with k.otherwise(over.get()):
                    with k.when(limit.get() >= blocks):
                        _give_way(k)
                    limit.set(blocks)
        turn.set(turn.get() + 1)


def take_strands(k: Function, given: Turns, body: Body) -> None:
    """The same for a kernel whose chunks are strands: who takes one goes through all of its turns and never waits."""
    with k.loop(k["begin"], k["end"]) as strand, k.loop(0, given.turns) as turn, k.loop(0, given.strand) as index:
        turns_back = (turn & 1).differs(0)
        body(turn, strand * given.strand + k.select(turns_back, given.strand - 1 - index, index))


def _at_least_one(k: Function, number: Value) -> Value:
    return k.larger(number, 1)


def _first_block(seat: Value, seats: Value, blocks: Value) -> Value:
    return seat * blocks / seats


def _own_blocks(k: Function, taken: Pointer, seat: Value, seats: Value, blocks: Value) -> Value:
    """How many blocks lie between a seat and the next one that is taken, all around where there is no other."""
    mask = atomics.load(taken, "monotonic")
    above = mask >> (seat + 1)
    nearest = seat + 1 + _lowest_bit(k, above)
    around = seats + _lowest_bit(k, mask)
    following = k.select(above.differs(0), nearest, around)
    wraps = following >= seats
    end = _first_block(k.select(wraps, following - seats, following), seats, blocks)
    return end + k.select(wraps, blocks, 0) - _first_block(seat, seats, blocks)


def _lowest_bit(k: Function, mask: Value) -> Value:
    return k.emit(I64, f"call i64 @{_declared_cttz(k)}(i64 {mask.name}, i1 false)")


def _declared_cttz(k: Function) -> str:
    k.declare_text("llvm.cttz.i64", "declare i64 @llvm.cttz.i64(i64, i1)")
    return "llvm.cttz.i64"


def _claim(claim: Pointer, turn: Value) -> Value:
    """Whether this thread has the block of a turn; a look first, which takes the line from nobody."""
    k = claim.function
    mine: Variable = k.variable(BOOL, False)
    with k.when(atomics.load(claim, "monotonic").equals(turn)):
        mine.set(atomics.exchange_if(claim, turn, turn + 1, "monotonic"))
    return mine.get()


def _await(k: Function, done: Pointer, goal: Value) -> Value:
    """Spin until so many blocks are finished, for a while; whether they are."""
    patience = k.variable(I64, _PATIENCE)
    reached = k.variable(BOOL, atomics.load(done, "acquire") >= goal)
    with k.loop_while(lambda: ~reached.get() & (patience.get() > 0)):
        atomics.pause(k)
        patience.set(patience.get() - 1)
        reached.set(atomics.load(done, "acquire") >= goal)
    return reached.get()


def _give_way(k: Function) -> None:
    """Let another thread have the core, where the system has a call for it: kernels also run where there is none."""
    name = "SwitchToThread" if "windows" in k.target.triple else "sched_yield"
    k.declare_text(name, f"declare extern_weak i32 @{name}()")
    there = k.emit(BOOL, f"icmp ne ptr @{name}, null")
    with k.when(there):
        k.emit(I32, f"call i32 @{name}()")
