"""A recurrent layer while binding: its states, its loop over time, and how threads share that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import SMALL_STEP_NS, Address, Array, Binder, Buffer, Tensor, row_major
from sardonyx.compiler.choice.gemm_choice import asks_ahead
from sardonyx.compiler.kernels.recurrent.quantized_states import Quantization
from sardonyx.compiler.kernels.recurrent.seats import MOST_SEATS, shared_words
from sardonyx.compiler.kernels.recurrent.time_loop import Arguments, RecurrentSpec, emit_recurrent
from sardonyx.compiler.kernels.recurrent.unit_rows import RowsArguments, RowsSpec, block_units, emit_unit_rows
from sardonyx.compiler.llvm.types import Type, type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.recurrent import length_error
from sardonyx.ops.recurrent_cells import Cell
from sardonyx.runtime.memory.constant_memory import constant_empty
from sardonyx.runtime.threads.processors import thread_pool_size

# What R may be kept as.
HALVES = np.dtype(ml_dtypes.bfloat16)
# Rows of the batch in a block: the panel of a block is read once for them from a far cache.
_GROUP_ROWS = 48
# What a turn of the loop must take on one thread for each seat beyond the first, in nanoseconds: threads that wait for
# each other lose some hundred.
_TURN_NS = 300
# Strands are handed out whole where the last threads to end take so much longer than if all ended at once, at most.
_MOST_UNEVEN = 1.2
# How far ahead of their use panels are asked for, where a thread reads this many times the second cache in every turn:
# of less, much stays there, and the core's own prefetchers keep up with the rest.
_AHEAD_BYTES, _AHEAD_CACHES = 8 << 10, 4


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer; `row` is the elements of a row of units, in whole blocks."""

    steps: int
    batch: int
    width: int
    hidden: int
    directions: int
    gates: int
    row: int
    unit_blocks: int


@dataclass(frozen=True)
class _Shares:
    """How threads share the loop, as `RecurrentSpec` and `Arguments` say, and how the step is claimed."""

    by_strands: bool
    chunks: int
    blocks: int
    rounds: int
    claim: int
    asks_ahead: bool

    def __str__(self) -> str:
        return f"{self.blocks * self.rounds} blocks, {self.chunks} {'strands' if self.by_strands else 'seats'}"


@dataclass(frozen=True, eq=False)
class Quantized:
    """What the loop knows of states that are quantised: how, where their bytes and ranges lie, and the sums, zero
    points and scales of R's columns; as `time_loop.Arguments` has them."""

    quantization: Quantization
    codes: Tensor
    ranges: Tensor
    column_sums: Tensor
    column_zeros: Tensor
    column_scales: Tensor

    def words(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "quantization"}


# What is given of quantised states if there are none.
_NOT_QUANTIZED = dict.fromkeys(("codes", "ranges", "column_sums", "column_zeros", "column_scales"))


@dataclass(frozen=True, eq=False)
class Gates:
    """What the gates are computed from: the input's part, R in panels for each stage, and the recurrent biases."""

    projected: Tensor
    panels: Sequence[Tensor]
    biases: Tensor | None = None
    quantized: Quantized | None = None

    @property
    def halves(self) -> bool:
        """Whether R is kept as bfloat16."""
        return bool(self.panels[0].dtype == HALVES)


@dataclass(frozen=True, eq=False)
class _Loop:
    """What else the loop over time reads and writes."""

    planes: Tensor
    peepholes: Tensor | None
    lengths: Tensor | None
    result: Tensor


class Layer:
    """One layer that is being bound, of the parameters of `RecurrentKernel`; it computes in the type `working`."""

    def __init__(
        self,
        binder: Binder,
        parameters: Mapping[str, Any],
        x: Sequence[int],
        hidden: int,
        working: np.dtype[np.generic],
    ) -> None:
        self.binder, self.working = binder, working
        self.cells: tuple[Cell, ...] = parameters["cells"]
        self.batch_first: bool = parameters["batch_first"]
        self._backwards: bool = parameters["backwards"][0]
        self._outputs: tuple[bool, ...] = parameters["outputs"]
        steps, batch = x[1::-1] if self.batch_first else x[:2]
        units = self.block_units
        blocks = -(-hidden // units)
        gates = self.cells[0].gates
        self.sizes = Sizes(steps, batch, x[2], hidden, len(self.cells), gates, blocks * units, blocks)

    @property
    def block_units(self) -> int:
        """The units of a block."""
        return block_units(self.binder.target, element_type(self.working))

    def bind(
        self,
        dtype: np.dtype[np.generic],
        bias: Tensor | None,
        others: Sequence[Tensor | None],
        gates: Callable[[], Gates],
    ) -> Sequence[Tensor | None]:
        """Add the steps and give the outputs; `others` are the lengths, the initial states and the peepholes, of which
        the last ones may be missing."""
        binder, sizes = self.binder, self.sizes
        lengths, hidden, cell_state, peepholes = (*others, None, None, None, None)[:4]
        self._check((bias, lengths, hidden, cell_state, peepholes))
        shape = (sizes.steps, sizes.directions, sizes.batch, sizes.hidden)
        result = binder.new(dtype, tuple(shape[axis] for axis in (2, 0, 1, 3)) if self.batch_first else shape)
        planes = self._planes(hidden, cell_state)
        if result.size:
            rows = None if lengths is None else contiguous(binder, lengths)
            self._loop(gates(), _Loop(planes, self._peepholes(peepholes), rows, result))
        states = [self._last(planes, number, dtype) for number in range(self.cells[0].states)]
        return [value if wanted else None for value, wanted in zip([result, *states], self._outputs, strict=True)]

    def _check(self, inputs: Sequence[Tensor | None]) -> None:
        """ValueError for an input whose shape is not what the sizes of the layer ask for."""
        sizes = self.sizes
        state = (sizes.directions, sizes.batch, sizes.hidden)
        if self.batch_first:
            state = (sizes.batch, sizes.directions, sizes.hidden)
        expected = (
            ("B", (sizes.directions, 2 * sizes.gates * sizes.hidden)),
            ("sequence_lens", (sizes.batch,)),
            ("initial_h", state),
            ("initial_c", state),
            ("P", (sizes.directions, 3 * sizes.hidden)),
        )
        for (name, shape), tensor in zip(expected, inputs, strict=True):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {tensor.shape}")

    def new_projected(self) -> Tensor:
        """Where the input's part of the gates goes, [directions, rows of X, gates * hidden], with room for a block
        behind it."""
        sizes = self.sizes
        shape = (sizes.directions, sizes.steps * sizes.batch, sizes.gates * sizes.hidden)
        buffer = Buffer((math.prod(shape) + sizes.row) * self.working.itemsize)
        return Tensor(self.working, shape, row_major(shape), buffer)

    def _planes(self, *initial: Tensor | None) -> Tensor:
        """The planes, [hidden state twice and the others, directions, batch, row], with the initial states in them."""
        binder, sizes, cell = self.binder, self.sizes, self.cells[0]
        shape = (cell.planes + 1, sizes.directions, sizes.batch, sizes.row)
        planes = binder.new(self.working, shape)
        places = [_part(planes, 0), *(_part(planes, 1 + number) for number in range(1, cell.states))]
        if math.prod(shape):
            states = [None if state is None else self._with_rows(self._by_direction(state)) for state in initial]
            with binder.together():
                for place, state in zip(places, states, strict=False):
                    self._rows(state, place)
        return planes

    def _by_direction(self, state: Tensor) -> Tensor:
        """A state with the directions as the first axis."""
        if not self.batch_first:
            return state
        first, second, third = state.strides
        return state.reshaped((state.shape[1], state.shape[0], state.shape[2]), (second, first, third))

    def half(self, bias: Tensor, which: int) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], int]:
        """B, and where one half of it lies: shape, strides and offset."""
        sizes = self.sizes
        across, along = bias.strides
        shape = (sizes.directions, sizes.gates, sizes.hidden)
        offset = which * sizes.gates * sizes.hidden * along * bias.dtype.itemsize
        return bias, shape, (across, sizes.hidden * along, along), offset

    def _peepholes(self, peepholes: Tensor | None) -> Tensor | None:
        """P, [directions, 3, row]."""
        if peepholes is None:
            return None
        sizes = self.sizes
        across, along = peepholes.strides
        shape = (sizes.directions, 3, sizes.hidden)
        return self.wide_rows(peepholes, shape, (across, sizes.hidden * along, along), 0, sizes.row)

    def wide_rows(
        self, given: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, room: int
    ) -> Tensor:
        """Vectors of units as working numbers, each with this much room; made once where they are constant."""
        working = self.working
        if is_constant(given) and given.is_contiguous:

            def widened(array: Array) -> Array:
                first = offset // array.itemsize
                rows = array.reshape(shape[0], -1)[:, first : first + shape[1] * shape[2]].reshape(shape)
                result = constant_empty(math.prod(shape[:2]) * room, working).reshape(*shape[:2], room)
                result[..., : shape[2]] = rows
                result[..., shape[2] :] = 0
                return result

            return self.binder.derived(given, ("rows of units", shape, offset, room, working), widened)
        result = self.binder.new(working, (*shape[:2], room))
        self._rows(given.reshaped(shape, strides, offset), result)
        return result

    def _with_rows(self, tensor: Tensor) -> Tensor:
        """A tensor of three axes, or a copy of it, whose rows lie in one piece."""
        return tensor if tensor.strides[2] == 1 or tensor.shape[2] == 1 else contiguous(self.binder, tensor)

    def _rows(self, source: Tensor | None, result: Tensor, room: int | None = None) -> None:
        """Add the step that copies rows of units, with zeros behind them; only zeros without a source."""
        if source is not None:
            source = self._with_rows(source)
        outer, inner, count = result.shape if source is None else source.shape
        strides = (0, 0) if source is None else source.strides[:2]
        room = result.shape[2] if room is None else room
        self.binder.step(
            emit_unit_rows,
            RowsSpec(None if source is None else element_type(source.dtype), element_type(result.dtype)),
            RowsArguments(
                source=source,
                to=result,
                inner=inner,
                count=count,
                room=room,
                read_outer=strides[0],
                read_inner=strides[1],
                write_outer=result.strides[0],
                write_inner=result.strides[1],
            ),
            chunks=outer,
            claim=outer,
        )

    def _last(self, planes: Tensor, number: int, dtype: np.dtype[np.generic]) -> Tensor:
        """A state after the last step, in the layout of the outputs: a view where the types are the same."""
        sizes = self.sizes
        place = _part(planes, sizes.steps % 2 if number == 0 else 1 + number)
        shape, strides = (sizes.directions, sizes.batch, sizes.hidden), place.strides
        if self.batch_first:
            shape, strides = (shape[1], shape[0], shape[2]), (strides[1], strides[0], strides[2])
        state = place.reshaped(shape, strides)
        if dtype == self.working:
            return state
        result = self.binder.new(dtype, shape)
        if result.size:
            self._rows(state, result)
        return result

    def _loop(self, gates: Gates, loop: _Loop) -> None:
        """Add the step that goes over time."""
        binder, sizes, cells = self.binder, self.sizes, self.cells
        # States are quantised for all rows of the batch at once: each strand has all of them.
        group = min(sizes.batch, _GROUP_ROWS) if gates.quantized is None else sizes.batch
        turns = len(cells[0].stages) + (gates.quantized is not None)
        panel_bytes = sum(panel.nbytes for panel in gates.panels)
        flops = 2.0 * sizes.batch * sum(panel.size for panel in gates.panels)
        shares = self._shares(sizes.directions * -(-sizes.batch // group), panel_bytes, flops, turns)
        shared = None
        if not shares.by_strands:
            shared = binder.new(np.dtype(np.int64), (1, 1, shared_words(shares.blocks)))
            self._rows(None, shared)
        spec = RecurrentSpec(
            storage=element_type(loop.result.dtype),
            working=element_type(self.working),
            cells=cells[:1] if all(cell == cells[0] for cell in cells) else cells,
            has_biases=gates.biases is not None,
            has_lengths=loop.lengths is not None,
            has_result=self._outputs[0],
            asks_ahead=shares.asks_ahead,
            by_strands=shares.by_strands,
            # More would have to come backwards from the last cache, for which the core asks later.
            alternates=panel_bytes // sizes.directions <= binder.target.caches.l2,
            asks_for_input=asks_ahead(binder.target) and gates.projected.nbytes > binder.target.caches.l2,
            halves=gates.halves,
            quantization=None if gates.quantized is None else gates.quantized.quantization,
        )
        arguments = Arguments(
            shared=shared,
            seats=shares.chunks,
            blocks=shares.blocks,
            turns=sizes.steps * turns,
            rounds=shares.rounds,
            group=group,
            **self._arguments(gates, loop),
        )
        binder.step(
            emit_recurrent,
            spec,
            arguments,
            writes=(loop.result,) if self._outputs[0] else (),
            chunks=shares.chunks,
            claim=shares.claim,
            flops=sizes.steps * flops,
            nbytes=1.0 * (sizes.steps * panel_bytes + gates.projected.nbytes + loop.result.nbytes),
            detail=lambda: (
                f"{sizes.steps} steps of {sizes.directions}x{sizes.batch}x{sizes.hidden} with "
                f"{sizes.gates} gates, {shares}" + (", weights kept as bfloat16" if gates.halves else "")
            ),
            arithmetic="" if gates.quantized is None else "int8",
        )

    def _arguments(self, gates: Gates, loop: _Loop) -> dict[str, Any]:
        """The arguments of the loop's kernel but for those that say how threads share it."""
        sizes = self.sizes
        result_time, result_direction, result_batch = self._result_steps(loop.result)
        columns = sizes.gates * sizes.hidden
        return {
            "projected": gates.projected,
            "panels0": gates.panels[0],
            "panels1": gates.panels[-1],
            "biases": gates.biases,
            **vars(loop),
            "backwards": int(self._backwards and sizes.directions == 1),
            "projected_direction": sizes.steps * sizes.batch * columns,
            "projected_time": columns * (1 if self.batch_first else sizes.batch),
            "projected_batch": columns * (sizes.steps if self.batch_first else 1),
            "result_direction": result_direction,
            "result_time": result_time,
            "result_batch": result_batch,
            "ahead": _AHEAD_BYTES // gates.panels[0].dtype.itemsize,
            "fault": None if loop.lengths is None else _fault(self.binder, sizes.steps),
            **{name: getattr(sizes, name) for name in ("steps", "batch", "hidden", "row", "unit_blocks", "directions")},
            **(_NOT_QUANTIZED if gates.quantized is None else gates.quantized.words()),
        }

    def _shares(self, strands: int, panel_bytes: int, flops: float, turns: int) -> _Shares:
        """How threads share the loop, which reads so many bytes of panels for so many operations in a time step of
        so many turns."""
        target, sizes = self.binder.target, self.sizes
        threads = thread_pool_size(self.binder.settings.threads)
        is_far, strand_bytes = asks_ahead(target), panel_bytes // sizes.directions
        step_ns = max(flops / 100, panel_bytes / 100)
        is_small = step_ns * sizes.steps < SMALL_STEP_NS
        # Threads that share a strand keep it in as many second caches: less of it comes from a far cache than if each
        # of them had one for itself.
        in_rounds = threads > 1 and is_far and strand_bytes > target.caches.l2
        if is_small or (_share_evenly(strands, threads) and not in_rounds):
            asks = is_far and strand_bytes > _AHEAD_CACHES * target.caches.l2
            return _Shares(True, strands, sizes.unit_blocks * strands, 1, strands if is_small else 1, asks)
        rounds = strands if in_rounds else 1
        blocks = sizes.unit_blocks * strands // rounds
        turn_ns = step_ns / (turns * rounds)
        seats = min(blocks, MOST_SEATS, max(1, math.floor(turn_ns / _TURN_NS)))
        asks = is_far and strand_bytes // min(seats, threads) > _AHEAD_CACHES * target.caches.l2
        return _Shares(False, seats, blocks, rounds, 1, asks)

    def _result_steps(self, result: Tensor) -> tuple[int, int, int]:
        """Elements of Y between time steps, directions and rows of the batch."""
        if self.batch_first:
            batch, time, direction, _ = result.strides
        else:
            time, direction, batch, _ = result.strides
        return time, direction, batch


def _fault(binder: Binder, steps: int) -> Address:
    """Where a sequence length is noted that is no number of time steps."""
    return binder.fault(lambda length: length_error(length, steps))


def _share_evenly(strands: int, threads: int) -> bool:
    """Whether threads that take whole strands have about the same work."""
    return -(-strands // threads) * threads <= _MOST_UNEVEN * strands


def element_type(dtype: np.dtype[np.generic]) -> Type:
    """The type of kernels for a dtype."""
    found = type_of(dtype)
    assert found is not None
    return found


def is_constant(tensor: Tensor) -> bool:
    """Whether what is made of the contents may be kept."""
    return tensor.is_known and tensor.buffer.kind == "constant" and tensor.size > 0 and 0 not in tensor.strides


def _part(tensor: Tensor, index: int) -> Tensor:
    """One of the tensors that a tensor's first axis counts."""
    stride = tensor.strides[0]
    return tensor.reshaped(tensor.shape[1:], tensor.strides[1:], index * stride * tensor.dtype.itemsize)
