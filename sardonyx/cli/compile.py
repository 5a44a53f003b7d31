"""`sardonyx compile`: a model to an engine, from which sessions begin at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import sardonyx
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.engine_compiler import Summary, compile_engine
from sardonyx.cli.arguments import assignments, dimensions
from sardonyx.cli.console import console
from sardonyx.cli.failure import CommandError


def compile_(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The engine; MODEL.engine if left out.")] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", help="NAME:MIN,OPT,MAX;… as in ids:1x8,1x128,1x512; once for each profile."),
    ] = None,
    dims: Annotated[
        list[str] | None, typer.Option("--dim", help="SYMBOL=SIZE of a symbolic dimension (1), without profiles.")
    ] = None,
    entries: Annotated[
        list[str] | None, typer.Option("--option", help="KEY=VALUE, a config entry of the engine's sessions.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads inside operators; 0 lets the engine choose.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile a model ahead to one file: optimised graph, packed weights, machine code and plans."""
    if profiles and dims:
        raise CommandError("--dim is for engines of one shape: leave it out, or --profile")
    options = sardonyx.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    for key, value in assignments("--option", entries or []).items():
        options.add_session_config_entry(key, value)
    target = model.with_suffix(".engine") if output is None else output
    read = [shape_profiles.parse(text) for text in profiles] if profiles else None
    summary = compile_engine(str(model), target, options, read, dimensions(dims or []))
    if as_json:
        print(json.dumps(_report(model, summary)))
    else:
        _show(summary)


def _report(model: Path, summary: Summary) -> dict[str, object]:
    return {
        "model": str(model),
        "engine": str(summary.path),
        "bytes": summary.nbytes,
        "sections": dict(summary.sections),
        "profiles": [profile.content() for profile in summary.profiles],
        "kernels": summary.kernels,
        "machine": summary.content["machine"],
        "version": summary.content["version"],
        "source": summary.content["source"],
    }


def _show(summary: Summary) -> None:
    out = console()
    machine = summary.content["machine"].split("|")[0]
    out.print(f"{summary.path}: {summary.nbytes / 1e6:,.1f} MB, {summary.kernels} kernels for {machine}")
    parts = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in summary.sections.items())
    out.print(f"sections  {parts}")
    for profile in summary.profiles:
        shapes = [
            f"{name} {', '.join('x'.join(map(str, shape)) or 'scalar' for shape in dict.fromkeys(three))}"
            for name, three in profile.shapes.items()
        ]
        out.print(f"profile   {'; '.join(shapes)}")
