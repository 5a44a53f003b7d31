"""Loops, branches and variables of the kernel language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sardonyx.compiler.llvm.function_text import FunctionText
from sardonyx.compiler.llvm.types import BOOL, I64, PTR, Type
from sardonyx.compiler.llvm.values import Carried, Value, Variable

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function

Given = TypeVar("Given")

_NAMED = re.compile(r"%[\w.]+")
_DEFINED = re.compile(r"\s*(%[\w.]+) = ")


class ControlFlow(FunctionText):
    """Blocks that run often, or not at all, or apart."""

    def variable(self, type_: Type, start: Any = None) -> Variable:
        """A place for values of a type, with `start` in it from here on."""
        self._count += 1
        slot = f"%s{self._count}"
        self._types[slot] = PTR
        self._entry.append(f"  {slot} = alloca {type_}")
        variable = Variable(cast("Function", self), slot, type_)
        if start is not None:
            variable.set(start)
        return variable

    @contextmanager
    def loop(self, begin: Any, end: Any, step: Any = 1, carried: Sequence[Carried] = ()) -> Iterator[Value]:
        """``for i in range(begin, end, step)`` with a positive step, over i64.

        Values that are `carried` begin as they are here, and stay as the last turn left them.
        """
        begin, end, step = (self.coerce(bound, I64) for bound in (begin, end, step))
        before, head, body, done = self._block, self.label("head"), self.label("body"), self.label("done")
        self._count += 1
        index, following = f"%i{self._count}", f"%n{self._count}"
        self._types[index] = self._types[following] = I64
        self.line(f"br label %{head}")
        self.start_block(head)
        place = len(self._lines)
        starts = [one.get() for one in carried]
        self._lines += [""] * (1 + len(starts))
        turns = [self._phi(start.type) for start in starts]
        for one, turn in zip(carried, turns, strict=True):
            one.set(turn)
        test = self.emit(BOOL, f"icmp slt i64 {index}, {end.name}")
        self.line(f"br i1 {test.name}, label %{body}, label %{done}")
        self.start_block(body)
        yield self.named(index, I64)
        latch = self._block
        self.line(f"{following} = add nsw i64 {index}, {step.name}")
        self._lines[place] = f"  {index} = phi i64 [ {begin.name}, %{before} ], [ {following}, %{latch} ]"
        for number, (one, start, turn) in enumerate(zip(carried, starts, turns, strict=True), place + 1):
            incoming = f"[ {start.name}, %{before} ], [ {one.get().name}, %{latch} ]"
            self._lines[number] = f"  {turn.name} = phi {turn.type} {incoming}"
            one.set(turn)
        self.line(f"br label %{head}")
        self.start_block(done)

    def _phi(self, type_: Type) -> Value:
        """A value whose instruction is written when the loop is known."""
        self._count += 1
        name = f"%v{self._count}"
        self._types[name] = type_
        return self.named(name, type_)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The block as a function of its own, called here: it takes no registers from the loops around it.

        LLVM keeps the constants of an expensive expression in registers throughout a function, which spills the
        accumulators of a loop elsewhere. Values of the block cannot be used after it; variables from outside that it
        uses live in memory.
        """
        outside = self._lines, self._entry, self._block
        self._lines, self._entry, self._block = [], [], "entry"
        yield
        lines, entry = self._lines, self._entry
        self._lines, self._entry, self._block = outside
        labels = {f"%{line[:-1]}" for line in lines if line.endswith(":")} | {"%entry"}
        inside = {match.group(1) for line in (*entry, *lines) if (match := _DEFINED.match(line))}
        used = dict.fromkeys(name for line in lines for name in _NAMED.findall(line))
        given = [self.named(name, self._types[name]) for name in used if name not in inside and name not in labels]
        name = f"{self.name}.part{len(self._parts)}"
        parameters = ", ".join(f"{value.type} {value.name}" for value in given)
        self._parts.append(
            "\n".join(
                [
                    f"define internal void @{name}({parameters}) noinline {self.target.function_attributes()} {{",
                    "entry:",
                    *entry,
                    *lines,
                    "  ret void",
                    "}",
                ]
            )
        )
        self.line(f"call void @{name}({parameters})")

    def abreast(self, strands: Sequence[Callable[[], Given]]) -> list[Given]:
        """What some pieces of code give, none of which reads what another one writes: their instructions in turns.

        A processor looks only so far ahead for instructions that need not wait, less far than a long chain of them
        takes. Pieces with blocks of their own follow one another.
        """
        outside, written, given = self._lines, [], []
        for strand in strands:
            self._lines = []
            given.append(strand())
            written.append(self._lines)
        self._lines = outside
        if any(line.endswith(":") for lines in written for line in lines):
            self._lines.extend(line for lines in written for line in lines)
        else:
            self._lines.extend(line for lines in zip_longest(*written) for line in lines if line is not None)
        return given

    @contextmanager
    def loop_while(self, condition: Any) -> Iterator[None]:
        """``while condition()``: the callable emits the test, before every turn."""
        head, body, done = self.label("while"), self.label("body"), self.label("done")
        self.line(f"br label %{head}")
        self.start_block(head)
        test = condition()
        self.line(f"br i1 {test.name}, label %{body}, label %{done}")
        self.start_block(body)
        yield
        self.line(f"br label %{head}")
        self.start_block(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The block runs where the condition holds."""
        yes, after = self.label("then"), self.label("after")
        self.line(f"br i1 {condition.name}, label %{yes}, label %{after}")
        self.start_block(yes)
        yield
        self.line(f"br label %{after}")
        self.start_block(after)

    @contextmanager
    def otherwise(self, condition: Value) -> Iterator[None]:
        """The block runs where the condition does not hold: put it after `when` with the same one."""
        no, after = self.label("else"), self.label("after")
        self.line(f"br i1 {condition.name}, label %{after}, label %{no}")
        self.start_block(no)
        yield
        self.line(f"br label %{after}")
        self.start_block(after)

    def choose(self, selector: Value, cases: Sequence[int]) -> Iterator[int]:
        """One block per case, of which the one whose number `selector` is runs; none runs for another number."""
        after = self.label("after")
        labels = [self.label("case") for _ in cases]
        spelled = " ".join(f"{selector.type} {case}, label %{label}" for case, label in zip(cases, labels, strict=True))
        self.line(f"switch {selector.type} {selector.name}, label %{after} [ {spelled} ]")
        for case, label in zip(cases, labels, strict=True):
            self.start_block(label)
            yield case
            self.line(f"br label %{after}")
        self.start_block(after)
