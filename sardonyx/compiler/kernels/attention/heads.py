"""Steps that move heads: with a bias, with rotary embedding, into a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Write, kernel, sizes
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.bound_step import Shifted
from sardonyx.compiler.kernels.attention.attention_call import Heads
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.narrow_floats import narrowed, widened
from sardonyx.compiler.llvm.types import F32, F64, I64, U8, dtype_type
from sardonyx.compiler.llvm.walk import share
from sardonyx.light_dataclass import dataclass


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


def start_of_entry(k: Function, given: Mapping[str, Value], lengths: str, batch: Value) -> Value:
    """Where an entry's new rows go: `length_back` before its end, from 0 to `last_start`."""
    if not lengths:
        return k.constant(I64, 0)
    length = k.pointer(given["lengths"], dtype_type(lengths)).load(batch).to(I64) + given["length_add"]
    return minimum(k, k.larger(length - given["length_back"], 0), given["last_start"])


def note_fault(k: Function, fault: Value, condition: Value, number: Value) -> None:
    """Note a number that must be refused; see `Binder.fault`."""
    with k.when(condition):
        note = k.pointer(fault, I64)
        note.store(number, 1)
        note.store(1, 0)


class TurnArguments(Record):
    source = Read()
    source_batch, source_row, source_head = sizes(3)
    target = Write()
    target_batch, target_row, target_head, batch, rows, heads, size = sizes(7)
    items = Size()  # rows of all entries
    per_chunk = Size()
    bias = Read()
    cosine = Read()
    sine = Read()
    half = Size()
    angles = Size()  # rows of the caches
    positions = Read()
    position_batch, position_row = sizes(2)
    lengths = Read()
    length_add, length_back, last_start, moves = sizes(4)
    fault = ErrorSlot()


@kernel(TurnArguments)
def emit_turn(k: Function, a: TurnArguments, spec: TurnSpec) -> None:
    """`per_chunk` rows (of all entries, one after the other) are a chunk."""
    given = a.loaded()
    turn = _Turn(k, spec, given)
    begin, end = share(k, given["items"], given["per_chunk"])
    with k.loop(begin, end) as item:
        turn.row(item // given["rows"], item % given["rows"])


class _Turn:
    """One row of all heads."""

    def __init__(self, k: Function, spec: TurnSpec, given: Mapping[str, Value]) -> None:
        self.k, self.spec, self.given = k, spec, given
        self.storage = dtype_type(spec.storage)
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
            position = k.pointer(given["positions"], dtype_type(self.spec.positions)).load(place).to(I64)
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


class CarryArguments(Record):
    past = Read()
    past_batch, past_head = sizes(2)
    present = Write()
    present_batch, present_head, present_rows, heads, row_bytes, new_rows = sizes(6)
    lengths = Read(dtype_type)
    length_add, length_back, last_start, least, most = sizes(5)
    fault = ErrorSlot()


@kernel(CarryArguments)
def emit_carry(k: Function, a: CarryArguments, lengths: str) -> None:
    """Bring each entry's past into the present cache and clear what follows the new rows.

    A chunk is a head of an entry. `lengths` is the dtype of each entry's keys with the new rows; a number that is not
    from `least` to `most` is noted as an error. Where both caches are the same memory there is nothing to bring.
    """
    given = a.loaded()
    with k.loop(k["begin"], k["end"]) as chunk:
        length = k.pointer(given["lengths"], dtype_type(lengths)).load(chunk // given["heads"]).to(I64)
        note_fault(k, given["fault"], (length < given["least"]) | (length > given["most"]), length)
    with k.when(given["past"].differs(given["present"])), k.loop(k["begin"], k["end"]) as chunk:
        batch, head = chunk // given["heads"], chunk % given["heads"]
        start = start_of_entry(k, given, lengths, batch)
        row_bytes = given["row_bytes"]
        past = k.pointer(given["past"], U8).offset(batch * given["past_batch"] + head * given["past_head"])
        present = k.pointer(given["present"], U8).offset(batch * given["present_batch"] + head * given["present_head"])
        k.copy(present, past, start * row_bytes)
        behind = (start + given["new_rows"]) * row_bytes
        lanes = k.target.vector_bits // 8
        end = given["present_rows"] * row_bytes
        whole = behind + (k.larger(end - behind, 0) & -lanes)
        with k.loop(behind, whole, lanes) as at:
            present.store(k.constant(U8.vector(lanes), 0), at)
        with k.loop(whole, end) as at:
            present.store(k.constant(U8, 0), at)


# What is given of where rows start if nothing is known of it.
_NO_START: dict[str, Any] = {"lengths": None, "length_add": 0, "length_back": 0, "last_start": 0}

# Bytes that one chunk moves.
_CHUNK_BYTES = 32 << 10


@dataclass(frozen=True)
class Rotary:
    """Caches (positions, half) of cosines and sines, and where each row's angle is.

    `positions` (batch, rows) numbers the rows of the caches; one number is that of each entry's first row; without it
    rows count from the entry's start, or from `batch_step` times the entry.
    """

    cosine: Tensor
    sine: Tensor
    interleaved: bool = False
    positions: Tensor | None = None
    batch_step: int = 0

    @property
    def half(self) -> int:
        return self.cosine.shape[-1]


@dataclass(frozen=True)
class Start:
    """Where each entry's new rows begin in the cache: `back` before the end that `lengths` + `add` tells."""

    lengths: Tensor
    add: int
    back: int
    last: int  # the last place that leaves room for the new rows
    least: int  # the smallest end
    most: int  # the largest end

    def words(self) -> dict[str, Any]:
        return {
            "lengths": self.lengths,
            "length_add": self.add,
            "length_back": self.back,
            "last_start": self.last,
        }


def _outside(rotary: Rotary) -> Callable[[int], Exception]:
    rows = rotary.cosine.size // max(1, rotary.half)
    return lambda position: ValueError(f"'cos_cache' has {rows} rows; positions go from {position} to {position}")


def new_heads(binder: Binder, like: Heads) -> Heads:
    """Room for heads of the same sizes: (batch, rows, heads, size)."""
    width = like.heads * like.size
    tensor = binder.new(like.tensor.dtype, (like.batch, like.rows, width))
    return Heads(tensor, like.batch, like.rows, like.heads, like.size, (like.rows * width, width, like.size))


def turn(
    binder: Binder,
    source: Heads,
    target: Heads,
    *,
    rotary: Rotary | None = None,
    bias: Tensor | None = None,
    bias_start: int = 0,
    start: Start | None = None,
    moves: bool = False,
) -> None:
    """Write heads to `target`, biased or turned; with `moves`, each entry's rows from its start on."""
    if bias is not None and rotary is not None:
        raise ValueError("a bias is added before heads are turned, in a step of its own")
    positions = None if rotary is None else rotary.positions
    spec = TurnSpec(
        source.tensor.dtype.name,
        "" if rotary is None else "pairs" if rotary.interleaved else "halves",
        "" if positions is None else positions.dtype.name,
        "" if start is None else start.lengths.dtype.name,
        bias is not None,
    )
    row_bytes = source.heads * source.size * source.tensor.dtype.itemsize
    items = source.batch * source.rows
    per_chunk = max(1, _CHUNK_BYTES // max(1, row_bytes))
    cosine, sine, half, angles = None, None, 0, 1
    if rotary is not None:
        cosine, sine, half, angles = rotary.cosine, rotary.sine, rotary.half, rotary.cosine.size // max(1, rotary.half)
    position_batch = 0 if rotary is None else rotary.batch_step
    position_row = 0
    if positions is not None:
        position_batch, position_row = positions.strides[-2:] if positions.size > 1 else (0, 0)
    binder.step(
        emit_turn,
        spec,
        TurnArguments(
            **source.words("source"),
            **target.words("target"),
            batch=source.batch,
            rows=source.rows,
            heads=source.heads,
            size=source.size,
            items=items,
            per_chunk=per_chunk,
            bias=None if bias is None else Shifted(bias, bias_start * bias.dtype.itemsize),
            cosine=cosine,
            sine=sine,
            half=half,
            angles=angles,
            positions=positions,
            position_batch=position_batch,
            position_row=position_row,
            **_NO_START if start is None else start.words(),
            moves=int(moves),
            fault=None if rotary is None else binder.fault(_outside(rotary)),
        ),
        chunks=-(-items // per_chunk),
        nbytes=2.0 * items * row_bytes,
        detail=lambda: (
            f"{items} rows of {row_bytes} bytes{', biased' if bias is not None else ', rotated' if rotary else ''}"
        ),
    )


def carry(binder: Binder, past: Tensor | None, present: Tensor, new_rows: int, start: Start) -> None:
    """Bring the past of a cache (batch, heads, rows, size) into the present one, and clear what follows the new rows.

    Nothing happens where both turn out to be the same memory.
    """
    item = present.dtype.itemsize
    batch, heads, rows, size = present.shape
    fault = binder.fault(
        lambda length: ValueError(
            f"'seqlens_k' {length} does not fit {new_rows} new keys and total length {start.most}"
        )
    )
    arguments = CarryArguments(
        past=past,
        past_batch=0 if past is None else past.strides[0] * item,
        past_head=0 if past is None else past.strides[1] * item,
        present=present,
        present_batch=present.strides[0] * item,
        present_head=present.strides[1] * item,
        present_rows=rows,
        heads=heads,
        row_bytes=size * item,
        new_rows=new_rows,
        **start.words() | {"last_start": min(start.last, 0 if past is None else past.shape[2])},
        least=start.least - start.add,
        most=start.most - start.add,
        fault=fault,
    )
    binder.step(emit_carry, start.lengths.dtype.name, arguments, chunks=batch * heads)


def appended(binder: Binder, past: Tensor, new: Heads) -> Tensor:
    """Room for a cache (batch, heads, past rows + new rows, size)."""
    batch, heads, before, size = past.shape
    if (batch, heads, size) != (new.batch, new.heads, new.size):
        raise ValueError(
            f"a past of shape {past.shape} does not fit new keys or values of batch {new.batch}, {new.heads} heads "
            f"and size {new.size}"
        )
    return binder.new(past.dtype, (batch, heads, before + new.rows, size))
