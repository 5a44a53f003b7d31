"""`sardonyx warm`: what the first process of a model would compile is there before it begins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import sardonyx
from sardonyx.api.warming import Warmed
from sardonyx.api.warming import warm as warmed
from sardonyx.cli.arguments import assignments, session_options, whole_number
from sardonyx.cli.assumptions import Assumptions, naming
from sardonyx.cli.console import console, number_table, say
from sardonyx.cli.failure import CommandError, UsageError
from sardonyx.cli.model_inputs import make_inputs, open_dimensions, required_inputs
from sardonyx.cli.models import read_model
from sardonyx.cli.options import Entries, Inputs, Json, Level, Threads
from sardonyx.cli.shapes import infer
from sardonyx.graph.load import LoadedModel
from sardonyx.runtime.files.kept import why_nothing_is_kept

EXAMPLES = (
    "sardonyx warm model.onnx --dim batch=1 --dim seq=64,128,512",
    "sardonyx warm encoder.onnx decoder.onnx --threads 2",
)

# Runs of one model, one for each combination of sizes.
_MOST_RUNS = 64


def warm(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL…", help="ONNX files.", show_default=False)],
    inputs: Inputs = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE[,SIZE…]", help="Sizes of a symbolic dimension (1), each of them run."),
    ] = None,
    providers: Annotated[
        list[str] | None, typer.Option("--provider", metavar="NAME", help="Providers, best first.")
    ] = None,
    threads: Threads = 0,
    level: Level = "all",
    entries: Entries = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Run models once, so that their kernels and engines are in the cache; the options are those of the sessions to
    come."""
    options = session_options(threads, level, entries or [])
    given, sizes = assignments("--input", inputs or []), _sizes(dims or [])
    available = sardonyx.get_available_providers()
    for name in providers or []:
        if name not in available:
            raise UsageError(f"--provider {name}: it cannot run here; there are {', '.join(available)}")
    if why := why_nothing_is_kept():
        raise CommandError(why)
    sources = [read_model(path) for path in models]
    _check_names("--dim", sizes, [name for one in sources for name in open_dimensions(required_inputs(one.model))])
    _check_names("--input", given, [str(value.name) for one in sources for value in one.model.graph.inputs])
    rows = []
    for path, source in zip(models, sources, strict=True):
        done, assumed = _warmed(path, source, given, sizes, options, providers or available, seed)
        rows.append({"model": str(path), **done._asdict(), "assumed": assumed})
    if as_json:
        print(json.dumps(rows))
    else:
        _show(rows)


def _sizes(texts: Sequence[str]) -> dict[str, list[int]]:
    """The sizes of symbolic dimensions, several of each; UsageError for what is no number."""
    found = {
        name: [whole_number(f"--dim {name}", one) for one in value.split(",")]
        for name, value in assignments("--dim", texts).items()
    }
    return {name: list(dict.fromkeys(several)) for name, several in found.items()}


def _check_names(option: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """UsageError for a name that no model has."""
    for name in given:
        if name not in known:
            there = ", ".join(dict.fromkeys(known)) or "none"
            raise UsageError(f"{option} {name}: no model has it; there are {there}")


def _warmed(
    path: Path,
    source: LoadedModel,
    given: Mapping[str, str],
    sizes: Mapping[str, Sequence[int]],
    options: sardonyx.SessionOptions,
    providers: Sequence[str],
    seed: int,
) -> tuple[Warmed, dict[str, int]]:
    """What was done for a model, and the sizes that nobody gave."""
    model = source.model
    given = {name: how for name, how in given.items() if name in {str(value.name) for value in model.graph.inputs}}
    named = [name for name in open_dimensions(model.graph.inputs) if name in sizes]
    combined = [dict(zip(named, one, strict=True)) for one in itertools.product(*(sizes[name] for name in named))]
    if len(combined) > _MOST_RUNS:
        raise UsageError(f"--dim: {len(combined)} combinations of sizes for {path}; at most {_MOST_RUNS} are run")
    inference = infer(model)
    feeds = [make_inputs(model, inference, given, one, seed) for one in combined]
    assumptions = Assumptions(model, given, combined[0], feeds[0])
    with naming(assumptions):
        return warmed(str(path), source.files, options, providers, feeds), assumptions.sizes


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    table = number_table("model", "compiled", "in the cache", "ready", "seconds", "engine")
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("compiled", "from_cache", "from_pack")]
        table.add_row(row["model"], *counts, f"{row['seconds']:.1f}", "kept" if row["engine"] else "none")
    out.print(table)
    for row in rows:
        if row["assumed"]:
            listed = ", ".join(f"{name} = {size}" for name, size in row["assumed"].items())
            say(out, f"sizes  {row['model']}: {listed}, as none was given: --dim NAME=SIZE")
