"""The loop of a recurrent layer over time: products with the hidden state, gates, cell and state in one pass.

A turn is one stage of a time step (`ops.recurrent_cells.Stage`); its blocks are some units of one direction for some
rows of the batch. The gates of a unit lie beside each other in R's panels, so that all of them are there when the
products are summed up, and the expressions of the stage follow at once. The hidden state is kept twice, the old and
the new one, so that a turn only reads what the turns before it wrote.

Sums run over the hidden units in order, or in every second time step from the last one, in as many interleaved parts
as hide the time of a multiply-add: a block computes the same whoever does it.

Recurrent weights may be kept as bfloat16: they are multiplied in float32 all the same, and half as much is read.

Where the recurrent weights are bytes, each time step begins with a turn that quantises the hidden state
(`quantized_states`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Update, kernel, sizes
from sardonyx.compiler.kernels.recurrent.quantized_states import WORD, Quantization, quantize_state, real_sums
from sardonyx.compiler.kernels.recurrent.seats import Turns, take_strands, take_turns
from sardonyx.compiler.kernels.recurrent.unit_rows import BLOCK_VECTORS, block_units, half_of, write_units
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.expression import emit_working
from sardonyx.compiler.llvm.kernels.products.gemm_product import multiply_bytes
from sardonyx.compiler.llvm.types import F32, I32, I64, U8, U16, U32, Type
from sardonyx.compiler.llvm.walk import note
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.recurrent_cells import Cell, Stage

# Rows of the batch whose sums are in registers at once.
_MOST_ROWS = 8


@dataclass(frozen=True)
class RecurrentSpec:
    """`cells` has a time step for each direction, or one for all; `by_strands`: a chunk is a direction of a group of
    rows of the batch, with all of its turns, instead of a seat; `asks_for_input`: the projected input comes from far
    away; `alternates`: sums run over the units from the last to the first in every second time step, so that the first
    cache still has what they begin with; `halves`: R's panels are of bfloat16; `quantization` is that of the state, if
    it is multiplied in bytes; the rest says which arguments are there."""

    storage: Type
    working: Type
    cells: tuple[Cell, ...]
    has_biases: bool
    has_lengths: bool
    has_result: bool
    asks_ahead: bool
    by_strands: bool = False
    asks_for_input: bool = False
    alternates: bool = False
    halves: bool = False
    quantization: Quantization | None = None

    @property
    def turns(self) -> int:
        """The turns of a time step."""
        return len(self.cells[0].stages) + (self.quantization is not None)


class Arguments(Record):
    # The input's part of the gates, elements [gates, hidden] at places by direction, time and batch.
    projected = Read(lambda spec: spec.working)
    # R's panels for each stage; of bfloat16 with `halves`, in words of bytes for quantised states.
    panels0 = Read()
    panels1 = Read()
    planes = Update(lambda spec: spec.working)  # [2 + planes - 1, directions, batch, row]: hidden states twice, others
    biases = Read(lambda spec: spec.working)  # [directions, gates, row]
    peepholes = Read(lambda spec: spec.working)  # [directions, peepholes, row]
    lengths = Read(I32)  # [batch]
    result = Read(lambda spec: spec.storage)  # the hidden state at places by direction, time and batch; may be written
    shared = Update(I64)  # `seats.shared_words`, zeros; unused where chunks are strands
    seats = Size()  # how many threads may share a turn
    blocks = Size()  # of a turn
    turns = Size()  # stages of all time steps
    rounds = Size()  # sets of strands that have their turns one after the other
    steps, batch, hidden = sizes(3)
    row = Size()  # elements between rows of units, whole vectors
    unit_blocks = Size()  # blocks of units; a direction has them for every group of rows
    directions = Size()
    group = Size()  # rows of the batch in a block
    backwards = Size()  # 1 where the first direction runs backwards
    projected_direction, projected_time, projected_batch, result_direction, result_time, result_batch = sizes(6)
    ahead = Size()  # elements of the panels, ahead of those in use, that are asked for
    fault = ErrorSlot()  # a length that is no number of time steps
    # Of quantised states: their bytes, [directions, batch, row], their ranges, [directions, 2 + batch] as
    # `quantized_states` has them, and sums, zero points and scales of R's columns, [directions, gates, row].
    codes = Update(U8)
    ranges = Update(I32)
    column_sums = Read(I32)
    column_zeros = Read(I32)
    column_scales = Read(F32)

    def plane(self, which: Value | int, direction: Value) -> Pointer:
        """The first row of a direction in one of the planes."""
        row, batch, directions = self.row, self.batch, self.directions
        return self.planes.offset((directions * which + direction) * batch * row)

    def codes_of(self, direction: Value) -> Pointer:
        """The bytes of the first row of a direction."""
        return self.codes.offset(direction * self.batch * self.row)

    def ranges_of(self, direction: Value) -> Pointer:
        return self.ranges.offset(direction * (self.batch + 2))


@kernel(Arguments, cached=False)
def emit_recurrent(k: Function, a: Arguments, spec: RecurrentSpec) -> None:
    """The chunks are seats or strands."""

    def block(turn: Value, number: Value) -> None:
        _block(k, spec, a, turn, number)

    shared = a.shared
    turns = Turns(a.seats, a.blocks, a.turns, a.rounds, a.unit_blocks)
    if spec.by_strands:
        take_strands(k, turns, block)
    else:
        take_turns(k, shared, turns, block)


def _block(k: Function, spec: RecurrentSpec, a: Arguments, turn: Value, number: Value) -> None:
    unit_blocks, directions = a.unit_blocks, a.directions
    above = number // unit_blocks
    unit_block = number - above * unit_blocks
    group = above // directions
    direction = above - group * directions
    first = group * a.group
    end = k.smaller(first + a.group, a.batch)
    turns, kinds = spec.turns, len(spec.cells)
    time = turn // turns if turns > 1 else turn
    if turns * kinds == 1:
        _StageBlock(k, a, spec, spec.cells[0], 0).emit(time, direction, unit_block, first, end)
        return
    selector = turn - time * turns
    before = turns - len(spec.cells[0].stages)
    if before:
        with k.when(selector.equals(0) & unit_block.equals(0)):
            _quantize(k, spec, a, time, direction)
        selector = selector - 1
    if kinds > 1:
        selector = selector * kinds + direction
    for case in k.choose(selector, range((turns - before) * kinds)):
        stage, kind = divmod(case, kinds)
        _StageBlock(k, a, spec, spec.cells[kind], stage).emit(time, direction, unit_block, first, end)


def _quantize(k: Function, spec: RecurrentSpec, a: Arguments, time: Value, direction: Value) -> None:
    """Quantise the hidden state of a direction, all rows of the batch at once."""
    assert spec.quantization is not None
    sizes = a.batch, a.hidden, a.row
    state = a.plane(time & 1, direction)
    quantize_state(k, spec.quantization, sizes, state, a.codes_of(direction), a.ranges_of(direction))


class _StageBlock:
    """The units of a block in one stage of one kind of cell."""

    def __init__(self, k: Function, a: Arguments, spec: RecurrentSpec, cell: Cell, stage: int) -> None:
        self.k, self.a, self.spec, self.cell = k, a, spec, cell
        self.number = stage
        self.stage: Stage = cell.stages[stage]
        self.lanes = k.target.lanes(spec.working)
        self.units = block_units(k.target, spec.working)
        # Sums leave some registers for the numbers that they are made of. Many rows are better than many vectors: what
        # is read of a panel serves all of them.
        self.sums = k.target.registers * 3 // 4
        narrow = 1 if self.stage.count > 2 else BLOCK_VECTORS
        self.most_rows = min(_MOST_ROWS, self.sums // (self.stage.count * narrow))
        self.quantizes = spec.quantization is not None
        self.summed = I32 if self.quantizes else spec.working
        self.kept = U16 if spec.halves else self.summed
        self.room = k.stack(self.summed, self.most_rows * self.stage.count * self.units)

    def emit(self, time: Value, direction: Value, unit_block: Value, first: Value, end: Value) -> None:
        """Rows `first` to `end` of the batch, as many at once as registers hold."""
        k = self.k
        row = k.variable(I64, first)
        with k.loop_while(lambda: row.get() < end):
            now = row.get()
            count = k.smaller(end - now, self.most_rows)
            if self.spec.asks_for_input:
                self._ask_for_input(time, direction, unit_block, now, count)
            for rows in k.choose(count, range(1, self.most_rows + 1)):
                self._products(time, direction, unit_block, now, rows)
            with k.apart():
                self._gates(time, direction, unit_block, now, count)
            row.set(now + count)

    def _ask_for_input(self, time: Value, direction: Value, unit_block: Value, row: Value, rows: Value) -> None:
        """Ask for the input's part of the gates, which is there when the products are."""
        k, a = self.k, self.a
        backwards = self._runs_backwards(direction)
        with k.loop(0, rows) as index:
            moment, _ = self._moment(time, backwards, row + index)
            entering = self._entering(direction, moment, row + index).offset(unit_block * self.units)
            for gate in range(self.stage.count):
                line = entering.offset(a.hidden * (self.stage.first + gate))
                for part in range(BLOCK_VECTORS):
                    line.prefetch(part * self.lanes)

    def _products(self, time: Value, direction: Value, unit_block: Value, row: Value, rows: int) -> None:
        """The recurrent parts of the gates of `rows` rows into `room`, [rows, gates, units]."""
        a = self.a
        step = a.row
        panel = (
            (a.panels1 if self.number else a.panels0)
            .cast(self.kept)
            .offset((direction * a.unit_blocks + unit_block) * self._depth() * (self.stage.count * self.units))
        )
        if self.quantizes:
            step = step // WORD
            read = a.codes_of(direction).cast(I32).offset(row * step)
        else:
            read = a.plane(self._slot(time, self.stage.source), direction).offset(row * step)
        sources = [read.offset(step * index) for index in range(rows)]
        every = range(self.stage.count * BLOCK_VECTORS)
        if rows * len(every) <= self.sums:
            self._sums(time, direction, unit_block, panel, sources, every)
        else:
            for part in range(BLOCK_VECTORS):
                self._sums(time, direction, unit_block, panel, sources, every[part::BLOCK_VECTORS])

    def _depth(self) -> Value:
        """The elements that a row is multiplied by: hidden units, or words of them."""
        hidden = self.a.hidden
        return (hidden + (WORD - 1)) // WORD if self.quantizes else hidden

    def _sums(
        self,
        time: Value,
        direction: Value,
        unit_block: Value,
        panel: Pointer,
        sources: Sequence[Pointer],
        vectors: Sequence[int],
    ) -> None:
        """The sums of some vectors of a panel over all hidden units, for every row."""
        k, depth = self.k, self._depth()
        parts = max(1, k.target.registers // 2 // (len(sources) * len(vectors)))
        wide = self.summed.vector(self.lanes)
        sums = [[[k.variable(wide) for _ in vectors] for _ in sources] for _ in range(parts)]
        for part, row_sums in enumerate(sums):
            for place, vector in enumerate(vectors):
                start = self._bias(direction, unit_block, vector) if part == 0 else k.constant(wide, 0)
                for one in row_sums:
                    one[place].set(start)
        ahead = self.a.ahead if self.spec.asks_ahead and len(sources) == 1 else None
        whole = depth // parts * parts
        back = (time & 1).differs(0) if self.spec.alternates else None
        with k.loop(0, whole, parts) as index:
            unit = index if back is None else k.select(back, whole - parts - index, index)
            for part, row_sums in enumerate(sums):
                self._multiply_add(panel, sources, unit + part if part else unit, row_sums, vectors, ahead)
        if parts > 1:
            with k.loop(whole, depth) as unit:
                self._multiply_add(panel, sources, unit, sums[0], vectors, None)
        for row in range(len(sources)):
            for place, vector in enumerate(vectors):
                total = sums[0][row][place].get()
                for others in sums[1:]:
                    total = total + others[row][place].get()
                self.room.store(total, row * self.stage.count * self.units + vector * self.lanes)

    def _bias(self, direction: Value, unit_block: Value, vector: int) -> Value:
        """Where the sums of a vector begin: the biases of its units."""
        k, a, spec = self.k, self.a, self.spec
        if not spec.has_biases:
            return k.constant(self.summed.vector(self.lanes), 0)
        gate, part = divmod(vector, BLOCK_VECTORS)
        row = direction * self.cell.gates + (self.stage.first + gate)
        place = row * a.row + unit_block * self.units + part * self.lanes
        return a.biases.load(place, self.lanes)

    def _multiply_add(
        self,
        panel: Pointer,
        sources: Sequence[Pointer],
        unit: Value,
        sums: Sequence[Sequence[Variable]],
        vectors: Sequence[int],
        ahead: Value | None,
    ) -> None:
        """Add what one hidden unit, or word of them, gives to the sums of all rows."""
        k = self.k
        line = panel.offset(unit * (self.stage.count * self.units))
        if ahead is not None:
            for start in range(0, self.stage.count * self.units, 64 // self.kept.nbytes):
                line.prefetch(ahead + start, level=2)
        factors = [k.splat(source.load(unit), self.lanes) for source in sources]
        for place, vector in enumerate(vectors):
            weights = self._weights(line, vector)
            for factor, row_sums in zip(factors, sums, strict=True):
                before = row_sums[place].get()
                row_sums[place].set(
                    multiply_bytes(k, factor, weights, before) if self.quantizes else k.fma(weights, factor, before)
                )

    def _weights(self, line: Pointer, vector: int) -> Value:
        """A vector of what one hidden unit, or word of them, is multiplied by."""
        if not self.spec.halves:
            return line.load(vector * self.lanes, self.lanes)
        gate, part = divmod(vector, BLOCK_VECTORS)
        return half_of(line.cast(U32).load(gate * self.lanes, self.lanes), part)

    def _slot(self, time: Value, plane: int, later: int = 0) -> Value:
        """Where a plane lies: the hidden state before (or after) a time step, or another plane."""
        return (time + later) & 1 if plane == 0 else self.k.constant(I64, 1 + plane)

    def _gates(self, time: Value, direction: Value, unit_block: Value, row: Value, rows: Value) -> None:
        """The expressions of the stage for `rows` rows, from the sums in `room`."""
        k, a, spec, lanes = self.k, self.a, self.spec, self.lanes
        backwards = self._runs_backwards(direction)
        hidden, step = a.hidden, a.row
        before = [a.plane(self._slot(time, plane), direction) for plane in range(self.cell.planes)]
        after = {plane: a.plane(self._slot(time, plane, later=1), direction) for plane in self.stage.targets}
        result = a.result.offset(direction * a.result_direction)
        peepholes = a.peepholes.offset(direction * self.cell.peepholes * step)
        with k.loop(0, rows) as index:
            batch = row + index
            moment, active = self._moment(time, backwards, batch)
            entering_row = self._entering(direction, moment, batch)
            shown_row = result.offset(moment * a.result_time + batch * a.result_batch)
            with k.loop(0, BLOCK_VECTORS) as vector:
                unit = unit_block * self.units + vector * lanes
                left = hidden - unit
                with k.when(left > 0):
                    gates = range(self.stage.count)
                    entering = entering_row.offset(unit)
                    place = batch * step + unit
                    inputs = [entering.load(hidden * (self.stage.first + gate), lanes) for gate in gates]
                    inputs += self._recurrent(direction, index, batch, vector, unit)
                    inputs += [plane.load(place, lanes) for plane in before]
                    inputs += [peepholes.load(step * number + unit, lanes) for number in range(self.cell.peepholes)]
                    values = [k.splat(one, lanes) for one in emit_working(k, self.stage.outputs.roots, inputs)]
                    first_plane = 2 * self.stage.count
                    for target, value in zip(self.stage.targets, values, strict=True):
                        if target == 0 and spec.has_result:
                            shown = value if active is None else k.select(active, value, 0.0)
                            self._show(shown_row.offset(unit), shown, left)
                        if active is not None:
                            value = k.select(active, value, inputs[first_plane + target])
                        after[target].store(value, place)

    def _runs_backwards(self, direction: Value) -> Value:
        return (self.a.backwards + direction).differs(0)

    def _entering(self, direction: Value, moment: Value, batch: Value) -> Pointer:
        """The input's part of the gates at a place in the sequence of a row."""
        a = self.a
        place = direction * a.projected_direction + moment * a.projected_time
        return a.projected.offset(place + batch * a.projected_batch)

    def _moment(self, time: Value, backwards: Value, batch: Value) -> tuple[Value, Value | None]:
        """The place in the sequence of a row's time step, and whether it has one (None: each has). Backwards the first
        one is the last of the row's own."""
        k, a = self.k, self.a
        steps = a.steps
        if not self.spec.has_lengths:
            return k.select(backwards, steps - 1 - time, time), None
        length = a.lengths.load(batch).to(I64)
        with k.when((length < 0) | (length > steps)):
            note(k, a.fault, length)
        length = k.smaller(length, steps)
        active = time < length
        return k.select(backwards & active, length - 1 - time, time), active

    def _recurrent(self, direction: Value, index: Value, batch: Value, vector: Value, unit: Value) -> list[Value]:
        """The recurrent parts of the gates for a vector of units, from the sums of a row."""
        a, lanes = self.a, self.lanes
        room = self.room.offset(index * (self.stage.count * self.units) + vector * lanes)
        sums = [room.load(gate * self.units, lanes) for gate in range(self.stage.count)]
        if not self.quantizes:
            return sums
        first = direction * self.cell.gates + self.stage.first
        places = [(first + gate) * a.row + unit for gate in range(self.stage.count)]
        columns = [a.column_sums, a.column_zeros, a.column_scales]
        return real_sums(a.ranges_of(direction), batch, sums, columns, places)

    def _show(self, to: Pointer, value: Value, left: Value) -> None:
        """Store a vector of the result, of which `left` units are there."""
        k = self.k
        whole = left >= self.lanes
        with k.when(whole):
            write_units(to, value)
        with k.otherwise(whole):
            write_units(to, value, 0, k.lanes_below(left, self.lanes))
