"""`sardonyx explain`: what runs for a model, kernel by kernel, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import sardonyx
from sardonyx import errors
from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.explaining.explained_plan import UNBOUND
from sardonyx.api.explaining.explanation import Declined, Explanation, Row, abbreviated
from sardonyx.api.explaining.explanation import explain as explain_session
from sardonyx.api.options.run_settings import KERNELS
from sardonyx.cli.arguments import assignments, dimensions
from sardonyx.cli.console import console
from sardonyx.cli.failure import CommandError
from sardonyx.cli.model_inputs import assumed, make_inputs
from sardonyx.cli.models import read_model
from sardonyx.cli.shapes import infer, listed_shape
from sardonyx.cli.why import open_ifs_text, overridable_text, show_why

# Widths from which on the table has a column for details, and columns for what others give in short.
_WIDE, _MIDDLE = 200, 120
_MOST_INPUTS = 6  # that the first line names
_MOST_NODES = 3  # names of nodes at which a rewrite declined


def explain(
    model: Annotated[Path, typer.Argument(help="An ONNX file, or an engine.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="NAME=FILE.npy, NAME=random, NAME=zeros, NAME=ones or NAME=NUMBER."),
    ] = None,
    dims: Annotated[list[str] | None, typer.Option("--dim", help="SYMBOL=SIZE of a symbolic dimension (1).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Run the model and show what every step takes.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of --run, after those that warm up.")] = 20,
    threads: Annotated[int, typer.Option(min=0, help="Threads inside operators; 0 lets the engine choose.")] = 0,
    kernels: Annotated[str, typer.Option(help="An instruction set instead of the machine's best.")] = "",
    level: Annotated[str, typer.Option(help="Optimisation level: disable, basic, extended, layout or all.")] = "all",
    entries: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE, a config entry of the session.")
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="What each knob did, what turning it would do, and the model's troubles.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Where the bytes of the session are after a run.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="A line for each step and each node; else alike ones join.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every kernel of a model: its nodes, rewrites, tile, cost, time, and what runs on the host and why."""
    source = read_model(model).model
    sizes = dimensions(dims or [])
    given = assignments("--input", inputs or [])
    feeds = make_inputs(source, infer(source), given, sizes, 0)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = _level(level)
    for key, value in assignments(
        "--option", [*([f"{KERNELS}={kernels}"] if kernels else []), *(entries or [])]
    ).items():
        options.add_session_config_entry(key, value)
    session = sardonyx.InferenceSession(str(model), options)
    problem = None
    try:
        found = explain_session(session, feeds, runs=repeat if run else 0, why=why)
        if memory:
            session.run(None, feeds)
    except errors.OnnxRuntimeError as error:
        said = assumed(source, given, sizes)
        if not said:
            raise
        problem = f"{error.message} ({said})"
        if run or memory:
            raise CommandError(problem) from error
        found = explain_session(session, binds=False)
    report = session.memory_report() if memory else None
    if as_json:
        held = {} if report is None else {"memory": report.as_dict()}
        print(json.dumps({"model": str(model), **found.as_dict(), "problem": problem, **held}))
        return
    _show(model, found, every)
    if problem is not None:
        console().print(f"problem  {problem}")
    if report is not None:
        console().print(f"\n{report}")


def _level(name: str) -> GraphOptimizationLevel:
    """An optimisation level by its name; CommandError for any other."""
    levels = {level.name.removeprefix("ORT_ENABLE_").lower(): level for level in GraphOptimizationLevel}
    levels["disable"] = levels.pop("ort_disable_all")
    if name not in levels:
        raise CommandError(
            f"--level {name}: expected one of {', '.join(sorted(levels, key=lambda one: int(levels[one])))}"
        )
    return levels[name]


@dataclass(frozen=True)
class Line:
    """Rows of the table that say the same but for numbers in the names of their nodes."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        return self.rows[0]

    def total(self, column: str) -> float | None:
        """The sum of a column over a run of the model, None where a row has no number in it."""
        values = [(getattr(row, column), row.executions) for row in self.rows]
        return None if any(value is None for value, _ in values) else sum(value * times for value, times in values)

    @property
    def nodes(self) -> str:
        return joined([abbreviated(row.nodes) for row in self.rows])


def lines(rows: Sequence[Row], every: bool) -> list[Line]:
    """The rows of a table in the order of the steps; those that are alike in one line, unless `every` one is wanted."""
    if every:
        return [Line((row,)) for row in rows]
    alike: dict[object, list[Row]] = {}
    for row in rows:
        same = (row.kernel, row.epilogue, row.detail, row.rules, row.chunks, row.reason, row.body)
        alike.setdefault(same, []).append(row)
    return [Line(tuple(group)) for group in alike.values()]


def joined(names: Sequence[str]) -> str:
    """Names that differ in numbers alone as one with ``*`` for these; others as the first and how many more."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(part) for part in parts}) == 1:
        columns = list(zip(*parts, strict=True))
        if all(len(set(column)) == 1 or column[0].isdigit() for column in columns):
            return "".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
    return f"{names[0]}, …"


def _show(model: Path, found: Explanation, every: bool) -> None:
    out = console()
    shapes = [f"{name} {listed_shape(shape)}" for name, shape in found.inputs.items()]
    more = f" and {len(shapes) - _MOST_INPUTS} more" if len(shapes) > _MOST_INPUTS else ""
    listed = ", ".join(shapes[:_MOST_INPUTS]) or "all sizes"
    out.print(f"{model}: {listed}{more}; {_threads(found.threads)}, kernels {found.kernels}")
    out.print(_table(found, every, out.width), soft_wrap=False)
    for text in _totals(found):
        out.print(text)
    for entry in [row for row in found.rows if row.kind == "host"] if every else []:
        out.print(f"host  {entry.kernel.removeprefix('host ')} {abbreviated(entry.nodes)}: {entry.reason}")
    for declined in sorted(found.declined, key=lambda one: -len(one.nodes)):
        out.print(f"declined  {_declined(declined, every)}")
    if found.open_ifs is not None:
        out.print(f"sizes  {open_ifs_text(found.open_ifs)}")
    if found.overridable is not None:
        out.print(f"overridable  {overridable_text(found.overridable)}")
    if found.why is not None:
        show_why(out, found, found.why)


def _table(found: Explanation, every: bool, width: int) -> Table:
    """One line for each kernel; narrow terminals get the columns that matter most, and the texts below each other."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    timed = any(row.measured_us is not None for row in found.rows)
    for column in _columns(every, timed, width):
        if column in _TEXTS:
            table.add_column(column, overflow="fold", max_width=width // 3 if _MIDDLE <= width < _WIDE else None)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for line in lines(found.rows, every):
        cells = _cells(line)
        if width < _WIDE:
            cells["kernel"] += f"\n  {cells['how']}" if cells["how"] else ""
        if width < _MIDDLE:
            cells["kernel"] += f"\n  {cells['from']}"
        table.add_row(*(cells[column] for column in _columns(every, timed, width)))
    return table


_TEXTS = ("kernel", "how", "from", "by")


def _columns(every: bool, timed: bool, width: int) -> list[str]:
    wide, middle = width >= _WIDE, width >= _MIDDLE
    there = {
        "step": True,
        "n": not every,
        "kernel": True,
        "how": wide,
        "grid": middle,
        "from": middle,
        "by": wide,
        "MFLOP": wide,
        "MB": wide,
        "model us": True,
        "us": timed,
        "GFLOP/s": timed and middle,
        "roof": timed,
    }
    return [name for name, is_there in there.items() if is_there]


def _cells(line: Line) -> dict[str, str]:
    """What the table says of a line, by column."""
    row = line.first
    flops, nbytes = line.total("flops") or 0.0, line.total("bytes") or 0.0
    predicted, measured = line.total("predicted_us"), line.total("measured_us")
    return {
        "step": str(row.step),
        "n": str(len(line.rows)),
        "kernel": " ".join([row.kernel, *(f"+{word}" for word in row.epilogue)]),
        "how": row.reason or row.detail,
        "grid": str(row.chunks),
        "from": f"in {row.body}: {line.nodes}" if row.body else line.nodes,
        "by": ", ".join(row.rules),
        "MFLOP": _number(flops / 1e6),
        "MB": _number(nbytes / 1e6),
        "model us": "" if predicted is None else _number(predicted),
        "us": "" if measured is None else _number(measured),
        "GFLOP/s": _number(flops / measured / 1e3) if measured and flops else "",
        "roof": f"{predicted / measured:.0%}" if measured and predicted is not None else "",
    }


def _number(value: float) -> str:
    """Three figures, or whole numbers."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _totals(found: Explanation) -> list[str]:
    """The sums, by kernel and over all, and the memory."""
    texts = []
    by_kernel: dict[str, list[Row]] = {}
    for row in found.rows:
        by_kernel.setdefault(_kind(row), []).append(row)
    by_kernel = dict(sorted(by_kernel.items(), key=lambda item: -_weight(item[1])))
    width = max(map(len, by_kernel), default=0)
    for name, rows in [*by_kernel.items(), *([("all", found.rows)] if found.rows else [])]:
        line = Line(tuple(rows))
        # The time of a node includes that of its subgraphs.
        measured = found.totals["measured_us"] if name == "all" else line.total("measured_us")
        texts.append(f"{name:<{width}} {_sums(line, measured)}")
    if found.run_us is not None:
        texts.append(f"one run takes {found.run_us:,.0f} us (median of {found.runs})")
    for name, counts in (("views", found.views), ("known", found.known)):
        if counts:
            texts.append(f"{name}  {sum(counts.values())}: {', '.join(f'{kind} {n}' for kind, n in counts.items())}")
    texts.append(
        f"memory  arena {_bytes(found.arena_bytes)}, scratch {_bytes(found.scratch_bytes)} a thread, "
        f"constants {_bytes(found.constant_bytes)} of which {_bytes(found.packed_bytes)} packed"
    )
    if found.ceilings:
        texts.append(_ceilings(found.ceilings, found.threads))
    if found.rewrites:
        texts.append(f"rewrites  {', '.join(f'{name} {count}' for name, count in found.rewrites.items())}")
    return texts


def _kind(row: Row) -> str:
    """What a row counts as among the sums."""
    if row.kind == "host" or row.kernel == UNBOUND:
        return "host" if row.kind == "host" else UNBOUND
    return row.kernel.rpartition(" ")[0] or row.kernel


def _bytes(count: int) -> str:
    return f"{_number(count / 1e6)} MB" if count >= 1e6 else f"{_number(count / 1e3)} KB"


def _weight(rows: Sequence[Row]) -> float:
    return sum((row.measured_us or row.predicted_us or 0.0) * row.executions for row in rows)


def _sums(line: Line, measured: float | None) -> str:
    predicted = sum((row.predicted_us or 0.0) * row.executions for row in line.rows)
    text = f"{len(line.rows):>4} {'step ' if len(line.rows) == 1 else 'steps'}"
    text += f" {_number((line.total('flops') or 0) / 1e6):>9} MFLOP"
    text += f" {_number((line.total('bytes') or 0) / 1e6):>7} MB {_number(predicted):>8} us by the ceilings"
    if measured:
        text += f" {_number(measured):>8} us measured, {predicted / measured:.0%}"
    return text


def _ceilings(ceilings: dict[str, Any], threads: int) -> str:
    compute, read = ceilings["compute"][threads], ceilings["read"][threads]
    rates = [f"{name} {rate:,.0f} Gop/s" for name, rate in compute.items()]
    rates += [f"{place} {rate:,.0f} GB/s" for place, rate in read.items()]
    return f"ceilings  {', '.join(rates)} with {_threads(threads)}"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _declined(one: Declined, every: bool) -> str:
    names = one.nodes if every else one.nodes[:_MOST_NODES]
    more = ", …" if len(names) < len(one.nodes) else ""
    return f"{one.rule}: {one.reason} ({len(one.nodes)}: {', '.join(names)}{more})"
