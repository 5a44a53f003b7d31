"""The program that executes kernels inside the emulator, written in the kernel language like the kernels themselves.

It maps the memory that it shares with the test and then serves calls: each is seven words from standard input, a
function and six integers or addresses for it. On standard output come words by threes: a 0 and the function's result
when it returns, else the number of a function of `MATHEMATICS`, from 1, and its arguments, to be answered by its value.
It has no C library: the few functions of one that generated code calls are part of it.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I8, I32, I64, PTR, Type

# Where the shared memory lies for the kernels.
BASE = 1 << 36

_READ, _WRITE, _EXIT, _YIELD, _CLOCK, _MAP, _PROCESSOR = 63, 64, 94, 124, 113, 222, 168
_SET_AFFINITY, _GET_AFFINITY = 122, 123
_READ_WRITE_EXECUTE = 7
_SHARED_FIXED = 0x11
_CALL_WORDS = 7
_ANSWER_WORDS = 3

# What kernels use of C's mathematics: the name, how many arguments, of which type.
MATHEMATICS = (("sin", 1, F64), ("cos", 1, F64), ("tan", 1, F64), ("fmod", 2, F64), ("fmodf", 2, F32))
_CALL_SYSTEM, _RETURN = 0xD4000001, 0xD65F03C0  # svc #0; ret


def modules(target: Target, nbytes: int) -> list[str]:
    """The texts of the program: its start, and the functions that kernels call. `nbytes` of memory are shared."""
    return [
        _start(target, nbytes),
        _system_call_of_c(target),
        _system_call(target, "clock_gettime", _CLOCK, [("clock", I32), ("place", PTR)]),
        _system_call(target, "sched_yield", _YIELD, []),
        _system_call(target, "sched_setaffinity", _SET_AFFINITY, [("thread", I32), ("count", I64), ("mask", PTR)]),
        _system_call(target, "sched_getaffinity", _GET_AFFINITY, [("thread", I32), ("count", I64), ("mask", PTR)]),
        _processor(target),
        _thread(target),
        _copy(target, "memcpy"),
        _move(target),
        _fill(target),
        *(_mathematics(target, number) for number in range(len(MATHEMATICS))),
    ]


def _system(k: Function, number: int, *arguments: Value | int) -> Value:
    """A call of the Linux kernel."""
    values = [k.coerce(argument, I64) for argument in (number, *arguments)]
    values += [k.constant(I64, 0)] * (7 - len(values))
    return k.call("syscall", I64, *values)


def _word(pointer: Value) -> Value:
    return pointer.function.emit(I64, f"ptrtoint ptr {pointer.name} to i64")


def _thread(target: Target) -> str:
    """The C library's ``pthread_self``: there is one thread."""
    k = Function("pthread_self", target, [], returns=I64)
    k.give(1)
    return k.finish()


def _start(target: Target, nbytes: int) -> str:
    """The first word on standard input is the descriptor of the shared memory; then come the calls, until its end."""
    k = Function("_start", target, [])
    words = k.stack(I64, _CALL_WORDS)
    place = _word(words.address)
    _system(k, _READ, 0, place, 8)
    mapped = _system(k, _MAP, BASE, nbytes, _READ_WRITE_EXECUTE, _SHARED_FIXED, words.load(), 0)
    with k.when(mapped.differs(BASE)):
        _system(k, _EXIT, 1)
    whole = 8 * _CALL_WORDS
    with k.loop_while(lambda: _system(k, _READ, 0, place, whole).equals(whole)):
        function = k.pointer(words.load(), I8).address
        result = k.call_address(function, I64, *(words.load(index) for index in range(1, _CALL_WORDS)))
        words.store(0)
        words.store(result, 1)
        _system(k, _WRITE, 1, place, 8 * _ANSWER_WORDS)
    _system(k, _EXIT, 0)
    return k.finish()


def _system_call_of_c(target: Target) -> str:
    """The C library's ``syscall``, given in machine code, because llvmlite has no assembler for other machines.

    The number goes to x8, each argument one register down. Further arguments of a function that takes a variable
    number come in registers on Linux as if they were named.
    """
    moves = [_move_register(8, 0), *(_move_register(index, index + 1) for index in range(6))]
    code = ", ".join(f"i32 {word}" for word in (*moves, _CALL_SYSTEM, _RETURN))
    return "\n".join(
        [
            f'target triple = "{target.triple}"',
            f"define i64 @syscall(i64, ...) {target.function_attributes()} prologue [9 x i32] [{code}] {{",
            "  ret i64 0",
            "}",
            "",
        ]
    )


def _move_register(to: int, source: int) -> int:
    """``mov x{to}, x{source}``"""
    return 0xAA0003E0 | source << 16 | to


def _system_call(target: Target, name: str, number: int, parameters: list[tuple[str, Type]]) -> str:
    k = Function(name, target, parameters, I32)
    arguments = [_word(k[key]) if type_ == PTR else k[key].to(I64) for key, type_ in parameters]
    k.give(_system(k, number, *arguments).to(I32))
    return k.finish()


def _processor(target: Target) -> str:
    k = Function("sched_getcpu", target, [], I32)
    number = k.stack(I32, 1)
    _system(k, _PROCESSOR, _word(number.address), 0, 0)
    k.give(number.load())
    return k.finish()


def _copy(target: Target, name: str) -> str:
    k = Function(name, target, [("to", PTR), ("from", PTR), ("count", I64)], PTR)
    to, source = k.pointer("to", I8), k.pointer("from", I8)
    with k.loop(0, k["count"]) as i:
        to.store(source.load(i), i)
    k.give(k["to"])
    return k.finish()


def _move(target: Target) -> str:
    k = Function("memmove", target, [("to", PTR), ("from", PTR), ("count", I64)], PTR)
    to, source, count = k.pointer("to", I8), k.pointer("from", I8), k["count"]
    forwards = _word(k["to"]) < _word(k["from"])
    with k.loop(0, count) as i:
        place = k.select(forwards, i, count - 1 - i)
        to.store(source.load(place), place)
    k.give(k["to"])
    return k.finish()


def _fill(target: Target) -> str:
    k = Function("memset", target, [("to", PTR), ("byte", I32), ("count", I64)], PTR)
    to = k.pointer("to", I8)
    with k.loop(0, k["count"]) as i:
        to.store(k["byte"].to(I8), i)
    k.give(k["to"])
    return k.finish()


def _mathematics(target: Target, number: int) -> str:
    """A function of C's mathematics, which the test's own process computes: it is asked in the middle of a call."""
    name, count, scalar = MATHEMATICS[number]
    k = Function(name, target, [(f"x{index}", scalar) for index in range(count)], scalar)
    words = k.stack(I64, _ANSWER_WORDS)
    words.store(1 + number)
    for index in range(count):
        words.store(k[f"x{index}"].to(F64).bits_as(I64), 1 + index)
    _system(k, _WRITE, 1, _word(words.address), 8 * _ANSWER_WORDS)
    _system(k, _READ, 0, _word(words.address), 8)
    k.give(words.load().bits_as(F64).to(scalar))
    return k.finish()
