"""The memory that the threads of a thread pool share: which word is where, and what it says."""

from __future__ import annotations

from sardonyx.light_enum import Numbers

# The state of a thread pool: how many workers take part, whether others may join, and a number that each run raises.
GENERATION_SHIFT = 16
OPEN = 1 << 15
ACTIVE = OPEN - 1


class ThreadPoolField(Numbers):
    """The words of a thread pool; those written at different times lie on different cache lines."""

    STATE = 0
    BUSY = 8  # 1 while a run owns the thread pool
    SIGNAL = 16  # i32 futex of idle workers
    SLEEPERS = 17  # workers asleep on it, or about to be
    STOP = 18
    EVENT = 24  # i32 futex of threads that wait within a run
    WAITING = 25  # how many of those
    PLAN = 32  # the run that is open
    EXECUTION_CONTEXT = 33
    LIMIT = 34  # how many workers it lets in
    PARTS = 35  # into how many parts its steps are divided
    THREADS = 40  # what does not change
    PATIENCE = 41  # turns that a thread waits spinning,
    YIELDS = 42  # and then giving way to others, before it sleeps
    ROAMS = 43  # 1 where workers choose their processors themselves
    BLOCKS = 44  # into how many blocks the rest of a part is thought to be divided when a thread claims; 0: claims
    ROWS = 48  # a row of `MemberField` for each thread, the caller first


class MemberField(Numbers):
    """The words of one thread of a thread pool, on cache lines of their own."""

    PROCESSOR = 0  # that it was last seen on; -1 before that
    SPIN = 1  # nanoseconds for which it looks for a run before it sleeps
    BACKOFF = 2  # pauses between two looks, at most: 1, 2, 4… up to this
    TASK = 3  # its number in the system; 0 where that is not known
    DOES = 4  # `Does`
    CLAIMS = 5  # how often it has claimed chunks
    LOOKS = 6  # how often it has looked for a run
    THREAD = 7  # the caller's: the thread whose number `TASK` is
    MOVED = 8  # 1 since another thread brought it to its own processor
    MOVES = 9  # how often that happened
    COUNT = 16


class Does(Numbers):
    """What a thread is about."""

    NOTHING = 0  # that others could wait for
    WALK = 1  # it takes part in a run
    CHUNK = 2  # it has claimed chunks of a step, for which others may wait


ROW_WORDS = int(MemberField.COUNT)


def row_of(number: int) -> int:
    """The first word of a thread's row."""
    return ThreadPoolField.ROWS + ROW_WORDS * number


def thread_pool_words(threads: int) -> int:
    """How many words a thread pool of so many threads has."""
    return row_of(threads)
