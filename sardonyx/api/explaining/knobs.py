"""What each knob of a session did for a model, and what turning it would do.

For every other value the model is compiled once more, and its steps are compared by the machine's ceilings, or, where
the session itself was measured, by the clock as well. Nothing of it changes the session.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sardonyx import errors
from sardonyx.api.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from sardonyx.api.explaining.explained_plan import Subject, explained, in_turns
from sardonyx.api.explaining.explanation_records import HOUSEKEEPING, Explanation, Knob, Overridable, Turned, counted
from sardonyx.api.options import config_keys, run_settings
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.compiler.native.quantization.float_convolution import BYTES_IN_FLOATS
from sardonyx.light_dataclass import dataclass
from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_up_to
from sardonyx.runtime.threads.processors import usable_processors
from sardonyx.tuning.page_faults import fault_nanoseconds

# Rewrites that are left out one at a time, those with the most changes first.
_MOST_REWRITES = 6
# Kernels of products that take fewer multiplications.
_FAST = ("strassen", "sixteenths")
# Kernels of convolutions that do.
_FILTERING = ("winograd", "byte_filtering")
# Microseconds until a worker that sleeps is at work.
_WAKE_US = 20.0
# Microseconds of a run that makes its memory ready and cannot go the short way of runs that find it so.
_AFRESH_US = 50.0

Change = Callable[[SessionOptions], None]


@dataclass(frozen=True)
class _Turn:
    """Another value of a knob: how options change for it, and optimizers that are left out for it.

    `adds_us` are microseconds that the ceilings do not know of.
    """

    value: str
    change: Change = lambda options: None
    disabled: tuple[str, ...] = ()
    adds_us: float = 0.0
    note: str = ""


def knobs(subject: Subject, found: Explanation, feeds: Mapping[str, Any] | None) -> tuple[Knob, ...]:
    """The knobs of a session whose explanation is `found`; runs of it are repeated on `feeds` for every value."""
    return tuple(_Knobs(subject, found, feeds).all())


def overridable(subject: Subject, found: Explanation) -> Overridable | None:
    """What it costs that callers may override initializers; None where the model has none of these."""
    core = subject.core
    names = tuple(item.name for item in core.overridable_initializers)
    if not names:
        return None
    fixed = subject.variant(core.session_options, constant_initializers=True)
    shapes = {name: shape for name, shape in found.inputs.items() if name not in names}
    try:
        constant = explained(fixed, None, shapes)  # without feeds: its plan lacks inputs that the session has
        predicted = _predicted(found), _predicted(constant)
    except errors.InvalidArgument:  # sizes depend on data
        constant, predicted = None, None
    gained = collections.Counter({report.name: report.changes for report in fixed.compiled.passes})
    gained.subtract({report.name: report.changes for report in subject.compiled.passes})
    readers = {
        use.node.name or use.node.op_type: None
        for value in subject.compiled.model.graph.inputs
        if value.name in names
        for use in value.uses()
    }
    return Overridable(
        names,
        tuple(readers),
        {name: count for name, count in gained.items() if count > 0 and name not in HOUSEKEEPING},
        max(0, constant.packed_bytes - found.packed_bytes) if constant else 0,
        (len(found.rows), len(constant.rows) if constant else len(found.rows)),
        predicted,
    )


class _Knobs:
    """Makes the knobs of one session."""

    def __init__(self, subject: Subject, found: Explanation, feeds: Mapping[str, Any] | None) -> None:
        self.subject, self.found, self.feeds = subject, found, feeds
        self.core = core = subject.core
        self.options = core.session_options
        self.config = self.options._config
        self.settings = run_settings.run_settings(self.options, core.disabled_optimizers)

    def all(self) -> Iterator[Knob]:
        yield self._level()
        yield self._optimizers()
        yield self._threads()
        yield self._execution_mode()
        yield self._execution_order()
        yield self._spinning()
        yield self._blocks()
        yield self._arena()
        yield self._memory_reuse()
        yield self._packing()
        yield self._free_dimensions()
        if any(row.kind == "native" for row in self.found.rows):
            yield from self._arithmetic()

    def _knob(self, name: str, value: str, did: str, turns: list[_Turn]) -> Knob:
        return Knob(name, value, did, tuple(map(self._turned, turns)))

    def _turned(self, turn: _Turn) -> Turned:
        """What the session would be; a note says why where it cannot be made."""
        options = self.options._copy()
        turn.change(options)
        runs = self.found.runs
        measured = beside = None
        try:
            variant = self.subject.variant(options, self.core.disabled_optimizers.union(turn.disabled))
            other = explained(variant, self.feeds, self.found.inputs)
            if runs and self.feeds is not None:
                beside, measured = in_turns(self.subject, variant, self.feeds, runs)
        except (errors.OnnxRuntimeError, RuntimeError) as error:
            return Turned(turn.value, note=str(getattr(error, "message", error)))
        return Turned(
            turn.value,
            len(other.rows),
            _predicted(other) + turn.adds_us,
            measured,
            beside,
            other.arena_bytes,
            other.packed_bytes,
            turn.note,
        )

    def _level(self) -> Knob:
        now = self.options.graph_optimization_level
        nodes = {name for row in self.found.rows for name in row.nodes}
        rewrites, rows = self.found.rewrites, self.found.rows
        did = f"{counted(sum(rewrites.values()), 'change')} by {counted(len(rewrites), 'rewrite')}; "
        did += f"{counted(len(rows), 'step')} for {counted(len(nodes), 'node')}"
        others = [level for level in GraphOptimizationLevel if level != now]
        turns = [_Turn(level.name, _setting("graph_optimization_level", level)) for level in others]
        return self._knob("graph_optimization_level", now.name, did, turns)

    def _optimizers(self) -> Knob:
        """What is left out, and what leaving out more would do: of the plan maker's part, and of the rewrites."""
        left_out = sorted(self.core.disabled_optimizers) + config_keys.names(
            self.config, "optimization.disable_specified_optimizers"
        )
        settings = self.settings
        own = {
            run_settings.KERNEL_FUSION: settings.fuses,
            run_settings.LAYOUTS: settings.layouts,
            run_settings.KERNEL_PAIRS: settings.pairs,
        }
        levels = {one.name: one.level for one in passes_up_to(Level.ALL)}
        fusions = [
            name
            for name in self.found.rewrites
            if levels.get(name, Level.BASIC) >= Level.EXTENDED or name.startswith("Conv")
        ]
        fusions.sort(key=lambda name: -self.found.rewrites[name])
        names = [name for name, is_there in own.items() if is_there] + fusions[:_MOST_REWRITES]
        fused = sum(len(row.operators) > 1 for row in self.found.rows)
        did = f"{fused} of {len(self.found.rows)} steps do the work of several operators"
        turns = [_Turn(f"without {name}", disabled=(name,)) for name in names if name not in left_out]
        return self._knob("disabled_optimizers", ", ".join(left_out) or "none", did, turns)

    def _threads(self) -> Knob:
        rows, threads = self.found.rows, self.found.threads
        alone = sum(row.chunks <= 1 for row in rows)
        did = f"{counted(threads, 'thread')}; {alone} of {len(rows)} steps are one chunk, which one thread does"
        usable = max(1, int(usable_processors()))
        counts = sorted({1, max(1, usable // 2), usable} - {threads})
        turns = [_Turn(str(count), _setting("intra_op_num_threads", count)) for count in counts]
        return self._knob("intra_op_num_threads", str(self.options.intra_op_num_threads), did, turns)

    def _execution_mode(self) -> Knob:
        now = self.options.execution_mode
        did = "steps follow each other" if now == ExecutionMode.ORT_SEQUENTIAL else "independent steps run side by side"
        note = "the ceilings do not tell how well independent steps share the cores"
        others = [mode for mode in ExecutionMode if mode != now]
        turns = [_Turn(mode.name, _setting("execution_mode", mode), note=note) for mode in others]
        return self._knob("execution_mode", now.name, did, turns)

    def _execution_order(self) -> Knob:
        now = self.options.execution_order
        did = f"the arena of a run has {self.found.arena_bytes:,} bytes"
        others = [order for order in ExecutionOrder if order != now]
        turns = [_Turn(order.name, _setting("execution_order", order)) for order in others]
        return self._knob("execution_order", now.name, did, turns)

    def _spinning(self) -> Knob:
        key = "session.intra_op.allow_spinning"
        spins = is_on(self.config, key)
        if self.found.threads == 1:
            return Knob(key, str(int(spins)), "there are no workers")
        did = "workers spin for a while after a run" if spins else "workers sleep as soon as they have nothing to do"
        other = str(int(not spins))
        turn = _Turn(
            other, _entry(key, other), adds_us=_WAKE_US if spins else -_WAKE_US, note="for runs close together"
        )
        return self._knob(key, str(int(spins)), did, [turn])

    def _blocks(self) -> Knob:
        """How threads share the chunks of a step."""
        key = run_settings.BLOCK_BASE
        now = self.config.get(key, "")
        if self.found.threads == 1:
            return Knob(key, now or "none", "one thread does all chunks")
        did = "threads claim " + ("blocks of chunks that shrink with what is left" if now else "a few chunks at a time")
        note = "the ceilings do not tell who waits for whom"
        return self._knob(key, now or "none", did, [] if now else [_Turn("4", _entry(key, "4"), note=note)])

    def _arena(self) -> Knob:
        keeps = bool(self.options.enable_cpu_mem_arena)
        nbytes = self.found.arena_bytes + self.found.scratch_bytes * self.found.threads
        did = f"{nbytes:,} bytes {'are kept for later runs' if keeps else 'come from the system in every run'}"
        change = nbytes * fault_nanoseconds() / 1e3 + (_AFRESH_US if nbytes else 0.0)
        turn = _Turn(str(not keeps), _setting("enable_cpu_mem_arena", not keeps), adds_us=change if keeps else -change)
        return self._knob("enable_cpu_mem_arena", str(keeps), did, [turn])

    def _memory_reuse(self) -> Knob:
        reuses = bool(self.options.enable_mem_reuse)
        did = f"the arena of a run has {self.found.arena_bytes:,} bytes"
        return self._knob(
            "enable_mem_reuse", str(reuses), did, [_Turn(str(not reuses), _setting("enable_mem_reuse", not reuses))]
        )

    def _packing(self) -> Knob:
        key = "session.disable_prepacking"
        off = is_on(self.config, key)
        did = f"{self.found.packed_bytes:,} bytes of the model are laid out anew for its kernels"
        return self._knob(key, str(int(off)), did, [_Turn(str(int(not off)), _entry(key, str(int(not off))))])

    def _free_dimensions(self) -> Knob:
        """Sizes that are open, and what fixing them to those that are explained would do."""
        sizes: dict[str, int] = {}
        for item in self.core.inputs_meta:
            for dim, size in zip(item.shape, self.found.inputs.get(item.name, ()), strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
        fixed = {name: size for (kind, name), size in self.options._free_dimensions.items() if kind == "name"}
        names = "no named dimension" if not sizes else counted(len(sizes), "dimension")
        did = f"{names} of the inputs {'is' if len(sizes) < 2 else 'are'} open"

        def fix(options: SessionOptions) -> None:
            for name, size in sizes.items():
                options.add_free_dimension_override_by_name(name, size)

        turns = [_Turn(_listed(sizes), fix)] if sizes else []
        return self._knob("add_free_dimension_override_by_name", _listed(fixed), did, turns)

    def _arithmetic(self) -> Iterator[Knob]:
        """The keys that let products be computed otherwise; what no kernel of the model uses is not turned."""
        brain = self.settings.precision == "bfloat16"
        faster = any("bf16" in name for rates in self.found.ceilings["compute"].values() for name in rates)
        did = f"products of float32 matrices are computed in {self.settings.precision}"
        if not faster:
            did += "; this machine multiplies bfloat16 no faster"
        other = "float32" if brain else "bfloat16"
        turns = [_Turn(other, _entry(run_settings.PRECISION, other))] if faster or brain else []
        yield self._knob(run_settings.PRECISION, self.settings.precision, did, turns)
        for key, is_used, what in (
            (run_settings.FAST_PRODUCTS, lambda row: row.kernel.startswith(_FAST), "products by quarters"),
            (run_settings.WINOGRAD, lambda row: row.kernel.startswith(_FILTERING), "convolutions by minimal filtering"),
            (
                run_settings.BYTES_IN_FLOATS,
                lambda row: BYTES_IN_FLOATS in row.detail,
                "convolutions of bytes in float32",
            ),
            (run_settings.FLOAT32_TILES, lambda row: "f32 tiles" in row.detail, "products in tiles of AMX"),
        ):
            on = is_on(self.config, key)
            count = sum(map(is_used, self.found.rows))
            turns = [_Turn(str(int(not on)), _entry(key, str(int(not on))))] if count or not on else []
            yield self._knob(
                key,
                str(int(on)),
                f"{counted(count, 'step')} {'is part' if count == 1 else 'are parts'} of {what}",
                turns,
            )
        rounds = sum("at a time" in row.detail and "all items" not in row.detail for row in self.found.rows)
        now = self.config.get(run_settings.BATCH_ITEMS, "auto")
        did = f"{counted(rounds, 'step')} {'takes' if rounds == 1 else 'take'} a few items of the batch at a time"
        turns = [_Turn("0", _entry(run_settings.BATCH_ITEMS, "0"))] if rounds and now != "0" else []
        yield self._knob(run_settings.BATCH_ITEMS, now, did, turns)


def _setting(name: str, value: Any) -> Change:
    return lambda options: setattr(options, name, value)


def _entry(key: str, value: str) -> Change:
    def change(options: SessionOptions) -> None:
        options._config[key] = value

    return change


def _predicted(found: Explanation) -> float:
    return found.totals["predicted_us"] or 0.0


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "none"
