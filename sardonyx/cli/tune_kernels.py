"""`sardonyx tune-kernels`: fit the kernels' choices to this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

from sardonyx.cli.console import console, number_table, say
from sardonyx.cli.failure import CommandError
from sardonyx.cli.options import Json
from sardonyx.runtime.files.kept import why_nothing_is_kept

EXAMPLES = ("sardonyx tune-kernels", "sardonyx tune-kernels --dry-run", "sardonyx tune-kernels --reset")


def tune_kernels(
    threads: Annotated[
        int, typer.Option(min=0, metavar="N", help="Threads to tune for; 0 for those a session has.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and show, but keep nothing.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was measured; the defaults apply again.")] = False,
    as_json: Json = False,
) -> None:
    """Fit the kernels' choices to this machine, and keep them."""
    from sardonyx.tuning import stored

    if reset:
        path = stored.forget()
        print(json.dumps({"file": None}) if as_json else f"forgot {path}" if path else "nothing was stored")
        return
    found = stored.measure(threads, lambda text: print(f"measuring {text} …", file=sys.stderr))
    path = None if dry_run else stored.keep(found)
    if path is None and not dry_run:
        raise CommandError(why_nothing_is_kept() or "the machine's figures cannot be written: is the disk full?")
    report = found.as_dict() | {"file": None if path is None else str(path)}
    if as_json:
        print(json.dumps(report))
    else:
        _show(report, found)


def _show(report: dict[str, Any], found: Any) -> None:
    out = console()
    for part, unit in (("compute", "Gop/s"), ("read", "GB/s")):
        for count, rates in report["ceilings"][part].items():
            listed = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
            say(out, f"{count} threads  {unit:<6} {listed}")
    table = number_table("number", "default", "here", "gain")
    for group, numbers in (("gemm", found.fit.gemm), ("rows", found.fit.rows)):
        before, after = asdict(type(numbers)()), asdict(numbers)
        for field in fields(numbers):
            gain = found.fit.gains.get(field.name)
            table.add_row(
                f"{group} {field.name}",
                _shown(before[field.name]),
                _shown(after[field.name]),
                "" if gain is None else f"{gain:.3f}x",
            )
    out.print(table)
    say(out, f"wrote {report['file']}" if report["file"] else "nothing was kept")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
