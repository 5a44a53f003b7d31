"""The native code of `runtime.interrupts`: noticing that a run shall end, and signals while one is under way.

A signal handler is given nothing but the number of the signal: it knows the words that it works on by a name, for which
those who load it put the address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm import atomics
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.function_text import joined
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, PTR, VOID
from sardonyx.runtime.threads.interrupts import WORDS_SYMBOL, StopField, WatchField

_SIGINT = 2
_ACTION_WORDS = 32  # the largest `struct sigaction` of a system takes 152 bytes; its first word is the handler
_MOST_SPECIAL = 1  # SIG_DFL and SIG_IGN are no functions


def shall_end(k: Function, words: Pointer) -> Value:
    """Whether the words of `StopField` say that the run ends; between two chunks of work, by the caller of the run."""
    flag, other = atomics.load(words.offset(int(StopField.FLAG)), "monotonic"), words.load(int(StopField.OTHER))
    itself = k.emit(I64, f"ptrtoint ptr {words.address.name} to i64")
    elsewhere = atomics.load(k.pointer(k.select(other.equals(0), itself, other), I64), "monotonic")
    ends = k.variable(BOOL, False)
    with k.when((flag | elsewhere).differs(0)):
        ends.set(other.differs(0) & elsewhere.differs(0))
        with k.when(flag.differs(0)):
            ask = words.load(int(StopField.ASK))
            decides = ask.differs(0)
            with k.when(decides):
                answer = k.call_address(k.pointer(ask, I64).address, I64, words.address)
                ends.set(ends.get() | answer.differs(0))
            with k.otherwise(decides):
                ends.set(True)
    return ends.get()


class Watched:
    """A call on any thread, during which the main thread sees signals. `stop` is what the executor takes."""

    def __init__(self, k: Function, words: Value, other: Value) -> None:
        """`words` are those of `WatchField` (an i64; 0: there are none), `other` those of `StopField` or 0."""
        self._k, self._words = k, k.pointer(words, I64)
        self._number = words
        self._stop: Variable = k.variable(I64, other)
        self._other = other

    @property
    def stop(self) -> Value:
        return self._stop.get()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The block sees signals, where it is done by the main thread and Python handles them."""
        k, words = self._k, self._words
        before, now = k.stack(I64, _ACTION_WORDS), k.stack(I64, _ACTION_WORDS)
        sees, is_first = k.variable(BOOL, False), k.variable(BOOL, False)
        other_before = k.variable(I64, 0)
        with k.when(self._number.differs(0)), k.when(self._is_main_thread()):
            _step_in_front(k, words, before, sees, is_first)
            with k.when(sees.get()):
                other_before.set(words.load(int(StopField.OTHER)))
                words.store(self._other, int(StopField.OTHER))
                self._stop.set(self._number)
        yield
        with k.when(sees.get()):
            words.store(other_before.get(), int(StopField.OTHER))
        with k.when(is_first.get()):  # unless a handler has put another one in the place of ours
            signal, nothing = k.constant(I32, _SIGINT), Value(k, "null", PTR)
            k.call("sigaction", I32, signal, nothing, now.address)
            with k.when(now.load(0).equals(words.load(int(WatchField.HANDLER)))):
                k.call("sigaction", I32, signal, before.address, nothing)

    def _is_main_thread(self) -> Value:
        return self._k.call("pthread_self", I64).equals(self._words.load(int(WatchField.MAIN)))


def _step_in_front(k: Function, words: Pointer, before: Pointer, sees: Variable, is_first: Variable) -> None:
    """Put our handler in front of one that is a function, whose action goes to `before`.

    `sees` says whether ours is there then, `is_first` whether it was not before.
    """
    now = k.stack(I64, _ACTION_WORDS)
    signal, nothing = k.constant(I32, _SIGINT), Value(k, "null", PTR)
    k.call("sigaction", I32, signal, nothing, before.address)
    handler, ours = before.load(0), words.load(int(WatchField.HANDLER))
    sees.set((handler < 0) | (handler > _MOST_SPECIAL))
    is_first.set(sees.get() & handler.differs(ours))
    with k.when(is_first.get()):
        words.store(handler, int(WatchField.BEFORE))
        atomics.store(words.offset(int(StopField.FLAG)), 0, "monotonic")
        k.copy(now, before, k.constant(I64, 8 * _ACTION_WORDS))
        now.store(ours, 0)
        k.call("sigaction", I32, signal, now.address, nothing)


def emit_interrupts(target: Target, spec: tuple[()]) -> str:
    """A function that takes the address of the words of `WatchField`, and writes the addresses of the others there."""
    functions = [_emit_install(target), _emit_handler(target), _emit_ask(target), _emit_run(target), _emit_call(target)]
    return joined(functions, [f"@{WORDS_SYMBOL} = external global [{int(WatchField.COUNT)} x i64]"])


_FUNCTIONS = {
    StopField.ASK: "ask",
    WatchField.HANDLER: "handler",
    WatchField.RUN: "run",
    WatchField.CALL: "call",
}


def _emit_install(target: Target) -> Function:
    k = Function(KERNEL, target, [("words", I64)])
    for field, name in _FUNCTIONS.items():
        k.pointer(k["words"], I64).store(k.emit(I64, f"ptrtoint ptr @{name} to i64"), int(field))
    return k


def _emit_handler(target: Target) -> Function:
    """The signal handler: goes on to the handler that was there before, and then sets the flag.

    Not the other way round: the thread of the run, which may be another one, would look for what is not there yet.
    """
    k = Function("handler", target, [("signal", I32), ("information", PTR), ("context", PTR)])
    words = Pointer(Value(k, f"@{WORDS_SYMBOL}", PTR), I64)
    before = k.pointer(words.load(int(WatchField.BEFORE)), I64).address
    k.call_address(before, None, k["signal"], k["information"], k["context"])
    atomics.store(words.offset(int(StopField.FLAG)), 1, "release")
    return k


def _emit_ask(target: Target) -> Function:
    """Let Python's handlers speak: 1 where one raises, which the thread then does when it is back in Python.

    One that chooses another handler puts that in the place of ours, which comes in front of it again.
    """
    k = Function("ask", target, [("words", PTR)], returns=I64)
    words = k.pointer("words", I64)
    atomics.store(words.offset(int(StopField.FLAG)), 0, "seq_cst")
    held = k.call("PyGILState_Ensure", I32)
    raised = k.call("PyErr_CheckSignals", I32)
    k.call("PyGILState_Release", VOID, held)
    sees, is_first = k.variable(BOOL, False), k.variable(BOOL, False)
    _step_in_front(k, words, k.stack(I64, _ACTION_WORDS), sees, is_first)
    with k.when(is_first.get()):  # what came while ours was not there is asked for again
        atomics.store(words.offset(int(StopField.FLAG)), 1, "monotonic")
    k.give(k.select(raised.differs(0), k.constant(I64, 1), 0))
    return k


def _emit_run(target: Target) -> Function:
    """``i64 run(words, executor, thread pool, plan, execution context, external, times, other)``, without the
    interpreter's lock."""
    names = ("words", "executor", "thread_pool", "plan", "execution_context", "external", "times", "other")
    k = Function("run", target, [(name, I64) for name in names], returns=I64)
    watched = Watched(k, k["words"], k["other"])
    given = [k[name] for name in ("thread_pool", "plan", "execution_context", "external", "times")]
    status = k.variable(I64, 0)
    with watched.watching(), _unlocked(k):
        status.set(k.call_address(k.pointer(k["executor"], I64).address, I64, *given, watched.stop))
    k.give(status.get())
    return k


def _emit_call(target: Target) -> Function:
    """``i64 call(words, function, argument, other)``: a function of one argument and the words of `StopField`."""
    names = ("words", "function", "argument", "other")
    k = Function("call", target, [(name, I64) for name in names], returns=I64)
    watched = Watched(k, k["words"], k["other"])
    with watched.watching(), _unlocked(k):
        k.call_address(k.pointer(k["function"], I64).address, None, k["argument"], watched.stop)
    k.give(0)
    return k


@contextmanager
def _unlocked(k: Function) -> Iterator[None]:
    """The block runs without the interpreter's lock."""
    saved = k.variable(PTR, k.call("PyEval_SaveThread", PTR))
    yield
    k.call("PyEval_RestoreThread", VOID, saved.get())
