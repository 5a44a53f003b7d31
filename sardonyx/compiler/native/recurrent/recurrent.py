"""RNN, GRU and LSTM while binding: the product with X for all time steps at once, then the loop over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import SMALL_STEP_NS, Address, Argument, Array, Binder, Buffer, Tensor, row_major
from sardonyx.compiler.choice.gemm_choice import asks_ahead
from sardonyx.compiler.llvm.kernels.recurrent.recurrent import RecurrentSpec, argument_names, emit_recurrent
from sardonyx.compiler.llvm.kernels.recurrent.seats import MOST_SEATS, shared_words
from sardonyx.compiler.llvm.kernels.recurrent.unit_rows import (
    PanelsSpec,
    RowsSpec,
    block_units,
    emit_recurrent_panels,
    emit_unit_rows,
)
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.types import Type, type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.gemm_step import Packed, multiply, product_of
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.recurrent import check_shapes, every_input, length_error
from sardonyx.ops.recurrent_cells import Cell, Stage
from sardonyx.runtime.memory.constant_memory import constant_empty
from sardonyx.runtime.threads.processors import team_size

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
class _Sizes:
    """The sizes of a layer; `row` is the elements of a row of units, in whole blocks."""

    steps: int
    batch: int
    width: int
    hidden: int
    directions: int
    gates: int
    row: int
    unit_blocks: int

    @staticmethod
    def of(x: Tensor, r: Tensor, cell: Cell, directions: int, batch_first: bool, units: int) -> _Sizes:
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
        blocks = -(-r.shape[2] // units)
        return _Sizes(steps, batch, x.shape[2], r.shape[2], directions, cell.gates, blocks * units, blocks)


@dataclass(frozen=True)
class _Shares:
    """How threads share the loop: what `RecurrentSpec` and `argument_names` call so, and how the step is claimed."""

    by_strands: bool
    chunks: int
    blocks: int
    rounds: int
    claim: int
    asks_ahead: bool

    def __str__(self) -> str:
        return f"{self.blocks * self.rounds} blocks, {self.chunks} {'strands' if self.by_strands else 'seats'}"


@template("recurrent")
class RecurrentKernel(NativeKernel):
    """A recurrent layer.

    Parameters: ``cells``, the time step of each direction; ``backwards`` for each of them; ``batch_first``, whether the
    batch is the first axis; ``hidden_size``, how many units there are to be, or None; ``outputs``, which of Y and the
    last states are wanted.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        dtype = None if x is None or x.dtype is None else numpy_dtype(x.dtype)
        if dtype is None or product_of(dtype) is None:
            return f"no kernel for recurrent layers of {dtype}"
        lengths = inputs[4] if len(inputs) > 4 else None
        if lengths is not None and lengths.dtype != ir.DataType.INT32:
            return "sequence lengths are int32"
        return None

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        x, w, r, bias, lengths, hidden, cell_state, peepholes = every_input(inputs)
        cells: tuple[Cell, ...] = self.parameters["cells"]
        batch_first: bool = self.parameters["batch_first"]
        check_shapes(len(cells), cells[0].gates, self.parameters["hidden_size"], x.shape, w.shape, r.shape)
        working = working_dtype(x.dtype)
        units = block_units(binder.target, _type(working))
        sizes = _Sizes.of(x, r, cells[0], len(cells), batch_first, units)
        layer = _Layer(binder, sizes, cells, working, batch_first)
        layer.check(bias=bias, lengths=lengths, hidden=hidden, cell_state=cell_state, peepholes=peepholes)
        wants_result, *wanted_states = self.parameters["outputs"]
        shape = (sizes.steps, sizes.directions, sizes.batch, sizes.hidden)
        result = binder.new(x.dtype, tuple(shape[axis] for axis in (2, 0, 1, 3)) if batch_first else shape)
        planes = layer.planes(hidden, cell_state)
        if result.size:
            loop = _Loop(
                projected=layer.projected(x, w, bias),
                panels=[layer.panels(r, stage) for stage in cells[0].stages],
                planes=planes,
                biases=layer.recurrent_biases(bias),
                peepholes=layer.peepholes(peepholes),
                lengths=None if lengths is None else contiguous(binder, lengths),
                result=result,
            )
            layer.loop(loop, self.parameters["backwards"][0], wants_result)
        states = [layer.last(planes, number, x.dtype) for number in range(cells[0].states)]
        given = [state if wanted else None for state, wanted in zip(states, wanted_states, strict=True)]
        return [result if wants_result else None, *given]


@dataclass(frozen=True, eq=False)
class _Loop:
    """What the loop over time reads and writes."""

    projected: Tensor
    panels: Sequence[Tensor]
    planes: Tensor
    biases: Tensor | None
    peepholes: Tensor | None
    lengths: Tensor | None
    result: Tensor


class _Layer:
    """One layer that is being bound."""

    def __init__(
        self, binder: Binder, sizes: _Sizes, cells: tuple[Cell, ...], working: np.dtype[np.generic], batch_first: bool
    ) -> None:
        self._binder, self._sizes, self._cells = binder, sizes, cells
        self._working, self._batch_first = working, batch_first

    def check(self, **inputs: Tensor | None) -> None:
        """ValueError for an input whose shape is not what the sizes of the layer ask for."""
        sizes = self._sizes
        state = (sizes.directions, sizes.batch, sizes.hidden)
        if self._batch_first:
            state = (sizes.batch, sizes.directions, sizes.hidden)
        expected = {
            "bias": ("B", (sizes.directions, 2 * sizes.gates * sizes.hidden)),
            "lengths": ("sequence_lens", (sizes.batch,)),
            "hidden": ("initial_h", state),
            "cell_state": ("initial_c", state),
            "peepholes": ("P", (sizes.directions, 3 * sizes.hidden)),
        }
        for key, tensor in inputs.items():
            name, shape = expected[key]
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {tensor.shape}")

    def projected(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """X W' + the biases of the input, [directions, rows of X, gates * hidden], with room for a block behind it."""
        binder, sizes = self._binder, self._sizes
        rows, columns = sizes.steps * sizes.batch, sizes.gates * sizes.hidden
        shape = (sizes.directions, rows, columns)
        buffer = Buffer((math.prod(shape) + sizes.row) * self._working.itemsize)
        result = Tensor(self._working, shape, row_major(shape), buffer)
        left = contiguous(binder, x).reshaped((rows, sizes.width))
        value: Expr = Input(x.dtype, 0).cast(self._working)
        operands = []
        if bias is not None:
            first = self._input_biases(bias)
            across, _, along = first.strides
            value = value + Input(first.dtype, 1)
            operands.append(first.reshaped((sizes.directions, 1, columns), (across, along, along)))
        product = product_of(x.dtype, binder.target, binder.settings.precision)
        assert product is not None
        multiply(binder, left, self._weights(w, product), (value,), operands, [result], product)
        return result

    def _weights(self, w: Tensor, product: str) -> Tensor | Packed:
        """W with the gates as columns, in panels where it is constant."""
        directions, columns, width = w.shape
        shape, strides = (directions, width, columns), (w.strides[0], w.strides[2], w.strides[1])
        if not _is_constant(w):
            return w.reshaped(shape, strides)

        def panels(array: Array) -> Array:
            return pack_b(self._binder.library, array.swapaxes(1, 2), product)

        return Packed(self._binder.derived(w, ("columns in panels", product), panels), shape)

    def panels(self, r: Tensor, stage: Stage) -> Tensor:
        """The rows of R for the gates of a stage, in panels; packed once where R is constant."""
        binder, sizes = self._binder, self._sizes
        units = block_units(binder.target, _type(self._working))
        panel = sizes.hidden * stage.count * units
        count = sizes.directions * sizes.unit_blocks
        spec = PanelsSpec(_type(r.dtype), _type(self._working))
        numbers = [sizes.unit_blocks, sizes.hidden, sizes.gates, stage.first, stage.count, panel]
        if _is_constant(r):
            make = partial(_packed, binder.library, spec, numbers, count, self._working)
            return binder.derived(r, ("recurrent panels", stage.first, stage.count, spec), make)
        source, result = contiguous(binder, r), binder.new(self._working, (count, panel))
        binder.step(
            emit_recurrent_panels, spec, [source, result, *numbers], reads=(source,), writes=(result,), chunks=count
        )
        return result

    def planes(self, *initial: Tensor | None) -> Tensor:
        """The planes, [hidden state twice and the others, directions, batch, row], with the initial states in them."""
        binder, sizes, cell = self._binder, self._sizes, self._cells[0]
        shape = (cell.planes + 1, sizes.directions, sizes.batch, sizes.row)
        planes = binder.new(self._working, shape)
        places = [_part(planes, 0), *(_part(planes, 1 + number) for number in range(1, cell.states))]
        if math.prod(shape):
            with binder.together():
                for place, state in zip(places, initial, strict=False):
                    self._rows(None if state is None else self._by_direction(state), place)
        return planes

    def _by_direction(self, state: Tensor) -> Tensor:
        """A state with the directions as the first axis."""
        if not self._batch_first:
            return state
        first, second, third = state.strides
        return state.reshaped((state.shape[1], state.shape[0], state.shape[2]), (second, first, third))

    def recurrent_biases(self, bias: Tensor | None) -> Tensor | None:
        """The second half of B, [directions, gates, row]."""
        if bias is None:
            return None
        return self._wide_rows(*self._half(bias, 1), self._sizes.row)

    def _input_biases(self, bias: Tensor) -> Tensor:
        """The first half of B as working numbers, [directions, gates, hidden], the last two axes contiguous."""
        given, shape, strides, offset = self._half(bias, 0)
        if strides[2] == 1 and bias.dtype == self._working:
            return bias.reshaped(shape, strides, offset)
        return self._wide_rows(given, shape, strides, offset, shape[2])

    def _half(self, bias: Tensor, which: int) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], int]:
        """B, and where one half of it lies: shape, strides and offset."""
        sizes = self._sizes
        across, along = bias.strides
        shape = (sizes.directions, sizes.gates, sizes.hidden)
        offset = which * sizes.gates * sizes.hidden * along * bias.dtype.itemsize
        return bias, shape, (across, sizes.hidden * along, along), offset

    def peepholes(self, peepholes: Tensor | None) -> Tensor | None:
        """P, [directions, 3, row]."""
        if peepholes is None:
            return None
        sizes = self._sizes
        across, along = peepholes.strides
        shape = (sizes.directions, 3, sizes.hidden)
        return self._wide_rows(peepholes, shape, (across, sizes.hidden * along, along), 0, sizes.row)

    def _wide_rows(
        self, given: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, room: int
    ) -> Tensor:
        """Vectors of units as working numbers, each with this much room; made once where they are constant."""
        working = self._working
        if _is_constant(given) and given.is_contiguous:

            def widened(array: Array) -> Array:
                first = offset // array.itemsize
                rows = array.reshape(shape[0], -1)[:, first : first + shape[1] * shape[2]].reshape(shape)
                result = constant_empty(math.prod(shape[:2]) * room, working).reshape(*shape[:2], room)
                result[..., : shape[2]] = rows
                result[..., shape[2] :] = 0
                return result

            return self._binder.derived(given, ("rows of units", shape, offset, room, working), widened)
        result = self._binder.new(working, (*shape[:2], room))
        self._rows(given.reshaped(shape, strides, offset), result)
        return result

    def _rows(self, source: Tensor | None, result: Tensor, room: int | None = None) -> None:
        """Add the step that copies rows of units, with zeros behind them; only zeros without a source."""
        if source is not None and source.strides[2] != 1 and source.shape[2] != 1:
            source = contiguous(self._binder, source)
        outer, inner, count = result.shape if source is None else source.shape
        strides = (0, 0) if source is None else source.strides[:2]
        read: Argument = 0 if source is None else source
        room = result.shape[2] if room is None else room
        self._binder.step(
            emit_unit_rows,
            RowsSpec(None if source is None else _type(source.dtype), _type(result.dtype)),
            [read, result, inner, count, room, *strides, *result.strides[:2]],
            reads=() if source is None else (source,),
            writes=(result,),
            chunks=outer,
            claim=outer,
        )

    def last(self, planes: Tensor, number: int, dtype: np.dtype[np.generic]) -> Tensor:
        """A state after the last step, in the layout of the outputs: a view where the types are the same."""
        sizes = self._sizes
        place = _part(planes, sizes.steps % 2 if number == 0 else 1 + number)
        shape, strides = (sizes.directions, sizes.batch, sizes.hidden), place.strides
        if self._batch_first:
            shape, strides = (shape[1], shape[0], shape[2]), (strides[1], strides[0], strides[2])
        state = place.reshaped(shape, strides)
        if dtype == self._working:
            return state
        result = self._binder.new(dtype, shape)
        if result.size:
            self._rows(state, result)
        return result

    def loop(self, loop: _Loop, backwards: bool, wants_result: bool) -> None:
        """Add the step that goes over time."""
        binder, sizes, cells = self._binder, self._sizes, self._cells
        stages = cells[0].stages
        group = min(sizes.batch, _GROUP_ROWS)
        turns = sizes.steps * len(stages)
        panel_bytes = sum(panel.nbytes for panel in loop.panels)
        flops = 2.0 * sizes.batch * panel_bytes / self._working.itemsize
        shares = self._shares(sizes.directions * -(-sizes.batch // group), panel_bytes, flops)
        shared = None
        if not shares.by_strands:
            shared = binder.new(np.dtype(np.int64), (1, 1, shared_words(shares.blocks)))
            self._rows(None, shared)
        spec = RecurrentSpec(
            storage=_type(loop.result.dtype),
            working=_type(self._working),
            cells=cells[:1] if all(cell == cells[0] for cell in cells) else cells,
            has_biases=loop.biases is not None,
            has_lengths=loop.lengths is not None,
            has_result=wants_result,
            asks_ahead=shares.asks_ahead,
            by_strands=shares.by_strands,
        )
        result_time, result_direction, result_batch = self._result_steps(loop.result)
        columns = sizes.gates * sizes.hidden
        values: dict[str, Argument | None] = {
            "projected": loop.projected,
            "panels0": loop.panels[0],
            "panels1": loop.panels[-1],
            "planes": loop.planes,
            "biases": loop.biases,
            "peepholes": loop.peepholes,
            "lengths": loop.lengths,
            "result": loop.result,
            "shared": shared,
            "seats": shares.chunks,
            "blocks": shares.blocks,
            "turns": turns,
            "rounds": shares.rounds,
            "group": group,
            "backwards": int(backwards and sizes.directions == 1),
            "projected_direction": sizes.steps * sizes.batch * columns,
            "projected_time": columns * (1 if self._batch_first else sizes.batch),
            "projected_batch": columns * (sizes.steps if self._batch_first else 1),
            "result_direction": result_direction,
            "result_time": result_time,
            "result_batch": result_batch,
            "ahead": _AHEAD_BYTES // self._working.itemsize,
            "fault": None if loop.lengths is None else _fault(binder, sizes.steps),
            **{name: getattr(sizes, name) for name in ("steps", "batch", "hidden", "row", "unit_blocks", "directions")},
        }
        read = [loop.projected, *loop.panels, loop.biases, loop.peepholes, loop.lengths, loop.planes, shared]
        written = [loop.planes, shared, loop.result if wants_result else None]
        binder.step(
            emit_recurrent,
            spec,
            [values[name] or 0 for name in argument_names()],
            reads=[tensor for tensor in read if tensor is not None],
            writes=[tensor for tensor in written if tensor is not None],
            chunks=shares.chunks,
            claim=shares.claim,
            flops=sizes.steps * flops,
            nbytes=1.0 * (sizes.steps * panel_bytes + loop.projected.nbytes + loop.result.nbytes),
            detail=lambda: (
                f"{sizes.steps} steps of {sizes.directions}x{sizes.batch}x{sizes.hidden} with "
                f"{sizes.gates} gates, {shares}"
            ),
        )

    def _shares(self, strands: int, panel_bytes: int, flops: float) -> _Shares:
        """How threads share the loop, which reads so many bytes of panels for so many operations in a time step."""
        target, sizes = self._binder.target, self._sizes
        threads = team_size(self._binder.settings.threads)
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
        turn_ns = step_ns / (len(self._cells[0].stages) * rounds)
        seats = min(blocks, MOST_SEATS, max(1, math.floor(turn_ns / _TURN_NS)))
        asks = is_far and strand_bytes // min(seats, threads) > _AHEAD_CACHES * target.caches.l2
        return _Shares(False, seats, blocks, rounds, 1, asks)

    def _result_steps(self, result: Tensor) -> tuple[int, int, int]:
        """Elements of Y between time steps, directions and rows of the batch."""
        if self._batch_first:
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


def _type(dtype: np.dtype[np.generic]) -> Type:
    found = type_of(dtype)
    assert found is not None
    return found


def _is_constant(tensor: Tensor) -> bool:
    return tensor.is_known and tensor.buffer.kind == "constant" and tensor.size > 0 and 0 not in tensor.strides


def _part(tensor: Tensor, index: int) -> Tensor:
    """One of the tensors that a tensor's first axis counts."""
    stride = tensor.strides[0]
    return tensor.reshaped(tensor.shape[1:], tensor.strides[1:], index * stride * tensor.dtype.itemsize)


def _packed(
    library: KernelLibrary,
    spec: PanelsSpec,
    numbers: Sequence[int],
    count: int,
    working: np.dtype[np.generic],
    array: Array,
) -> Array:
    """The panels of a constant R."""
    panels = constant_empty(count * numbers[-1], working)
    library.run(emit_recurrent_panels, spec, (np.ascontiguousarray(array), panels, *numbers), count)
    return panels
