"""What happens to heads on their way to attention: biases, rotary embedding, their place in a cache.

`emit_turn` writes (batch, rows, heads, size) elsewhere, channels turned or biased on the way; `emit_carry` brings the
past of a cache whose length is known only while it runs.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.narrow_floats import narrowed, widened
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I64, Type, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass

TURN_ARGUMENTS = (
    *("source", "source_batch", "source_row", "source_head"),
    *("target", "target_batch", "target_row", "target_head"),
    *("batch", "rows", "heads", "size", "items", "per_chunk"),
    *("bias", "cosine", "sine", "half", "angles"),
    *("positions", "position_batch", "position_row"),
    *("lengths", "length_add", "length_back", "last_start", "moves", "fault"),
)

CARRY_ARGUMENTS = (
    *("past", "past_batch", "past_head"),
    *("present", "present_batch", "present_head", "present_rows"),
    *("heads", "row_bytes", "new_rows", "lengths", "length_add", "length_back", "last_start"),
    *("least", "most", "fault"),
)


@dataclass(frozen=True)
class TurnSpec:
    """A kernel that moves heads.

    - `rotary`: "" (none), "halves" (channel i turns with i + half) or "pairs" (2i with 2i + 1).
    - `positions`: dtype of the numbers of the rows of the caches, or "": they count from the entry's start.
    - `lengths`: dtype of each entry's keys, or "": its start is `length_back` before their end, between 0 and
      `last_start`; where `moves` is 1, rows are written from there on.
    - `bias`: whether a bias (heads, size) is added before anything else.
    """

    storage: str
    rotary: str = ""
    positions: str = ""
    lengths: str = ""
    bias: bool = False


def start_of_entry(k: Function, given: dict[str, Value], lengths: str, batch: Value) -> Value:
    """Where an entry's new rows go: `length_back` before its end, from 0 to `last_start`."""
    if not lengths:
        return k.constant(I64, 0)
    length = k.pointer(given["lengths"], _scalar(lengths)).load(batch).to(I64) + given["length_add"]
    return minimum(k, k.larger(length - given["length_back"], 0), given["last_start"])


def note_fault(k: Function, fault: Value, condition: Value, number: Value) -> None:
    """Note a number that must be refused; see `Binder.fault`."""
    with k.when(condition):
        note = k.pointer(fault, I64)
        note.store(number, 1)
        note.store(1, 0)


def _scalar(dtype: str) -> Type:
    found = type_of(np.dtype(dtype))
    assert found is not None
    return found


def emit_turn(target: Target, spec: TurnSpec) -> str:
    """The kernel of `spec`; `per_chunk` rows (of all entries, one after the other) are a chunk."""
    k, words = kernel_frame(target)
    given = {name: words.load(index) for index, name in enumerate(TURN_ARGUMENTS)}
    turn = _Turn(k, spec, given)
    begin, end = share(k, given["items"], given["per_chunk"])
    with k.loop(begin, end) as item:
        turn.row(item // given["rows"], item % given["rows"])
    return k.finish()


class _Turn:
    """One row of all heads."""

    def __init__(self, k: Function, spec: TurnSpec, given: dict[str, Value]) -> None:
        self.k, self.spec, self.given = k, spec, given
        self.storage = _scalar(spec.storage)
        self.compute = F64 if self.storage == F64 else F32
        self.lanes = k.target.lanes(self.compute)

    def row(self, batch: Value, row: Value) -> None:
        k, given = self.k, self.given
        start = start_of_entry(k, given, self.spec.lengths, batch)
        source = k.pointer(given["source"], self.storage).offset(
            batch * given["source_batch"] + row * given["source_row"]
        )
        target = k.pointer(given["target"], self.storage).offset(
            batch * given["target_batch"] + row * given["target_row"]
        )
        if self.spec.lengths:
            target = target.offset(start * given["moves"] * given["target_row"])
        angle = self._angle(batch, row, start) * given["half"] if self.spec.rotary else None
        with k.loop(0, given["heads"]) as head:
            read = source.offset(head * given["source_head"])
            write = target.offset(head * given["target_head"])
            bias = k.pointer(given["bias"], self.storage).offset(head * given["size"]) if self.spec.bias else None
            copied = k.constant(I64, 0)
            if angle is not None:
                self._rotate(read, write, angle)
                copied = given["half"] * 2
            self._copy(read, write, bias, copied)

    def _angle(self, batch: Value, row: Value, start: Value) -> Value:
        """The row of the caches; one outside of them is noted as a fault."""
        k, given = self.k, self.given
        if self.spec.positions:
            place = batch * given["position_batch"] + row * given["position_row"]
            position = k.pointer(given["positions"], _scalar(self.spec.positions)).load(place).to(I64)
            position = position + k.select(given["position_row"].equals(0), row, 0)
        else:
            position = start + batch * given["position_batch"] + row
        inside = minimum(k, k.larger(position, 0), given["angles"] - 1)
        note_fault(k, given["fault"], position.differs(inside), position)
        return inside

    def _load(self, place: Pointer, at: Value, mask: Value) -> Value:
        return widened(place.load(at, self.lanes, mask), self.compute)

    def _rotate(self, read: Pointer, write: Pointer, angle: Value) -> None:
        k, half = self.k, self.given["half"]
        cosines = k.pointer(self.given["cosine"], self.storage).offset(angle)
        sines = k.pointer(self.given["sine"], self.storage).offset(angle)
        pairs = self.spec.rotary == "pairs"
        lanes = self.lanes
        with k.loop(0, half, lanes) as at:
            mask = k.lanes_below(half - at, lanes)
            cosine, sine = self._load(cosines, at, mask), self._load(sines, at, mask)
            if pairs:
                both = k.lanes_below((half - at) * 2, 2 * lanes)
                values = widened(read.load(at * 2, 2 * lanes, both), self.compute)
                real = k.shuffle(values, None, range(0, 2 * lanes, 2))
                imaginary = k.shuffle(values, None, range(1, 2 * lanes, 2))
            else:
                real, imaginary = self._load(read, at, mask), self._load(read, at + half, mask)
            first = real * cosine - imaginary * sine
            second = imaginary * cosine + real * sine
            if pairs:
                mixed = k.shuffle(first, second, [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)])
                write.store(narrowed(k, mixed, self.storage), at * 2, both)
            else:
                write.store(narrowed(k, first, self.storage), at, mask)
                write.store(narrowed(k, second, self.storage), at + half, mask)

    def _copy(self, read: Pointer, write: Pointer, bias: Pointer | None, start: Value) -> None:
        k, size = self.k, self.given["size"]
        with k.loop(start, size, self.lanes) as at:
            mask = k.lanes_below(size - at, self.lanes)
            if bias is None:
                write.store(read.load(at, self.lanes, mask), at, mask)
            else:
                total = self._load(read, at, mask) + self._load(bias, at, mask)
                write.store(narrowed(k, total, self.storage), at, mask)


def emit_carry(target: Target, lengths: str) -> str:
    """A kernel that brings each entry's past into the present cache and clears what follows the new rows.

    A chunk is a head of an entry. `lengths` is the dtype of each entry's keys with the new rows; a number that is not
    from `least` to `most` is noted as a fault. Where both caches are the same memory there is nothing to bring.
    """
    k, words = kernel_frame(target)
    given = {name: words.load(index) for index, name in enumerate(CARRY_ARGUMENTS)}
    u8 = Type("u", 8)
    with k.loop(k["begin"], k["end"]) as chunk:
        length = k.pointer(given["lengths"], _scalar(lengths)).load(chunk // given["heads"]).to(I64)
        note_fault(k, given["fault"], (length < given["least"]) | (length > given["most"]), length)
    with k.when(given["past"].differs(given["present"])), k.loop(k["begin"], k["end"]) as chunk:
        batch, head = chunk // given["heads"], chunk % given["heads"]
        start = start_of_entry(k, given, lengths, batch)
        row_bytes = given["row_bytes"]
        past = k.pointer(given["past"], u8).offset(batch * given["past_batch"] + head * given["past_head"])
        present = k.pointer(given["present"], u8).offset(batch * given["present_batch"] + head * given["present_head"])
        k.copy(present, past, start * row_bytes)
        behind = (start + given["new_rows"]) * row_bytes
        lanes = target.vector_bits // 8
        end = given["present_rows"] * row_bytes
        whole = behind + (k.larger(end - behind, 0) & -lanes)
        with k.loop(behind, whole, lanes) as at:
            present.store(k.constant(u8.vector(lanes), 0), at)
        with k.loop(whole, end) as at:
            present.store(k.constant(u8, 0), at)
    return k.finish()
