"""The part of `sardonyx explain` that says why: what knobs did and would do, and the troubles of the checklist."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sardonyx.api.explaining.explanation import (
    Coverage,
    Diagnosis,
    Explanation,
    Knob,
    OpenIfs,
    Overridable,
    Turned,
    Why,
)
from sardonyx.cli.console import plain_table, say

_MOST_NODES = 3  # names of nodes at which there is a trouble

# From this width on the table has columns for memory.
_WIDE = 120

_SAME = "="


def show_why(out: Console, found: Explanation, why: Why) -> None:
    """A line for each trouble, and the knobs as a table, each with the values that it could have.

    Knobs of which no other value would change anything share a line.
    """
    out.print()
    for diagnosis in sorted(why.diagnoses, key=lambda one: not one.found):
        say(out, _told(diagnosis))
    out.print()
    idle = [knob for knob in why.knobs if _is_idle(found, knob)]
    out.print(_table(found, [knob for knob in why.knobs if knob not in idle], out.width))
    if idle:
        out.print()
        say(out, f"no effect  {'; '.join(f'{knob.name} = {knob.value}' for knob in idle)}")


def _is_idle(found: Explanation, knob: Knob) -> bool:
    """Whether nothing is known to change where a knob is turned."""
    return all(
        not turned.note
        and turned.steps in (None, len(found.rows))
        and all(change in ("", _SAME) for change in _changes(found, turned))
        for turned in knob.turned
    )


def overridable_text(one: Overridable) -> str:
    """What it costs that callers may override initializers, in words."""
    costs = [f"{name} {count}" for name, count in one.rewrites.items()]
    if one.packed_bytes:
        costs.append(f"{_bytes(one.packed_bytes)} more of the model packed for its kernels")
    if one.steps[1] != one.steps[0]:
        costs.append(f"{one.steps[1]} steps in place of {one.steps[0]}")
    if one.predicted_us is not None and one.predicted_us[1] < one.predicted_us[0]:
        costs.append(f"{one.predicted_us[1]:,.0f} us in place of {one.predicted_us[0]:,.0f} by the ceilings")
    names = f"{', '.join(one.names[:_MOST_NODES])}{', …' if len(one.names) > _MOST_NODES else ''} ({len(one.names)})"
    allowed = ", ".join(costs) or "no more"
    return f"{names} can be fed, read by {_listed(one.nodes)}; as constants they would allow {allowed}"


def coverage_text(one: Coverage) -> str:
    """For how many sizes an engine has plans, in words."""
    if one.covered == one.sizes:
        return f"the engine has plans for all {one.sizes:,} of a profile"
    return f"the engine has plans for {one.covered:,} of {one.sizes:,} of a profile: {one.reason}"


def open_ifs_text(one: OpenIfs) -> str:
    """What becomes of Ifs that ask for sizes, in words."""
    asking = f"{'1 If asks' if len(one.names) == 1 else f'{len(one.names)} Ifs ask'} for sizes ({_listed(one.names)})"
    if not one.is_shown:
        return f"{asking}; this is the plan for all sizes, where ranks behind them are not known: {one.note}"
    return (
        f"{asking}, of which these decide {len(one.decided)}; this is the plan for these sizes alone, for which the "
        "model is compiled again when they come for the second time; the first run takes the plan for all sizes"
    )


def _table(found: Explanation, knobs: Sequence[Knob], width: int) -> Table:
    table = plain_table()
    timed = found.run_us is not None
    wide = width >= _WIDE
    table.add_column("knob", overflow="fold", max_width=None if wide else width // 2)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("model us", justify="right", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    if timed:
        table.add_column("us", justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
    if wide:
        table.add_column("arena", justify="right", no_wrap=True)
        table.add_column("packed", justify="right", no_wrap=True)
    for knob in knobs:
        table.add_row(f"{knob.name} = {knob.value}\n  {knob.did}")
        for turned in knob.turned:
            table.add_row(*_cells(found, turned, timed, wide))
    return table


def _cells(found: Explanation, turned: Turned, timed: bool, wide: bool) -> list[str]:
    """What the table says of another value of a knob."""
    name = f"  {turned.value}{f' ({turned.note})' if turned.note else ''}"
    predicted, measured = _changes(found, turned)
    cells = [name, _or_nothing(turned.steps), _microseconds(turned.predicted_us), predicted]
    if timed:
        cells += [_microseconds(turned.measured_us), measured]
    if wide:
        cells += ["" if count is None else _bytes(count) for count in (turned.arena_bytes, turned.packed_bytes)]
    return cells


def _changes(found: Explanation, turned: Turned) -> tuple[str, str]:
    """How the predicted and the measured time change with another value."""
    predicted = _change(turned.predicted_us, found.totals["predicted_us"])
    return predicted, _change(turned.measured_us, turned.beside_us)


def _told(one: Diagnosis) -> str:
    """A trouble in words; what is none says so."""
    if not one.found:
        return f"ok       {one.name}: {one.evidence}"
    text = f"TROUBLE  {one.name}: {one.evidence}"
    if one.nodes:
        text += f" [{_listed(one.nodes)}]"
    return f"{text}. What helps: {one.remedy}" if one.remedy else text


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MOST_NODES])
    return f"{shown}, … ({len(names)})" if len(names) > _MOST_NODES else shown


def _or_nothing(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _change(value: float | None, now: float | None) -> str:
    """How much more or less than now, in percent."""
    if value is None or not now:
        return ""
    share = value / now - 1
    return _SAME if abs(share) < 0.005 else f"{share:+.0%}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} KB"
