"""Steps that move heads: with a bias, with rotary embedding, into a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.compiler.binding import Address, Argument, Binder, Tensor
from sardonyx.compiler.llvm.kernels.attention.heads import TurnSpec, emit_carry, emit_turn
from sardonyx.compiler.native.attention.attention_call import Heads
from sardonyx.light_dataclass import dataclass

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

    def arguments(self) -> list[Argument]:
        return [self.lengths, self.add, self.back, self.last]


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
    arguments: list[Argument] = [source.address, *source.strides, target.address, *target.strides]
    arguments += [source.batch, source.rows, source.heads, source.size, items, per_chunk]
    arguments.append(0 if bias is None else Address(bias.buffer, bias.offset + bias_start * bias.dtype.itemsize))
    if rotary is None:
        arguments += [0, 0, 0, 1]
    else:
        arguments += [rotary.cosine, rotary.sine, rotary.half, rotary.cosine.size // max(1, rotary.half)]
    if positions is not None and positions.size > 1:
        arguments += [positions, *positions.strides[-2:]]
    elif positions is not None:
        arguments += [positions, 0, 0]
    else:
        arguments += [0, 0 if rotary is None else rotary.batch_step, 0]
    arguments += [0, 0, 0, 0] if start is None else start.arguments()
    arguments.append(int(moves))
    arguments.append(0 if rotary is None else binder.fault(_outside(rotary)))
    read: list[Tensor] = [source.tensor]
    read += [one for one in (bias, positions, None if start is None else start.lengths) if one is not None]
    if rotary is not None:
        read += [rotary.cosine, rotary.sine]
    binder.step(
        emit_turn,
        spec,
        arguments,
        reads=read,
        writes=(target.tensor,),
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
    last = min(start.last, 0 if past is None else past.shape[2])
    source: Sequence[Argument] = (0, 0, 0)
    if past is not None:
        source = (past, past.strides[0] * item, past.strides[1] * item)
    arguments: list[Argument] = [*source, present, present.strides[0] * item, present.strides[1] * item, rows]
    arguments += [heads, size * item, new_rows, start.lengths, start.add, start.back, last]
    fault = binder.fault(
        lambda length: ValueError(
            f"'seqlens_k' {length} does not fit {new_rows} new keys and total length {start.most}"
        )
    )
    arguments += [start.least - start.add, start.most - start.add, fault]
    read = [start.lengths] if past is None else [past, start.lengths]
    binder.step(emit_carry, start.lengths.dtype.name, arguments, reads=read, writes=(present,), chunks=batch * heads)


def appended(binder: Binder, past: Tensor, new: Heads) -> Tensor:
    """Room for a cache (batch, heads, past rows + new rows, size)."""
    batch, heads, before, size = past.shape
    if (batch, heads, size) != (new.batch, new.heads, new.size):
        raise ValueError(
            f"a past of shape {past.shape} does not fit new keys or values of batch {new.batch}, {new.heads} heads "
            f"and size {new.size}"
        )
    return binder.new(past.dtype, (batch, heads, before + new.rows, size))
