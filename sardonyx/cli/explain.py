"""`sardonyx explain`: what runs for a model, kernel by kernel, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import sardonyx
from sardonyx import errors
from sardonyx.api.explaining.explained_plan import UNBOUND
from sardonyx.api.explaining.explanation import Declined, Explanation, Row, abbreviated, stage_lines
from sardonyx.api.explaining.explanation import explain as explain_session
from sardonyx.api.explaining.stages import STAGES
from sardonyx.api.options.run_settings import KERNELS
from sardonyx.cli.arguments import assignments, dimensions, session_options
from sardonyx.cli.assumptions import Assumptions
from sardonyx.cli.console import console, number_table, plain_table, say
from sardonyx.cli.failure import UsageError
from sardonyx.cli.model_inputs import make_inputs
from sardonyx.cli.models import read_model, tell_what_is_kept
from sardonyx.cli.options import Dims, Entries, Inputs, Json, Level, Model, Threads
from sardonyx.cli.shapes import infer, listed_shape
from sardonyx.cli.why import coverage_text, open_ifs_text, overridable_text, show_why

# Widths from which on tables have a column for details, columns for what others give in short, and those of work.
_WIDE, _MIDDLE, _NARROW = 200, 120, 60
_MOST_INPUTS = 6  # that the first line names
_MOST_NODES = 3  # names of nodes at which a rewrite declined
_ORDERS = ("step", "time")


EXAMPLES = (
    "sardonyx explain model.onnx --dim seq=128 --run --sort time",
    "sardonyx explain model.onnx --dim seq=128 --why",
    "sardonyx explain model.onnx --option sardonyx.cpu.winograd=0 --json",
    "sardonyx explain model.onnx --dim seq=128 --stage asm --kernel 3",
)


def explain(
    model: Model,
    inputs: Inputs = None,
    dims: Dims = None,
    run: Annotated[bool, typer.Option("--run", help="Run the model and show what every step takes.")] = False,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of --run, after those that warm up.")] = 20,
    sort: Annotated[str, typer.Option(metavar="NAME", help="Order of the table: step or time.")] = "step",
    threads: Threads = 0,
    kernels: Annotated[
        str, typer.Option(metavar="NAME", help="An instruction set instead of the machine's best.")
    ] = "",
    level: Level = "all",
    entries: Entries = None,
    why: Annotated[
        bool, typer.Option("--why", help="What each knob did, what turning it would do, and the model's troubles.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Where the bytes of the session are after a run.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="A line for each step and each node; else alike ones join.")
    ] = False,
    stage: Annotated[
        str, typer.Option(metavar="NAME", help=f"What one stage of compilation makes: {', '.join(STAGES)}.")
    ] = "",
    kernel: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="With --stage: the number of a step in the table.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a model; `sardonyx explain --help` says what is shown."""
    if sort not in _ORDERS:
        raise UsageError(f"--sort {sort}: expected {' or '.join(_ORDERS)}")
    if stage and stage not in STAGES:
        raise UsageError(f"--stage {stage}: expected {', '.join(STAGES)}")
    if kernel is not None and stage in ("", "rewritten"):
        raise UsageError("--kernel N chooses a step of --stage kernels, plan, llvm or asm")
    if stage and (run or why or memory or as_json):
        raise UsageError("--stage prints text alone: leave out --run, --why, --memory and --json")
    chosen = [f"{KERNELS}={kernels}"] if kernels else []
    options = session_options(threads, level, [*chosen, *(entries or [])])
    sizes = dimensions(dims or [])
    given = assignments("--input", inputs or [])
    source = read_model(model).model
    feeds = make_inputs(source, infer(source), given, sizes, 0)
    assumptions = Assumptions(source, given, sizes, feeds)
    tell_what_is_kept()
    session = sardonyx.InferenceSession(str(model), options)
    if stage:
        for line in stage_lines(session, stage, feeds, step=kernel):
            print(line)
        return
    problem = None
    try:
        found = explain_session(session, feeds, runs=repeat if run else 0, why=why)
        if memory:
            session.run(None, feeds)
    except errors.OnnxRuntimeError as error:
        said = assumptions.explained(error)
        if said is None:
            raise
        if run or memory:
            raise said from error
        problem = str(said)
        found = explain_session(session, binds=False)
    report = session.memory_report() if memory else None
    if as_json:
        held = {} if report is None else {"memory": report.as_dict()}
        also = {"assumed": assumptions.sizes, "problem": problem, **held}
        print(json.dumps({"model": str(model), **found.as_dict(), **also}))
        return
    out = console()
    _head(out, model, found)
    if assumptions.line:
        say(out, f"sizes  {assumptions.line}")
    if found.why is not None:
        show_why(out, found, found.why)
    if report is not None:
        say(out, f"\n{report}")
    if run or every or not (why or memory):
        _show(out, found, Shown(every, by_time=sort == "time"))
    for coverage in () if found.new_sizes is None else found.new_sizes.coverage:
        say(out, f"new sizes  {coverage_text(coverage)}")
    if found.open_ifs is not None:
        say(out, f"ifs  {open_ifs_text(found.open_ifs)}")
    if found.overridable is not None:
        say(out, f"overridable  {overridable_text(found.overridable)}")
    if problem is not None:
        say(out, f"problem  {problem}")


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
    def weight(self) -> float:
        """Microseconds in a run, as measured, or else as the ceilings say."""
        return sum(map(weight, self.rows))

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


def _head(out: Console, model: Path, found: Explanation) -> None:
    shapes = [f"{name} {listed_shape(shape)}" for name, shape in found.inputs.items()]
    more = f" and {len(shapes) - _MOST_INPUTS} more" if len(shapes) > _MOST_INPUTS else ""
    listed = ", ".join(shapes[:_MOST_INPUTS]) or "all sizes"
    say(out, f"{model}: {listed}{more}; {_threads(found.threads)}, kernels {found.kernels}")


@dataclass(frozen=True)
class Shown:
    """How the table is shown: a line for `every` step, in the order of their times."""

    every: bool = False
    by_time: bool = False


def _show(out: Console, found: Explanation, shown: Shown) -> None:
    out.print()
    out.print(_table(found, shown, out.width))
    out.print()
    out.print(_sums(found, out.width))
    out.print()
    for text in _remarks(found):
        say(out, text)
    for entry in [row for row in found.rows if row.kind == "host"] if shown.every else []:
        say(out, f"host  {entry.kernel.removeprefix('host ')} {abbreviated(entry.nodes)}: {entry.reason}")
    for declined in sorted(found.declined, key=lambda one: -len(one.nodes)):
        say(out, f"declined  {_declined(declined, shown.every)}")


def _table(found: Explanation, shown: Shown, width: int) -> Table:
    """One line for each kernel; narrow terminals get the columns that matter most, and the texts below each other."""
    table = plain_table()
    every, timed = shown.every, any(row.measured_us is not None for row in found.rows)
    whole = sum(weight(row) for row in found.rows)
    for column in _columns(every, timed, width):
        if column in _TEXTS:
            table.add_column(column, overflow="fold", max_width=width // 3 if _MIDDLE <= width < _WIDE else None)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    listed = lines(found.rows, every)
    for line in sorted(listed, key=lambda one: -one.weight) if shown.by_time else listed:
        cells = _cells(line, whole)
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
        "share": True,
        "GFLOP/s": timed and middle,
        "roof": timed,
    }
    return [name for name, is_there in there.items() if is_there]


def _cells(line: Line, whole: float) -> dict[str, str]:
    """What the table says of a line, by column; `whole` is the time of all."""
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
        "share": f"{line.weight / whole:.1%}" if whole else "",
        "GFLOP/s": _number(flops / measured / 1e3) if measured and flops else "",
        "roof": f"{predicted / measured:.0%}" if measured and predicted is not None else "",
    }


def _number(value: float) -> str:
    """Three figures, or whole numbers."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _sums(found: Explanation, width: int) -> Table:
    """The sums, by kernel and over all; what is computed and moved only where there is room."""
    by_kernel: dict[str, list[Row]] = {}
    for row in found.rows:
        by_kernel.setdefault(_kind(row), []).append(row)
    by_kernel = dict(sorted(by_kernel.items(), key=lambda item: -sum(map(weight, item[1]))))
    timed = found.totals["measured_us"]
    work = ["MFLOP", "MB"] if width >= _NARROW else []
    shares = ["us", "share", "roof"] if timed else ["share"]
    table = number_table("kernel", "steps", *work, "model us", *shares)
    whole = sum(weight(row) for row in found.rows)
    for name, rows in [*by_kernel.items(), *([("all", found.rows)] if found.rows else [])]:
        line = Line(tuple(rows))
        predicted = sum((row.predicted_us or 0.0) * row.executions for row in rows)
        # The time of a node includes that of its subgraphs.
        measured = timed if name == "all" else line.total("measured_us")
        table.add_row(
            name,
            str(len(rows)),
            *(_number((line.total(column) or 0) / 1e6) for column in (("flops", "bytes") if work else ())),
            _number(predicted),
            *([_number(measured) if measured else ""] if timed else []),
            f"{line.weight / whole:.1%}" if whole and name != "all" else "",
            *([f"{predicted / measured:.0%}" if measured else ""] if timed else []),
        )
    return table


def _remarks(found: Explanation) -> list[str]:
    """What holds of the model as a whole: its time, what costs nothing, memory, ceilings, rewrites."""
    texts = []
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


def weight(row: Row) -> float:
    """Microseconds of a row in a run, as measured, or else as the ceilings say."""
    return (row.measured_us or row.predicted_us or 0.0) * row.executions


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
