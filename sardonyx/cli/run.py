"""`sardonyx run`: run a model once or several times and show what comes out."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import typer
from ml_dtypes import int2, int4, uint2, uint4

import sardonyx
from sardonyx import errors
from sardonyx.api.building.extra_outputs import add_outputs
from sardonyx.cli.arguments import assignments, dimensions, session_options
from sardonyx.cli.assumptions import Assumptions, naming
from sardonyx.cli.console import console, plain_table, say
from sardonyx.cli.failure import CommandError, UsageError
from sardonyx.cli.model_inputs import make_inputs
from sardonyx.cli.models import read_model, tell_if_compiled, tell_what_is_kept
from sardonyx.cli.options import Dims, Entries, Inputs, Json, Level, Model, Threads
from sardonyx.cli.shapes import infer, listed_shape
from sardonyx.runtime.files.opening import replacing

EXAMPLES = (
    "sardonyx run model.onnx --dim batch=1 --dim seq=128",
    "sardonyx run model.onnx --input ids=ids.npy --save results",
    "sardonyx run model.onnx --output layer_norm_6 --level disable",
)

_SHOWN_VALUES = 6
# Characters of an output's name in that of its file; file systems take 255 for the whole.
_LONGEST_NAME = 200


def run(
    model: Model,
    inputs: Inputs = None,
    dims: Dims = None,
    providers: Annotated[
        list[str] | None, typer.Option("--provider", metavar="NAME", help="Providers, best first.")
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="NAME",
            help="Values to compute: outputs (all), or any value inside, around which fusions change.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=0, metavar="N", help="Timed runs after the first.")] = 3,
    threads: Threads = 0,
    level: Level = "all",
    entries: Entries = None,
    profile: Annotated[bool, typer.Option("--profile", help="Write a trace of the runs.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder that gets every output as a .npy file.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a model on given or random inputs; print its outputs and the time."""
    options = session_options(threads, level, entries or [])
    options.enable_profiling = profile
    sizes = dimensions(dims or [])
    given = assignments("--input", inputs or [])
    source = read_model(model).model
    feeds = make_inputs(source, infer(source), given, sizes, seed)
    assumptions = Assumptions(source, given, sizes, feeds)

    available = sardonyx.get_available_providers()
    for name in providers or []:
        if name not in available:
            raise UsageError(f"--provider {name}: it cannot run here; there are {', '.join(available)}")

    inner = _inner(source, outputs or [])
    tell_what_is_kept()
    tell_if_compiled(model, options)

    start = time.perf_counter()
    session = sardonyx.InferenceSession(str(model), options, providers=providers or available, extra_outputs=inner)
    load_s = time.perf_counter() - start
    known = [output.name for output in session.get_outputs()]

    seconds = []
    results: list[Any] = []
    for _ in range(1 + repeat):
        start = time.perf_counter()
        with naming(assumptions):
            results = session.run(outputs or None, feeds)
        seconds.append(time.perf_counter() - start)
    trace = session.end_profiling() if profile else None

    named = dict(zip(outputs or known, results, strict=True))
    report = {
        "model": str(model),
        "providers": session.get_providers(),
        "inputs": [{"name": n, "dtype": str(v.dtype), "shape": list(v.shape)} for n, v in feeds.items()],
        "outputs": [describe(name, value) for name, value in named.items()],
        "seconds": {
            "load": load_s,
            "first": seconds[0],
            "median": statistics.median(seconds[1:] or seconds),
            "runs": len(seconds),
        },
        "assumed": assumptions.sizes,
        "trace": trace,
        "saved": _save(named, save) if save is not None else [],
    }
    if as_json:
        print(json.dumps(report))
    else:
        _show(report, assumptions.line)


def _inner(model: ir.Model, names: list[str]) -> list[str]:
    """Those of these values that are no outputs of the model; UsageError for one that it has not."""
    own = [value.name for value in model.graph.outputs]
    inner = [name for name in names if name not in own]
    try:
        add_outputs(model, inner)
    except errors.InvalidArgument as error:
        text = error.message.removeprefix("extra_outputs: ")
        raise UsageError(
            f"--output: {text}{'' if text.endswith('?') else '.'} Its outputs are {', '.join(map(str, own))}"
        ) from error
    return inner


def describe(name: str, value: Any) -> dict[str, Any]:
    """An output for a reader: name, element type, shape, first elements; a sequence or map by its length."""
    if not isinstance(value, np.ndarray):
        length = len(value) if isinstance(value, list | dict) else 0
        return {"name": name, "dtype": type(value).__name__, "shape": [length], "values": []}
    values = [_plain(item) for item in value.ravel()[:_SHOWN_VALUES]]
    return {"name": name, "dtype": str(value.dtype), "shape": list(value.shape), "values": values}


def _plain(item: Any) -> Any:
    """A number or text that JSON can hold; NaN and infinity as text."""
    if isinstance(item, np.bool_ | bool):
        return bool(item)
    if isinstance(item, np.integer | int | int4 | uint4 | int2 | uint2):
        return int(item)
    if isinstance(item, str | complex | np.complexfloating):
        return str(item)
    number = float(item)
    return number if np.isfinite(number) else str(number)


def _save(outputs: dict[str, Any], folder: Path) -> list[str]:
    files = []
    for index, (name, value) in enumerate(outputs.items()):
        if not isinstance(value, np.ndarray) or value.dtype == object:
            raise CommandError(f"--save: output {name} is no tensor of numbers, a .npy file cannot hold it")
        path = folder / f"{index}_{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:_LONGEST_NAME]}.npy"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                np.save(file, value)
        except OSError as error:
            raise CommandError(f"--save {folder}: {path.name} cannot be written: {error.strerror}") from error
        files.append(str(path))
    return files


def _show(report: dict[str, Any], assumed: str) -> None:
    out = console()
    table = plain_table("output", "type", "shape", "values")
    for output in report["outputs"]:
        shown = ", ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in output["values"])
        more = ", …" if shown and np.prod(output["shape"], dtype=np.int64) > len(output["values"]) else ""
        table.add_row(output["name"], output["dtype"], listed_shape(output["shape"]), shown + more)
    out.print(table)
    if assumed:
        say(out, f"sizes  {assumed}")
    seconds = report["seconds"]
    say(
        out,
        f"load {seconds['load'] * 1e3:.1f} ms, first run {seconds['first'] * 1e3:.3f} ms, "
        f"median {seconds['median'] * 1e3:.3f} ms of {max(seconds['runs'] - 1, 1)} on {report['providers'][0]}",
    )
    for path in [*report["saved"], *([report["trace"]] if report["trace"] else [])]:
        say(out, f"wrote {path}")
